"""Whether the run gets on: clocks of progress, stages with a silence of their own, the run's own pace."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from pipeline.alerts import SEVERITIES, Evidence, Severity
from pipeline.times import EPOCH
from rules.facts import Fact, clip
from rules.lasting import LOOK_AGAIN
from rules.rows import Moved, push
from rules.sleeps import awake_from
from rules.windows import percentile

if TYPE_CHECKING:
    from pipeline.alerts import Component
    from rules.alerting import Alerts
    from rules.escalation import Escalation, OwnPace
    from rules.lasting import Lasting
    from rules.model import Rule
    from rules.rows import Run
    from rules.rule_file import Clock
    from rules.rulebook import Rulebook
    from rules.state import State


_NOTHING = Evidence(source="progress", offset=None, text="")
ENVS = 6
"""Environments whose last rollouts are told of."""


class Progress:
    """The clocks of a run, its stages, and the rules about their absence."""

    def __init__(self, state: State, book: Rulebook, run: Run, alerts: Alerts, lasting: Lasting) -> None:
        self._state, self._book, self._run, self._alerts, self._lasting = state, book, run, alerts, lasting
        self._stages = {stage.name: stage for stage in book.stages}
        self._step = next((clock.name for clock in book.clocks if clock.is_step), "")

    def begin(self, at: datetime) -> None:
        """Begin an attempt: nothing has moved yet."""
        for key, _ in self._state.every(Moved):
            self._state.drop(key)
        self.expect(at)

    def passed(self, name: str, at: datetime) -> None:
        """Note a milestone, or a clock that moved: stages begin and end with it."""
        stages = self._run.stages
        before = dict(stages)
        for stage in self._book.stages:
            if name in stage.ends:
                stages.pop(stage.name, None)
            if name in stage.begins:
                stages[stage.name] = at
        if stages != before:
            if self._pauses():
                self._rest()
            self._state.put("run", self._run)
            self.expect(at)

    def moved(self, clock: Clock, number: int, source: str, at: datetime) -> None:
        """Note that a clock has moved: what was missed is there again."""
        row = self._state.get(Moved, _key(clock.name)) or Moved()
        row.source = source
        if clock.event == "metrics" and row.at != EPOCH and number == row.number:
            self._state.put(_key(clock.name), row)
            return  # the console and the metrics file both tell of a step, and so do copies of either
        if clock.is_step and (component := self._book.components.writer.get(clock.of)) is not None:
            self._alerts.stepped(component, at)
        if clock.is_step and row.at != EPOCH:
            took_s = (at - awake_from(row.at, self._run)).total_seconds()
            row.longest_s = max(row.longest_s, took_s)
            if not row.rested and took_s > 0:
                push(row.ordinary_s, took_s)
        row.number, row.at = number, at
        self._state.put(_key(clock.name), row)
        self.passed(clock.name, at)
        row.rested = bool(self._pauses())
        for rule in self._book.by_trigger["absence"]:
            if rule.on.absence is not None and clock.name in rule.on.absence.of:
                self._there_again(rule, clock, at)

    def came(self, env: str, at: datetime) -> None:
        """Note that a rollout of an environment has ended: one that is silent longer than the others may hang."""
        key = _env_key(env)
        if self._state.has_room(key):
            row = self._state.get(Moved, key) or Moved()
            row.at = at
            self._state.put(key, row)

    def expect(self, at: datetime) -> None:
        """Set the timers of what is to come."""
        for rule in self._book.by_trigger["absence"]:
            self.overdue(rule, at, blind=True)

    def overdue(self, rule: Rule, at: datetime, *, blind: bool) -> None:
        """Fire a rule about absence whose time has come, unless it cannot be seen, and set its timer."""
        deadlines = [(self._deadline(e, rule), e.severity) for e in rule.escalate]
        held: list[Severity] = [severity for deadline, severity in deadlines if deadline <= at]
        due = min((deadline for deadline, _ in deadlines if deadline > at), default=None)
        if not self._alerts.admits(rule, at):
            held, due = [], None
        elif held and blind:
            held, due = [], at + LOOK_AGAIN
        severity = max(held, key=SEVERITIES.index, default=None)
        fact = self._subject(rule, at) if severity is None else self._fact(rule, at)
        self._lasting.lasts(rule, fact, at, severity, due)

    def _there_again(self, rule: Rule, clock: Clock, at: datetime) -> None:
        if self._alerts.fires(rule, subject := self._subject(rule, at)):
            self._lasting.end(rule, subject, at)
            self.overdue(rule, at, blind=True)
        elif clock.is_step:
            self.overdue(rule, at, blind=True)

    def _deadline(self, escalation: Escalation, rule: Rule) -> datetime:
        """Return when an absence has lasted too long."""
        since = self._since(rule)
        if escalation.pace is not None:
            return self._own_pace(escalation.pace, since)
        return since + timedelta(seconds=escalation.for_ or 0.0)

    def _since(self, rule: Rule) -> datetime:
        """Return since when none of the clocks of a rule has moved, as if what the host slept had been before."""
        clocks = rule.on.absence.of if rule.on.absence else []
        moved = [row.at for name in clocks if (row := self._state.get(Moved, _key(name))) is not None]
        return awake_from(max([self._run.began, *moved]), self._run)

    def _own_pace(self, pace: OwnPace, since: datetime) -> datetime:
        row = self._state.get(Moved, _key(self._step))
        ordinary = row.ordinary_s[-pace.last :] if row else []
        pauses = [stage.timeout for name in self._pauses() if (stage := self._stages.get(name))]
        if len(ordinary) >= pace.warm_up:
            usual = pace.times * percentile(ordinary, pace.percentile)
            return since + timedelta(seconds=max(pace.at_least, usual, *pauses))
        begun = [(self._stages[name], at) for name, at in self._run.stages.items() if name in self._stages]
        ends = [awake_from(at, self._run) + timedelta(seconds=stage.timeout) for stage, at in begun if not stage.pause]
        if ends:
            return max(min(ends), since + timedelta(seconds=pace.at_least))
        early_s = (
            max(pace.early_at_least, pace.early_times * row.longest_s) if row and row.longest_s else pace.otherwise
        )
        return since + timedelta(seconds=max(min(early_s, pace.otherwise), *pauses, 0.0))

    def _pauses(self) -> list[str]:
        return [name for name in self._run.stages if (stage := self._stages.get(name)) is not None and stage.pause]

    def _rest(self) -> None:
        row = self._state.get(Moved, _key(self._step))
        if row is not None:
            row.rested = True
            self._state.put(_key(self._step), row)

    def _subject(self, rule: Rule, at: datetime) -> Fact:
        """Return what an absence is about, without what is known of it: asked with each move of a clock."""
        return Fact(time=at, component=self._stuck(rule), evidence=_NOTHING)

    def _fact(self, rule: Rule, at: datetime) -> Fact:
        clocks = [(c.name, self._state.get(Moved, _key(c.name))) for c in self._book.clocks]
        seen = [f"{name} {row.number} at {row.at:%H:%M:%S}" for name, row in clocks if row is not None]
        text = self._silent()
        text += f"last of each: {', '.join(seen)}" if seen else f"nothing since {self._run.began:%H:%M:%S}"
        stages = [f"{name} since {since:%H:%M:%S}" for name, since in sorted(self._run.stages.items())]
        text += f"; in {', '.join(stages)}" if stages else ""
        text += " (UTC)"
        evidence = Evidence(source="progress", offset=None, text=text)
        absent_s = (at - self._since(rule)).total_seconds()
        labels = {"minutes": f"{absent_s / 60:.0f}", "seen": text}
        return Fact(time=at, component=self._stuck(rule), evidence=evidence, labels=labels)

    def _silent(self) -> str:
        """Return when each environment's last rollout ended, the one that is silent the longest first."""
        rows = [(row.at, key.removeprefix(_env_key(""))) for key, row in self._state.every(Moved) if key[:4] == "env|"]
        said = [f"{env} at {last:%H:%M:%S}" for last, env in sorted(rows)[:ENVS]]
        return f"last rollouts of {', '.join(said)}; " if len(rows) > 1 else ""

    def _stuck(self, rule: Rule) -> Component:
        """Return the component that has not done its part."""
        for blame in rule.on.absence.blame if rule.on.absence else ():
            ahead, behind = (self._state.get(Moved, _key(name)) for name in (blame.ahead, blame.behind))
            if ahead is not None and behind is not None and ahead.number > behind.number:
                return blame.component
        return rule.component or "host"


def _env_key(env: str) -> str:
    return f"env|{clip(env)}"


def _key(clock: str) -> str:
    return f"clock|{clock}"
