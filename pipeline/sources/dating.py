"""
When the lines of a run's log files were written: the anchor of each file.

Lines carry a time of day and no date. A file's modification time is that of its
last line, unless the directory was copied: then a step's log line and its row of
metrics differ by days, and files are dated forwards from what carries a date.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeAlias
from zoneinfo import ZoneInfo

import msgspec

from pipeline.events import Metrics
from pipeline.formats.clock import ClockState, LogClock, begin, begin_forwards
from pipeline.formats.headers import TimeOfDay
from pipeline.sources.log_reader import LogReader, clocks
from pipeline.times import from_epoch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from pipeline.formats.headers import Clock
    from pipeline.run_directory import LogFile

CHUNK_BYTES = 256 * 1024
COPIED = timedelta(hours=12)
"""A step's line and its row differ by more than that in a copied directory."""
_SAME_STEP = timedelta(seconds=20)

Rows: TypeAlias = dict[tuple[str, int], list[datetime]]
"""When metrics were written, by writer and step: more than once after a resume."""


class Dating(msgspec.Struct, frozen=True, kw_only=True):
    """How the files of a run are dated."""

    zone: ZoneInfo
    copied: bool = False
    """Whether modification times say nothing."""
    anchors: dict[str, ClockState] = {}
    """By path, for files of a copied directory."""

    def clock(self, file: LogFile) -> LogClock:
        """Return a clock at the beginning of *file*."""
        return LogClock(self.zone, self.anchors.get(file.relative) or begin(_clocks(file), modified(file), self.zone))

    def ended(self, file: LogFile) -> datetime | None:
        """Return when *file* was last written, if that is known."""
        return None if self.copied else modified(file)


def survey(files: Iterable[LogFile], rows: Rows, zone: ZoneInfo) -> Dating:
    """Find out whether a directory was copied, and if so, date its files by what carries a date."""
    plain, files = Dating(zone=zone), list(files)
    steps = {file.relative: list(_steps(file, plain)) for file in files if _may_hold_steps(file)}
    apart = [min(abs(time - at) for at in rows[key]) for found in steps.values() for key, time in found if key in rows]
    if not apart or sorted(apart)[len(apart) // 2] <= COPIED:
        return plain
    anchors = {
        file.relative: anchor
        for file in files
        if (anchor := _anchored(file, steps.get(file.relative, []), rows, zone)) is not None
    }
    begun: dict[int | None, datetime] = {}
    for file in files:
        if (anchor := anchors.get(file.relative)) is not None:
            begun[file.attempt] = min(anchor.last, begun.get(file.attempt, anchor.last))
    earliest = min([*begun.values(), *(at for times in rows.values() for at in times)])
    for file in files:
        if file.relative not in anchors:
            anchors[file.relative] = begin_forwards(_first(file), begun.get(file.attempt, earliest), zone)
    return Dating(zone=zone, copied=True, anchors=anchors)


def rows_of(metrics: Iterable[Metrics]) -> Rows:
    """Return when each step was reported."""
    rows: Rows = defaultdict(list)
    for row in metrics:
        if row.completes:
            rows[row.writer, row.step].append(row.time)
    return rows


def modified(file: LogFile) -> datetime:
    """Return a file's modification time; the epoch if it is gone."""
    try:
        return from_epoch(file.path.stat().st_mtime)
    except (OSError, ValueError, OverflowError):
        return from_epoch(0)


def chunks(path: Path) -> Iterator[bytes]:
    """Yield what a file holds, opened anew for each piece, so that many can be read side by side."""
    at = 0
    while True:
        try:
            with path.open("rb") as file:
                file.seek(at)
                data = file.read(CHUNK_BYTES)
        except OSError:
            return
        if not data:
            return
        at += len(data)
        yield data


def _may_hold_steps(file: LogFile) -> bool:
    return file.path.name in ("trainer.log", "orchestrator.log", "node_0.log")


def _steps(file: LogFile, dating: Dating) -> Iterator[tuple[tuple[str, int], datetime]]:
    """Yield writer and step of the step lines of a file, with the time that they seem to have."""
    reader = LogReader(file.relative, file.attempt, dating.clock(file))
    for data in chunks(file.path):
        for event, _ in reader.feed(data):
            if isinstance(event, Metrics) and event.completes:
                yield (event.writer, event.step), event.time


def _anchored(
    file: LogFile, steps: list[tuple[tuple[str, int], datetime]], rows: Rows, zone: ZoneInfo
) -> ClockState | None:
    """Date a file by a step line whose row shows the same time of day, or by a line that has a date."""
    for key, seems in steps:
        for at in rows.get(key, ()):
            days = round((at - seems) / timedelta(days=1))
            if abs(at - seems - timedelta(days=days)) <= _SAME_STEP:
                return ClockState(last=_moved(file, days, zone))
    if any(not isinstance(clock, TimeOfDay) for clock in _clocks(file)):
        return begin(_clocks(file), modified(file), zone)
    return None


def _moved(file: LogFile, days: int, zone: ZoneInfo) -> datetime:
    """Return a file's first time as its modification time has it, moved by whole days of the local clock."""
    first = begin(_clocks(file), modified(file), zone).last.astimezone(zone)
    return (first + timedelta(days=days)).astimezone(UTC)


def _clocks(file: LogFile) -> Iterator[Clock]:
    return clocks(chunks(file.path))


def _first(file: LogFile) -> Clock | None:
    return next(_clocks(file), None)
