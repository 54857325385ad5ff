"""Log files to events."""

from __future__ import annotations

import json
import re
import tarfile
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from math import isnan
from pathlib import Path
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.events import Event, LogRecord, Metrics
from pipeline.formats.clock import ClockState, LogClock, begin
from pipeline.sources.log_reader import HELD_RECORDS, LogReader, clocks
from pipeline.sources.positions import HEAD_BYTES, FilePosition, hash_head
from pipeline.times import from_epoch

ARCHIVE = Path(__file__).parents[3].parent / "shared" / "golden.tar.gz"
ZONE = ZoneInfo("UTC")
START = datetime(2026, 8, 19, 11, 59, tzinfo=UTC)
LINES = [
    b"12:00:00    INFO one\n",
    b"23:59:59    INFO late\n",
    b"00:00:01 SUCCESS Step 7 | 1s | Loss 0.5\n",
    b"12:00:02   ERROR Fatal error in train\n",
    b"Traceback (most recent call last):\n",
    b"  File a\n",
    b"ValueError: b\n",
    b"\n",
    b"Killed\n",
    b"12:00:03 WARNING Dropping 1 non-finite value(s) from metrics.jsonl: loss/mean\n",
    b"(EngineCore pid=1) ERROR 08-19 12:00:00 [core.py:7] fatal\r\n",
    b"2026-08-19 12:00:04  INFO vllm_router_rs::server: up\n",
    b"text[trainer0]:12:00:05 INFO two\n",
    b" 10%|#   | 1/10\r 20%|##  | 2/10\n",
    b"\xff\x00 INFO \x1b[1m\n",
]


def reader_at(
    offset: int = 0, state: ClockState | None = None, step: int = 0, path: str = "logs/attempt_1/trainer.log"
) -> LogReader:
    return LogReader(path, 1, LogClock(ZONE, state or ClockState(last=START)), offset, step=step)


def logs(events: list[tuple[Event, int]]) -> list[LogRecord]:
    return [event for event, _ in events if isinstance(event, LogRecord)]


def metrics(events: list[tuple[Event, int]]) -> list[Metrics]:
    return [event for event, _ in events if isinstance(event, Metrics)]


def read(data: bytes) -> list[tuple[Event, int]]:
    reader = reader_at()
    return reader.feed(data) + reader.finish()


@given(st.lists(st.sampled_from(LINES)), st.data())
def test_a_restart_goes_on_with_the_same_events(lines: list[bytes], data: st.DataObject) -> None:
    """Wherever reading stops, a reader made from the position gives what the first one would have given."""
    whole = b"".join(lines)
    cut = data.draw(st.integers(0, len(whole)))
    first = reader_at()
    before = first.feed(whole[:cut])
    second = reader_at(first.offset, first.clock_state, first.step)
    after = second.feed(whole[first.offset :]) + second.finish()
    # compared as text: a value that is not a number equals nothing
    assert repr(before + after) == repr(read(whole))


@given(st.lists(st.sampled_from(LINES)), st.lists(st.integers(0, 500)))
def test_the_same_events_come_however_the_file_is_read(lines: list[bytes], cuts: list[int]) -> None:
    """Events do not depend on where reads ended, and their ends never go back."""
    whole, reader, events, start = b"".join(lines), reader_at(), [], 0
    for end in [*sorted(cut for cut in cuts if cut < len(whole)), len(whole)]:
        events += reader.feed(whole[start:end])
        start = end
    events += reader.finish()
    assert repr(events) == repr(read(whole))
    ends = [end for _, end in events]
    assert ends == sorted(ends)
    assert reader.offset == len(whole)


@given(st.binary(max_size=500))
def test_no_bytes_make_the_reader_fail(data: bytes) -> None:
    """Whatever a file holds, it is read, and every time is in whole milliseconds."""
    for event, end in read(data):
        assert 0 < end <= len(data)
        assert event.time.microsecond % 1000 == 0


