"""The files of a run that is being watched, from real directories."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.events import AttemptBegun, Event, LogRecord, Marker, Metrics, Rollout, RunConfigured, SourceState, order
from pipeline.run_directory import RunDirectory
from pipeline.sources import parsers
from pipeline.sources.files import CONFIGS, LAUNCHED, Files, Taken
from pipeline.sources.log_reader import LogReader, Reading
from pipeline.sources.positions import FilePosition
from pipeline.sources.replay import replay
from pipeline.sources.steps import Markers
from pipeline.sources.tails import Read
from pipeline.times import EPOCH

ZONE = ZoneInfo("UTC")
START = datetime(2026, 8, 19, 12, 0, 0, tzinfo=UTC)
EXAMPLE = Path(__file__).parents[3] / "example" / "run"
SHARED = Path(__file__).parents[3].parent / "shared"
ARCHIVE = SHARED / "golden.tar.gz"
SCENARIO_KIT = SHARED / "scenarios"
SCENARIOS = ["028", "u07"]
NOBODY = 65534


class Run:
    """A run directory that is written step by step, and watched."""

    def __init__(self, path: Path, attempt: int | None = 1) -> None:
        self.path = path
        self.path.mkdir(exist_ok=True)
        self.now = START
        self.files: Files | None = None
        self.states: list[SourceState] = []
        self.gone: list[str] = []
        self.positions: dict[str, FilePosition] = {}
        if attempt is not None:
            self.launch(attempt)

    def launch(self, number: int, *, atomically: bool = True) -> None:
        """Begin an attempt."""
        logs = self.path / "logs"
        (logs / f"attempt_{number}").mkdir(parents=True)
        if atomically:
            (logs / ".new").symlink_to(f"attempt_{number}")
            (logs / ".new").rename(logs / "latest")
        else:
            (logs / "latest").unlink(missing_ok=True)
            (logs / "latest").symlink_to(f"attempt_{number}")

    def write(self, path: str, data: bytes | str, *, mode: str = "ab") -> Path:
        """Append to a file, which then was modified now."""
        file = self.path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open(mode) as opened:
            opened.write(data.encode() if isinstance(data, str) else data)
        os.utime(file, (self.now.timestamp(), self.now.timestamp()))
        return file

    def log(self, text: str, name: str = "trainer", attempt: int = 1) -> Path:
        """Append to a log."""
        return self.write(f"logs/attempt_{attempt}/{name}.log", text)

    def line(self, text: str) -> str:
        """Return a line of now."""
        return f"{self.now:%H:%M:%S}    INFO {text}\n"

    def reads(self, seconds: float = 1.0, *, floor: datetime | None = None, most_events: int = 2000) -> list[Read]:
        """Return what a whole pass brings, some time later."""
        self.now += timedelta(seconds=seconds)
        self.files = self.files or Files(RunDirectory(self.path), ZONE, {})
        reads: list[Read] = []
        while True:
            taken = self.files.take(self.now, floor, most_events=most_events)
            assert isinstance(taken, Taken)
            assert len(taken.events) <= most_events
            reads += taken.events
            self.states += taken.states
            self.gone += taken.gone
            if taken.complete:
                break
        self.positions |= {position.path: position for _, position in reads if position}
        return reads

    def events(self, seconds: float = 1.0, *, floor: datetime | None = None) -> list[Event]:
        """Return the events that a pass brings."""
        return [event for event, _ in self.reads(seconds, floor=floor)]

    def texts(self, seconds: float = 1.0, *, floor: datetime | None = None) -> list[str]:
        """Return the texts of the records that a pass brings."""
        return [event.text for event in self.events(seconds, floor=floor) if isinstance(event, LogRecord)]

    def restart(self) -> None:
        """Watch on from the positions, in another process as it were."""
        stored = {path: msgspec.msgpack.encode(position) for path, position in self.positions.items()}
        restored = {path: msgspec.msgpack.decode(data, type=FilePosition) for path, data in stored.items()}
        self.files = Files(RunDirectory(self.path), ZONE, restored)

    def said(self) -> list[tuple[str, str]]:
        """Return what was said since the last time of what is seen."""
        states, self.states = self.states, []
        return [(state.name, state.state) for state in states]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "run")


def row(step: int, time: datetime, **values: float) -> str:
    return (
        json.dumps(
            {"step": float(step), "time": time.timestamp(), "time/wait_for_batch": 1.0, "time/step": 2.0, **values}
        )
        + "\n"
    )


def trace(time: datetime | None, env: str = "a") -> str:
    timing = {"agent": {"end": time.timestamp()}} if time else {}
    return json.dumps({"ok": True, "info": {"env_name": env}, "timing": timing, "calls": []}) + "\n"


def comparable(event: Event) -> str:
    """Return an event as text; not when a record came that has no time of its own."""
    if isinstance(event, LogRecord) and not event.dated:
        event = msgspec.structs.replace(event, time=EPOCH)
    return repr(event)


def by_file(events: list[Event]) -> dict[str, list[str]]:
    files: dict[str, list[str]] = defaultdict(list)
    for event in events:
        if isinstance(event, LogRecord | Metrics | Rollout):
            files[event.source].append(comparable(event))
    return files


# ── the same as a replay ─────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module", params=["example", "golden", *SCENARIOS])
def finished(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a whole run."""
    if request.param == "example":
        return EXAMPLE
    out = tmp_path_factory.mktemp("finished")
    if request.param == "golden":
        if not ARCHIVE.is_file():
            pytest.skip("the golden corpus is not there")
        with tarfile.open(ARCHIVE) as archive:
            wanted = [member for member in archive if member.name.startswith("golden/episode-era/run/")]
            archive.extractall(out, wanted, filter="data")
        return out / "golden/episode-era/run"
    scenario = next(iter((SCENARIO_KIT / "dev").glob(f"{request.param}-*.toml")), None)
    if scenario is None:
        pytest.skip("the scenario kit is not there")
    subprocess.run([sys.executable, SCENARIO_KIT / "make_run.py", scenario, out], check=True, capture_output=True)
    return out / "run"


