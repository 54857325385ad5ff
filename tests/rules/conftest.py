"""An engine with rules of a test's own, told of one event after the other."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pipeline.alerts import AlertChanged, Decision, HealthChanged, IncidentChanged, Summary
from pipeline.config import Config, load_rules
from pipeline.events import (
    AttemptBegun,
    Event,
    Gap,
    HostLine,
    LogRecord,
    Marker,
    Metrics,
    ProcessState,
    Rollout,
    RunConfigured,
    Sample,
    SourceState,
    Tick,
)
from rules.engine import Engine
from rules.load import decode
from rules.rule_file import RuleFile
from rules.rulebook import Rulebook

START = datetime(2026, 8, 19, 12, tzinfo=UTC)
SURROUNDINGS = r"""
[components]
rollout = "env"
role = { trainer = "trainer", orchestrator = "orchestrator", inference = "inference", env_worker = "env" }
origin = { kernel = "host", launcher = "launcher" }
writer = { trainer = "trainer", orchestrator = "orchestrator" }

[[file]]
path = '^trainer(\.(?P<rank>\d+))?\.log$'
component = "trainer"

[[file]]
path = '^orchestrator\.log$'
component = "orchestrator"
copies = "orchestrator"

[[file]]
path = '^job\.log$'
component = "launcher"
copies = "orchestrator"

[[file]]
path = '^inference\.log$'
component = "inference"

[[file]]
path = '^env/(?P<env>.+)\.log$'
component = "env"
"""
"""Which component an event is of; a test's rules come on top."""
RUNNING = """
[[milestone]]
name = "go"
pattern = "^go$"

[[phase]]
name = "running"
from = ["starting"]
when = [["go"]]
"""
"""A run that runs once a record says go."""


