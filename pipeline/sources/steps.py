"""
What a run makes step by step: files of rollouts, and markers.

A long run has thousands of steps, of which only the newest change: those are looked
at about once a second however many passes there are, the others once a minute. A
resume deletes steps and makes them anew.
"""

from __future__ import annotations

from collections import deque
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from pipeline.events import Marker
from pipeline.formats.clock import ClockState
from pipeline.run_directory import LogFile
from pipeline.sources.parsers import RolloutParser
from pipeline.sources.pieces import Key, entry, key
from pipeline.sources.positions import FilePosition
from pipeline.sources.tails import Tail
from pipeline.times import EPOCH, cut

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pipeline.events import Event
    from pipeline.run_directory import RolloutFile, RunDirectory
    from pipeline.sources.tails import Moment, Read

FIRST_STEPS: Final = 20
"""Steps whose rollouts are read when a run is first attached to."""
MARKERS: Final = "broadcasts"
"""The path under which the position of the markers is kept: the time of the last one given out."""
_HOT_STEPS: Final = 8
_HOT_S: Final = 0.9
_ALL_S: Final = 60.0

_Found = TypeVar("_Found")


class Newest(Generic[_Found]):
    """Lists what there is of the newest steps; of all when that is due, or when the newest step has vanished."""

    def __init__(self, list_since: Callable[[int], list[_Found]], number: Callable[[_Found], int]) -> None:
        self._list_since, self._number = list_since, number
        self._newest = 0
        self._again = self._due = EPOCH

    def look(self, now: datetime) -> tuple[list[_Found], bool]:
        """Return what was found, if it was time to look, and whether that is all."""
        if now < self._again:
            return [], False
        self._again = now + timedelta(seconds=_HOT_S)
        if now < self._due:
            found = self._list_since(max(self._newest - _HOT_STEPS, 0))
            numbers = {self._number(each) for each in found}
            if self._newest in numbers:
                self._newest = max(numbers)
                return found, False
        found = self._list_since(0)
        self._newest = max(map(self._number, found), default=0)
        self._due = now + timedelta(seconds=_ALL_S)
        return found, True


class _Seen(NamedTuple):
    """A file of which nothing is unread."""

    path: Path
    at: FilePosition | None
    key: Key | None
    """What was seen of it; `None` if it was read by an earlier process."""


class Rollouts:
    """
    The files of rollouts that have something unread.

    Args:
        run: The run directory.
        positions: Where reading stopped, by path.
        since: The first step that is read; `None` if the run was never watched.

    """

    def __init__(self, run: RunDirectory, positions: Mapping[str, FilePosition], since: int | None) -> None:
        self.gone: list[str] = []
        """Paths of files that have vanished since the last look."""
        self._run = run
        self._newest: Newest[RolloutFile] = Newest(self._list_since, lambda file: file.step)
        self._seen = {
            path: _Seen(run.path / path, at, None) for path, at in positions.items() if path.startswith("rollouts/")
        }
        self._since = since
        self._tails: dict[str, Tail] = {}
        self._has_unknown = False

    @property
    def since(self) -> int:
        """The first step that is read."""
        return self._since or 0

    @property
    def tails(self) -> list[Tail]:
        """Those that have something unread, by step."""
        return sorted(self._tails.values(), key=lambda tail: _step(tail.relative))

    @property
    def has_unknown(self) -> bool:
        """Whether the newest records that were read are of no known shape."""
        said = [tail.unknown for tail in self.tails if tail.unknown is not None]
        self._has_unknown = said[-1] if said else self._has_unknown
        return self._has_unknown

    def look(self, now: datetime) -> list[Tail]:
        """Return the files that have something unread, by step."""
        self.gone = []
        for path, tail in list(self._tails.items()):
            if not tail.look(now):
                del self._tails[path]
                self.gone.append(path)
            elif tail.is_idle:
                self._put_away(path, tail)
        files, is_all = self._newest.look(now)
        for file in files:
            self._look_at(file, now)
        if is_all:
            self._forget({file.relative for file in files})
        return self.tails

    def _list_since(self, step: int) -> list[RolloutFile]:
        if self._since is None:
            steps = [file.step for file in self._run.rollout_files()]
            self._since = max(max(steps, default=0) - FIRST_STEPS + 1, 0)
        found = self._run.rollout_files(since=max(step, self._since))
        if not found and self._since:
            # after a resume from before all that was read, whatever is newer than what is left will be new
            left = max((file.step for file in self._run.rollout_files()), default=-1) + 1
            self._since = min(self._since, left)
        return found

    def _look_at(self, file: RolloutFile, now: datetime) -> None:
        path, seen = file.relative, self._seen.get(file.relative)
        if path in self._tails or (seen is not None and seen.key is not None and not _has_changed(seen)):
            return
        tail = Tail(LogFile(file.path, path, None), RolloutParser(file), seen.at if seen else None, watched=True)
        if tail.look(now):
            self._seen.pop(path, None)
            self._tails[path] = tail
            if tail.is_idle:
                self._put_away(path, tail)

    def _put_away(self, path: str, tail: Tail) -> None:
        self._seen[path] = _Seen(tail.path, tail.position, tail.key)
        del self._tails[path]

    def _forget(self, listed: set[str]) -> None:
        for path in self._seen.keys() - listed:
            if _is_gone(self._seen[path].path):
                del self._seen[path]
                self.gone.append(path)


