"""Patterns and durations: what they find, and what they say about what they are not."""

from __future__ import annotations

import re
import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules.pattern import Duration, Pattern, PatternSet, decode_hook, quoted

ANY_TEXT = st.text(st.characters())  # NUL and lone surrogates among them
SIMPLE_PATTERN = st.sampled_from([r"a", r"b+c", r"^x", r"y$", r"\d{2,3}", r"(?i)error: (?P<what>\w+)", r".", r"[^\n]z"])


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A struct with both types."""

    pattern: Pattern
    every: Duration | None = None


def test_search_returns_the_named_groups_of_the_first_match() -> None:
    """A match gives its named groups as text."""
    pattern = Pattern(r"rank (?P<rank>\d+) on (?P<node>\S+)")
    assert pattern.search("x rank 7 on nœud-1\nrank 8 on b") == {"rank": "7", "node": "nœud-1"}


def test_search_without_groups_or_match() -> None:
    """A match without named groups is empty; no match is None."""
    assert Pattern("(a)b").search("ab") == {}
    assert Pattern("ab").search("ba") is None


def test_search_leaves_out_groups_that_took_no_part() -> None:
    """A group of the branch not taken is absent."""
    assert Pattern("(?P<a>a)|(?P<b>b)").search("b") == {"b": "b"}


def test_lines_are_as_in_python() -> None:
    """The dot stops at the end of a line, and only with a flag `^` is its start."""
    assert Pattern("a.b").search("a\nb") is None
    assert Pattern("(?s)a.b").search("a\nb") == {}
    assert Pattern("^b").search("a\nb") is None
    assert Pattern("(?m)^b").search("a\nb") == {}


@given(text=ANY_TEXT)
def test_any_text_can_be_searched(text: str) -> None:
    """NUL and half surrogate pairs are text like any other."""
    for found in (Pattern("(?s)(?P<all>.*)").search(text), Pattern("(?P<all>[^a]*)$").search(text)):
        assert found is not None
        assert len(found["all"]) <= len(text)
    assert PatternSet([("all", Pattern("(?s).*"))]).matches(text) == ["all"]


def test_hostile_text_takes_linear_time() -> None:
    """What makes a backtracking engine run for ever is over at once."""
    began = time.perf_counter()
    assert Pattern("^(a+)+$").search("a" * 100_000 + "!") is None
    assert time.perf_counter() - began < 2


@pytest.mark.parametrize(
    ("text", "fragment", "place"),
    [
        ("(?=a)b", "(?=", 1),
        (r"\(?=a(?!b)", "(?!", 6),
        ("a(?<=b)", "(?<=", 2),
        ("a(?<!b)", "(?<!", 2),
    ],
)
def test_look_around_is_refused_with_its_place(text: str, fragment: str, place: int) -> None:
    """The message shows the look-around and says why there is none."""
    with pytest.raises(ValueError, match="linear time, they cannot have look-around") as refused:
        Pattern(text)
    assert f'"{fragment}" at character {place};' in str(refused.value)


@pytest.mark.parametrize(
    ("text", "fragment", "place"), [(r"(a)\1", r"\1", 4), (r"\\1(a)\1", r"\1", 7), ("(?P<n>a)(?P=n)", "(?P=", 9)]
)
def test_back_references_are_refused_with_their_place(text: str, fragment: str, place: int) -> None:
    """The message shows the back-reference and says why there is none."""
    with pytest.raises(ValueError, match="linear time, they cannot have back-references") as refused:
        Pattern(text)
    assert f'"{fragment}" at character {place};' in str(refused.value)


def test_the_end_of_text_of_python_is_explained() -> None:
    r"""For Python's `\Z` the message names `\z`."""
    with pytest.raises(ValueError, match=re.escape(r"write \z")):
        Pattern(r"x\Z")


@given(text=ANY_TEXT)
def test_any_text_is_a_pattern_or_refused_in_one_line(text: str) -> None:
    """Whatever is given as a pattern, there is a pattern or a printable message of one line."""
    try:
        Pattern(text).search("some text")
    except ValueError as error:
        assert str(error).isprintable()  # noqa: PT017 - both ends are fine


def test_patterns_are_equal_by_their_text() -> None:
    """Patterns can be keys."""
    assert {Pattern("a"), Pattern("a"), Pattern("b")} == {Pattern("b"), Pattern("a")}
    assert Pattern("a") != "a"


def test_any_of_several_patterns() -> None:
    """A list of patterns finds what one of them finds, each with its own groups."""
    pattern = Pattern.any_of([Pattern("x (?P<n>.)"), Pattern("(?i)y (.)(?P<n>.)(?P<m>.)"), Pattern("z")])
    assert pattern.search("x 1") == {"n": "1"}
    assert pattern.search("Y 234") == {"n": "3", "m": "4"}
    assert pattern.search("z") == {}
    assert pattern.search("Z") is None


def test_any_of_none() -> None:
    """An empty list is no pattern."""
    with pytest.raises(ValueError, match="an empty list"):
        Pattern.any_of([])