def present(run: RunDirectory, *, first_step: int = 0) -> list[Event]:
    """Return what a replay gives of the present attempt, from a step of rollouts on."""
    latest = run.latest()
    assert latest
    earlier = tuple(f"logs/attempt_{number}/" for number in range(1, latest.number))
    return [
        event
        for event in replay(run, ZONE)
        if not (isinstance(event, LogRecord | Metrics) and event.source.startswith(earlier))
        and not (isinstance(event, AttemptBegun) and event.number != latest.number)
        and not (isinstance(event, Rollout) and event.step < first_step)
    ]


def test_a_first_attach_is_a_replay(finished: Path) -> None:
    """A finished run gives what a replay of it gives."""
    run = Run(finished, None)
    run.now = datetime.now(UTC) + timedelta(days=1)
    directory = RunDirectory(finished)
    first = max(file.step for file in directory.rollout_files()) - 19
    # told of before the first event, which in a replay may be one of an earlier attempt
    config, *events = run.events()
    assert isinstance(config, RunConfigured)
    assert sorted(events, key=order) == sorted(present(directory, first_step=first)[1:], key=order)


def test_a_copy_is_dated_as_a_replay_dates_it(tmp_path: Path) -> None:
    """So does a copy, whose files have the time of the copy."""
    shutil.copytree(EXAMPLE, tmp_path / "run", symlinks=True, copy_function=shutil.copyfile)
    run = Run(tmp_path / "run", None)
    run.now = datetime.now(UTC) + timedelta(days=400)
    events = run.events()
    assert events == list(replay(RunDirectory(run.path), ZONE))
    assert {event.time.date() for event in events} == {START.date()}


def writes(finished: Path) -> Iterator[tuple[datetime, Event, str, bytes]]:
    """Yield the records of a run as they were written: when, the event, and what was added to which file."""
    events = list(replay(RunDirectory(finished), ZONE))
    ends: dict[tuple[str, int], datetime] = {}
    for event in events:
        if isinstance(event, LogRecord | Metrics | Rollout):
            place = event.source, event.offset
            ends[place] = max(event.time, ends.get(place, EPOCH))
    begins: dict[str, list[int]] = defaultdict(list)
    for source, offset in ends:
        begins[source].append(offset)
    for event in events:
        if isinstance(event, LogRecord | Metrics | Rollout) and begins[event.source][:1] == [event.offset]:
            begin = begins[event.source].pop(0)
            end = next(iter(begins[event.source]), None)
            data = (finished / event.source).read_bytes()[begin:end]
            yield ends[event.source, begin], event, event.source, data
        elif isinstance(event, Marker):
            yield event.time, event, event.source, b""
        elif isinstance(event, AttemptBegun):
            yield event.time, event, "", b""


def test_a_run_watched_while_it_is_written_gives_what_a_replay_gives(finished: Path, tmp_path: Path) -> None:
    """Written record by record with passes in between, a run gives the events of the replay of the finished one."""
    run, seen = Run(tmp_path / "run", None), []
    shutil.copytree(finished / "configs", run.path / "configs")
    run.now, floor, due = EPOCH, None, EPOCH
    for time, event, path, data in writes(finished):
        if time >= due and run.now > EPOCH:
            seen += run.events(0, floor=floor)
            floor, due = run.now, time + timedelta(seconds=5)
        run.now = max(time, run.now)
        if isinstance(event, AttemptBegun):
            run.launch(event.number)
        else:
            run.write(path, data)
    seen += run.events(1, floor=floor) + run.events(10, floor=run.now)
    expected = list(replay(RunDirectory(run.path), ZONE))
    assert by_file(seen) == by_file(expected)
    for kind in (Marker, AttemptBegun):
        assert [event for event in seen if isinstance(event, kind)] == [e for e in expected if isinstance(e, kind)]


