"""A recording of our own, played back: also when what it tells of has been deleted since."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

from pipeline.events import Event, LogRecord, Mark, Metrics, Tick
from pipeline.run_directory import RunDirectory
from pipeline.sources.replay import replay

START = datetime(2026, 8, 19, 12, tzinfo=UTC)
LOG = "logs/attempt_1/trainer.log"
LINES = "".join(f"12:00:0{second}    INFO line {second}\n" for second in range(4))
ROWS = "".join(f'{{"step": {step}, "time": {START.timestamp() + step}, "loss/mean": 1.0}}\n' for step in range(3))


def played(path: Path, *marks: dict[str, int]) -> list[Event]:
    """Play a run back with so many marks, a minute from one to the next."""
    recorded = [Mark(time=START + timedelta(minutes=i), positions=mark) for i, mark in enumerate(marks, start=1)]
    events = replay(RunDirectory(path), ZoneInfo("UTC"), [Tick(time=START), *recorded])
    return [event for event in events if isinstance(event, LogRecord | Metrics)]


def written(path: Path) -> Path:
    """Write a run."""
    log = path / LOG
    log.parent.mkdir(parents=True)
    log.write_text(LINES)
    os.utime(log, (START.timestamp() + 3, START.timestamp() + 3))
    (path / "metrics.jsonl").write_text(ROWS)
    return path


def test_files_are_read_from_mark_to_mark(tmp_path: Path) -> None:
    """Each batch has what had been read by its mark, and what follows the last one was never applied."""
    half, row = len(LINES) // 2, len(ROWS) // 3
    events = played(written(tmp_path), {LOG: half}, {LOG: len(LINES), "metrics.jsonl": row})
    assert [event.text if isinstance(event, LogRecord) else event.step for event in events] == [
        "line 0", "line 1", 0, "line 2", "line 3",
    ]  # fmt: skip


def test_what_has_been_deleted_is_left_out(tmp_path: Path) -> None:
    """A recording outlives the files that it tells of: what is left of the run is played back."""
    run = written(tmp_path)
    (run / "metrics.jsonl").unlink()
    events = played(run, {LOG: len(LINES), "metrics.jsonl": len(ROWS), "logs/attempt_0/trainer.log": 100})
    assert [event.text for event in events if isinstance(event, LogRecord)] == [f"line {i}" for i in range(4)]
