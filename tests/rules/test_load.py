"""Strict reading: what is right is read, and everything that is wrong is told with its line."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules.load import BadFile, decode
from rules.pattern import Duration, Pattern
from rules.rule_file import RuleFile

Table = dict[str, Any]
MESSAGE = re.compile(r"f\.toml:([0-9]+): (.+)")

RULES = """\
[[rule]]
name = "oom"
failure_mode = "cuda-oom"
summary = "out of memory"
on = { log = { pattern = "out of memory", level = ["ERROR"] } }
escalate = [
  { severity = "warning", immediately = true },
  { severity = "critical", persistent = 3, within = "1h" },
]

[[rule]]
name = "nan"
failure_mode = "nan-loss"
summary = "not a number"
on.metric.name = ["loss"]
escalate = [{ severity = "critical", immediately = true, nan = true }]
"""


class Mail(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="mail"):
    """One kind of receiver."""

    name: Annotated[str, msgspec.Meta(min_length=1)]
    password_file: str | None = None
    retries: Annotated[int, msgspec.Meta(ge=0, le=5)] = 1


class Pager(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="pager"):
    """Another one."""

    name: str


class Sample(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields of every type that a file may have."""

    sink: list[Mail | Pager] = []
    every: Duration | None = None
    pattern: Pattern | None = None
    level: Literal["low", "high"] | list[Literal["low", "high"]] = []
    only: Literal[True] | None = None
    share: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.5
    roles: dict[Literal["a", "b"], int] = {}
    groups: list[list[str]] = []
    few: Annotated[list[str], msgspec.Meta(max_length=2)] = []
    mail: Mail | None = None


def refused(text: str, wanted: type[msgspec.Struct] = Sample) -> list[str]:
    """Return the messages that *text* is refused with."""
    with pytest.raises(BadFile) as error:
        decode(text, "f.toml", wanted)
    return error.value.messages


def test_a_sound_file_is_read() -> None:
    """Patterns and durations are made, names are those of the file."""
    oom, nan = decode(RULES, "f.toml", RuleFile).rule
    assert oom.on.log is not None
    assert oom.on.log.pattern == Pattern("out of memory")
    assert [escalation.within for escalation in oom.escalate] == [None, 3600.0]
    assert nan.on.kind == "metric"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('level = "lo"', '1: $.level: "lo" is not one of low, high or a list of such'),
        ('level = ["low", "lo"]', '1: $.level[1]: "lo" is not one of low, high'),
        ("only = false", "1: $.only: false is not true (else leave it out)"),
        ("share = 1", "1: $.share: 1 is not a number that is above 0 and is below 1"),
        ('share = "a"', '1: $.share: "a" is not a number that is above 0 and is below 1'),
        ("roles = { a = 1, c = 2 }", '1: $.roles: key "c" is not one of a, b'),
        ("roles.a = 1.5", "1: $.roles.a: 1.5 is not a whole number"),
        ("roles = []", "1: $.roles: a list is not a table"),
        ('groups = [["a"], "b"]', '1: $.groups[1]: "b" is not a list in brackets, each entry text'),
        (
            "few = ['a', 'b', 'c']",
            "1: $.few: 3 entries are not a list in brackets, each entry text that is at most 2 long",
        ),
        ('every = "15 min"', '1: $.every: "15 min" is not a duration: write it as "15m"'),
        ("every = 15", '1: $.every: 15 is not a duration: write it as text with a unit, such as "15m"'),
        ("every = 1979-05-27", '1: $.every: 1979-05-27 is not a duration: write it as text with a unit, such as "15m"'),
        ("every = {}", '1: $.every: a table is not a duration such as "15m"'),
        ("pattern = '('", '1: $.pattern: "(" is not a pattern: missing )'),
        ("pattern = ['a', '(']", '1: $.pattern[1]: "(" is not a pattern: missing )'),
        ("pattern = []", "1: $.pattern: 0 entries are not a pattern or a list of them"),
        ("[sink]\nname = 'x'", "1: $.sink: a table is not a list of tables (double brackets)"),
        ("[[mail]]", "1: $.mail: a list is not a table"),
        ("mail = 'x'", '1: $.mail: "x" is not a table'),
        ("[mail]", '1: $.mail: missing key "name"'),
        ("[mail]\nname = ''", '2: $.mail.name: "" is not text that is at least 1 long'),
        ("[mail]\ntype = 'pager'\nname = 'x'", '2: $.mail.type: "pager" is not one of mail'),
        ("[[sink]]\nname = 'x'", '1: $.sink[0]: missing key "type", one of mail, pager'),
        ("[[sink]]\n\ntype = 'fax'", '3: $.sink[0].type: "fax" is not one of mail, pager'),
        ("[[sink]]\ntype = ['mail']", "2: $.sink[0].type: a list is not one of mail, pager"),
        ("[[sink]]\ntype = 'pager'\nname = 5", "3: $.sink[0].name: 5 is not text"),
        (
            "[mail]\nname = 'x'\nretries = 9",
            "3: $.mail.retries: 9 is not a whole number that is at least 0 and is at most 5",
        ),
        ('"évery" = 5', '1: $: unknown key "évery"; did you mean "every"?'),
        ("[[sink]]\ntype = 'pager'\nto = 1\nname = ''", '3: $.sink[0]: unknown key "to"; known are type, name'),
    ],
)
def test_a_fault_is_told_with_its_line_and_what_is_right(text: str, message: str) -> None:
    """A message has file, line, place, what was found, and what would be right."""
    assert refused(text) == [f"f.toml:{message}"]


