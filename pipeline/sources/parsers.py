"""
Readers of the kinds of file, made alike: what a tail feeds, and begins anew at a position.

Times ahead of this machine's clock are set to its own: another node's may be fast.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from pipeline.events import LogRecord, Metrics, Rollout
from pipeline.formats.clock import LogClock
from pipeline.sources.data_readers import MetricsReader, RolloutReader
from pipeline.sources.dating import Dating
from pipeline.sources.log_reader import AHEAD_S, LogReader, Reading
from pipeline.times import EPOCH, cut

if TYPE_CHECKING:
    from datetime import datetime

    from pipeline.formats.clock import ClockState
    from pipeline.run_directory import LogFile, RolloutFile
    from pipeline.sources.positions import FilePosition

_Row = TypeVar("_Row", Metrics, Rollout)


class Parser(Protocol):
    """Turns the bytes of one file into events, each with the end of its record."""

    unknown: bool | None
    """Whether what was fed last had records, and none of a known shape; `None` while there were none."""
    clamped_to: datetime | None
    """The time that those of the last events have which were ahead of the clock, if any was."""

    @property
    def offset(self) -> int:
        """Where the first record begins that has not been given out."""
        ...

    def begin(self, at: FilePosition | None) -> ClockState | None:
        """Begin anew at a position, or at the beginning of the file; return how far it is dated there."""
        ...

    def feed(self, data: bytes, floor: datetime | None, now: datetime) -> Reading:
        """Return the events of the records that *data* completes."""
        ...

    def settle(self, now: datetime, ended: datetime | None) -> Reading:
        """Return the events of a last record that may have been written whole; *ended* is when, if that is known."""
        ...

    def finish(self, now: datetime, ended: datetime | None) -> Reading:
        """Return the events of what is left when nothing more will be written."""
        ...


class LogParser:
    """Reads a log, dated as *dating* has it until another file takes its place."""

    unknown: bool | None = None

    def __init__(self, file: LogFile, dating: Dating) -> None:
        self.clamped_to: datetime | None = None
        self._file, self._dating = file, dating
        self._knows_end = not dating.copied
        self._reader = LogReader(file.relative, file.attempt, None)

    @property
    def offset(self) -> int:
        """Where the first record begins that has not been given out."""
        return self._reader.offset

    def begin(self, at: FilePosition | None) -> ClockState | None:
        """Begin anew; without a position, what the whole file shows of the time is looked through."""
        file = self._file
        if at is not None and at.clock is not None:
            clock = LogClock(self._dating.zone, at.clock)
        else:
            clock, self._dating = self._dating.clock(file), Dating(zone=self._dating.zone)
        offset, step = (at.offset, at.step) if at is not None else (0, 0)
        self._reader = LogReader(file.relative, file.attempt, clock, offset, step=step)
        return clock.state

    def feed(self, data: bytes, floor: datetime | None, now: datetime) -> Reading:
        """Return the events of the records that *data* ends."""
        before = self._reader.clamped
        events = self._reader.feed(data, floor, now)
        self.clamped_to = cut(now) if self._reader.clamped > before else None
        return events

    def settle(self, now: datetime, ended: datetime | None) -> Reading:
        """Return the events of the last record; without a time of its own it is not earlier than *ended*."""
        before = self._reader.clamped
        events = self._reader.settle(now)
        self.clamped_to = cut(now) if self._reader.clamped > before else None
        if ended is None or not self._knows_end or any(isinstance(e, LogRecord) and e.dated for e, _ in events):
            return events
        return [(msgspec.structs.replace(event, time=max(event.time, ended)), end) for event, end in events]

    def finish(self, now: datetime, ended: datetime | None) -> Reading:
        """Return the events of what is left, a half line included."""
        return self._reader.finish(ended if self._knows_end else None, now)


class _DataParser:
    """What the two files of JSON Lines have in common: no record waits for the next one."""

    def __init__(self) -> None:
        self.unknown: bool | None = None
        self.clamped_to: datetime | None = None

    def settle(self, now: datetime, ended: datetime | None) -> Reading:  # noqa: ARG002 (a line is whole or it is not)
        """Return nothing: a half line waits."""
        return []

    def finish(self, now: datetime, ended: datetime | None) -> Reading:
        """Return nothing: a half line is no record."""
        return self.settle(now, ended)

    def _checked(self, rows: list[tuple[_Row, int]], unreadable: int, now: datetime) -> Reading:
        if rows or unreadable:
            self.unknown = not rows
        latest = now + timedelta(seconds=AHEAD_S)
        return [(msgspec.structs.replace(row, time=cut(now)) if row.time > latest else row, end) for row, end in rows]


class MetricsParser(_DataParser):
    """Reads `metrics.jsonl`."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path, self._reader = path, MetricsReader(path)

    @property
    def offset(self) -> int:
        """Where the first line begins that is not whole."""
        return self._reader.offset

    def begin(self, at: FilePosition | None) -> None:
        """Begin anew."""
        self._reader = MetricsReader(self._path, at.offset if at is not None else 0)

    def feed(self, data: bytes, floor: datetime | None, now: datetime) -> Reading:  # noqa: ARG002 (every row has a time)
        """Return the rows that *data* completes."""
        before = self._reader.unreadable
        rows = self._reader.feed(data)
        return self._checked(rows, self._reader.unreadable - before, now)


class RolloutParser(_DataParser):
    """Reads one `traces.jsonl`; its clock is the time that a record without one would have."""

    def __init__(self, file: RolloutFile) -> None:
        super().__init__()
        self._file, self._previous = file, EPOCH
        self._reader = RolloutReader(file.relative, file.kind, file.step)

    @property
    def offset(self) -> int:
        """Where the first line begins that is not whole."""
        return self._reader.offset

    def begin(self, at: FilePosition | None) -> None:
        """Begin anew."""
        self._previous = at.clock.last if at is not None and at.clock is not None else EPOCH
        offset = at.offset if at is not None else 0
        self._reader = RolloutReader(self._file.relative, self._file.kind, self._file.step, offset)

    def feed(self, data: bytes, floor: datetime | None, now: datetime) -> Reading:  # noqa: ARG002 (as a replay would)
        """Return the rollouts of the lines that *data* completes."""
        before = self._reader.unreadable
        rows = self._reader.feed(data, self._previous)
        return self._checked(rows, self._reader.unreadable - before, now)
