"""Lines of appended files, whole and torn."""

from __future__ import annotations

import itertools
import json
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.formats.jsonl import JsonLines, Line, decode

DECODER = msgspec.json.Decoder(dict[str, float])
START = re.compile(rb'\{"step"')


def feed_all(lines: JsonLines, *parts: bytes) -> list[Line]:
    """Feed *parts* one after another."""
    return [line for part in parts for line in lines.feed(part)]


def test_a_half_line_waits_for_its_end() -> None:
    """A line is returned once, when its newline has come, with its place in the file."""
    lines = JsonLines(100)
    assert lines.feed(b'{"a":') == []
    assert (lines.offset, lines.fed_to) == (100, 105)
    assert lines.feed(b"1}\n{") == [Line(100, 108, b'{"a":1}')]
    assert (lines.offset, lines.fed_to) == (108, 109)


def test_blank_lines_are_left_out() -> None:
    """Nothing comes of a blank line, but the next one knows its place."""
    assert JsonLines().feed(b"\n  \r\n1\n") == [Line(5, 7, b"1")]


def test_a_line_that_is_too_long_is_skipped_and_counted() -> None:
    """The reader goes on behind a line that is too long, however it arrives."""
    lines = JsonLines(line_bytes=4)
    found = feed_all(lines, b"12345\n1234\n12", b"3", b"45", b"6" * 10, b"\n7\n")
    assert [line.data for line in found] == [b"1234", b"7"]
    assert lines.skipped == 2
    assert lines.offset == lines.fed_to


@given(st.binary(max_size=200), st.lists(st.integers(0, 200)))
def test_the_cut_of_the_reads_changes_nothing(data: bytes, cuts: list[int]) -> None:
    """However a file is read, the same lines come of it, each where it stands in the file."""
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    lines = JsonLines()
    found = feed_all(lines, *(data[begin:end] for begin, end in itertools.pairwise(places)))
    assert found == JsonLines().feed(data)
    assert all(data[line.offset : line.end] == line.data + b"\n" for line in found)
    assert lines.fed_to == len(data)
    assert data[lines.offset :].count(b"\n") == 0


def test_a_whole_record_drops_nothing() -> None:
    """A good line is the record."""
    assert decode(b'{"step":1}', DECODER, START) == (0, {"step": 1.0})


@pytest.mark.parametrize(
    "head",
    [
        b'{"step":1',
        b'{"step":1,"lo',
        b'{"step":1,"a":{"b":',
        b'{"step":1,"text',
        b"\0\0\0\0",
        b'{"step":1}',
        b"{" * 5000,
    ],
)
def test_a_record_behind_a_torn_head_is_found(head: bytes) -> None:
    """What a killed writer left before it on the line is dropped, and how much that was is said."""
    assert decode(head + b'{"step":2,"loss":0.5}', DECODER, START) == (len(head), {"step": 2.0, "loss": 0.5})


@given(st.integers(0, 40))
def test_a_head_torn_anywhere_is_dropped(length: int) -> None:
    """Wherever the first writer was killed, the second one's record is found."""
    head = b'{"step":1,"time":12.5,"loss/mean":-0.25}'[:length]
    found = decode(head + b'{"step":2}', DECODER, START)
    assert found == (len(head), {"step": 2.0})


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\0" * 64,
        b"\xff\xfe{",
        b"[1]",
        b"null",
        b'{"step":1e999}',
        b'{"step":' + b"9" * 5000 + b"}",
        b'{"step":NaN}',
        b'{"\\ud800":1}',
        b'{"step":' * 50_000,
        b'{"step"' * 50_000,
        b'{"step":1',
    ],
    ids=range(12),
)
def test_hostile_bytes_are_no_record(line: bytes) -> None:
    """What is no record is none, whatever it is."""
    assert decode(line, DECODER, START) is None


@given(st.binary(max_size=100))
def test_no_bytes_raise(data: bytes) -> None:
    """Decoding never raises."""
    decode(data, DECODER, START)
    decode(b'{"step"' + data, DECODER, START)


@given(st.dictionaries(st.text(max_size=5), st.floats(-1e9, 1e9)))
def test_every_record_is_read_back(record: dict[str, float]) -> None:
    """A record is what its writer wrote."""
    assert decode(json.dumps(record).encode(), DECODER, START) == (0, record)