def test_catching_up_comes_in_the_order_of_time(run: Run) -> None:
    """What is in several files comes as one stream, by time."""
    for second in range(0, 60, 3):
        run.now = START + timedelta(seconds=second)
        run.log(run.line(f"a{second}"), "a")
        run.now += timedelta(seconds=1)
        run.log(run.line(f"b{second}"), "b")
        run.write("metrics.jsonl", row(second + 1, run.now + timedelta(seconds=1)))
    keys = [order(event) for event in run.events(60)]
    assert keys == sorted(keys)
    assert len(keys) == 2 + 60


# ── appends, cuts and restarts ───────────────────────────────────────────────────────────────────

CONTENT = {
    "logs/attempt_1/trainer.log": (
        b"12:00:00    INFO one\n12:00:01   ERROR Fatal error in train\nTraceback (most recent call last):\n"
        b"  File a\nValueError: b\nKilled\n12:00:02 SUCCESS Step 7 | 1s | Loss 0.5\n12:00:03 WARNING end\n"
    ),
    "logs/attempt_1/envs/train/a.log": "no time\n12:00:01    INFO größer\nundated at the end\n".encode(),
    "metrics.jsonl": (row(1, START) + row(2, START + timedelta(seconds=2))).encode(),
    "rollouts/step_1/train/all/traces.jsonl": (trace(START) + trace(None) + trace(None, "b")).encode(),
}


def whole(path: Path) -> list[Event]:
    run = Run(path)
    run.now += timedelta(seconds=5)
    for name, data in CONTENT.items():
        run.write(name, data)
    return run.events(60)


@given(st.data())
@settings(max_examples=40)
def test_events_do_not_depend_on_how_files_grow(data: st.DataObject) -> None:
    """However a file is written, half lines included, the events are the same and come once."""
    with tempfile.TemporaryDirectory() as folder:
        expected = whole(Path(folder, "whole"))
        run = Run(Path(folder, "run"))
        run.now += timedelta(seconds=5)
        seen: list[Event] = []
        cuts = {
            name: sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4))) for name, text in CONTENT.items()
        }
        for turn in range(5):
            for name, text in CONTENT.items():
                start, end = ([0, *cuts[name]][turn : turn + 1], [*cuts[name], len(text)][turn : turn + 1])
                if start and end:
                    run.write(name, text[start[0] : end[0]])
            seen += run.events(0.01)
        seen += run.events(60)
        assert by_file(seen) == by_file(expected)


@given(st.data())
@settings(max_examples=40)
def test_a_restart_from_any_position_goes_on_with_the_very_next_event(data: st.DataObject) -> None:
    """With the positions of the events so far, another process gives exactly the others, times included."""
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder, "run"))
        run.now += timedelta(seconds=5)
        for name, text in CONTENT.items():
            run.write(name, text)
        run.write("broadcasts/step_1/STABLE", "")
        run.write("broadcasts/step_1/NCCL_READY", "")
        run.write("configs/orchestrator.json", "{}")
        reads = run.reads(60)
        ends = [number + 1 for number, (_, position) in enumerate(reads) if position]
        end = data.draw(st.sampled_from(ends))
        run.positions = {position.path: position for _, position in reads[:end] if position}
        run.restart()
        assert run.events(60) == [event for event, _ in reads[end:]]


def test_only_the_last_event_of_a_record_has_a_position(run: Run) -> None:
    """A step line gives two events; the position after both comes with the second."""
    run.log("12:00:00 SUCCESS Step 7 | 1s | Loss 0.5\n12:00:01    INFO x\n")
    log = [(event, position) for event, position in run.reads(60) if isinstance(event, LogRecord | Metrics)]
    assert [type(event).__name__ for event, _ in log] == ["LogRecord", "Metrics", "LogRecord"]
    assert log[0][1] is None
    assert log[1][1] is not None
    assert (log[1][1].offset, log[1][1].step) == (40, 7)


def test_calls_bring_about_as_much_as_was_asked_for(run: Run) -> None:
    """However much there is, a call returns no more events than asked for, and the last one says so."""
    run.log("".join(f"12:00:00    INFO {number}\n" for number in range(1000)))
    run.now += timedelta(seconds=60)
    files = Files(RunDirectory(run.path), ZONE, {})
    taken = [files.take(run.now, None, most_events=300) for _ in range(4)]
    assert [len(each.events) for each in taken] == [300, 300, 300, 102]
    assert [each.complete for each in taken] == [False, False, False, True]


