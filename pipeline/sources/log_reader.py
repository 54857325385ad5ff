"""Bytes of one log file to events."""

from __future__ import annotations

from collections import deque
from datetime import datetime, timedelta
from math import nan
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final, TypeAlias

from pipeline.events import Event, LogRecord, Metrics
from pipeline.formats import headers, step_lines
from pipeline.formats.lines import LineReader
from pipeline.formats.records import RawRecord, RecordReader
from pipeline.times import EPOCH, cut

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pipeline.formats.clock import ClockState, LogClock
    from pipeline.formats.headers import Clock
    from pipeline.formats.lines import Line
    from pipeline.formats.step_lines import Writer

Reading: TypeAlias = list[tuple[Event, int]]
"""Events, each with the end of its record: bytes from the start of the file."""

AHEAD_S: Final = 5.0
"""How far a line may be ahead of this machine's clock."""
HELD_RECORDS: Final = 1000
"""Records kept back until one of their file tells a time."""


def clocks(chunks: Iterable[bytes]) -> Iterator[Clock]:
    """Return what the headers of a file show of the time, for finding its anchor."""
    lines = LineReader()
    for chunk in chunks:
        yield from _clocks_of(lines.feed(chunk))
    yield from _clocks_of(lines.finish())


class LogReader:
    """
    Reads one log file on and on, from a position at the end of a record.

    A record is given out when the next one begins, or by `settle` or
    `finish`. Without a clock only lines with date and zone are dated.
    """

    def __init__(
        self, path: str, attempt: int | None, clock: LogClock | None, offset: int = 0, *, step: int = 0
    ) -> None:
        self.clamped = 0
        """Lines whose time was ahead of this machine's clock."""
        self.step = step
        """The last step that a record given out has named."""
        self._path = path
        self._attempt = attempt
        self._clock = clock
        self._seen: datetime | None = None
        self._writer = _writer_of(path)
        # what an environment prints is not the run's own report
        self._is_of_env = "envs" in PurePosixPath(path).parts
        self._lines = LineReader(offset)
        self._records = RecordReader()
        self._held: deque[RawRecord] = deque()
        self._floors: deque[tuple[int, datetime]] = deque()
        self._read = offset

    @property
    def offset(self) -> int:
        """Where to read on after a restart: the start of the first record not yet given out."""
        if self._held:
            return self._held[0].offset
        pending = self._records.offset
        return self._lines.offset if pending is None else pending

    @property
    def clock_state(self) -> ClockState | None:
        """How far the file is dated, at `offset`."""
        return self._clock.state if self._clock else None

    def feed(self, data: bytes, floor: datetime | None = None, now: datetime | None = None) -> Reading:
        """
        Return the events of the records that *data* ends.

        A record without a time of its own that begins in *data* is not earlier
        than *floor*; one that is ahead of *now* is set to *now*.
        """
        if floor is not None:
            self._floors.append((self._read, cut(floor)))
        self._read += len(data)
        return self._give_all((record for line in self._lines.feed(data) for record in self._records.add(line)), now)

    def settle(self, now: datetime | None = None) -> Reading:
        """Return the events of the last record, after a time in which nothing was written; a half line waits on."""
        events = self._give_all(self._records.finish(), now)
        return events + self._release(self._fallback(now)) if self._held else events

    def finish(self, ended: datetime | None = None, now: datetime | None = None) -> Reading:
        """
        Return the events of what is left at the end of the file, a half line included.

        *ended* is when it was last written: a last record without a time of
        its own is not earlier, and where no record has one, it is the time of all.
        """
        events = self._give_all((record for line in self._lines.finish() for record in self._records.add(line)), now)
        for record in self._records.finish():
            events += self._give(record, now, ended and cut(ended))
        return events + self._release(cut(ended) if ended else self._fallback(now)) if self._held else events

    @property
    def _last(self) -> datetime | None:
        return self._clock.state.last if self._clock else self._seen

    def _give_all(self, records: Iterable[RawRecord], now: datetime | None) -> Reading:
        return [event for record in records for event in self._give(record, now)]

    def _give(self, record: RawRecord, now: datetime | None, ended: datetime | None = None) -> Reading:
        time = self._date(record.clock, now)
        if time is not None:
            released = self._release(time) if self._held else []
            return released + self._events(record, time, dated=True)
        if self._last is None and ended is None:
            self._held.append(record)
            return self._release(self._fallback(now)) if len(self._held) > HELD_RECORDS else []
        known = [known for known in (self._last, ended, self._floor(record.offset)) if known]
        released = self._release(ended) if self._held and ended else []
        return released + self._events(record, max(known), dated=False)

    def _date(self, clock: Clock | None, now: datetime | None) -> datetime | None:
        """Return the time that a record's *clock* tells, in the order of the file."""
        before = self._clock.state if self._clock else None
        time = self._clock.time(clock) if self._clock else _absolute(clock)
        if time is not None and now is not None and time > now + timedelta(seconds=AHEAD_S):
            self.clamped += 1
            if self._clock and before:
                self._clock.state = before
            return cut(now)
        self._seen = time or self._seen
        return time

    def _release(self, time: datetime) -> Reading:
        """Return the events of the records kept back, whose time is now known."""
        held, self._held = self._held, deque()
        known = ((record, max(time, self._floor(record.offset) or time)) for record in held)
        return [event for record, moment in known for event in self._events(record, moment, dated=False)]

    def _fallback(self, now: datetime | None) -> datetime:
        """Return a time for records of which nothing tells one."""
        return self._last or (cut(now) if now else EPOCH)

    def _floor(self, offset: int) -> datetime | None:
        """Return the floor of the bytes at *offset*; those before are forgotten, records come in order."""
        while len(self._floors) > 1 and self._floors[1][0] <= offset:
            self._floors.popleft()
        return self._floors[0][1] if self._floors and self._floors[0][0] <= offset else None

    def _events(self, record: RawRecord, time: datetime, *, dated: bool) -> Reading:
        events: list[Event] = [
            LogRecord(
                time=time,
                source=self._path,
                offset=record.offset,
                attempt=self._attempt,
                text=record.text,
                level=record.level,
                dated=dated,
                process=record.process,
                rank=record.rank,
            )
        ]
        if record.level is not None and not self._is_of_env:
            events += self._metrics(record, time)
        return [(event, record.end) for event in events]

    def _metrics(self, record: RawRecord, time: datetime) -> list[Event]:
        """Return what a record says of the figures of a step."""
        line = step_lines.parse(record.text)
        if line is not None:
            self.step = line.step
            writer, values = line.writer, line.values
        elif keys := step_lines.dropped(record.text):
            writer, values = self._writer, dict.fromkeys(keys, nan)
        else:
            return []
        return [
            Metrics(
                time=time,
                source=self._path,
                offset=record.offset,
                writer=writer,
                step=self.step,
                values=values,
                console=True,
                completes=line is not None,
            )
        ]


def _absolute(clock: Clock | None) -> datetime | None:
    return cut(clock) if isinstance(clock, datetime) else None


def _clocks_of(lines: list[Line]) -> Iterator[Clock]:
    for line in lines:
        header = headers.parse(line.text)
        if header is not None and header.clock is not None:
            yield header.clock


def _writer_of(path: str) -> Writer:
    """Return whose figures a log file tells of."""
    name = PurePosixPath(path).stem
    if name.startswith(("orchestrator", "job_")):
        return "orchestrator"
    return "evaluator" if name.startswith(("evals", "evaluator")) else "trainer"