def test_all_faults_are_told_in_the_order_of_lines() -> None:
    """One reading finds every fault, not only the first."""
    text = RULES.replace("pattern", "patern").replace('"warning"', '"urgent"').replace("summary", "sumary")
    assert refused(text.replace('"1h"', "1"), RuleFile) == [
        'f.toml:4: $.rule[0]: unknown key "sumary"; did you mean "summary"?',
        'f.toml:5: $.rule[0].on.log: unknown key "patern"; did you mean "pattern"?',
        'f.toml:7: $.rule[0].escalate[0].severity: "urgent" is not one of info, warning, critical',
        'f.toml:8: $.rule[0].escalate[1].within: 1 is not a duration: write it as text with a unit, such as "15m"',
        'f.toml:14: $.rule[1]: unknown key "sumary"; did you mean "summary"?',
    ]


def test_what_does_not_go_together_is_told_by_the_struct() -> None:
    """A table whose parts are sound is refused with the struct's own words."""
    (message,) = refused(RULES.replace(', within = "1h"', ""), RuleFile)
    assert message == 'f.toml:8: $.rule[0].escalate[1]: "persistent" needs within'


def test_a_name_that_is_given_twice() -> None:
    """Two rules of one file cannot have the same name."""
    (message,) = refused(RULES.replace('"nan"', '"oom"'), RuleFile)
    assert message == 'f.toml:12: $.rule[1]: duplicate name "oom": $.rule[0] has it'


def test_names_are_unique_among_all_kinds_of_tables() -> None:
    """In a list of several kinds of tables, no two have the same name."""
    text = "[[sink]]\ntype = 'mail'\nname = 'x'\n[[sink]]\ntype = 'pager'\nname = 'x'"
    assert refused(text) == ['f.toml:6: $.sink[1]: duplicate name "x": $.sink[0] has it']


def test_a_phase_may_begin_in_several_ways() -> None:
    """Names that are words of ours, rather than chosen ones, may come again."""
    text = '[[phase]]\nname = "failed"\nfrom = ["running"]\n[[phase]]\nname = "failed"\nfrom = ["starting"]\n'
    assert len(decode(text, "f.toml", RuleFile).phase) == 2


