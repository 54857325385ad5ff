"""
A run directory read from its first line to its last, as one stream in the order of time.

What is read on is always the file whose next record is oldest, so that the
stream up to any time does not depend on what comes after it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from pipeline.events import EPOCH, AttemptBegun, Event, Metrics, RunConfigured, order
from pipeline.formats.run_config import configured
from pipeline.sources.data_readers import MetricsReader, RolloutReader
from pipeline.sources.dating import Dating, chunks, rows_of, survey
from pipeline.sources.log_reader import LogReader

if TYPE_CHECKING:
    from datetime import datetime
    from zoneinfo import ZoneInfo

    from pipeline.events import KeptEvent
    from pipeline.run_directory import Attempt, LogFile, RolloutFile, RunDirectory

Progress = Callable[[int], None]
"""Is told how many bytes more have been read."""


def replay(
    run: RunDirectory, zone: ZoneInfo, recorded: Iterable[KeptEvent] = (), *, read: Progress = lambda _: None
) -> Iterator[Event]:
    """
    Yield everything that a run directory and a recording hold, in order.

    Args:
        run: The run directory; it is only read.
        zone: Of the clocks in its logs.
        recorded: The events of a recording, in their order.
        read: Is told of the bytes that have been read.

    """
    attempts = [(attempt, run.log_files(attempt)) for attempt in run.attempts()]
    shared = run.shared_logs()
    logs = [file for _, files in attempts for file in files]
    dating = survey([*logs, *shared], rows_of(_metrics(run)), zone)
    streams: list[Iterator[Event]] = [iter(recorded)]
    begun: list[Event] = []
    for attempt, files in attempts:
        mine = [stream for file in files if (stream := _peeked(_log(file, dating, read))) is not None]
        streams += [stream for _, stream in mine]
        if mine:
            begun.append(_attempt(attempt, min(first.time for first, _ in mine)))
    streams += [_log(file, dating, read) for file in shared]
    streams += [_rollouts(file, read) for file in run.rollout_files()]
    streams.append(_metrics(run, read))
    streams.append(iter(begun) if dating.copied else heapq.merge(begun, run.markers(), key=order))
    yield from _configured(run, heapq.merge(*streams, key=order))


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
