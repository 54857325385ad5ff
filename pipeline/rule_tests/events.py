"""The events of a rule test."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import count
from typing import TYPE_CHECKING

import msgspec

from pipeline.events import (
    AttemptBegun,
    DiskSpace,
    Event,
    HostLine,
    LogRecord,
    Marker,
    Metrics,
    ProcessState,
    Receipt,
    Rollout,
    RunConfigured,
    Sample,
    SourceState,
    Tick,
    order,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pipeline.rule_tests.file import RuleTest
    from pipeline.rule_tests.given import GivenLog, GivenRollouts, GivenSeries, Repeated
    from rules.pattern import Duration
    from rules.rule_file import Clock
    from rules.rulebook import Rulebook

_SHARED = ("job_", "eval_job_")
"""How the names of logs begin that are not of one attempt."""


class Unreachable(Exception):  # noqa: N818 - what it is
    """No clock leads to the phase that a test begins in."""


def events_of(test: RuleTest, book: Rulebook, last: Duration | None) -> list[Event]:
    """
    Return what happens in an invented run, in order; its steps go on until then, and *last* seconds after its start.

    Raises:
        Unreachable: The run cannot be taken to the phase that the test begins in.

    """
    start = test.begins()
    begun: list[Event] = [AttemptBegun(time=start, number=1)]
    begun.append(RunConfigured(time=start, **msgspec.structs.asdict(test.config)))
    if test.phase != "starting":
        begun.append(_moved(_clock_to(test.phase, book), start))
    given = [*_given(test, start)]
    end = max([start + timedelta(seconds=last or 0.0), *(event.time for event in given)])
    return [*begun, *sorted([*given, *_steps(test, start, end)], key=order)]


def path_of(file: str, attempt: int = 1) -> str:
    """Return the path of a log file, relative to the run directory."""
    return file if file.startswith(_SHARED) else f"logs/attempt_{attempt}/{file}"


def _clock_to(phase: str, book: Rulebook) -> Clock:
    """Return the clock whose first move begins *phase*; that of steps only if there is no other."""
    alone = {names[0] for start in book.phases if start.name == phase for names in start.when if len(names) == 1}
    clocks = [clock for clock in book.clocks if clock.name in alone and clock.event == "metrics"]
    if not clocks:
        message = f'no clock of metrics leads to the phase "{phase}": begin with phase = "starting"'
        raise Unreachable(message)
    return min(clocks, key=lambda clock: clock.is_step)


def _moved(clock: Clock, at: datetime) -> Metrics:
    fields = {"writer": clock.of, "source": "metrics.jsonl", "offset": 0, "step": 0, "completes": True}
    return msgspec.convert({"type": "metrics", "time": at, **fields}, Metrics)


def _given(test: RuleTest, start: datetime) -> Iterator[Event]:
    offsets = count(100, 100)
    yield from _texts(test, start, offsets)
    yield from _rows(test, start)
    for rollouts in test.rollout:
        yield from _rollouts(rollouts, _at(start, rollouts.at), offsets)
    yield from _samples(test, start)
    yield from _memory(test, start)
    yield from _states(test, start)


def _steps(test: RuleTest, start: datetime, end: datetime) -> Iterator[Metrics]:
    """Yield the steps that the trainer finishes at an even pace."""
    if test.steps_every is None:
        return
    for step in range(1, int((end - start).total_seconds() / test.steps_every) + 1):
        at = start + timedelta(seconds=step * test.steps_every)
        yield Metrics(time=at, source="metrics.jsonl", offset=step, writer="trainer", step=step, completes=True)


def _texts(test: RuleTest, start: datetime, offsets: Iterator[int]) -> Iterator[Event]:
    for log in test.log:
        for at in _times(log, start):
            yield _record(log, at, next(offsets), _attempt(test, at - start))
    for line in test.host:
        for at in _times(line, start):
            yield HostLine(time=at, node=line.node, origin=line.origin, text=line.text)


def _record(log: GivenLog, at: datetime, offset: int, attempt: int) -> LogRecord:
    path = path_of(log.file, attempt)
    of = attempt if path.startswith("logs/") else None
    return LogRecord(
        time=at,
        source=path,
        offset=offset,
        attempt=of,
        text=log.text,
        level=log.level,
        rank=log.rank,
        process=log.process,
    )


def _attempt(test: RuleTest, after: timedelta) -> int:
    """Return the number of the launch that is the last one by then."""
    begun = [(a.at or 0.0, a.number) for a in test.attempt if (a.at or 0.0) <= after.total_seconds()]
    return max(begun, default=(0.0, 1))[1]


def _rows(test: RuleTest, start: datetime) -> Iterator[Metrics]:
    """Yield the rows of metrics: what several series say of the same step at the same time is one."""
    rows: dict[tuple[datetime, str, int], Metrics] = {}
    for metric in test.metric:
        for i, at, value in _values(metric, start):
            row = Metrics(
                time=at,
                source="metrics.jsonl",
                offset=metric.step + i,
                writer=metric.writer,
                step=metric.step + i,
                values={metric.name: value},
                completes=metric.completes,
            )
            known = rows.setdefault((at, metric.writer, row.step), row)
            known.values.update(row.values)
    yield from rows.values()


def _samples(test: RuleTest, start: datetime) -> Iterator[Event]:
    for sample in test.sample:
        for _, at, value in _values(sample, start):
            yield Sample(time=at, endpoint=sample.endpoint, name=sample.name, labels=sample.labels, value=value)
    for disk in test.disk:
        for _, at, value in _values(disk, start):
            free = round(value * disk.total_bytes)
            yield DiskSpace(time=at, node=disk.node, path=disk.path, total_bytes=disk.total_bytes, free_bytes=free)


def _memory(test: RuleTest, start: datetime) -> Iterator[ProcessState]:
    for given in test.memory:
        for _, at, value in _values(given, start):
            rss_bytes = round(value * 2**30)
            yield ProcessState(
                time=at, node=given.node, role=given.role, pid=given.pid, state="running", rss_bytes=rss_bytes
            )


def _states(test: RuleTest, start: datetime) -> Iterator[Event]:
    for process in test.process:
        yield ProcessState(
            time=_at(start, process.at),
            node=process.node,
            role=process.role,
            pid=process.pid,
            ppid=process.ppid,
            state=process.state,
            title=process.title,
            exit_code=process.exit_code,
        )
    for seen in test.source:
        at = _at(start, seen.at)
        yield SourceState(time=at, name=seen.name, state=seen.state, reason=seen.reason, failed=seen.failed)
    for said in test.receipt:
        at = _at(start, said.at)
        yield Receipt(time=at, item="notification", sink=said.sink, outcome=said.outcome, reason=said.reason)
    for marker in test.marker:
        where = f"{marker.kind}/{marker.number}"
        yield Marker(time=_at(start, marker.at), source=where, kind=marker.kind, number=marker.number)
    for attempt in test.attempt:
        yield AttemptBegun(time=_at(start, attempt.at), number=attempt.number)
    for tick in test.tick:
        yield Tick(time=_at(start, tick.at))


def _rollouts(given: GivenRollouts, at: datetime, offsets: Iterator[int]) -> Iterator[Rollout]:
    total = given.ok + given.failed + given.cancelled
    for i in range(total):
        cancelled = i < given.cancelled
        others = max(total - given.cancelled, 1)
        j = i - given.cancelled
        failed = not cancelled and (j + 1) * given.failed // others > j * given.failed // others
        yield Rollout(
            time=at + timedelta(seconds=i * given.every),
            source=f"rollouts/step_{given.step}/{given.kind}/all/traces.jsonl",
            offset=next(offsets),
            kind=given.kind,
            step=given.step,
            env=given.env,
            agent=given.agent,
            ok=not failed,
            cancelled=cancelled,
            error=given.error if failed else None,
            message=given.message if failed else "",
        )


def _values(series: GivenSeries, start: datetime) -> Iterator[tuple[int, datetime, float]]:
    for i, value in enumerate(series.numbers()):
        if value is not None:
            yield i, _at(start, series.at) + timedelta(seconds=i * series.every), value


def _times(repeated: Repeated, start: datetime) -> Iterator[datetime]:
    first = _at(start, repeated.at)
    return (first + timedelta(seconds=i * repeated.every) for i in range(repeated.repeat))


def _at(start: datetime, after: Duration | None) -> datetime:
    return start + timedelta(seconds=after or 0.0)
