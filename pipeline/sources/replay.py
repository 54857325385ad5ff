"""
A run directory read from its first line to its last, as one stream in the order of time.

What is read on is always the file whose next record is oldest, so that the
stream up to any time does not depend on what comes after it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING

from pipeline.events import AttemptBegun, Event, Mark, Metrics, OutsideEvent, RunConfigured, order
from pipeline.formats.run_config import configured
from pipeline.sources.data_readers import MetricsReader, RolloutReader
from pipeline.sources.dating import Dating, chunks, rows_of, survey
from pipeline.sources.log_reader import LogReader
from pipeline.sources.marked import play_back
from pipeline.times import EPOCH

if TYPE_CHECKING:
    from datetime import datetime
    from zoneinfo import ZoneInfo

    from pipeline.events import KeptEvent
    from pipeline.run_directory import Attempt, LogFile, RolloutFile, RunDirectory

Progress = Callable[[int], None]
"""Is told how many bytes more have been read."""
_BEGINNING = 10_000
"""A batch, with which a recording of our own begins, has fewer events."""


def replay(
    run: RunDirectory, zone: ZoneInfo, recorded: Iterable[KeptEvent] = (), *, read: Progress = lambda _: None
) -> Iterator[Event]:
    """
    Yield everything that a run directory and a recording hold, in order.

    Args:
        run: The run directory; it is only read.
        zone: Of the clocks in its logs.
        recorded: The events of a recording, in their order. One with marks is played back as it was watched.
        read: Is told of the bytes that have been read.

    """
    attempts = [(attempt, run.log_files(attempt)) for attempt in run.attempts()]
    logs = [file for _, files in attempts for file in files] + run.shared_logs()
    dating = survey(logs, rows_of(_metrics(run)), zone)
    marked, recorded = _has_marks(recorded)
    if marked:
        yield from play_back(run, dating, recorded)
        return
    outside = (event for event in recorded if isinstance(event, OutsideEvent))
    streams: list[Iterator[Event]] = [outside, _metrics(run, read)]
    streams += [_rollouts(file, read) for file in run.rollout_files()]
    streams += [_log(file, dating, read) for file in run.shared_logs()]
    begun: list[Event] = []
    for attempt, files in attempts:
        mine = [stream for file in files if (stream := _peeked(_log(file, dating, read))) is not None]
        streams += [stream for _, stream in mine]
        if mine:
            begun.append(_attempt(attempt, min(first.time for first, _ in mine)))
    # a copied marker has the time of the copy
    streams += [iter(begun), iter(() if dating.copied else run.markers())]
    yield from _configured(run, heapq.merge(*streams, key=order))


def _has_marks(recorded: Iterable[KeptEvent]) -> tuple[bool, Iterator[KeptEvent]]:
    """Tell whether a recording is one of our own, from its beginning; return it whole."""
    events = iter(recorded)
    beginning: list[KeptEvent] = []
    for event in islice(events, _BEGINNING):
        beginning.append(event)
        if isinstance(event, Mark):
            return True, chain(beginning, events)
    return False, chain(beginning, events)


def total_bytes(run: RunDirectory) -> int:
    """Return how many bytes a replay of *run* will read."""
    files = [file.path for attempt in run.attempts() for file in run.log_files(attempt)]
    files += [file.path for file in run.shared_logs()] + [file.path for file in run.rollout_files()]
    return sum(path.stat().st_size for path in [*files, run.metrics_file()] if path.exists())


def _configured(run: RunDirectory, events: Iterator[Event]) -> Iterator[Event]:
    """Put what the configs say before the first event."""
    first = next(events, None)
    if first is not None:
        config: RunConfigured = configured(run.config_files(), first.time)
        yield config
        yield first
        yield from events


def _attempt(attempt: Attempt, at: datetime) -> AttemptBegun:
    return AttemptBegun(time=at, number=attempt.number, identity=attempt.identity)


def _peeked(events: Iterator[Event]) -> tuple[Event, Iterator[Event]] | None:
    """Return the first of *events*, and all of them; `None` if there are none."""
    first = next(events, None)
    return None if first is None else (first, _after(first, events))


def _after(first: Event, events: Iterator[Event]) -> Iterator[Event]:
    yield first
    yield from events


def _log(file: LogFile, dating: Dating, read: Progress) -> Iterator[Event]:
    reader = LogReader(file.relative, file.attempt, dating.clock(file))
    for data in chunks(file.path):
        read(len(data))
        yield from (event for event, _ in reader.feed(data))
    yield from (event for event, _ in reader.finish(dating.ended(file)))


def _metrics(run: RunDirectory, read: Progress = lambda _: None) -> Iterator[Metrics]:
    path = run.metrics_file()
    reader = MetricsReader(path.name)
    for data in chunks(path):
        read(len(data))
        yield from (row for row, _ in reader.feed(data))


def _rollouts(file: RolloutFile, read: Progress) -> Iterator[Event]:
    reader = RolloutReader(file.relative, file.kind, file.step)
    for data in chunks(file.path):
        read(len(data))
        yield from (event for event, _ in reader.feed(data, EPOCH))