def test_a_pass_ends_where_the_files_ended_when_it_began(run: Run) -> None:
    """What is written meanwhile is of the next pass, so that a busy file ends a pass too."""
    run.log(run.line("one") * 10)
    run.now += timedelta(seconds=60)
    files = Files(RunDirectory(run.path), ZONE, {})
    assert not files.take(run.now, None, most_events=5).complete
    run.log(run.line("two") * 10)
    rest = files.take(run.now, None)
    assert rest.complete
    assert {event.text for event, _ in rest.events if isinstance(event, LogRecord)} == {"one"}
    assert len(run_texts(files.take(run.now + timedelta(seconds=9), None))) >= 10


def run_texts(taken: Taken) -> list[str]:
    return [event.text for event, _ in taken.events if isinstance(event, LogRecord)]


def test_the_last_record_comes_when_its_file_is_quiet(run: Run) -> None:
    """A record at the end of a file waits for more of it, but not for long."""
    assert run.texts() == []
    run.log(run.line("failed") + "Traceback (most recent call last):\n")
    assert run.texts(0.1) == ["failed"]
    run.log("  File a\nValueError: b\n")
    assert run.texts(0.1) == []
    assert run.texts(1) == ["Traceback (most recent call last):\n  File a\nValueError: b"]
    run.log("half a line")
    assert run.texts(1) == run.texts(1) == []
    run.log(" and the rest\n")
    assert run.texts(0.1) == []
    assert run.texts(1) == ["half a line and the rest"]


def test_an_undated_record_is_not_earlier_than_when_its_file_had_been_read(run: Run) -> None:
    """Live, what has no time of its own happened since the last look; at first, when the file was last written."""
    run.log(run.line("old") + "undated\n")
    run.now += timedelta(minutes=3)
    os.utime(run.path / "logs/attempt_1/trainer.log", (run.now.timestamp(), run.now.timestamp()))
    at_first = [event for event in run.events(60) if isinstance(event, LogRecord)]
    assert [(event.text, event.time) for event in at_first] == [
        ("old", START),
        ("undated", START + timedelta(minutes=3)),
    ]
    floor = run.now
    run.log("another\n")
    run.events(0.1, floor=floor)
    assert [event.time for event in run.events(1, floor=run.now)] == [floor]


# ── other files in their place ───────────────────────────────────────────────────────────────────


def test_a_truncated_file_is_read_from_its_beginning(run: Run) -> None:
    """A file that has become smaller is another one."""
    run.log(run.line("one") + run.line("two"))
    assert run.texts(9) == ["one", "two"]
    run.write("logs/attempt_1/trainer.log", run.line("three"), mode="wb")
    assert run.texts(9) + run.texts(9) == ["three"]


def test_a_file_written_anew_to_the_same_size_is_another(run: Run) -> None:
    """Its beginning tells, even if its size and inode are the same."""
    run.log(run.line("one"))
    assert run.texts(9) == ["one"]
    run.write("logs/attempt_1/trainer.log", run.line("two"), mode="wb")
    assert run.texts(9) + run.texts(9) == ["two"]


def test_a_replaced_file_is_read_from_its_beginning(run: Run) -> None:
    """Another inode under the same name is another file; what was left of the first one is given out."""
    file = run.log(run.line("one") + run.line("two"))
    assert run.texts(0.1) == ["one"]
    file.unlink()
    run.log(run.line("three") * 3, "new").rename(file)
    assert sorted(run.texts(9)) == ["three", "three", "three", "two"]


def test_a_deleted_file_is_forgotten(run: Run) -> None:
    """What had been read of it still comes; a new one of its name is read whole."""
    file = run.log(run.line("one"))
    assert run.texts(0.1) == []
    file.unlink()
    assert run.texts(0.1) == ["one"]
    assert run.gone == ["logs/attempt_1/trainer.log"]
    run.log(run.line("two"))
    assert run.texts(9) + run.texts(9) == ["two"]


def test_after_a_restart_a_replaced_file_is_another(run: Run) -> None:
    """A position holds only for the file that it is of."""
    file = run.log(run.line("one") + run.line("two"))
    run.events(60)
    file.unlink()
    run.log(run.line("three") + run.line("four") * 3, "other").rename(file)
    run.restart()
    assert run.texts(60) == ["three", "four", "four", "four"]


def test_late_files_in_new_directories_are_found(run: Run) -> None:
    """Logs that appear later, at any depth, and job logs are read."""
    run.events()
    run.log(run.line("deep"), "trainer/torchrun/a/attempt_0/3/stderr")
    run.write("job_17.log", run.line("job"))
    assert sorted(run.texts(9) + run.texts(9)) == ["deep", "job"]


