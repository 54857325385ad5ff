"""Cutting bytes into lines."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.formats.lines import CUT, LONGEST, Line, LineReader

PIECES = [
    b"12:00:00    INFO text",
    b"\n",
    b"\r\n",
    b"\r",
    b"\x1b[32m",
    b"\x1b",
    b"\x00",
    b"\xff\xe2\x94",
    "╰─".encode(),
    b"[trainer0]:",
    b"[rank1]: ",
    b'{"timestamp"',
    b" 50%|##| 1/2",
    b"\xe2\x80\xa8",
]


def read(data: bytes, offset: int = 0) -> list[Line]:
    reader = LineReader(offset)
    return reader.feed(data) + reader.finish()


def texts(data: bytes) -> list[str]:
    return [line.text for line in read(data)]


@given(st.lists(st.sampled_from(PIECES)).map(b"".join), st.lists(st.integers(0, 200)))
def test_the_same_lines_come_however_the_stream_is_cut(data: bytes, cuts: list[int]) -> None:
    """Lines do not depend on where reads ended."""
    reader, lines, start = LineReader(), [], 0
    for end in [*sorted(cut for cut in cuts if cut < len(data)), len(data)]:
        lines += reader.feed(data[start:end])
        start = end
    assert lines + reader.finish() == read(data)
    assert reader.offset == len(data)


@given(st.lists(st.sampled_from(PIECES)).map(b"".join))
def test_reading_on_from_any_line_gives_the_lines_that_follow(data: bytes) -> None:
    """A reader that begins at the end of a line continues as if it had read all."""
    lines = read(data)
    for number, line in enumerate(lines, 1):
        assert read(data[line.end :], line.end) == lines[number:]


@given(st.binary())
def test_lines_cover_the_bytes_without_a_gap(data: bytes) -> None:
    """Each line begins where the one before it ended, and the last one ends with the data."""
    lines = read(data)
    assert [line.offset for line in lines] == [0, *(line.end for line in lines)][: len(lines)]
    assert (lines[-1].end if lines else 0) == len(data)
    assert not any(ord(char) < 0x20 and char != "\t" for line in lines for char in line.text)


def test_a_half_line_waits() -> None:
    """What has no newline yet is not given out, and the offset stays before it."""
    reader = LineReader(100)
    assert reader.feed(b"one\ntw") == [Line(offset=100, end=104, text="one")]
    assert reader.offset == 104
    assert reader.feed(b"o\n") == [Line(offset=104, end=108, text="two")]
    assert reader.offset == 108


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"a\r\n", "a"),
        (b"  0%\r 50%\r100%\r\n", "100%"),
        (b"10%\r20%\r\x1b[0m\n", "20%"),
        (b"\x1b[2m12:00:00\x1b[0m \x1b[32m\x1b[1mSUCCESS\x1b[0m x\n", "12:00:00 SUCCESS x"),
        (b"\x1b[38;5;120mred\x1b[K\n", "red"),
        (b"a\x00b\x07c\td\n", "abc\td"),
        (b"a\xffb\n", "a�b"),
        ("a\x85b\u2028c\n".encode(), "a\x85b\u2028c"),
        (b"\n", ""),
    ],
)
def test_a_line_is_what_a_terminal_would_show(raw: bytes, shown: str) -> None:
    """Colours, carriage returns, control characters and broken UTF-8 are resolved."""
    assert texts(raw) == [shown]


@pytest.mark.parametrize(
    ("raw", "lines"),
    [
        (
            b"[trainer0]:no newline at the end[trainer0]:\x1b[2m14:29:25\x1b[0m INFO x\n",
            ["[trainer0]:no newline at the end", "[trainer0]:14:29:25 INFO x"],
        ),
        (
            b"text[trainer1]:W1129 14:24:30.773000 1 a.py:1] x\n",
            ["text", "[trainer1]:W1129 14:24:30.773000 1 a.py:1] x"],
        ),
        (b'a[default0]:{"timestamp": "x"}\n', ["a", '[default0]:{"timestamp": "x"}']),
        (b"[trainer0]: 0%| | 0/20[trainer0]:\n", ["[trainer0]: 0%| | 0/20", "[trainer0]:"]),
        (b"about [trainer0]: it is fine\n", ["about [trainer0]: it is fine"]),
        (b"x [rank0]:12:00:00 INFO\n", ["x [rank0]:12:00:00 INFO"]),
    ],
)
def test_a_prefix_in_mid_line_begins_another_line(raw: bytes, lines: list[str]) -> None:
    """The torchrun prefix splits a physical line only where a header, or nothing, follows it."""
    assert texts(raw) == lines
    assert [raw[line.offset :].startswith(b"[") or line.offset == 0 for line in read(raw)] == [True] * len(lines)


def test_a_long_line_is_cut_and_the_next_one_is_read() -> None:
    """A line of more than a mebibyte ends with a marker, and its offsets are those of the file."""
    raw = b"x" * (LONGEST + 5) + b"\nnext\n"
    first, second = read(raw)
    assert first.text == "x" * LONGEST + CUT
    assert (second.offset, second.text) == (LONGEST + 6, "next")
    assert texts(b"y" * LONGEST + b"\n") == ["y" * LONGEST]


def test_a_line_without_end_takes_bounded_memory() -> None:
    """A hundred megabytes without a newline are not kept."""
    reader, chunk = LineReader(), b"x" * 1_000_000
    tracemalloc.start()
    try:
        assert not any(reader.feed(chunk) for _ in range(100))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * LONGEST
    assert reader.offset == 0
    assert reader.feed(b"\nnext\n")[-1] == Line(offset=100_000_001, end=100_000_006, text="next")
