"""Several files as one stream, in the order of time."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final, Protocol

from pipeline.events import order

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Generator, Iterable, Iterator
    from datetime import datetime

    from pipeline.events import Event
    from pipeline.sources.tails import Moment, Read, Tail

BUFFERED_BYTES: Final = 4 << 20
"""Read ahead of all files together, so that many take no more memory than one."""
PIECE_BYTES: Final = range(16 << 10, (256 << 10) + 1)
"""Read at once of one file."""


class Stream(Protocol):
    """Events in their order."""

    def peek(self, moment: Moment) -> Event | None:
        """Return the next event; `None` at the end."""
        ...

    def take(self) -> Read:
        """Take the event that `peek` has returned."""
        ...


class Lane:
    """Files one after the other, of those *waiting*: several lanes share them, so that few are begun at a time."""

    def __init__(self, waiting: deque[Tail]) -> None:
        self._waiting = waiting
        self._tail: Tail | None = None

    def peek(self, moment: Moment) -> Event | None:
        """Return the next event; `None` at the end of the last file."""
        while self._tail is None or (event := self._tail.peek(moment)) is None:
            if not self._waiting:
                return None
            self._tail = self._waiting.popleft()
        return event

    def take(self) -> Read:
        """Take the event that `peek` has returned."""
        assert self._tail is not None, "nothing was there to take"
        return self._tail.take()


def merge(
    streams: Iterable[Stream], moment: Moment, bounded: Iterable[Stream] = (), until: datetime | None = None
) -> Iterator[Read | None]:
    """
    Yield the events of all streams, of the *bounded* ones those before *until*.

    Yields `None` where the caller may pause although there is no event yet.
    """
    heap: list[tuple[tuple[datetime, str, str, int, int], int, Stream]] = []
    free = [(stream, None) for stream in streams]
    for number, (stream, limit) in enumerate([*free, *((stream, until) for stream in bounded)]):
        event = stream.peek(moment)
        yield None
        if event is not None and (limit is None or event.time < limit):
            heap.append((order(event), number, stream))
    heapq.heapify(heap)
    while heap:
        _, number, stream = heap[0]
        yield stream.take()
        event = stream.peek(moment)
        if event is None or (number >= len(free) and until is not None and event.time >= until):
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, (order(event), number, stream))


def earliest(streams: Iterable[Stream], moment: Moment) -> Generator[None, None, datetime | None]:
    """Return the time of the first event; yields where the caller may pause."""
    first: datetime | None = None
    for stream in streams:
        event = stream.peek(moment)
        yield
        if event is not None:
            first = event.time if first is None else min(first, event.time)
    return first


def piece_bytes(files: int) -> int:
    """Return how much to read at once of each of so many files."""
    return min(max(BUFFERED_BYTES // max(files, 1), PIECE_BYTES[0]), PIECE_BYTES[-1])