def test_a_link_to_another_log_is_not_read_twice(run: Run) -> None:
    """A multi-node run's trainer.log is a link; what leads out of the run is not opened."""
    run.log(run.line("node"), "trainer/node_0")
    (run.path / "logs/attempt_1/trainer.log").symlink_to("trainer/node_0.log")
    outside = run.path.parent / "outside.log"
    outside.write_text(run.line("secret"), "utf-8")
    (run.path / "logs/attempt_1/leak.log").symlink_to(outside)
    os.mkfifo(run.path / "logs/attempt_1/pipe.log")
    assert run.texts(60) == ["node"]


def test_a_log_that_becomes_a_link_is_not_followed(run: Run) -> None:
    """Nor is a link followed that takes the place of a log."""
    file = run.log(run.line("one"))
    run.events(60)
    outside = run.path.parent / "outside.log"
    outside.write_text(run.line("secret") * 9, "utf-8")
    file.unlink()
    file.symlink_to(outside)
    assert run.texts(60) == []


def test_hundreds_of_files_are_read_side_by_side(run: Run) -> None:
    """All files come as one stream in order."""
    for number in range(200):
        text = "".join(f"12:00:{second:02}    INFO {number}\n" for second in range(number % 3, 60, 3))
        run.log(text, f"envs/train/{number}")
    events = [event for event in run.events(300) if isinstance(event, LogRecord)]
    assert len(events) == 200 * 20
    assert [event.time for event in events] == sorted(event.time for event in events)


def test_a_backlog_takes_little_memory(run: Run) -> None:
    """Memory does not grow with what is unread."""
    line = run.line("x" * 8000)
    for name in ("a", "b", "c"):
        run.log(line * 2000, name)
    page = os.sysconf("SC_PAGE_SIZE")
    before = most = int(Path("/proc/self/statm").read_text().split()[1]) * page
    files, count = Files(RunDirectory(run.path), ZONE, {}), 0
    while True:
        taken = files.take(run.now + timedelta(seconds=60), None)
        count += len(run_texts(taken))
        most = max(most, int(Path("/proc/self/statm").read_text().split()[1]) * page)
        if taken.complete:
            break
    assert count == 6000
    assert most - before < 48 << 20


# ── attempts ─────────────────────────────────────────────────────────────────────────────────────


def test_the_first_attach_begins_with_the_present_attempt(run: Run) -> None:
    """Of an earlier attempt no log is read; the attempt begins with its first record."""
    run.log(run.line("old"))
    run.launch(2)
    run.now += timedelta(minutes=1)
    run.log(run.line("new"), attempt=2)
    config, begun, new = run.events(60)
    assert isinstance(config, RunConfigured)
    assert isinstance(begun, AttemptBegun)
    assert isinstance(new, LogRecord)
    assert (begun.number, begun.time, new.text) == (2, new.time, "new")


def test_a_job_log_of_an_earlier_launch_is_passed_over(run: Run) -> None:
    """A job log last written before the attempt began is not read, nor after a restart; one that grows is."""
    run.write("job_1.log", run.line("old"))
    run.now += timedelta(minutes=5)
    run.log(run.line("new"))
    run.write("job_2.log", run.line("job"))
    assert sorted(run.texts(60)) == ["job", "new"]
    run.restart()
    assert run.texts(60) == []
    run.write("job_1.log", run.line("requeued"))
    assert run.texts(60) == ["requeued"]


@pytest.mark.parametrize("atomically", [True, False])
def test_a_new_attempt_begins_after_the_old_one_was_read_to_its_end(run: Run, atomically: bool) -> None:
    """The old attempt's last record and half line come first, then the attempt, its configs and its logs from 0."""
    run.log(run.line("one"))
    run.events(60)
    run.log(run.line("last") + run.line("half").rstrip("\n"))
    run.now += timedelta(seconds=5)
    run.launch(2, atomically=atomically)
    run.log(run.line("new"), attempt=2)
    events = run.events(10)
    kinds = [(type(event).__name__, getattr(event, "text", "")) for event in events]
    assert kinds == [
        ("LogRecord", "last"),
        ("LogRecord", "half"),
        ("AttemptBegun", ""),
        ("RunConfigured", ""),
        ("LogRecord", "new"),
    ]
    assert run.events() == []


def test_a_moment_without_a_link_changes_nothing(run: Run) -> None:
    """A scheduler's script removes the link before it makes the new one."""
    run.log(run.line("one"))
    run.events(60)
    (run.path / "logs/latest").unlink()
    assert run.events() == []


