"""
A recording that runwatch made itself, played back exactly as it was watched.

Its marks say how far each log had been read when a batch was committed, and its
ticks what time it was before: the engine meets the same events, in the same
order, at the same times. What a resume deletes (rollouts, markers) is in the
recording; only logs and metrics are read from the run directory.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from pipeline.events import Event, Mark, Tick, order
from pipeline.sources.data_readers import MetricsReader
from pipeline.sources.dating import CHUNK_BYTES, Dating
from pipeline.sources.log_reader import LogReader

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime
    from pathlib import Path

    from pipeline.events import KeptEvent
    from pipeline.run_directory import LogFile, RunDirectory


def play_back(run: RunDirectory, dating: Dating, recorded: Iterable[KeptEvent]) -> Iterator[Event]:
    """Yield what was applied, batch by batch; what follows the last mark was never committed."""
    files = {file.relative: file for attempt in run.attempts() for file in run.log_files(attempt)}
    files |= {file.relative: file for file in run.shared_logs()}
    read: dict[str, _Logged | _Metrics] = {}
    batch: list[Event] = []
    for event in recorded:
        if not isinstance(event, Mark):
            batch.append(event)
            continue
        for path, offset in event.positions.items():
            if path not in read and (opened := _open(run, files, dating, path)) is not None:
                read[path] = opened
            if path in read:
                batch += read[path].up_to(offset, event.floor)
        yield from (early for early in batch if isinstance(early, Tick))
        yield from sorted((late for late in batch if not isinstance(late, Tick)), key=order)
        yield event
        batch = []


def _open(run: RunDirectory, files: dict[str, LogFile], dating: Dating, path: str) -> _Logged | _Metrics | None:
    if path == run.metrics_file().name:
        return _Metrics(run)
    return _Logged(files[path], dating) if path in files else None


class _Logged:
    """A log, read from mark to mark."""

    def __init__(self, file: LogFile, dating: Dating) -> None:
        self._file, self._at, self._ended = file, 0, dating.ended(file)
        self._reader = LogReader(file.relative, file.attempt, dating.clock(file))

    def up_to(self, offset: int, floor: datetime | None) -> list[Event]:
        """Return the records up to *offset*, at which one ends."""
        read: list[Event] = []
        for data in _pieces(self._file.path, self._at, offset):
            self._at += len(data)
            read += [event for event, _ in self._reader.feed(data, floor)]
        read += [event for event, _ in self._reader.settle()]
        if self._reader.offset < offset:  # the attempt had ended, and with it half a line
            read += [event for event, _ in self._reader.finish(self._ended)]
        return read


class _Metrics:
    """`metrics.jsonl`, read from mark to mark."""

    def __init__(self, run: RunDirectory) -> None:
        self._path, self._at = run.metrics_file(), 0
        self._reader = MetricsReader(self._path.name)

    def up_to(self, offset: int, _floor: datetime | None) -> list[Event]:
        """Return the rows up to *offset*, at which one ends."""
        read: list[Event] = []
        for data in _pieces(self._path, self._at, offset):
            self._at += len(data)
            read += [event for event, _ in self._reader.feed(data)]
        return read


def _pieces(path: Path, start: int, end: int) -> Iterator[bytes]:
    """Yield what a file holds between two places; less, or nothing, if it has been deleted since it was watched."""
    with suppress(OSError), path.open("rb") as opened:
        opened.seek(start)
        while start < end and (data := opened.read(min(CHUNK_BYTES, end - start))):
            start += len(data)
            yield data
