"""A finished run is judged in the order of time, up to any time, and then said how it stands."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from pipeline.alerts import AlertChanged, HealthChanged, Summary
from pipeline.config import Config, load_rules
from pipeline.events import Event, LogRecord, Metrics, RunConfigured, Tick
from pipeline.judge import Said, judge
from pipeline.recording import read
from pipeline.run_directory import RunDirectory
from pipeline.sources.replay import replay
from rules.engine import Engine
from rules.rulebook import Rulebook

START = datetime(2026, 8, 19, 12, tzinfo=UTC)
EXAMPLE = Path(__file__).parents[2] / "example"


@pytest.fixture(scope="module")
def book() -> Rulebook:
    """Give the rules that ship."""
    return Rulebook(load_rules(Config()))


def at(seconds: float) -> datetime:
    """Return the time so many seconds after the start."""
    return START + timedelta(seconds=seconds)


def steps(number: int, pace_s: float) -> Iterator[Event]:
    """Yield what a run of so many steps brings."""
    yield RunConfigured(time=START, max_steps=100)
    for i in range(1, number + 1):
        yield Metrics(time=at(i * pace_s), source="metrics.jsonl", offset=i, writer="trainer", step=i, completes=True)


def summary(said: list[Said]) -> Summary:
    """Return the last thing said, which is the summary."""
    (found,) = [one for one in said if isinstance(one, Summary)]
    assert found is said[-1]
    return found


def test_nothing_is_judged_as_nothing(book: Rulebook) -> None:
    """Of no events there is a summary, and nothing else."""
    said = list(judge(Engine(book), []))
    assert len(said) == 1
    assert (summary(said).health, summary(said).phase, summary(said).step) == ("Healthy", "starting", 0)


def test_how_it_stands(book: Rulebook) -> None:
    """The summary has the last step, their number, and the time of the last event."""
    end = summary(list(judge(Engine(book), steps(7, 60))))
    assert (end.step, end.max_steps, end.phase, end.time) == (7, 100, "running", at(420))


def test_until_is_now(book: Rulebook) -> None:
    """With a time to stop at, what has been absent by then is absent, and that is the time of the summary."""
    said = list(judge(Engine(book), steps(7, 60), until=at(10_000)))
    assert [one.failure_mode for one in summary(said).incidents] == ["stall"]
    assert summary(said).time == at(10_000)
    assert summary(list(judge(Engine(book), steps(7, 60), until=at(500)))).incidents == []


def test_until_drops_what_follows_late_events_too(book: Rulebook) -> None:
    """The stream ends at the first event later than the time; an earlier one behind it no longer counts."""
    late = LogRecord(
        time=at(5), source="logs/attempt_1/trainer.log", offset=0, attempt=1, level="ERROR", text="CUDA out of memory"
    )
    events = [*steps(1, 10), Tick(time=at(30)), late]
    assert summary(list(judge(Engine(book), events))).incidents
    assert not summary(list(judge(Engine(book), events, until=at(20)))).incidents


def test_until_reads_no_further_than_it_has_to(book: Rulebook) -> None:
    """Of an endless stream no more is taken than up to the first event beyond."""
    taken: list[Event] = []

    def endless() -> Iterator[Event]:
        for event in steps(10**9, 60):
            taken.append(event)
            yield event

    assert summary(list(judge(Engine(book), endless(), until=at(6000)))).step == 100
    assert taken[-1].time == at(6060)


@pytest.mark.parametrize("minutes", [0, 3, 8, 12, 30])
def test_the_beginning_of_the_example(book: Rulebook, minutes: int) -> None:
    """What is said of the example up to a time is the beginning of what is said of all of it."""
    run, zone = RunDirectory(EXAMPLE / "run"), ZoneInfo("UTC")
    recorded = list(read(EXAMPLE / "recording.jsonl"))
    whole = list(judge(Engine(book), replay(run, zone, recorded)))
    until = whole[0].time + timedelta(minutes=minutes)
    part = list(judge(Engine(book), replay(run, zone, recorded), until))
    assert part[:-1] == [one for one in whole[:-1] if one.time <= until]
    assert isinstance(part[0], HealthChanged)
    assert minutes < 30 or any(isinstance(one, AlertChanged) for one in part)