def test_attempts_that_came_and_went_unseen_are_read(run: Run) -> None:
    """After a pause, the attempts in between are read too, each in its place."""
    run.log(run.line("one"))
    run.events(60)
    for number in (2, 3):
        run.now += timedelta(minutes=10)
        run.launch(number)
        run.log(run.line(f"of {number}"), attempt=number)
    run.restart()
    events = run.events(600)
    assert [event.number if isinstance(event, AttemptBegun) else getattr(event, "text", "") for event in events] == [
        2, "", "of 2", 3, "", "of 3",
    ]  # fmt: skip
    assert [event.time for event in events] == sorted(event.time for event in events)


def test_after_a_clean_start_the_same_number_is_another_attempt(run: Run) -> None:
    """An attempt is known by its directory, not by its number."""
    run.log(run.line("one"))
    run.events(60)
    shutil.rmtree(run.path / "logs")
    assert run.events() == []
    (run.path / "logs").mkdir()
    run.launch(1)
    run.log(run.line("anew"))
    events = run.events(60)
    assert [event.number for event in events if isinstance(event, AttemptBegun)] == [1]
    assert [event.text for event in events if isinstance(event, LogRecord)] == ["anew"]


def test_a_restart_does_not_begin_the_attempt_again(run: Run) -> None:
    """Nor does it repeat the configs."""
    run.write("configs/orchestrator.json", "{}")
    run.log(run.line("one"))
    run.events(60)
    assert {LAUNCHED, CONFIGS} <= run.positions.keys()
    run.restart()
    assert run.events() == []
    run.log(run.line("two"))
    assert run.texts(9) + run.texts(9) == ["two"]


def test_a_run_without_attempts_waits_for_one(tmp_path: Path) -> None:
    """A directory in which nothing has begun gives nothing, then the attempt."""
    run = Run(tmp_path / "run", None)
    assert run.events() == []
    run.launch(1)
    assert [type(event).__name__ for event in run.events()] == ["RunConfigured", "AttemptBegun"]


def test_changed_configs_are_told_again(run: Run) -> None:
    """A config that changes while the run is watched is read anew."""
    run.write("configs/orchestrator.json", '{"max_steps": 10}')
    assert [event.max_steps for event in run.events() if isinstance(event, RunConfigured)] == [10]
    run.write("configs/orchestrator.json", '{"max_steps": 200}', mode="wb")
    assert [event.max_steps for event in run.events() if isinstance(event, RunConfigured)] == [200]
    assert run.events() == []


def test_a_batch_script_that_comes_later_is_told(run: Run) -> None:
    """On how many nodes the run runs stands there, and it may be written after the configs."""
    run.write("configs/orchestrator.json", '{"max_steps": 10}')
    run.events()
    run.write("rl.sbatch", "export NUM_TRAIN_NODES=4\n")
    (found,) = [event.deployment for event in run.events() if isinstance(event, RunConfigured)]
    assert found is not None
    assert found.train_nodes == 4


# ── rollouts, metrics and markers ────────────────────────────────────────────────────────────────


def rollout_steps(events: list[Event]) -> list[int]:
    return [event.step for event in events if isinstance(event, Rollout)]


def test_at_first_the_last_twenty_steps_are_read_and_then_every_new_one(run: Run) -> None:
    """Older rollouts are left alone; appended, new and rewritten files are read."""
    for step in range(1, 31):
        run.write(f"rollouts/step_{step}/train/all/traces.jsonl", trace(START + timedelta(seconds=step)))
    assert rollout_steps(run.events(60)) == list(range(11, 31))
    run.write("rollouts/step_30/train/all/traces.jsonl", trace(run.now) + '{"half')
    run.write("rollouts/step_31/eval/all/traces.jsonl", trace(run.now))
    assert rollout_steps(run.events()) == [30, 31]
    run.restart()
    run.write("rollouts/step_32/train/all/traces.jsonl", trace(run.now))
    assert rollout_steps(run.events()) == [32]


def test_a_first_attach_that_was_cut_short_still_knows_where_it_began(run: Run) -> None:
    """A process that ends before the first rollout leaves the next one the same twenty steps."""
    for step in range(1, 31):
        run.write(f"rollouts/step_{step}/train/all/traces.jsonl", trace(START + timedelta(seconds=step)))
    (config, position), *_ = run.reads(60)
    assert isinstance(config, RunConfigured)
    assert position
    run.positions = {position.path: position}
    run.restart()
    assert rollout_steps(run.events(60)) == list(range(11, 31))


def test_late_lines_of_an_old_step_are_read_within_a_minute(run: Run) -> None:
    """An evaluation may end many steps later."""
    for step in range(1, 20):
        run.write(f"rollouts/step_{step}/train/all/traces.jsonl", trace(START))
    run.events(60)
    run.write("rollouts/step_1/eval/all/traces.jsonl", trace(run.now))
    assert rollout_steps(run.events(1) + run.events(60)) == [1]