def test_a_record_carries_what_its_file_tells() -> None:
    """Source, place, attempt, level, process and rank of a record are told."""
    head = b"12:00:00 INFO a\n"
    event = logs(read(head + b"[trainer2]:12:00:01   ERROR b\n"))[1]
    assert event == LogRecord(
        time=START + timedelta(seconds=61),
        source="logs/attempt_1/trainer.log",
        offset=len(head),
        attempt=1,
        text="b",
        level="ERROR",
        rank=2,
    )


def test_a_step_line_is_also_a_figure() -> None:
    """A step line gives the record, then the figures, and both end where the record ends."""
    (record, record_end), (figures, figures_end) = read(b"12:00:00 SUCCESS Step 7 | 1s | Loss 0.5\n")
    assert isinstance(record, LogRecord)
    assert record_end == figures_end
    assert figures == Metrics(
        time=record.time,
        source=record.source,
        offset=0,
        writer="trainer",
        step=7,
        values={"time/step": 1.0, "loss/mean": 0.5},
        console=True,
        completes=True,
    )


def test_dropped_values_are_no_numbers_of_the_last_step() -> None:
    """The warning of values left out gives them as not-a-number, for the last step that the file named."""
    warning = b"12:00:01 WARNING Dropping 1 non-finite value(s) from metrics.jsonl: loss/mean\n"
    first, step, last = metrics(read(warning + b"12:00:02 SUCCESS Step 7 | 1s | Loss nan\n" + warning))
    assert (first.step, step.step, last.step) == (0, 7, 7)
    assert (first.writer, last.completes) == ("trainer", False)
    assert isnan(last.values["loss/mean"])


def test_what_an_environment_prints_is_no_figure() -> None:
    """Text that looks like a step line counts only where a component of the run reports, under a header."""
    line = b"12:00:00 SUCCESS Step 7 | 1s | Loss nan\n"
    env = reader_at(path="logs/attempt_1/envs/train/code.log")
    assert not metrics(env.feed(line) + env.finish())
    assert not metrics(read(b"Step 7 | 1s | Loss nan\n"))


def test_a_line_without_time_has_that_of_the_line_before() -> None:
    """Undated records follow the last dated one; before the first, they have its time."""
    data = b"early\n12:00:00 INFO a\nKilled\n12:00:09 INFO b\n"
    state = begin(clocks([data]), START + timedelta(hours=1), ZONE)
    reader = reader_at(state=state)
    noon = START + timedelta(seconds=60)
    found = logs(reader.feed(data) + reader.finish())
    assert [(event.time, event.dated) for event in found] == [
        (noon, False), (noon, True), (noon, False), (noon + timedelta(seconds=9), True),
    ]  # fmt: skip


def test_the_last_record_may_have_the_time_of_the_file() -> None:
    """A file that ends undated ended when it was last written."""
    ended = START + timedelta(minutes=9)
    reader = reader_at()
    found = reader.feed(b"12:00:00 INFO a\nKilled\nSegmentation fault\n") + reader.finish(ended)
    assert [event.time for event, _ in found] == [START + timedelta(seconds=60)] * 2 + [ended]
    dated = reader_at()
    assert (dated.feed(b"12:00:00 INFO a\n") + dated.finish(ended))[0][0].time == START + timedelta(seconds=60)


def test_without_a_clock_records_wait_for_a_time() -> None:
    """Where no anchor is known, undated records wait for one; at the end they have the file's."""
    ended = START + timedelta(minutes=9)
    reader = LogReader("job_1.log", None, None)
    assert reader.feed(b"12:00:00 INFO a\nKilled\n") == []
    assert reader.offset == 0
    events = reader.feed(b"2026-08-19 12:00:05  INFO router: up\n2026-08-19 12:00:06  INFO router: up\n")
    assert [event.time for event, _ in events] == [START + timedelta(seconds=65)] * 3
    silent = LogReader("job_1.log", None, None)
    assert [event.time for event, _ in silent.feed(b"a\nb\nc\n") + silent.finish(ended)] == [ended] * 3