@given(patterns=st.lists(st.tuples(st.integers(0, 3), SIMPLE_PATTERN), max_size=8), text=st.text("abcxyz019\n er:Eo"))
def test_a_set_finds_what_its_patterns_find_one_by_one(patterns: list[tuple[int, str]], text: str) -> None:
    """One pass over all patterns agrees with a search for each."""
    compiled = [(key, Pattern(pattern)) for key, pattern in patterns]
    alone = [key for key, pattern in compiled if pattern.search(text) is not None]
    assert PatternSet(compiled).matches(text) == list(dict.fromkeys(alone))


def test_a_set_of_many_patterns() -> None:
    """A thousand patterns with repetitions fit."""
    patterns = [(n, Pattern(rf"error {n}: .*[a-z]{{{n % 20 + 1}}}.*\bfail{n}\b")) for n in range(1000)]
    assert PatternSet(patterns).matches("error 7: abc xyzzzzzzzzzzzz fail7") == [7]


def test_a_set_that_is_too_large_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """What exceeds the memory of a set is refused rather than never found."""
    monkeypatch.setattr("rules.pattern._SET_BYTES", 1 << 14)
    with pytest.raises(ValueError, match="100 patterns are too large together"):
        PatternSet([(n, Pattern(rf"(?:[a-z]+ x{n}){{1,20}}")) for n in range(100)])


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("250ms", 0.25), ("90s", 90), ("15m", 900), ("1h30m", 5400), ("2d", 172_800), ("1m30s", 90), ("1s1ms", 1.001)],
)
def test_durations(text: str, seconds: float) -> None:
    """A duration is a number of seconds that remembers how to write itself."""
    assert Duration(text) == seconds
    assert Duration(str(Duration(text))) == seconds
    assert Duration(text) * 2 == seconds * 2


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("15 min", 'write it as "15m"'),
        ("1.5h", 'write it as "1h30m"'),
        ("30m1h", 'write it as "1h30m"'),
        ("1 hour, 30 minutes", 'write it as "1h30m"'),
        ("90", 'add the unit, such as "90s"'),
        ("soon", 'write it like "250ms", "90s", "15m", "1h30m" or "2d"'),
        ("", "write it like"),
        ("-5m", "write it like"),
        ("٣s", "write it like"),
        ("15 min\0", "write it like"),
        ("0s", "above 0 and at most ten years"),
        ("999999d", "above 0 and at most ten years"),
        ("9" * 5000 + "s", "write it like"),
    ],
)
def test_what_is_not_a_duration_is_told_how_to_write_it(text: str, advice: str) -> None:
    """The message names what is right."""
    with pytest.raises(ValueError, match=re.escape(advice)):
        Duration(text)


@given(ms=st.integers(1, 3650 * 86_400_000))
def test_a_duration_reads_what_it_writes(ms: int) -> None:
    """Whole milliseconds survive being written and read."""
    assert Duration(str(Duration(ms / 1000))) == ms / 1000


@given(text=ANY_TEXT)
def test_any_text_is_a_duration_or_refused_in_one_line(text: str) -> None:
    """Whatever is given as a duration, there is a number or a printable message of one line."""
    try:
        assert Duration(text) > 0
    except ValueError as error:
        assert str(error).isprintable()  # noqa: PT017 - both ends are fine


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_numbers_that_are_no_duration(seconds: float) -> None:
    """Nought, less, and what is not a number are refused."""
    with pytest.raises(ValueError, match="is not a duration"):
        Duration(seconds)


def test_msgspec_reads_both() -> None:
    """The hook makes both types fields of a struct."""
    row = msgspec.convert({"pattern": "a(?P<n>.)", "every": "1h"}, Row, dec_hook=decode_hook)
    assert row == Row(pattern=Pattern("a(?P<n>.)"), every=Duration("1h"))


def test_msgspec_reads_a_list_as_one_pattern() -> None:
    """A list of texts is the pattern that finds any of them."""
    row = msgspec.convert({"pattern": ["a", "b"]}, Row, dec_hook=decode_hook)
    assert (row.pattern.search("b"), row.pattern.search("c")) == ({}, None)


@pytest.mark.parametrize("value", [5, True, 1.5, ["a", 5], {"a": 1}])
def test_the_hook_refuses_other_values(value: object) -> None:
    """Only text becomes a pattern or a duration."""
    for wanted in (Pattern, Duration):
        with pytest.raises(ValueError, match="write it as text"):
            decode_hook(wanted, value)


def test_the_hook_leaves_other_types_alone() -> None:
    """For any other type the hook says what msgspec expects of them."""
    with pytest.raises(NotImplementedError):
        decode_hook(set, [])


def test_quoted_is_one_printable_line() -> None:
    """Values in messages are short, printable and on one line."""
    assert quoted('a\n\x1b[31m"\ud800') == r'"a\n\x1b[31m"\ud800"'
    assert quoted("x" * 1000) == '"' + "x" * 200 + '…"'
    assert quoted(True) == "true"
    assert quoted(1 << 20_000) == "a number that long"