@pytest.mark.parametrize("back_to", [25, 3, 0])
def test_steps_that_a_resume_makes_anew_are_read_again(run: Run, back_to: int) -> None:
    """Directories that vanish are forgotten, and what takes their place is new, also before the first step read."""
    for step in range(1, 31):
        run.write(f"rollouts/step_{step}/train/all/traces.jsonl", trace(START))
    run.events(60)
    for step in range(back_to + 1, 31):
        shutil.rmtree(run.path / f"rollouts/step_{step}")
    assert rollout_steps(run.events()) == []
    assert len(run.gone) == min(30 - back_to, 20)
    for step in range(back_to + 1, back_to + 3):
        run.write(f"rollouts/step_{step}/train/all/traces.jsonl", trace(START) * 2)
    assert rollout_steps(run.events()) == [back_to + 1] * 2 + [back_to + 2] * 2


def test_records_of_an_unknown_shape_are_blindness(run: Run) -> None:
    """What cannot be understood is said, once, and that it can be again."""
    run.write("rollouts/step_1/train/all/traces.jsonl", trace(START))
    run.events()
    assert run.said() == [("files", "seeing")]
    run.write("rollouts/step_2/train/all/traces.jsonl", '{"another": "shape"}\n')
    assert rollout_steps(run.events() + run.events()) == []
    assert run.said() == [("files:rollouts", "blind")]
    run.write("rollouts/step_3/train/all/traces.jsonl", trace(START))
    assert rollout_steps(run.events()) == [3]
    assert run.said() == [("files:rollouts", "seeing")]


def test_metrics_are_read_whole_and_none_is_ahead_of_the_clock(run: Run) -> None:
    """All rows come, each once, and one from a fast clock counts as of now."""
    run.write("metrics.jsonl", row(1, START - timedelta(days=1)) + row(2, START))
    assert [event.step for event in run.events() if isinstance(event, Metrics)] == [1, 2]
    run.write("metrics.jsonl", row(3, START + timedelta(days=1)))
    assert [event.time for event in run.events() if isinstance(event, Metrics)] == [run.now]
    run.restart()
    assert run.events() == []


def test_markers_come_when_they_appear_or_are_touched(run: Run) -> None:
    """All at first, then each new or touched one once, none in the future, also after a restart."""
    for step in range(40):
        run.write(f"broadcasts/step_{step}/STABLE", "")
    assert len([event for event in run.events() if isinstance(event, Marker)]) == 40
    assert run.events() == []
    run.now += timedelta(seconds=10)
    run.write("broadcasts/step_39/STABLE", "")
    run.write("checkpoints/step_38/trainer/.metadata", "")
    ahead = run.write("broadcasts/step_40/STABLE", "")
    os.utime(ahead, (run.now.timestamp() + 3600, run.now.timestamp() + 3600))
    events = [event for event in run.events() if isinstance(event, Marker)]
    assert [(event.kind, event.number) for event in events] == [
        ("policy-published", 39),
        ("checkpoint-trainer", 38),
        ("policy-published", 40),
    ]
    assert events[-1].time == run.now
    os.utime(ahead, (run.now.timestamp(), run.now.timestamp()))
    run.events()
    run.restart()
    assert run.events() == []


def test_markers_removed_by_a_resume_are_told_when_they_come_back(run: Run) -> None:
    """A step that vanished and is made anew is a new marker."""
    for step in range(5):
        run.write(f"broadcasts/step_{step}/STABLE", "")
    run.events()
    shutil.rmtree(run.path / "broadcasts/step_4")
    assert run.events() == []
    run.write("broadcasts/step_4/STABLE", "")
    assert [event.number for event in run.events() if isinstance(event, Marker)] == [4]


# ── what is not seen ─────────────────────────────────────────────────────────────────────────────


@contextmanager
def unprivileged() -> Iterator[None]:
    """Do without what root may: it reads everything."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


@pytest.fixture
def open_run() -> Iterator[Run]:
    """Return a run in a folder that anybody may enter."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Run(Path(folder, "run"))


def test_what_may_not_be_read_is_blindness_until_it_may(open_run: Run) -> None:
    """A file without permission is said once; the others are read; once it may be read, nothing of it is lost."""
    run = open_run
    run.log(run.line("open"), "a")
    closed = run.log(run.line("closed"), "b")
    closed.chmod(0)
    with unprivileged():
        assert run.texts(60) == ["open"]
        assert run.events() == []
        assert run.said() == [("files", "seeing"), ("files:logs/attempt_1/b.log", "blind")]
    closed.chmod(0o644)
    with unprivileged():
        assert run.texts(60) == ["closed"]
        assert run.said() == [("files:logs/attempt_1/b.log", "seeing")]


