"""
The heart of the live service: events in order, the engine, one transaction a batch.

Events that are read or come in wait until a tick says that nothing earlier will
come, and are applied sorted. Each batch is committed with a tick before it and a
mark after it, so that a replay of the recording meets the engine at the same times.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import msgspec

from pipeline.alerts import CheckIn, Notification
from pipeline.events import Event, LogRecord, Mark, Metrics, Rollout, Tick, order
from pipeline.journal import Batch
from sinks.base import OutboxItem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime

    from pipeline.alerts import Decision
    from pipeline.journal import Journal
    from pipeline.sources.positions import FilePosition
    from rules.engine import Engine

MOST_EVENTS = 2000
"""Of a batch."""
_encode = msgspec.msgpack.Encoder().encode


class Waiting:
    """
    Events that are not due yet, each with the position after its record.

    What a file brings stays in the order of the file, also where its times step back: a
    position says that all before it has been applied.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[datetime, str, str, int, int], int, Event, FilePosition | None]] = []
        self._count = 0
        self._latest: dict[str, datetime] = {}

    def add(self, event: Event, position: FilePosition | None = None) -> None:
        """Keep an event until it is due."""
        self._count += 1  # keeps the order of what sorts alike
        heapq.heappush(self._heap, ((self._time(event), *order(event)[1:]), self._count, event, position))

    def sift(
        self, read: list[tuple[Event, FilePosition | None]], until: datetime
    ) -> list[tuple[Event, FilePosition | None]]:
        """Return what of *read* is up to a time; keep the rest until it is due."""
        due: list[tuple[Event, FilePosition | None]] = []
        for event, position in read:
            if self._time(event) <= until:
                due.append((event, position))
            else:
                self.add(event, position)
        return due

    def due(self, until: datetime) -> list[tuple[Event, FilePosition | None]]:
        """Take the events up to *until*, sorted, as many as fit into a batch."""
        taken: list[tuple[Event, FilePosition | None]] = []
        while self._heap and self._heap[0][0][0] <= until and len(taken) < MOST_EVENTS:
            taken.append(heapq.heappop(self._heap)[2:])
        return taken

    def forget(self, paths: Iterable[str]) -> None:
        """Take it that files are gone: another one in the place of one begins with its own time."""
        for path in paths:
            self._latest.pop(path, None)

    def _time(self, event: Event) -> datetime:
        """Return the time up to which an event waits: not less than that of what its file brought before."""
        if not isinstance(event, LogRecord | Metrics | Rollout):
            return event.time
        latest = self._latest[event.source] = max(event.time, self._latest.get(event.source, event.time))
        return latest


class Watcher:
    """Applies events and makes what comes of them durable."""

    def __init__(
        self, engine: Engine, journal: Journal, route: Callable[[Decision], Iterable[str]], now: Callable[[], datetime]
    ) -> None:
        """*route* names the sinks that a decision goes to; *now* is the wall clock."""
        self._engine, self._journal, self._route, self._now = engine, journal, route, now
        self._rows: dict[str, bytes | None] = {}
        self._forgotten: list[str] = []

    def forget(self, paths: Iterable[str]) -> None:
        """Drop the positions of files that are gone, with the next batch."""
        self._forgotten += paths

    async def apply(
        self,
        read: list[tuple[Event, FilePosition | None]],
        *,
        floor: datetime | None = None,
        tick: datetime | None = None,
    ) -> list[Decision]:
        """
        Apply a batch, sorted, then let time pass up to *tick*; return once what came of it is durable.

        Raises:
            JournalError: It cannot be made durable.

        """
        begun, before = self._engine.has_begun, self._engine.clock
        events = sorted((event for event, _ in read), key=order)
        ticks = [Tick(time=tick)] if tick is not None and tick > before else []
        outcome = self._engine.apply([*events, *ticks])
        self._rows |= outcome.changed
        if not events and not outcome.decisions:
            return []  # only time has passed: it will again
        moved = {position.path: position for _, position in read if position is not None}
        mark = Mark(time=self._engine.clock, positions={p: at.offset for p, at in moved.items()}, floor=floor)
        kept = [event for event in events if not isinstance(event, LogRecord | Metrics)]
        batch = Batch(
            positions=dict.fromkeys(self._forgotten) | {path: _encode(position) for path, position in moved.items()},
            kept=[*([Tick(time=before)] if begun else []), *kept, mark],
            made=self._now(),
            rows=self._rows,
            decisions=outcome.decisions,
            outbox=[item for decision in outcome.decisions for item in self._items(decision)],
        )
        self._rows, self._forgotten = {}, []
        await self._journal.commit(batch)
        return outcome.decisions

    def _items(self, decision: Decision) -> list[OutboxItem]:
        if not isinstance(decision, CheckIn | Notification):
            return []
        return [OutboxItem(sink=sink, created=self._now(), content=decision) for sink in self._route(decision)]