class Watched:
    """A run that is watched: times are seconds after its start, what was decided is kept."""

    def __init__(self, book: Rulebook) -> None:
        self.book = book
        self.engine = Engine(book)
        self.rows: dict[str, bytes] = {}
        self.decisions: list[Decision] = []
        self._offset = 0

    def apply(self, *events: Event) -> list[Decision]:
        """Apply events as one batch; return what they led to."""
        outcome = self.engine.apply(events)
        for key, row in outcome.changed.items():
            if row is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = row
        self.decisions += outcome.decisions
        return outcome.decisions

    def restart(self) -> None:
        """Go on with an engine that knows only the rows."""
        self.engine = Engine(self.book, dict(self.rows))

    def log(self, at_s: float, text: str, source: str = "trainer.log", **fields: Any) -> list[Decision]:
        """Tell of a record of a log."""
        self._offset += 100
        attempt = fields.pop("attempt", 1)
        record = LogRecord(time=at(at_s), source=source, offset=self._offset, attempt=attempt, text=text, **fields)
        return self.apply(record)

    def rollouts(self, at_s: float, good: int = 0, bad: int = 0, env: str = "math", **fields: Any) -> list[Decision]:
        """Tell of rollouts that ended at one time, the good ones first."""
        common = {"time": at(at_s), "source": "r", "offset": 0, "kind": "train", "step": 1, "env": env} | fields
        ended = [Rollout(ok=True, **common) for _ in range(good)]
        return self.apply(*ended, *(Rollout(ok=False, error="Oops", **common) for _ in range(bad)))

    def metric(
        self, at_s: float, step: int, *, writer: str = "trainer", completes: bool = False, **values: float
    ) -> list[Decision]:
        """Tell of figures of a step."""
        fields: Any = {"writer": writer, "completes": completes}
        return self.apply(Metrics(time=at(at_s), source="m", offset=step, step=step, values=values, **fields))

    def sample(self, at_s: float, name: str, value: float, **labels: str) -> list[Decision]:
        """Tell of a value of a Prometheus page."""
        return self.apply(Sample(time=at(at_s), endpoint="http://e", name=name, value=value, labels=labels))

    def slept(self, since_s: float, until_s: float) -> list[Decision]:
        """Tell that the host slept."""
        return self.apply(Gap(time=at(since_s), until=at(until_s), cause="suspension"))

    def step(self, at_s: float, number: int, writer: str = "trainer") -> list[Decision]:
        """Tell that a step is done."""
        return self.metric(at_s, number, writer=writer, completes=True)

    def process(self, at_s: float, role: str = "trainer", state: str = "exited", **fields: Any) -> list[Decision]:
        """Tell of a process."""
        known: Any = {"node": "n0", "role": role, "pid": 7, "state": state} | fields
        return self.apply(ProcessState(time=at(at_s), **known))

    def host(self, at_s: float, text: str, origin: str = "launcher") -> list[Decision]:
        """Tell of a line from outside the run directory."""
        where: Any = origin
        return self.apply(HostLine(time=at(at_s), node="n0", origin=where, text=text))

    def source(self, at_s: float, state: str, name: str = "files", **fields: Any) -> list[Decision]:
        """Tell what a source says of itself."""
        seeing: Any = state
        return self.apply(SourceState(time=at(at_s), name=name, state=seeing, **fields))

    def marker(self, at_s: float, number: int, kind: str = "policy-published") -> list[Decision]:
        """Tell of a marker file."""
        what: Any = kind
        return self.apply(Marker(time=at(at_s), source=f"{kind}/{number}", kind=what, number=number))

    def configured(self, at_s: float = 0, **fields: Any) -> list[Decision]:
        """Tell what the configs say."""
        return self.apply(RunConfigured(time=at(at_s), **fields))

    def attempt(self, at_s: float, number: int) -> list[Decision]:
        """Tell that a launch began."""
        return self.apply(AttemptBegun(time=at(at_s), number=number))

    def tick(self, at_s: float) -> list[Decision]:
        """Let time pass."""
        return self.apply(Tick(time=at(at_s)))

    @property
    def alerts(self) -> list[tuple[float, str, str, str]]:
        """What became of alerts: seconds, rule, severity, state."""
        changes = [one for one in self.decisions if isinstance(one, AlertChanged)]
        return [(seconds(one.time), one.rule, one.severity, one.state) for one in changes]

    @property
    def last_alert(self) -> AlertChanged:
        """The last change of an alert."""
        return [one for one in self.decisions if isinstance(one, AlertChanged)][-1]

    @property
    def incidents(self) -> list[tuple[float, str, str, str]]:
        """What became of incidents: seconds, id, state, failure mode of the root."""
        changes = [one for one in self.decisions if isinstance(one, IncidentChanged)]
        return [(seconds(one.time), one.id, one.state, one.failure_mode) for one in changes]

    @property
    def healths(self) -> list[tuple[float, str, str]]:
        """What became of the run: seconds, health, phase."""
        changes = [one for one in self.decisions if isinstance(one, HealthChanged)]
        return [(seconds(one.time), one.health, one.phase) for one in changes]

    @property
    def phase(self) -> str:
        """The phase that the run is in."""
        return self.summary.phase

    @property
    def summary(self) -> Summary:
        """The run as it stands."""
        return self.engine.summary()


def at(seconds_: float) -> datetime:
    """Return the time so many seconds after the start."""
    return START + timedelta(seconds=seconds_)


def seconds(time: datetime) -> float:
    """Return how many seconds after the start *time* is."""
    return (time - START).total_seconds()


def book(*texts: str) -> Rulebook:
    """Return the rule book of TOML texts."""
    return Rulebook([decode(text, "test.toml", RuleFile) for text in texts])


@pytest.fixture(scope="session")
def watch() -> Callable[..., Watched]:
    """Watch a run with the rules of TOML texts."""
    return lambda *texts: Watched(book(SURROUNDINGS, *texts))


@pytest.fixture(scope="session")
def builtin() -> Rulebook:
    """Give the rule book that ships."""
    return Rulebook(load_rules(Config()))


@pytest.fixture
def run(builtin: Rulebook) -> Watched:
    """Watch a run with the rules that ship."""
    return Watched(builtin)
