"""Joining lines into records."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.formats.lines import LineReader
from pipeline.formats.records import CUT, HALF_TEXT, LONGEST, RawRecord, RecordReader

HEADER = "12:00:00    INFO one"
LINES = [
    HEADER,
    "12:00:01   ERROR Fatal error in train",
    "12:00:01 WARNING careful",
    "Traceback (most recent call last):",
    '  File "a.py", line 1, in f',
    "    │  └ <value>",
    '> File "a.py", line 1, in f',
    "ValueError: wrong",
    "The above exception was the direct cause of the following exception:",
    "",
    "Killed",
    "(EngineCore pid=1) ERROR 08-19 12:00:00 [core.py:7] fatal",
    "(EngineCore pid=1) ERROR 08-19 12:00:00 [core.py:7] more",
    "(EngineCore pid=1)   File",
    "[trainer0]:  File",
    "[trainer0]:12:00:00 INFO two",
    "Loading:  50%|#####     | 1/2 [00:01<00:01,  1.20s/it]",
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    "=====",
    "Failures:",
    "[0]:",
]


def records(text: str, offset: int = 0) -> list[RawRecord]:
    lines, reader = LineReader(offset), RecordReader()
    found = lines.feed(text.encode()) + lines.finish()
    return [record for line in found for record in reader.add(line)] + reader.finish()


def texts(*lines: str) -> list[str]:
    return [record.text for record in records("\n".join(lines) + "\n")]


@given(st.lists(st.sampled_from(LINES)))
def test_reading_on_from_any_record_gives_the_records_that_follow(lines: list[str]) -> None:
    """The end of a record is a place from which reading can begin anew."""
    text = "".join(f"{line}\n" for line in lines)
    found = records(text)
    for number, record in enumerate(found, 1):
        assert records(text.encode()[record.end :].decode(), record.end) == found[number:]


@given(st.lists(st.sampled_from(LINES)))
def test_records_are_in_order_and_lose_no_line(lines: list[str]) -> None:
    """Records do not overlap, and every line with text is in one, save progress bars that were drawn over."""
    text = "".join(f"{line}\n" for line in lines)
    found = records(text)
    assert all(one.end <= two.offset for one, two in pairwise(found))
    starts, ends = [record.offset for record in found], [record.end for record in found]
    between = zip([0, *ends], [*starts, len(text.encode())], strict=True)
    assert not "".join(text.encode()[start:end].decode() for start, end in between).strip()


def test_an_error_takes_everything_up_to_the_next_header() -> None:
    """After an error with a traceback the lines of a long message belong to it."""
    lines = ("Traceback (most recent call last):", "", '> File "a", line 1', "    f()", "    └ 1", "",
             "RuntimeError: CUDA error", "CUDA kernel errors might be reported late.", "See x.")  # fmt: skip
    assert texts("12:00:00   ERROR Fatal error", *lines, HEADER) == ["\n".join(("Fatal error", *lines)), "one"]


def test_a_traceback_without_header_ends_with_its_last_line() -> None:
    """An uncaught traceback is a record without a level; what follows it is another."""
    found = records(
        f'{HEADER}\nTraceback (most recent call last):\n  File "a", line 1\nOSError: [Errno 116] x\nKilled\n'
    )
    assert [(record.level, record.text.splitlines()[-1]) for record in found] == [
        ("INFO", "one"),
        (None, "OSError: [Errno 116] x"),
        (None, "Killed"),
    ]


def test_chained_tracebacks_are_one_record() -> None:
    """A cause and what it led to stand together."""
    lines = ("Traceback (most recent call last):", '  File "a", line 1', "KeyError: 1", "",
             "During handling of the above exception, another exception occurred:", "",
             "Traceback (most recent call last):", '  File "b", line 2', "ValueError: 2")  # fmt: skip
    assert texts(*lines) == ["\n".join(lines)]


def test_lines_of_a_rank_keep_together() -> None:
    """A traceback with the prefix of its rank is one record, and a line of another rank is not in it."""
    found = records(
        "[rank1]: Traceback (most recent call last):\n[rank1]:   File a\n[rank1]: ValueError: b\n[rank2]:   File c\n"
    )
    assert [(record.rank, record.text.count("\n")) for record in found] == [(1, 2), (2, 0)]


def test_a_header_repeated_on_each_line_makes_one_record() -> None:
    """Exceptions of vLLM, dozens of lines with the same header, are one record."""
    line = "(EngineCore pid=4242) ERROR 08-19 12:00:00 [core.py:1140] {}\r\n"
    found = records(
        "".join(line.format(part) for part in ("fatal", "Traceback (most recent call last):", "  File a", "E: b"))
    )
    assert [record.text for record in found] == ["fatal\nTraceback (most recent call last):\n  File a\nE: b"]
    assert (found[0].process, found[0].pid, found[0].level) == ("EngineCore", 4242, "ERROR")


def test_lines_below_a_step_line_belong_to_it() -> None:
    """The figures of each environment follow their step."""
    assert texts(
        "12:00:00 SUCCESS Step 1 | 1s", "\t\t ╰─ math | Ratio 1%", "\t\t ╰─ code | Ratio 2% [a.py::1]", HEADER
    ) == [
        "Step 1 | 1s\n\t\t ╰─ math | Ratio 1%\n\t\t ╰─ code | Ratio 2%",
        "one",
    ]


def test_torchruns_summary_is_one_record() -> None:
    """The block of ChildFailedError is whole, with its root cause, and ends with its closing rule."""
    block = ("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ", "=" * 60, "train FAILED", "-" * 60,
             "Failures:", "[1]:", "  exitcode  : -15 (pid: 1)", "-" * 60, "Root Cause (first observed failure):",
             "[0]:", "  exitcode  : -9 (pid: 2)  (SIGKILL)", "=" * 60)  # fmt: skip
    frames = ("Traceback (most recent call last):", "  File a")
    head = "E1129 14:24:31.068000 1 torch/api.py:1002] failed (exitcode: -9)"
    whole = "\n".join(block)
    assert texts(*block, "after") == [whole, "after"]
    assert texts(*frames, *block, "after") == ["\n".join((*frames, whole)), "after"]
    assert texts(head, *frames, *block, "after") == ["\n".join(("failed (exitcode: -9)", *frames, whole)), "after"]


def test_progress_bars_collapse_to_the_last() -> None:
    """A bar that is drawn again and again is one record."""
    bars = [f"Loading: {percent:3}%|##  | {percent}/100 [00:00<00:00]" for percent in range(0, 101, 10)]
    assert texts(HEADER, *bars, "", HEADER) == ["one", bars[-1], "one"]


def test_blank_lines_at_the_end_are_dropped() -> None:
    """Blank lines count within a record only."""
    assert texts(HEADER, "", "  more", "", "", HEADER) == ["one\n\n  more", "one"]
    assert texts("", " ", "") == []


def test_a_long_text_keeps_its_beginning_and_its_end() -> None:
    """The middle of a long record is left out, in bounded memory."""
    (record,) = records("12:00:00 INFO begin\n" + "  middle\n" * 100_000 + "  end\n")
    assert record.text.startswith("begin\n  middle")
    assert record.text.endswith("  middle\n  end")
    assert CUT in record.text
    assert len(record.text) <= 2 * HALF_TEXT + len(CUT)
    assert len(records("12:00:00 INFO " + "x" * 2 * HALF_TEXT)[0].text) == 2 * HALF_TEXT


def test_a_record_without_end_is_ended() -> None:
    """Text that never comes to a header is cut into records, so that reading on does not begin too far back."""
    found = records("12:00:00 INFO begin\n" + "  middle of it all\n" * 300_000)
    assert len(found) == 2
    assert all(record.end - record.offset <= LONGEST for record in found)


@pytest.mark.parametrize("level", ["INFO", "SUCCESS"])
def test_a_traceback_is_not_given_to_a_harmless_line(level: str) -> None:
    """An uncaught exception does not become part of the last message before it."""
    assert len(texts(f"12:00:00 {level} fine", "Traceback (most recent call last):", "  File a", "E: b")) == 2


@given(st.lists(st.text()))
def test_no_text_makes_the_reader_fail(lines: list[str]) -> None:
    """Whatever the lines are, records come out."""
    records("\n".join(lines).encode("utf-8", "replace").decode())
