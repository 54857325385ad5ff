"""Lines of values: right in whatever style a file is written."""

from __future__ import annotations

import itertools
import json
import re
import tomllib
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rules.load import BadFile, decode
from rules.rule_file import RuleFile
from rules.toml_lines import Lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rules.toml_lines import Path

Table = dict[str, Any]

COMMENTS = st.sampled_from(["", " # a [comment] = \"with ''' }"])
LETTERS = st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from("\n\"'\\#[]{}=,.")
LEAVES = st.text(LETTERS, max_size=8)
KEYS = st.sampled_from("abc") | st.text(LETTERS, max_size=3)
ROWS = st.recursive(
    st.dictionaries(KEYS, LEAVES, max_size=3),
    lambda inner: st.dictionaries(KEYS, LEAVES | inner | st.lists(inner, max_size=3) | st.lists(LEAVES), max_size=3),
    max_leaves=8,
)

SAMPLE = """\
title = 'a'  # [not.a.table]
text = \"\"\"one
[two]
"three" \\\\ \"\"\"\"\"
"a b" . 'c' = 1979-05-27 07:32:00

[[rule]]
on = { log = { a = "x]", not = ["a", # ]
  '''b
  c''', "d"] }, per = [] }
[[rule.sub]]
[[ rule . sub ]]
x = [[1,
  2], [
  3]]
[rule.sub.deep]
y = 1
[[rule]]
[rule.sub]
z = 1
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ((), 1),
        (("title",), 1),
        (("text",), 2),
        (("a b", "c"), 5),
        (("rule", 0), 7),
        (("rule", 0, "on", "log", "not", 0), 8),
        (("rule", 0, "on", "log", "not", 1), 9),
        (("rule", 0, "on", "log", "not", 2), 10),
        (("rule", 0, "on", "per"), 10),
        (("rule", 0, "sub", 0), 11),
        (("rule", 0, "sub", 1), 12),
        (("rule", 0, "sub", 1, "x", 0, 1), 14),
        (("rule", 0, "sub", 1, "x", 1, 0), 15),
        (("rule", 0, "sub", 1, "deep", "y"), 17),
        (("rule", 1), 18),
        (("rule", 1, "sub", "z"), 20),
        (("rule", 1, "missing", "key"), 18),
        (("missing",), 1),
    ],
)
def test_lines_of_a_sample(path: Path, line: int) -> None:
    """Tables, keys, elements and what is missing have the line where one would look."""
    assert Lines(SAMPLE).of(path) == line


@given(data=st.data(), document=ROWS)
def test_each_value_has_the_line_on_which_it_begins(data: st.DataObject, document: Table) -> None:
    """However a document is written, the line of a value is where it stands."""
    document = numbered(document, itertools.count())
    text = data.draw(toml_texts(document))
    assert tomllib.loads(text) == document
    lines = Lines(text)
    for path, leaf in leaves(document):
        mark = re.match("<[0-9]+>", leaf)
        assert mark
        assert mark[0] in text.split("\n")[lines.of(path) - 1]


RULE: Table = {
    "name": "a",
    "failure_mode": "a",
    "summary": "a",
    "on": {"log": {"pattern": "a"}, "per": ["env"]},
    "escalate": [
        {"severity": "info", "immediately": True},
        {"severity": "warning", "fraction": 0.5, "over": "1h", "at_least": 3},
    ],
    "clear": {"quiet": "5m"},
}


@settings(max_examples=40)
@given(data=st.data(), count=st.integers(1, 2))
def test_a_broken_key_is_found_in_whatever_style(data: st.DataObject, count: int) -> None:
    """A key that is not known is told with the line on which it stands, once, and nothing else is."""
    document = {"rule": [json.loads(json.dumps({**RULE, "name": f"a{n}"})) for n in range(count)]}
    assert len(decode(data.draw(toml_texts(document)), "f.toml", RuleFile).rule) == count
    table = data.draw(st.sampled_from(list(tables(document))))
    table["zzz"] = data.draw(st.sampled_from([1, "a", [1, ["b"]], {"a": "b"}]))
    text = data.draw(toml_texts(document))
    with pytest.raises(BadFile) as error:
        decode(text, "f.toml", RuleFile)
    (message,) = error.value.messages
    match = re.match(r'f\.toml:([0-9]+): \$[^ ]*: unknown key "zzz"; known are', message)
    assert match
    assert "zzz" in text.split("\n")[int(match[1]) - 1]


def numbered(value: Any, numbers: Iterator[int]) -> Any:
    """Return *value* with a mark of its own at the beginning of each text."""
    if isinstance(value, dict):
        return {key: numbered(entry, numbers) for key, entry in value.items()}
    if isinstance(value, list):
        return [numbered(entry, numbers) for entry in value]
    return f"<{next(numbers)}>{value}"


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, str]]:
    """Yield each text with its path."""
    if isinstance(value, str):
        yield path, value
    else:
        for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(entry, (*path, key))


def tables(value: Any) -> Iterator[Table]:
    """Yield each table."""
    if isinstance(value, dict):
        yield value
    if isinstance(value, dict | list):
        for entry in value.values() if isinstance(value, dict) else value:
            yield from tables(entry)


@st.composite
def toml_texts(draw: st.DrawFn, document: Table) -> str:
    """Return *document* as TOML in a style that is drawn."""
    lines: list[str] = []
    _write_table(draw, document, "", lines)
    return "\n".join(lines) + "\n"


def _write_table(draw: st.DrawFn, table: Table, header: str, lines: list[str]) -> None:
    nested: list[tuple[str, Any]] = []
    for key, value in table.items():
        has_rows = isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)
        if (isinstance(value, dict) or has_rows) and draw(st.booleans()):
            nested.append((key, value))
            continue
        lines += draw(st.sampled_from([[], [""], ["  # [[comment]] = { \"'"]]))
        space = draw(st.sampled_from(["", " ", "\t"]))
        lines.append(f"{space}{_key(draw, key)}{space}={space}{_value(draw, value)}{draw(COMMENTS)}")
    for key, value in nested:
        name = f"{header}.{_key(draw, key)}" if header else _key(draw, key)
        for row in value if isinstance(value, list) else [value]:
            lines.append((f"[[{name}]]" if isinstance(value, list) else f"[ {name} ]") + draw(COMMENTS))
            _write_table(draw, row, name, lines)


def _key(draw: st.DrawFn, key: str) -> str:
    is_bare = re.fullmatch("[A-Za-z0-9_-]+", key) is not None
    return key if is_bare and draw(st.booleans()) else json.dumps(key, ensure_ascii=False)


def _value(draw: st.DrawFn, value: Any) -> str:
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{_key(draw, key)} = {_value(draw, entry)}' for key, entry in value.items())} }}"
    if isinstance(value, list):
        end = draw(st.sampled_from(["", "\n", " # comment ]\n  "]))
        return f"[{end}{''.join(f'{_value(draw, row)},{end}' for row in value)}]"
    if not isinstance(value, str):
        return json.dumps(value)
    styles = [json.dumps(value, ensure_ascii=False), f'""{json.dumps(value, ensure_ascii=False)}""']
    if value.isprintable() and "'" not in value:
        styles.append(f"'{value}'")
    if value.replace("\n", "").isprintable() and "'''" not in value:
        styles.append(f"'''{value}'''")
    return draw(st.sampled_from(styles))
