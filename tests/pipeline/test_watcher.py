"""The heart of the live service: order, one transaction a batch, and a recording that plays back alike."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from pipeline.config import Config, load_rules
from pipeline.events import LogRecord, Mark, ProcessState, Tick
from pipeline.journal import open_journal
from pipeline.journal_file import read_recording
from pipeline.sources.positions import FilePosition
from pipeline.watcher import MOST_EVENTS, Waiting, Watcher
from rules.engine import Engine
from rules.rulebook import Rulebook

if TYPE_CHECKING:
    from pathlib import Path

NOON = datetime(2026, 8, 19, 12, tzinfo=UTC)
LOG = "logs/attempt_1/trainer.log"


@pytest.fixture(scope="module")
def book() -> Rulebook:
    return Rulebook(load_rules(Config()))


def record(second: float, text: str, offset: int = 0, source: str = LOG) -> LogRecord:
    return LogRecord(time=NOON + timedelta(seconds=second), source=source, offset=offset, attempt=1, text=text)


def position(offset: int) -> FilePosition:
    return FilePosition(path=LOG, attempt=1, device=1, inode=1, head="", head_bytes=0, offset=offset)


def test_waiting_events_come_sorted_and_only_when_due() -> None:
    """What is later than the tick waits; what is due comes in the order of time."""
    waiting = Waiting()
    for second in (3, 1, 2):
        waiting.add(record(second, str(second), source=f"{second}.log"), position(second))
    assert [event.time.second for event, _ in waiting.due(NOON + timedelta(seconds=2))] == [1, 2]
    assert [event.time.second for event, _ in waiting.due(NOON + timedelta(seconds=9))] == [3]


def test_what_a_file_brings_stays_in_its_order() -> None:
    """Where times step back within a file, a later record does not overtake an earlier one that waits."""
    read = [(record(9, "first", 0), position(10)), (record(8, "second", 10), position(20))]
    waiting = Waiting()
    assert waiting.sift(read, NOON + timedelta(seconds=8)) == []
    assert waiting.due(NOON + timedelta(seconds=8)) == []
    assert waiting.due(NOON + timedelta(seconds=9)) == read


def test_a_batch_is_bounded() -> None:
    """A backlog is applied in batches."""
    waiting = Waiting()
    for offset in range(MOST_EVENTS + 1):
        waiting.add(record(0, "x", offset))
    assert len(waiting.due(NOON)) == MOST_EVENTS
    assert len(waiting.due(NOON)) == 1


def test_a_file_that_is_gone_holds_up_no_other_in_its_place() -> None:
    """The order of a file is that of one file: what comes after it under its name does not wait for its times."""
    waiting = Waiting()
    waiting.add(record(60, "old"))
    assert len(waiting.due(NOON + timedelta(seconds=60))) == 1
    waiting.add(record(1, "same file, stepping back", 10))
    assert waiting.due(NOON + timedelta(seconds=1)) == []
    waiting.forget([LOG])
    waiting.add(record(2, "another file"))
    assert len(waiting.due(NOON + timedelta(seconds=2))) == 1


@pytest.mark.anyio
async def test_a_batch_is_durable_with_ticks_marks_and_positions(tmp_path: Path, book: Rulebook) -> None:
    """Logs are not kept, the mark tells how far they were read; what cannot be read again is kept."""
    path = tmp_path / "journal.db"
    process = ProcessState(time=NOON, node="n", role="trainer", pid=1, state="running")
    async with open_journal(path) as journal:
        watcher = Watcher(Engine(book), journal, lambda _: [], lambda: NOON)
        await watcher.apply([(record(1, "a"), position(10)), (process, None)], tick=NOON + timedelta(seconds=5))
        await watcher.apply([(record(6, "b", 10), position(20))], floor=NOON)
        restored = await journal.load()
    assert restored.mark is not None
    assert restored.mark.positions == {LOG: 20}
    kept = list(read_recording(path))
    assert [type(event) for event in kept] == [ProcessState, Mark, Tick, Mark]
    assert kept[2].time == NOON + timedelta(seconds=5)


@pytest.mark.anyio
async def test_time_alone_is_not_written(tmp_path: Path, book: Rulebook) -> None:
    """A quiet second costs no transaction."""
    path = tmp_path / "journal.db"
    async with open_journal(path) as journal:
        watcher = Watcher(Engine(book), journal, lambda _: [], lambda: NOON)
        await watcher.apply([(record(1, "a"), position(10))])
        for second in range(2, 10):
            await watcher.apply([], tick=NOON + timedelta(seconds=second))
    assert len(list(read_recording(path))) == 1  # the mark of the one batch


@pytest.mark.anyio
async def test_an_engine_goes_on_from_what_was_committed(tmp_path: Path, book: Rulebook) -> None:
    """Rows that only time changed are committed with the next batch, and the state is then whole."""
    async with open_journal(tmp_path / "journal.db") as journal:
        engine = Engine(book)
        watcher = Watcher(engine, journal, lambda _: [], lambda: NOON)
        await watcher.apply([(record(1, "Starting orchestrator loop"), position(10))])
        await watcher.apply([], tick=NOON + timedelta(seconds=30))
        await watcher.apply([(record(31, "b", 10), position(20))])
        restored = await journal.load()
    again = Engine(book, restored.rows)
    assert (again.clock, again.summary()) == (engine.clock, engine.summary())


@pytest.mark.anyio
async def test_what_an_old_run_did_is_kept_from_when_it_was_read(tmp_path: Path, book: Rulebook) -> None:
    """A run of last month that is watched from today on keeps its recording: it is as old as the watch."""
    path = tmp_path / "journal.db"
    async with open_journal(path, keep_s=3600) as journal:
        watcher = Watcher(Engine(book), journal, lambda _: [], lambda: NOON + timedelta(days=30))
        await watcher.apply([(record(1, "a"), position(10))])
        await watcher.apply([], tick=NOON + timedelta(days=30))
        await watcher.apply([(record(30 * 86400, "b", 10), position(20))])
    marks = [event.positions for event in read_recording(path) if isinstance(event, Mark) and event.positions]
    assert marks == [{LOG: 10}, {LOG: 20}]
