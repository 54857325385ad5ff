"""What is taken from a record for people: the line that says what went wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules.facts import error_of


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("all is well", "all is well"),
        ("Fatal error in train\nTraceback:\n  File x\nValueError: bad", "ValueError: bad"),
        ("Fatal\n\nhttpx.ReadTimeout\n\n", "httpx.ReadTimeout"),
        ("Fatal\na.b.ConnectError: [Errno 111] refused\n  note", "a.b.ConnectError: [Errno 111] refused"),
        ("first\nKeyError: 1\n\nDuring handling\n\nValueError: 2", "ValueError: 2"),
        ("failed (exitcode: 1)\nTraceback\nerrors.ChildFailedError: \n=====\nRoot Cause", "failed (exitcode: 1)"),
        ("Error: only line", "Error: only line"),
        ("two\nthe error is here", "two"),
        ("a\x1b[31mb\x00c\t d", "a [31mb c d"),
        ("", ""),
    ],
)
def test_the_line_that_says_what_went_wrong(text: str, said: str) -> None:
    """It is the last exception of a traceback that has a message; without one the first line."""
    assert error_of(text) == said


@given(st.text())
def test_it_is_one_short_line(text: str) -> None:
    """Whatever a record holds, what is said of it is printable and short."""
    said = error_of(text)
    assert len(said) <= 160
    assert "\n" not in said
    assert not any(char < " " for char in said)
