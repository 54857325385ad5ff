"""
The engine is a pure function of rules and ordered events.

However the events are cut into batches, wherever the service is killed and goes
on from its rows, and however often time is told: the decisions are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pipeline.alerts import Decision
from pipeline.events import (
    AttemptBegun,
    DiskSpace,
    Event,
    Gap,
    HostLine,
    LogRecord,
    Mark,
    Marker,
    Metrics,
    ProcessState,
    Receipt,
    Rollout,
    RunConfigured,
    Sample,
    ScrapeFailed,
    SourceState,
    Tick,
)
from pipeline.times import cut
from rules.engine import Engine
from rules.rulebook import Rulebook

START = datetime(2026, 8, 19, 12, tzinfo=UTC)

SMALL = """
[[clock]]
name = "trained"
event = "metrics"
of = "trainer"
is_step = true

[[clock]]
name = "rollout"
event = "rollout"

[[clock]]
name = "policy"
event = "marker"

[[milestone]]
name = "ready"
pattern = "^ready"

[[milestone]]
name = "saving"
pattern = "^saving"

[[milestone]]
name = "over"
pattern = "^over"

[[stage]]
name = "checkpoint"
begins = ["saving"]
ends = ["trained"]
timeout = "20m"
pause = true

[[phase]]
name = "running"
from = ["starting"]
when = [["ready"], ["trained"]]

[[phase]]
name = "failed"
from = ["starting", "running"]
when = [["over"]]
exited = [["trainer", "orchestrator"]]

[[cascade]]
cause = { mode = ["second"] }
effect = { mode = ["first", "stall"] }

[[rule]]
name = "first"
failure_mode = "first"
summary = "{what} {count}"
on = { log = { pattern = 'boom (?P<what>\\w+)' } }
escalate = [{ severity = "info", immediately = true }, { severity = "warning", persistent = 3, within = "2m" }]
clear = { quiet = "3m" }

[[rule]]
name = "second"
failure_mode = "second"
summary = ""
on = { log = { pattern = "bang" }, per = ["env"] }
escalate = [{ severity = "critical", growing = 2, within = "1m" }]
clear = { attempt = true }

[[rule]]
name = "failing"
failure_mode = "failing"
summary = "{fraction:.0%} of {total}"
on = { rollout = { ok = false }, per = ["env"] }
escalate = [
  { severity = "warning", fraction = 0.3, over = "5m", at_least = 3 },
  { severity = "critical", fraction = 0.7, over = "10m", at_least = 4 },
]
clear = { fraction = 0.2, for = "2m" }

[[rule]]
name = "nan"
failure_mode = "nan"
summary = "{value}"
on = { metric = { name = ["loss*"] } }
escalate = [{ severity = "critical", persistent = 2, within = "10m", nan = true, above = 5.0 }]
clear = { quiet = "1m" }

[[rule]]
name = "gone"
failure_mode = "gone"
summary = "{role} {pid}"
health = "Down"
on = { process = {}, per = ["role"] }
escalate = [{ severity = "critical", immediately = true }]

[[rule]]
name = "stall"
failure_mode = "stall"
component = "trainer"
summary = "{minutes}"
on = { absence = { of = ["trained", "rollout"] } }

[[rule.escalate]]
severity = "critical"
pace = { at_least = "1m", times = 3.0, percentile = 95, last = 20, warm_up = 2, otherwise = "10m" }

