"""
The files of a run that is being watched: what is new in them, in the order of time.

A *pass* looks at everything that there is and reads it to the end that it had then.
As in a replay, what is read on is always the file whose next record is oldest, so
that catching up after days looks like having been there.

Three positions are not of files: which attempt was last begun (`logs/latest`; its head
is the attempt's identity, its clock when it began), which configs were told of
(`configs`; its head is their fingerprint, its step the first one whose rollouts are
read), and how far the markers (`broadcasts`).
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from functools import partial
from hashlib import blake2b
from itertools import chain
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from pipeline.events import AttemptBegun, SourceState
from pipeline.formats.clock import ClockState
from pipeline.formats.run_config import configured
from pipeline.run_directory import LogFile
from pipeline.sources.dating import Dating
from pipeline.sources.first_sight import at_end, first_dating
from pipeline.sources.merging import Lane, earliest, merge, piece_bytes
from pipeline.sources.parsers import LogParser, MetricsParser
from pipeline.sources.positions import FilePosition
from pipeline.sources.sights import NAME, Sights, unreadable
from pipeline.sources.steps import MARKERS, Markers, Rollouts
from pipeline.sources.tail_group import TailGroup
from pipeline.sources.tails import Moment, Read, Tail, Trouble
from pipeline.times import cut

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime
    from pathlib import Path
    from zoneinfo import ZoneInfo

    from pipeline.run_directory import Attempt, RunDirectory
    from pipeline.sources.merging import Stream

LAUNCHED: Final = "logs/latest"
CONFIGS: Final = "configs"
TAKE_S: Final = 1.0
"""How long a call takes at most, give or take the dating of one file."""
LANES: Final = 8
"""Files of rollouts that are read side by side: those of four steps or more."""
_UNKNOWN: Final = Trouble("records of an unknown shape")

_Steps: TypeAlias = Iterator[Read | None]
"""What a pass brings; `None` where it may pause."""


class Taken(NamedTuple):
    """What one call has brought."""

    events: list[Read]
    """Each with the position after its record; `None` but for the last event of a record."""
    complete: bool
    """Whether every file has been read to the end that it had when the pass began."""
    states: list[SourceState]
    """What is no longer seen, or again."""
    gone: list[str]
    """Paths whose positions are of no more use."""


class Files:
    """
    Reads the files of a run; in one thread at a time.

    Args:
        run: The run directory; it is only read.
        zone: Of the clocks in its logs.
        positions: Where reading stopped, by path; empty if the run was never watched.

    """

    def __init__(self, run: RunDirectory, zone: ZoneInfo, positions: Mapping[str, FilePosition]) -> None:
        self._run, self._zone, self._positions = run, zone, dict(positions)
        self._watched = bool(positions)
        self._dating = Dating(zone=zone) if positions else None
        launched, config = positions.get(LAUNCHED), positions.get(CONFIGS)
        self._launched = (launched.attempt, launched.head) if launched else None
        self._begun = launched.clock.last if launched and launched.clock else None
        self._config = config.head if config else None
        self._moment = Moment()
        self._running: _Steps | None = None
        self._logs: TailGroup | None = None
        self._shared = TailGroup(run.shared_logs, self._open_log)
        self._metrics = TailGroup(
            lambda: [LogFile(run.metrics_file(), run.metrics_file().name, None)], self._open_metrics
        )
        since = config.step if config else 0
        self._rollouts = Rollouts(run, positions, since if positions else None)
        self._markers = Markers(run, positions.get(MARKERS))
        self._sights = Sights()
        self._unlisted: dict[str, Trouble] = {}
        self._failed: Trouble | None = None
        """Why the last pass broke off."""
        self._gone: list[str] = []

    def take(
        self, now: datetime, floor: datetime | None, *, most_events: int = 2000, most_bytes: int = 4 << 20
    ) -> Taken:
        """
        Return what is next of a pass: about so much, and what a second or so allows.

        A record without a time of its own is not earlier than *floor*, up to
        when the files had been read. The call after a complete one begins a pass.
        """
        moment, until = self._moment, monotonic() + TAKE_S
        moment.now, moment.floor, moment.read_bytes = now, floor, 0
        running, self._running = self._running or self._pass(), None
        events: list[Read] = []
        self._failed = None
        try:
            for read in running:
                if read is not None:
                    events.append(read)
                if len(events) >= most_events or moment.read_bytes >= most_bytes or monotonic() >= until:
                    self._running = running
                    break
        except Exception as error:  # noqa: BLE001 (what has been read so far is not read again; the next pass begins anew)
            self._failed = Trouble(f"a pass over the files failed: {error!r}"[:200], failed=True)
        gone, self._gone = self._gone, []
        return Taken(events, self._running is None, self._sights.changes(self._troubles(), now), gone)

    def _pass(self) -> _Steps:
        self._unlisted = unreadable(self._run.path, self._directories())
        if NAME in self._unlisted:
            return
        launches = self._launches()
        if self._dating is None:
            self._dating = first_dating(self._run, launches, self._zone)
        for attempt in launches:
            yield from self._launch(attempt)
        yield from self._read()
        self._watched = True

    def _launch(self, attempt: Attempt) -> _Steps:
        """Read what was before an attempt, that of the last one to its end; then begin it."""
        is_first, now = self._launched is None, self._moment.now
        if not is_first:
            self._dating = Dating(zone=self._zone)  # a copy is not written to
        logs = self._logs_of(attempt)
        tails = logs.look(now)
        self._moment.piece_bytes = piece_bytes(len(tails))
        first = yield from earliest(tails, self._moment)
        begun = cut(min(first or attempt.begun or now, now))
        if self._logs is not None:
            self._logs.end()
        self._begun = self._begun or begun
        yield from self._read(begun)
        self._gone += self._logs.tails if self._logs is not None else ()
        self._logs, self._begun, self._launched = logs, begun, (attempt.number, attempt.identity)
        event = AttemptBegun(time=begun, number=attempt.number, identity=attempt.identity)
        yield event, _mark(LAUNCHED, attempt.identity, attempt.number, begun)
        if not is_first:  # else they have been told of already
            yield self._configured(begun)

    def _read(self, until: datetime | None = None) -> _Steps:
        """Read everything; what is not of the last attempt only up to *until*."""
        now = self._moment.now
        logs: list[Stream] = []
        if self._logs is not None:
            logs += self._logs.look(now)
            self._gone += self._logs.gone
        others = self._others(now)
        self._moment.piece_bytes = piece_bytes(len(logs) + len(others))
        config = fingerprint(self._run.config_paths())
        if config != self._config and (config or until):  # of a run that has not begun there is nothing to tell
            first = None if self._watched else (yield from earliest(chain(logs, others), self._moment))
            yield self._configured(min(first or now, until or now, now))
        if until is None:
            yield from merge([*logs, *others], self._moment)
        else:
            yield from merge(logs, self._moment, others, until)

    def _others(self, now: datetime) -> list[Stream]:
        """Look at what belongs to no one attempt."""
        rollouts = deque(self._rollouts.look(now))
        is_copy = self._dating is not None and self._dating.copied and not self._watched
        self._markers.look(now, known=is_copy)
        lanes = [Lane(rollouts) for _ in range(min(LANES, len(rollouts)))]
        others: list[Stream] = [*self._shared.look(now), *self._metrics.look(now), *lanes, self._markers]
        self._gone += [*self._shared.gone, *self._metrics.gone, *self._rollouts.gone]
        return others

    def _launches(self) -> list[Attempt]:
        """Return the attempts that have begun since the last pass; of a run never watched only the present one."""
        latest = self._run.latest()
        if latest is None:
            return []
        if self._launched is None:
            return [latest]
        attempts = self._run.attempts()
        last = next((each for each in attempts if (each.number, each.identity) == self._launched), None)
        if last is None and self._logs is not None:
            self._logs.leave()
        elif last is not None and self._logs is None:
            self._logs = self._logs_of(last)
        if latest == last:
            return []
        # one that came and went between two passes is told too; after a clean start numbers begin anew
        return [each for each in attempts if last and last.number < each.number <= latest.number] or [latest]

    def _configured(self, time: datetime) -> Read:
        self._config = fingerprint(self._run.config_paths())
        position = _mark(CONFIGS, self._config, step=self._rollouts.since)
        return configured(self._run.config_files(), cut(time)), position

    def _logs_of(self, attempt: Attempt) -> TailGroup:
        return TailGroup(partial(self._run.log_files, attempt), self._open_log)

    def _open_log(self, file: LogFile) -> Tail:
        at = self._positions.pop(file.relative, None)
        dating = self._dating or Dating(zone=self._zone)
        if at is None and file.attempt is None and self._begun is not None and not dating.copied:
            at = at_end(file, before=self._begun)
        return Tail(file, LogParser(file, dating), at, watched=self._watched)

    def _open_metrics(self, file: LogFile) -> Tail:
        return Tail(file, MetricsParser(file.relative), self._positions.pop(file.relative, None), watched=True)

    def _directories(self) -> list[Path]:
        root = self._run.path
        number = self._launched[0] if self._launched else None
        parts = ["logs", f"logs/attempt_{number}", "rollouts", "broadcasts", "checkpoints", CONFIGS]
        return [root, *(root / part for part in parts)]

    def _troubles(self) -> dict[str, Trouble]:
        tails = chain(*(group.tails.values() for group in (self._logs, self._shared, self._metrics) if group))
        found = dict(self._unlisted) | ({NAME: self._failed} if self._failed else {})
        found |= {f"{NAME}:{tail.relative}": _UNKNOWN for tail in self._metrics.tails.values() if tail.unknown}
        for tail in chain(tails, self._rollouts.tails):
            if tail.trouble is not None:
                found[f"{NAME}:{tail.relative}"] = tail.trouble
        if self._rollouts.has_unknown:
            found[f"{NAME}:rollouts"] = _UNKNOWN
        return found


def fingerprint(configs: list[Path]) -> str:
    """Return what changes with the configs; empty if there are none."""
    seen: list[str] = []
    for path in configs:
        try:
            stat = os.lstat(path)
        except OSError:
            continue
        seen.append(f"{path}:{stat.st_size}:{stat.st_mtime_ns}")
    return blake2b("\n".join(seen).encode(errors="surrogateescape"), digest_size=16).hexdigest() if seen else ""


def _mark(
    path: str, head: str, attempt: int | None = None, begun: datetime | None = None, step: int = 0
) -> FilePosition:
    """Return a position that is not of a file."""
    return FilePosition(
        path=path,
        attempt=attempt,
        device=0,
        inode=0,
        head=head,
        head_bytes=0,
        offset=0,
        clock=ClockState(last=begun) if begun is not None else None,
        step=step,
    )