@pytest.mark.parametrize("part", ["", "logs"])
def test_a_directory_that_may_not_be_listed_loses_nothing(open_run: Run, part: str) -> None:
    """Files that cannot be looked at are not taken for deleted ones."""
    run = open_run
    run.log(run.line("one"))
    with unprivileged():
        assert run.texts(60) == ["one"]
    run.said()
    (run.path / part).chmod(0)
    with unprivileged():
        assert run.events() == []
        assert run.said()[0] == ("files:logs" if part else "files", "blind")
    (run.path / part).chmod(0o755)
    run.log(run.line("two"))
    with unprivileged():
        assert run.texts(60) == ["two"]
        assert {state for _, state in run.said()} == {"seeing"}
    assert run.gone == []


def test_a_run_directory_that_is_gone_is_blindness(run: Run) -> None:
    """Without the directory nothing is seen, which is not that nothing happens."""
    run.log(run.line("one"))
    run.events(60)
    run.said()
    run.path.rename(run.path.with_name("away"))
    assert run.events() == []
    assert run.said() == [("files", "blind")]
    run.path.with_name("away").rename(run.path)
    assert run.events() == []
    assert run.said() == [("files", "seeing")]


class Buggy(LogReader):
    """A reader with a bug."""

    def feed(self, data: bytes, floor: datetime | None = None, now: datetime | None = None) -> Reading:
        """Fail at one record."""
        if b"poison" in data:
            raise ZeroDivisionError
        return super().feed(data, floor, now)


def test_a_poisonous_record_is_skipped_after_two_tries(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug in a parser costs a little of one file, is said, and stops nothing else."""
    monkeypatch.setattr(parsers, "LogReader", Buggy)
    before = "".join(run.line(f"before {number}") for number in range(2000))
    after = "".join(run.line(f"after {number}") for number in range(2000))
    run.log(before + run.line("poison") + after)
    run.log(run.line("other") * 3, "other")
    texts = run.texts(60)
    assert texts.count("other") == 3
    assert sum(text.startswith("before") for text in texts) > 1700
    assert sum(text.startswith("after") for text in texts) > 1700
    assert len(texts) == len(set(texts)) + 2
    _, failed = run.states
    assert (failed.name, failed.state, failed.failed) == ("files:logs/attempt_1/trainer.log", "blind", True)
    run.said()
    run.log(run.line("well again"))
    assert run.texts(9) + run.texts(9) == ["well again"]
    assert run.said() == [("files:logs/attempt_1/trainer.log", "seeing")]


class Undatable(LogReader):
    """A reader that cannot begin."""

    def __init__(self, path: str, *arguments: object, **options: object) -> None:
        if "bad" in path and arguments[1] is not None:
            raise ZeroDivisionError
        super().__init__(path, *arguments, **options)  # type: ignore[arg-type]


def test_a_file_that_cannot_be_begun_stops_nothing_else(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug that shows before the first record is said as long as it lasts, and the file is not lost by it."""
    run.log(run.line("one"), "bad")
    run.log(run.line("two"), "good")
    with monkeypatch.context() as patch:
        patch.setattr(parsers, "LogReader", Undatable)
        assert run.texts(60) == ["two"]
        assert run.events() == []
        assert [(state.name, state.failed) for state in run.states[1:]] == [("files:logs/attempt_1/bad.log", True)]
    run.said()
    assert run.texts() == ["one"]
    assert run.said() == [("files:logs/attempt_1/bad.log", "seeing")]


def test_a_pass_that_fails_loses_nothing_and_is_said(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug beside the parsers ends one pass: what it had read comes, what is left comes with the next one."""
    run.log(run.line("one"))
    run.write("metrics.jsonl", row(1, START))

    def failing(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(Markers, "look", failing)
        run.events()
        run.events()
        assert ("files", "blind", True) in [(state.name, state.state, state.failed) for state in run.states]
    run.said()
    assert run.texts(60) == ["one"]
    assert run.said() == [("files", "seeing")]


@given(st.binary(max_size=300), st.binary(max_size=300))
@settings(max_examples=25)
def test_no_bytes_stop_the_files(log: bytes, data: bytes) -> None:
    """Whatever files hold, they are read, and nothing of it is taken for our own fault."""
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder, "run"))
        run.write("logs/attempt_1/trainer.log", log)
        for name in ("metrics.jsonl", "rollouts/step_1/train/all/traces.jsonl", "configs/trainer.json"):
            run.write(name, data)
        run.events(60)
        run.events(60)
        assert not [state for state in run.states if state.failed]
        assert run.events() == []
        assert Counter(name for name, _ in run.said())["files"] == 1
