"""
The engine: a pure function of the rules and the events in their order.

Live, replay, rule tests and recovery after a crash run this very code. It has
no clock but the events': the greatest time of any event applied so far. Before
an event beyond the clock is applied, every timer due by then fires at its own
deadline, so that more or fewer ticks change no decision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from pipeline.alerts import Decision, HealthChanged, Summary
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
from pipeline.times import EPOCH
from rules import facts, sleeps
from rules.alerting import Alerts
from rules.edited import adapt
from rules.lasting import Lasting
from rules.phases import Phases, health_of
from rules.processes import Processes
from rules.progress import Progress
from rules.reports import Reports
from rules.rows import Cell, Copies, Run, Unknown
from rules.sources import Sources
from rules.state import State
from rules.texts import Texts
from rules.together import Together
from rules.triggers import matches_rollout
from rules.values import Values

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from rules.facts import Fact
    from rules.model import Rule
    from rules.rulebook import Rulebook


class Outcome(msgspec.Struct, frozen=True):
    """What a batch of events led to."""

    decisions: list[Decision]
    changed: dict[str, bytes | None]
    """Encoded rows of the state; `None` for one that is gone."""


class Engine:
    """
    Events in, decisions out. *rows* go on from where an engine with the same rules stopped.

    *announce_from* is when the watch began, in a run that may be older: before it there is no check-in, and at
    it one message about what is open. The rows remember it.
    """

    def __init__(
        self,
        book: Rulebook,
        rows: dict[str, bytes] | None = None,
        *,
        checkin_every_s: float = 3600.0,
        announce_from: datetime | None = None,
    ) -> None:
        book = self._book = book.of_one_run()
        self._state = State(rows)
        self._run = self._state.get(Run, "run") or Run()
        book.configure(self._run.config)
        adapt(self._state, book)
        self._decisions: list[Decision] = []
        say = self._decisions.append
        self._alerts = Alerts(self._state, book, self._run, say)
        self._lasting = Lasting(self._state, self._run, self._alerts)
        self._progress = Progress(self._state, book, self._run, self._alerts, self._lasting)
        self._sources = Sources(self._state, book, self._alerts, self._lasting)
        self._values = Values(self._state, book, self._run, self._alerts)
        self._processes = Processes(self._state, book, self._alerts)
        self._phases = Phases(self._state, book, self._run, self._alerts, self._progress, self._sources)
        self._together = Together(self._state, book, self._run, self._alerts, self._lasting)
        self._reports = Reports(self._state, book, self._run, self._decisions, checkin_every_s, announce_from)
        self._texts = Texts(self._state, book, self._alerts, self._lasting, self._reports.unknowns)

    @property
    def clock(self) -> datetime:
        """The greatest time of any event applied."""
        return self._run.clock

    @property
    def has_begun(self) -> bool:
        """Whether any event has been applied."""
        return self._run.began != EPOCH

    def apply(self, events: Iterable[Event]) -> Outcome:
        """Apply events in their order; return what they led to since the last call."""
        for event in events:
            if event.time > self.clock:
                self._advance(event.time)
            if not isinstance(event, Tick | Mark):
                self._take(event)
                self._reports.take(event, self.clock)
                self._say_health()
        self._state.put("run", self._run)
        return Outcome(self._reports.taken(), self._state.changes())

    def processes(self) -> list[ProcessState]:
        """Return the processes of the run that were last seen running."""
        return list(self._processes.running(self.clock))

    def summary(self) -> Summary:
        """Return the run as it stands."""
        config = self._run.config
        return Summary(
            time=self.clock,
            health=self._run.health or "Healthy",
            phase=self._run.phase,
            step=self._run.step,
            max_steps=config.max_steps if config else None,
            incidents=self._alerts.incidents.summaries(),
        )

    def unknown(self) -> list[Unknown]:
        """Return what no rule knows of this attempt, by template, the most frequent first."""
        return self._reports.unknowns.all()

    def _advance(self, until: datetime) -> None:
        """Fire every timer due by then, each at its own deadline."""
        while (timer := self._state.due(until)) is not None:
            deadline, key = timer
            self._run.clock = max(deadline, self.clock)
            cell = self._state.get(Cell, key)
            if cell is not None:
                self._fall_due(key, cell)
            else:
                self._reports.fall_due(key, self.clock)
            self._say_health()
        self._run.clock = until

    def _fall_due(self, key: str, cell: Cell) -> None:
        rule = self._book.rules.get(cell.rule)
        blind = rule is not None and self._sources.blind(rule, cell)
        if rule is None or not rule.on.lasts:
            self._alerts.timer(key, cell, self.clock, blind=blind)
            return
        self._look(key, rule, cell, blind=blind)
        if self._lasting.let_go(key, self.clock, blind=blind) and rule.on.kind in {"absence", "blind"}:
            self._look(key, rule, cell, blind=blind)  # anew: it may be so again

    def _look(self, key: str, rule: Rule, cell: Cell, *, blind: bool) -> None:
        """See whether what lasts has lasted long enough."""
        if rule.on.absence is not None:
            self._progress.overdue(rule, self.clock, blind=blind)
        elif rule.on.blind is not None:
            self._sources.lasting(rule, cell.labels.get("source", ""), self.clock)
        else:
            self._lasting.overdue(key, rule, cell, self.clock, blind=blind)

    def _take(self, event: Event) -> None:  # noqa: C901, PLR0912 - one case for each kind of event
        at = self.clock
        if self._run.began == EPOCH:
            self._run.began = self._run.phase_since = at
            self._progress.begin(at)
            self._reports.begin(at)
        match event:
            case AttemptBegun():
                self._begin(event, at)
            case RunConfigured():
                self._run.config = event
                self._book.configure(event)
            case LogRecord():
                if event.attempt is None or event.attempt >= self._run.attempt:
                    self._text(facts.of_log(event, self._book), at)
            case HostLine():
                self._text(facts.of_host(event, self._book), at)
            case Metrics():
                self._metrics(event, at)
            case Rollout():
                self._rollout(event, at)
            case Marker():
                self._moved("marker", event.kind, event.number, event.source, at)
            case ProcessState():
                self._process(event, at)
            case SourceState() | ScrapeFailed() | Receipt():
                self._sources.take(event, at)
            case Sample():
                self._sources.take(event, at)
                self._values.sample(event, at)
            case Gap(cause="suspension"):
                sleeps.note(self._run, event.time, event.until)
            case DiskSpace():
                self._values.disk(event, at)
            case _:
                pass  # what only passes time, or concerns delivery

    def _begin(self, event: AttemptBegun, at: datetime) -> None:
        """Begin an attempt: everything but the run's step and its numbering starts anew."""
        run = self._run
        if (event.number, event.identity) == (run.attempt, run.identity):
            return
        self._alerts.incidents.end_attempt()
        self._alerts.resolve_all(at)
        self._values.begin()
        self._processes.begin()
        for key, _ in self._state.every(Copies):
            self._state.drop(key)
        run.attempt, run.identity, run.began = event.number, event.identity, at
        run.phase, run.phase_since, run.milestones, run.stages, run.sleeps = "starting", at, {}, {}, []
        self._progress.begin(at)
        self._sources.begin(at)
        for rule in self._book.by_trigger["attempt"]:
            self._alerts.hit(rule, facts.of_attempt(event, rule.component or "launcher"), at)
        self._reports.begin_attempt(at)

    def _text(self, fact: Fact | None, at: datetime) -> None:
        """Take a line of text: rules first, since a line that ends the run may say why."""
        for milestone in self._texts.take(fact, at) if fact is not None else ():
            self._passed(milestone.name, at)

    def _passed(self, milestone: str, at: datetime) -> None:
        self._progress.passed(milestone, at)
        self._phases.passed(milestone, at)

    def _moved(self, event: str, of: str, number: int, source: str, at: datetime) -> None:
        for clock in self._book.clocks:
            if clock.event == event and clock.of in ("", of):
                if clock.is_step:
                    self._run.step = number
                self._progress.moved(clock, number, source, at)
                if clock.is_step or clock.name not in self._run.milestones:
                    self._phases.passed(clock.name, at)

    def _metrics(self, event: Metrics, at: datetime) -> None:
        if event.completes:
            self._moved("metrics", event.writer, event.step, event.source, at)
        self._values.metrics(event, at)

    def _rollout(self, event: Rollout, at: datetime) -> None:
        component = self._book.components.rollout
        self._moved("rollout", event.kind, event.step, event.source, at)
        if not event.cancelled:
            self._progress.came(event.env, at)
        if component is None or event.cancelled:
            return
        fact = facts.of_rollout(event, component)
        for rule in self._book.by_trigger["rollout"]:
            hit = matches_rollout(rule, event)
            if hit is not None:
                (self._alerts.hit if hit else self._alerts.other)(rule, fact, at)

    def _process(self, event: ProcessState, at: datetime) -> None:
        self._processes.take(event, at)
        component = self._book.components.role.get(event.role)
        if component is not None:
            self._values.process(event, component, at)
        if event.state != "running":
            self._phases.look(at)

    def _say_health(self) -> None:
        """Say health and phase if either has changed, once all that fires is known; then what people are told."""
        run = self._run
        self._together.follow(self.clock)
        health = health_of(run, self._alerts.firing.healths())
        if (health, run.phase) != (run.health, run.said):
            run.health, run.said = health, run.phase
            self._state.put("run", run)
            self._decisions.append(HealthChanged(time=self.clock, health=health, phase=run.phase))
        self._reports.follow(self.clock)