def test_records_do_not_wait_without_bound() -> None:
    """After a thousand records without a time the present is taken."""
    reader = LogReader("job_1.log", None, None)
    events = reader.feed(b"text\n" * (HELD_RECORDS + 2), now=START)
    assert [event.time for event, _ in events] == [START] * (HELD_RECORDS + 1)


def test_a_floor_holds_for_the_bytes_read_with_it() -> None:
    """Live, an undated record is not earlier than the file's last end before it; a dated one is what it says."""
    reader = reader_at()
    floors = [START + timedelta(minutes=minutes) for minutes in (10, 20, 30)]
    events = reader.feed(b"Killed\n12:00:00 INFO a\nBus er", floors[0])
    events += reader.feed(b"ror\nAborted\n", floors[1])
    events += reader.feed(b"12:00:01 INFO b\n", floors[2]) + reader.settle()
    noon = START + timedelta(seconds=60)
    assert [event.time for event, _ in events] == [floors[0], noon, floors[0], floors[1], noon + timedelta(seconds=1)]


def test_a_quiet_time_ends_a_record_but_not_a_half_line() -> None:
    """Settling gives the record that may have grown, and the half line is completed later."""
    reader = reader_at()
    assert reader.feed(b"12:00:00 INFO a\n12:00:0") == []
    assert [event.text for event in logs(reader.settle())] == ["a"]
    assert reader.offset == 16
    assert reader.settle() == []
    assert [event.text for event in logs(reader.feed(b"1 INFO b\n") + reader.settle())] == ["b"]


def test_a_time_ahead_of_the_present_is_clamped() -> None:
    """A line from the future has the present time, is counted, and does not date the lines after it."""
    reader = reader_at()
    data = b"2026-08-21 00:00:00  INFO router: x\n12:00:04 INFO a\n12:00:06 INFO b\n"
    now = START + timedelta(seconds=60)
    events = reader.feed(data, now=now) + reader.finish(now=now)
    assert [event.time for event, _ in events] == [now, now + timedelta(seconds=4), now]
    assert reader.clamped == 2


def test_a_position_knows_its_file() -> None:
    """Another inode, another beginning or a smaller size is another file; a longer one is the same."""
    data = b"x" * 100
    position = FilePosition(
        path="a.log", attempt=1, device=1, inode=2, head=hash_head(data), head_bytes=100, offset=100,
        clock=ClockState(last=START), step=3,
    )  # fmt: skip
    head = (data + b"more" * 99)[:HEAD_BYTES]
    assert position.is_in(device=1, inode=2, size=496, head=head)
    assert not position.is_in(device=1, inode=3, size=496, head=head)
    assert not position.is_in(device=1, inode=2, size=99, head=head)
    assert not position.is_in(device=1, inode=2, size=496, head=b"y" + head[1:])
    assert msgspec.json.decode(msgspec.json.encode(position), type=FilePosition) == position


@lru_cache
def golden() -> dict[str, tuple[bytes, float]]:
    """Return the logs and metrics of real runs, with their modification times."""
    with tarfile.open(ARCHIVE) as archive:
        members = [member for member in archive if member.isfile() and member.name.endswith((".log", "/metrics.jsonl"))]
        return {member.name: (archive.extractfile(member).read(), member.mtime) for member in members}  # type: ignore[union-attr]


def golden_events(name: str) -> list[tuple[Event, int]]:
    data, mtime = golden()[name]
    ended = from_epoch(mtime)
    reader = LogReader(name, 1, LogClock(ZONE, begin(clocks([data]), ended, ZONE)))
    return reader.feed(data) + reader.finish(ended)


needs_golden = pytest.mark.skipif(
    not ARCHIVE.exists(), reason=f"no golden data: {ARCHIVE.name} is not beside the project"
)