[[rule]]
name = "blind"
failure_mode = "blind"
summary = "{source}"
during = ["running"]
on = { blind = {}, per = ["source"] }
escalate = [{ severity = "info", for = "30s" }, { severity = "warning", for = "4m" }]
"""

TEXTS = [
    "boom a", "boom b 7", "bang", "ready", "saving", "over", "nothing",
    "CUDA out of memory", "NCCL error: unhandled cuda error", "EngineDeadError", "Fatal error in train",
    "Starting orchestrator loop (max_steps=8)", "Saving checkpoint at step 3", "Starting evals in 2 envs",
    "RL trainer finished!", "Orchestrator finished.", "Training finished!", "Trainer failed with exit code 1",
    "Received SIGTERM, terminating all processes...", "JOB 7 CANCELLED AT 12:00 DUE TO TIME LIMIT",
    "empty train batch after 3", "No available workers", "Stale file handle", "worker 3 heartbeat timeout",
]  # fmt: skip
FILES = [
    "trainer.log", "trainer.1.log", "orchestrator.log", "job.log", "inference.log", "env/math.log", "unknown.txt",
    "logs/attempt_1/trainer.log", "logs/attempt_1/orchestrator.log", "logs/attempt_1/inference.log",
    "logs/attempt_1/envs/train/math.log", "logs/attempt_1/trainer/torchrun/none_0/attempt_0/1/stdout.log",
]  # fmt: skip
SIZES = st.integers(0, 12)
T = START  # replaced once the order is known
EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(LogRecord, time=st.just(T), source=st.sampled_from(FILES), offset=SIZES,
              attempt=st.sampled_from([None, 1, 1, 1, 2]), text=st.sampled_from(TEXTS),
              level=st.sampled_from([None, "INFO", "ERROR"]), rank=st.sampled_from([None, 0, 1])),
    st.builds(HostLine, time=st.just(T), node=st.just("n0"), text=st.sampled_from(TEXTS),
              origin=st.sampled_from(["kernel", "scheduler", "launcher"])),
    st.builds(Rollout, time=st.just(T), source=st.just("r"), offset=SIZES, kind=st.sampled_from(["train", "eval"]),
              step=SIZES, env=st.sampled_from(["math", "code"]), ok=st.booleans(), cancelled=st.booleans()),
    st.builds(Metrics, time=st.just(T), source=st.just("m"), offset=SIZES, step=SIZES, completes=st.booleans(),
              writer=st.sampled_from(["trainer", "trainer", "orchestrator", "evaluator"]),
              values=st.dictionaries(st.sampled_from(["loss/mean", "optim/grad_norm", "loss"]),
                                     st.sampled_from([0.5, 9.0, float("nan"), float("inf")]), max_size=2)),
    st.builds(Marker, time=st.just(T), source=st.just("b"), number=SIZES,
              kind=st.sampled_from(["policy-published", "policy-joined", "checkpoint-trainer"])),
    st.builds(ProcessState, time=st.just(T), node=st.just("n0"), pid=st.integers(1, 3),
              role=st.sampled_from(["launcher", "trainer", "orchestrator", "inference", "env_worker"]),
              state=st.sampled_from(["running", "running", "exited", "zombie"]),
              exit_code=st.sampled_from([None, 0, 1, -6, -9, -15])),
    st.builds(SourceState, time=st.just(T), name=st.sampled_from(["files", "processes"]),
              state=st.sampled_from(["seeing", "seeing", "blind", "absent"]), failed=st.booleans()),
    st.builds(Sample, time=st.just(T), endpoint=st.just("http://e"), name=st.just("up"), value=st.just(1.0)),
    st.builds(ScrapeFailed, time=st.just(T), endpoint=st.just("http://e"), error=st.just("refused")),
    st.builds(DiskSpace, time=st.just(T), node=st.just("n0"), path=st.just("/"), total_bytes=SIZES, free_bytes=SIZES),
    st.builds(RunConfigured, time=st.just(T), max_steps=st.sampled_from([None, 4, 8])),
    st.builds(Gap, time=st.just(T), until=st.just(T), cause=st.just("downtime")),
    st.builds(Receipt, time=st.just(T), item=st.just("x"), sink=st.just("s"), outcome=st.just("delivered")),
    st.builds(Mark, time=st.just(T)),
    st.builds(Tick, time=st.just(T)),
)  # fmt: skip
ATTEMPTS = st.builds(AttemptBegun, time=st.just(T), number=st.integers(1, 3))
AHEAD_S = st.sampled_from([0.0, 0.0, 0.001, 1.0, 5.0, 30.0, 60.0, 170.0, 600.0, 4000.0])
LATE_S = st.sampled_from([0.0, 0.0, 0.0, 0.0, 0.5, 8.0, 100.0])


@st.composite
def streams(draw: st.DrawFn) -> list[Event]:
    """Events of all kinds, some at one time, some late."""
    drawn = draw(st.lists(st.tuples(st.one_of(*[EVENTS] * 12, ATTEMPTS), AHEAD_S, LATE_S), max_size=60))
    now, events = START, []
    for event, ahead_s, late_s in drawn:
        before, now = now, now + timedelta(seconds=ahead_s)
        # a tick says that nothing earlier comes, a gap that nobody watched since: neither is late
        late = timedelta(0) if isinstance(event, Tick | Mark | Gap) else timedelta(seconds=late_s)
        events.append(replace(event, time=before if isinstance(event, Gap) else now - late))
    return events


@pytest.fixture(scope="session", params=["small", "builtin"])
def book(request: pytest.FixtureRequest, watch: Callable[..., Any], builtin: Rulebook) -> Rulebook:
    """Give a small rule book with one rule of each kind, then the one that ships."""
    small: Rulebook = watch(SMALL).book
    return small if request.param == "small" else builtin


def decided(book: Rulebook, batches: Iterable[Iterable[Event]]) -> list[Decision]:
    """Return what an engine decides on some batches."""
    engine = Engine(book)
    return [decision for batch in batches for decision in engine.apply(batch).decisions]


def cut_at(events: list[Event], places: list[int]) -> list[list[Event]]:
    """Cut a stream into batches; empty ones are among them."""
    edges = [0, *sorted(place % (len(events) + 1) for place in places), len(events)]
    return [events[begin:end] for begin, end in pairwise(edges)]


PLACES = st.lists(st.integers(0, 60), max_size=8)
many = settings(max_examples=80)


@given(events=streams())
@many
def test_the_same_events_lead_to_the_same_decisions(book: Rulebook, events: list[Event]) -> None:
    """Two engines that are told the same decide the same, and stand the same at the end."""
    one, other = Engine(book), Engine(book)
    first, second = one.apply(events), other.apply(events)
    assert first == second
    assert one.summary() == other.summary()


@given(events=streams(), places=PLACES)
@many
def test_batches_do_not_matter(book: Rulebook, events: list[Event], places: list[int]) -> None:
    """However a stream is cut into batches, the decisions are the same, and so are the rows at the end."""
    whole, cut = Engine(book), Engine(book)
    expected = whole.apply(events)
    outcomes = [cut.apply(batch) for batch in cut_at(events, places)]
    assert [one for outcome in outcomes for one in outcome.decisions] == expected.decisions
    rows: dict[str, bytes | None] = {}
    for outcome in outcomes:
        rows |= outcome.changed
    present = {key: row for key, row in rows.items() if row is not None}
    assert present == {key: row for key, row in expected.changed.items() if row is not None}


@given(events=streams(), places=PLACES)
@many
def test_an_engine_goes_on_from_its_rows(book: Rulebook, events: list[Event], places: list[int]) -> None:
    """Killed anywhere and started again from what was committed, it decides the rest as if nothing had happened."""
    uninterrupted = Engine(book)
    expected = uninterrupted.apply(events).decisions
    rows: dict[str, bytes] = {}
    found: list[Decision] = []
    engine = Engine(book)
    for batch in cut_at(events, places):
        engine = Engine(book, dict(rows))
        outcome = engine.apply(batch)
        found += outcome.decisions
        for key, row in outcome.changed.items():
            if row is None:
                rows.pop(key, None)
            else:
                rows[key] = row
    assert found == expected
    assert engine.summary() == uninterrupted.summary()


@given(events=streams(), data=st.data())
@many
def test_ticks_change_nothing(book: Rulebook, events: list[Event], data: st.DataObject) -> None:
    """More ticks, or none: the same decisions at the same times."""
    without = [event for event in events if not isinstance(event, Tick)]
    with_more: list[Event] = []
    now = START - timedelta(days=1)
    for i, event in enumerate(without):
        earliest = min(later.time for later in without[i:])
        for share in data.draw(st.lists(st.sampled_from([0.0, 0.3, 0.9, 1.0]), max_size=2), label="ticks"):
            # nothing earlier may come after a tick, and there is none while nobody watches
            until = now if isinstance(event, Gap) else max(now, earliest)
            with_more.append(Tick(time=cut(now + share * (until - now))))
        with_more.append(event)
        now = max(now, event.time)
    end = max((event.time for event in events), default=START)
    assert decided(book, [[*with_more, Tick(time=end)]]) == decided(book, [[*without, Tick(time=end)]])


@given(events=streams())
@many
def test_decisions_come_in_the_order_of_time(book: Rulebook, events: list[Event]) -> None:
    """No decision is dated back, none is later than the clock, and health comes only with a change."""
    engine = Engine(book)
    decisions = engine.apply(events).decisions
    times = [decision.time for decision in decisions]
    assert times == sorted(times)
    assert all(time <= engine.clock for time in times)
    healths = [(one.health, one.phase) for one in decisions if hasattr(one, "phase")]
    assert all(before != after for before, after in pairwise(healths))


@given(events=streams())
@many
def test_alerts_and_incidents_hang_together(book: Rulebook, events: list[Event]) -> None:
    """What resolves had fired, an incident is open as long as one of its alerts fires, and nothing of it is lost."""
    engine = Engine(book)
    firing: dict[str, list[str]] = {}
    for decision in engine.apply(events).decisions:
        match decision.__struct_config__.tag:
            case "alert" if decision.state == "firing":
                firing.setdefault(decision.incident, []).append(decision.rule)
            case "alert":
                assert decision.rule in firing[decision.incident]
            case "incident":
                assert decision.failure_mode not in decision.symptoms
    summary = engine.summary()
    assert {incident.id for incident in summary.incidents} == set(firing)
    assert all(incident.opened <= (incident.closed or engine.clock) for incident in summary.incidents)


@given(events=streams(), places=PLACES)
@settings(max_examples=60)
def test_a_prefix_decides_a_prefix(book: Rulebook, events: list[Event], places: list[int]) -> None:
    """What is decided up to a time does not depend on what comes later."""
    expected = decided(book, [events])
    for place in places:
        found = decided(book, [events[:place]])
        assert found == expected[: len(found)]


def test_a_late_event_is_applied_at_the_clock(watch: Callable[..., Any]) -> None:
    """An event from before the clock is evidence now; it dates nothing back."""
    run = watch(SMALL)
    run.log(100, "nothing")
    run.log(10, "boom late")
    assert run.alerts == [(100, "first", "info", "firing")]


def test_timers_fire_at_their_own_deadlines(watch: Callable[..., Any]) -> None:
    """An event hours later finds all that fell due in between, each at its time, in order."""
    run = watch(SMALL)
    run.log(0, "ready")
    run.log(1, "boom a")
    run.source(2, "blind", "processes")
    run.log(100_000, "nothing")
    assert run.alerts == [
        (1, "first", "info", "firing"),
        (32, "blind", "info", "firing"),
        (181, "first", "info", "resolved"),
        (242, "blind", "warning", "firing"),
        (600, "stall", "critical", "firing"),
    ]


def test_one_fact_in_two_files_counts_once(watch: Callable[..., Any]) -> None:
    """What the launcher's terminal repeats of a log is known; what a log itself says twice is two facts."""
    run = watch(SMALL)
    run.log(0, "boom a", "orchestrator.log")
    run.log(0, "boom a", "job.log", attempt=None)
    run.log(0.5, "boom a", "orchestrator.log")
    run.log(0.5, "boom a", "job.log", attempt=None)
    assert run.alerts == [(0, "first", "info", "firing")]
    run.log(0.9, "boom a", "orchestrator.log")
    assert run.alerts[1:] == [(0.9, "first", "warning", "firing")]
    run.log(60, "boom c", "job.log", attempt=None)
    assert run.alerts[2:] == [(60, "first", "info", "firing")]
    assert run.last_alert.component == "launcher"


def test_files_of_nobody_say_nothing(watch: Callable[..., Any]) -> None:
    """A record of a file that no component owns is not looked at."""
    run = watch(SMALL)
    run.log(0, "boom a", "notes.txt")
    assert run.alerts == []


def test_config_and_step_are_in_the_summary(watch: Callable[..., Any]) -> None:
    """The summary knows the last trained step and the number of steps, also after a restart."""
    run = watch(SMALL)
    run.step(10, 3)
    run.configured(10, max_steps=8)
    run.restart()
    run.step(9, 4)
    run.restart()
    assert (run.summary.step, run.summary.max_steps) == (4, 8)


def test_incidents_are_numbered_on_after_a_restart(watch: Callable[..., Any]) -> None:
    """An incident that opened at the very moment of the clock keeps its number to itself."""
    run = watch(SMALL)
    run.log(0, "nothing")
    run.log(0, "boom a")
    run.restart()
    run.attempt(0, 2)
    run.log(0, "boom b", attempt=2)
    assert [incident.id for incident in run.summary.incidents] == ["1", "2"]