def test_a_file_full_of_faults_is_told_in_part() -> None:
    """Of more than a hundred faults the first hundred are told, at once."""
    messages = refused("[[sink]]\n" * 50_000)
    assert len(messages) == 101
    assert messages[-1] == "f.toml: these are the first 100"


@pytest.mark.parametrize("key", ["password", "token", "webhook_url", "API_KEY"])
def test_a_secret_is_refused_and_not_repeated(key: str) -> None:
    """A key that would hold a secret is told where it belongs; its value is in no message."""
    (message,) = refused(f'[[sink]]\ntype = "mail"\nname = "x"\n{key} = "hunter2"')
    assert f'4: $.sink[0]: "{key}" would put a secret into this file: give password_file' in message
    assert "hunter2" not in message


def test_a_table_in_the_wrong_place_does_not_give_away_its_secret() -> None:
    """Of tables and lists a message says only what they are."""
    assert "hunter2" not in "".join(refused('[sink]\npassword = "hunter2"\n[mail]\nname = ["hunter2"]'))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = \n", "1: not TOML: invalid value at column 5"),
        ("a = 1\n\n[a]\n", "3: not TOML: cannot overwrite a value at column 3"),
        ("\n\na = [1, 2\n", "4: not TOML: unclosed array"),
        ('a = "\0"', r"1: not TOML: illegal character '\x00' at column 6"),
        ("\ufeffa = 1", "1: not TOML: invalid statement at column 1"),
        ("a = " + "[" * 5000, "1: not TOML that can be read: nested too deeply"),
        ("a = " + "9" * 5000, "1: not TOML that can be read: a number in it is too long"),
    ],
)
def test_what_is_not_toml(text: str, message: str) -> None:
    """A file that is not TOML is told with the line and column where that shows."""
    assert refused(text) == [f"f.toml:{message}"]


def test_numbers_that_are_too_large() -> None:
    """A number beyond any float or limit is refused like another wrong one."""
    (message,) = refused(f"share = 0x{'f' * 6000}")
    assert message == "f.toml:1: $.share: a number that long is not a number that is above 0 and is below 1"


KEYS = [field.encode_name for kind in (Sample, RuleFile) for field in msgspec.structs.fields(kind)]
KEY = st.sampled_from([*KEYS, "type", "name", "on", "escalate", "a"]) | st.text('abc-é \n."', max_size=4)
VALUE = st.recursive(
    st.none() | st.text(max_size=6) | st.integers() | st.booleans() | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEY, inner, max_size=3),
    max_leaves=10,
)


def as_toml(value: Any) -> str:
    """Return what JSON knows as TOML on one line."""
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{json.dumps(key)} = {as_toml(entry)}' for key, entry in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(as_toml, value))}]"
    return (
        "1979-05-27 07:32:00Z" if value is None else json.dumps(value).replace("NaN", "nan").replace("Infinity", "inf")
    )


@given(document=st.dictionaries(KEY, VALUE, max_size=4), wanted=st.sampled_from([Sample, RuleFile]))
def test_any_toml_is_read_or_refused_with_lines(document: Table, wanted: type[msgspec.Struct]) -> None:
    """Whatever a file holds, it is read, or each message has line, place and reason on one printable line."""
    text = "".join(f"{json.dumps(key)} = {as_toml(value)}\n" for key, value in document.items())
    try:
        decode(text, "f.toml", wanted)
    except BadFile as error:
        assert error.messages  # noqa: PT017 - both ends are fine
        for message in error.messages:
            assert message.isprintable()
            assert (match := MESSAGE.fullmatch(message))
            assert 1 <= int(match[1]) <= len(document) + 1


@given(text=st.text(st.sampled_from("a1=[]{}\"'.,#\n\\ \r\0\ud800é") | st.characters()))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Whatever text is given, nothing but BadFile comes out."""
    try:
        decode(text, "f.toml", Sample)
    except BadFile as error:
        assert all(message.isprintable() for message in error.messages)  # noqa: PT017 - both ends are fine