class Markers:
    """The markers that have appeared, or were touched anew, by time."""

    def __init__(self, run: RunDirectory, at: FilePosition | None) -> None:
        self._newest: Newest[Marker] = Newest(lambda step: run.markers(since=step), lambda marker: marker.number)
        self._last = at.clock.last if at is not None and at.clock is not None else EPOCH
        self._seen: dict[str, datetime] | None = None
        self._waiting: deque[Read] = deque()

    def look(self, now: datetime, *, known: bool = False) -> None:
        """See which are new, at a time not later than *now*; if *known*, those that are there at first are not."""
        found, is_all = self._newest.look(now)
        before = self._seen
        if before is None:
            before = {marker.source: marker.time for marker in found if known or marker.time <= self._last}
        new = [_clamped(marker, now) for marker in found if before.get(marker.source) != marker.time]
        there = {marker.source: marker.time for marker in found}
        self._seen = there if is_all else before | there
        for number, marker in enumerate(new):
            self._last = max(self._last, marker.time)
            # those of one time have one position, after the last
            is_last = number + 1 == len(new) or new[number + 1].time != marker.time
            self._waiting.append((marker, _markers_at(self._last) if is_last else None))

    def peek(self, moment: Moment) -> Event | None:  # noqa: ARG002 (nothing is to be read)
        """Return the next one; `None` at the end."""
        return self._waiting[0][0] if self._waiting else None

    def take(self) -> Read:
        """Take the one that `peek` has returned."""
        return self._waiting.popleft()


def _markers_at(last: datetime) -> FilePosition:
    return FilePosition(
        path=MARKERS, attempt=None, device=0, inode=0, head="", head_bytes=0, offset=0, clock=ClockState(last=last)
    )


def _clamped(marker: Marker, now: datetime) -> Marker:
    if marker.time <= now:
        return marker
    return Marker(time=cut(now), source=marker.source, kind=marker.kind, number=marker.number)


def _has_changed(seen: _Seen) -> bool:
    try:
        stat = entry(seen.path)
    except OSError:
        return True
    return stat is None or key(stat) != seen.key


def _is_gone(path: Path) -> bool:
    try:
        return entry(path) is None
    except OSError:
        return False


def _step(path: str) -> int:
    """Return the step of a file of rollouts."""
    number = path.split("/")[1].removeprefix("step_")
    return int(number) if number.isdecimal() else 0