@needs_golden
def test_every_golden_step_line_is_a_figure() -> None:
    """In logs of real runs each step line is found, as a plain search finds them."""
    colours = re.compile(rb"\x1b\[[\d;]*m")
    checked = 0
    for name, (data, _) in golden().items():
        if name.endswith((".jsonl", "_after.log")) or "/envs/" in name:
            continue
        expected = len(re.findall(rb"SUCCESS\W+(?:message\W+)?Step \d+ \|", colours.sub(b"", data)))
        found = [event for event in metrics(golden_events(name)) if event.completes and event.writer != "evaluator"]
        assert len(found) == expected, name
        checked += expected
    assert checked > 100


@needs_golden
def test_golden_step_lines_have_the_times_of_their_rows() -> None:
    """A step line of the console is dated within two seconds of its row in the metrics file."""
    checked = 0
    for name, (data, _) in golden().items():
        if not name.endswith("/run/metrics.jsonl"):
            continue
        rows = [json.loads(line) for line in data.splitlines()]
        run = name.removesuffix("metrics.jsonl")
        for log in (
            log for log in golden() if log.startswith(run) and log.endswith(("/trainer.log", "/orchestrator.log"))
        ):
            for event in metrics(golden_events(log)):
                key = "loss/mean" if event.writer == "trainer" else "time/wait_for_policy"
                times = [row["time"] for row in rows if row["step"] == event.step and key in row]
                if event.completes and event.writer != "evaluator" and times:
                    assert min(abs(event.time.timestamp() - time) for time in times) < 2, (log, event)
                    checked += 1
    assert checked > 50


@needs_golden
@pytest.mark.parametrize(
    ("log", "last"),
    [
        ("torchrun/rank-exception/logs/attempt_1/trainer.log", "Connection closed by peer"),
        ("torchrun/rank-sigkill/logs/attempt_1/trainer.log", "Connection reset by peer"),
        ("torchrun/gloo-timeout/logs/attempt_1/trainer.log", "Timed out waiting 8000ms"),
        ("torchrun/uncaught/logs/attempt_1/trainer.log", "ImportError: libcudart.so.12"),
        ("torchrun/warnings/logs/attempt_1/trainer.log", "ZeroDivisionError: division by zero"),
        ("torchrun/sigterm/logs/attempt_1/trainer.log", "SignalException: Process 1558 got signal: 15"),
        ("scenarios/orphan-router-port-conflict/run/logs/attempt_1/inference.log", "pyo3_runtime.PanicException"),
    ],
)
def test_golden_exceptions_are_whole(log: str, last: str) -> None:
    """A real exception is one record, from its traceback to the line that names it."""
    name = next(name for name in golden() if name.endswith(log))
    record = next(event for event in logs(golden_events(name)) if last in event.text and "Traceback" in event.text)
    assert last in record.text.splitlines()[-1]


@needs_golden
def test_golden_logs_are_read_on_after_a_restart() -> None:
    """Real logs, left and taken up again in several places, give what they give in one go."""
    for name, (data, mtime) in golden().items():
        if name.endswith(".jsonl"):
            continue
        ended = from_epoch(mtime)
        reader, events, start = LogReader(name, 1, LogClock(ZONE, begin(clocks([data]), ended, ZONE))), [], 0
        for end in range(0, len(data), len(data) // 9 + 1):
            events += reader.feed(data[start:end])
            start, clock = reader.offset, reader.clock_state
            assert clock is not None
            reader = LogReader(name, 1, LogClock(ZONE, clock), start, step=reader.step)
        events += reader.feed(data[start:]) + reader.finish(ended)
        assert repr(events) == repr(golden_events(name)), name


@needs_golden
def test_golden_root_causes_of_torchrun_are_whole() -> None:
    """The summary that names the first failing rank is one record with the agent's error."""
    name = next(name for name in golden() if name.endswith("torchrun/rank-sigkill/logs/attempt_1/trainer.log"))
    record = logs(golden_events(name))[-1]
    assert record.text.startswith("failed (exitcode: -9) local_rank: 1")
    assert "Root Cause (first observed failure):" in record.text
    assert "Signal 9 (SIGKILL) received by PID 28779" in record.text
