"""The life cycle of alerts: hits are counted, a rule holds for a subject, fires, and resolves."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypeGuard

import msgspec

from pipeline.alerts import SEVERITIES, AlertChanged, Severity
from rules import conditions
from rules.facts import clip
from rules.firing import Firing
from rules.folding import is_repeated
from rules.incidents import Incidents
from rules.rows import Cell, Records
from rules.sleeps import awake_from
from rules.subjects import cell_key, subject
from rules.summaries import summary

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pipeline.alerts import Component, Decision, Evidence
    from rules.facts import Fact
    from rules.model import Rule
    from rules.rows import Run
    from rules.rulebook import Rulebook
    from rules.state import State

LOOK_AGAIN = timedelta(seconds=10)
"""While a source is blind, what should have come is looked at again that much later."""
EVIDENCE = 5


class Alerts:
    """What fires, and what may fire yet."""

    def __init__(self, state: State, book: Rulebook, run: Run, say: Callable[[Decision], None]) -> None:
        self._state, self._book, self._run, self._say = state, book, run, say
        self.incidents = Incidents(state, book, run, say)
        self.firing = Firing(state, book)

    def admits(self, rule: Rule, time: datetime) -> bool:
        """
        Tell whether the rule looks at what happened at *time*, in the phase the run is in.

        After a failure only what happened before it counts, as evidence of what
        caused it: what dies later is torn down with the rest.
        """
        run = self._run
        late = run.phase == "failed" and time <= run.phase_since and self.incidents.any_open
        return run.phase in rule.during or late

    def hit(self, rule: Rule, fact: Fact, at: datetime, counted: Sequence[bool] | None = None) -> None:
        """Count a fact that the rule's trigger matches; *counted* tells for which escalations, all without it."""
        if not self.admits(rule, fact.time) or not self._has_room(rule, fact):
            return
        key, cell = self._cell(rule, fact)
        if rule.on.log is not None and rule.on.log.among is None and is_repeated(cell, fact, at):
            return
        counted = counted or [True] * len(rule.escalate)
        for hits, counts in zip(cell.hits, counted, strict=True):
            if hits is not None and counts:
                hits.add(at)
        self._add_total(cell, fact, at)
        cell.count += 1
        first = cell.fields if cell.severity is not None and rule.on.log is not None else {}
        cell.last_hit, cell.fields, cell.steps = at, _clipped(fact.labels), 0
        cell.fields |= {name: said for name, said in first.items() if name == "error"}  # later ones follow from it
        self._keep(key, fact.evidence)
        conditions.note_share(rule, cell, at)
        conditions.note_value(rule, cell, at, good=False)
        cell.share = conditions.share(cell, at)
        held = conditions.severity_on_hit(rule, cell, at, counted)
        self.settle(key, rule, cell, at, held)

    def other(self, rule: Rule, fact: Fact, at: datetime, *, good: bool = True) -> None:
        """Count a fact of the trigger's kind that is no hit; *good* tells whether it also is one that clears."""
        key = self.key(rule, fact)
        matters = rule.has_fraction or key in self._state.rows
        if not (matters and self.admits(rule, fact.time) and self._has_room(rule, fact)):
            return
        key, cell = self._cell(rule, fact)
        self._add_total(cell, fact, at)
        cell.last_other = at
        conditions.note_share(rule, cell, at)
        conditions.note_value(rule, cell, at, good=good)
        self.settle(key, rule, cell, at, None)

    def settle(self, key: str, rule: Rule, cell: Cell, at: datetime, held: Severity | None) -> None:
        """Fire or raise what holds, resolve what has cleared, and set the timer for what time alone will change."""
        if _is_graver(held, cell.severity):
            self._fire(key, rule, cell, at, held)
        if cell.severity is None:
            cell.due = cell.due or conditions.forgotten_at(rule, cell)  # looked at anew when it falls due
        else:
            cell.due = conditions.clears_at(rule, cell)
            if cell.due is not None and cell.due <= at and held is None:
                self.resolve(key, at)
                return
        self._state.put(key, cell)

    def timer(self, key: str, cell: Cell, at: datetime, *, blind: bool) -> None:
        """Take what falls due: an alert that cleared, or a subject that nothing more was heard of."""
        rule = self._book.rules.get(cell.rule)
        if rule is None:
            self.resolve(key, at)
        elif cell.severity is None and conditions.forgotten_at(rule, cell) <= at:
            self.forget(key)
        elif blind:  # what is not seen does not resolve
            self._state.put(key, cell)
        else:
            conditions.note_share(rule, cell, at)
            self.settle(key, rule, cell, at, None)

    def begin(self, rule: Rule, fact: Fact, at: datetime) -> None:
        """Note that something has begun whose end the rule waits for; if it begins anew, it counts from then on."""
        if not self.admits(rule, fact.time) or not self._has_room(rule, fact):
            return
        self.resolve(self.key(rule, fact), at)
        key, cell = self._cell(rule, fact)
        cell.count, cell.since, cell.last_hit, cell.fields = 1, at, at, _clipped(fact.labels)
        self._keep(key, fact.evidence)
        self.overdue(key, rule, cell, at, blind=False)

    def hold(self, rule: Rule, fact: Fact, at: datetime) -> None:
        """Note that a state holds: it begins, goes on, or holds again before its alert has resolved."""
        cell = self._state.get(Cell, key := self.key(rule, fact))
        if cell is None:
            self.begin(rule, fact, at)
        elif cell.ends is not None:
            cell.ends = None
            self.overdue(key, rule, cell, at, blind=False)

    def end(self, rule: Rule, fact: Fact, at: datetime) -> None:
        """Note that a state has ended: its alert resolves, at once or as long after as the rule says."""
        cell = self._state.get(Cell, key := self.key(rule, fact))
        if cell is None or cell.severity is None or rule.keep_firing_for is None:
            self.resolve(key, at)
        elif cell.ends is None:
            cell.ends = cell.due = at + timedelta(seconds=rule.keep_firing_for)
            self._state.put(key, cell)

    def overdue(self, key: str, rule: Rule, cell: Cell, at: datetime, *, blind: bool) -> None:
        """Fire a rule about what has begun and not ended for too long, unless the end may not have been seen."""
        since = awake_from(cell.since or at, self._run)
        held, due = conditions.lasted(rule, since, at)
        if not self.admits(rule, at):
            held, due = None, None
        elif blind:
            held, due = None, at + LOOK_AGAIN
        cell.due = due
        cell.fields["minutes"] = f"{(at - since).total_seconds() / 60:.0f}"
        self._state.put(key, cell)
        if _is_graver(held, cell.severity):
            self._fire(key, rule, cell, at, held)

    def lasts(self, rule: Rule, fact: Fact, at: datetime, held: Severity | None, due: datetime | None) -> None:
        """Keep a state that lasts: absence, blindness."""
        if not self._has_room(rule, fact):
            return
        key, cell = self._cell(rule, fact)
        if _is_graver(held, cell.severity):
            cell.last_hit, cell.fields, cell.component = at, _clipped(fact.labels), fact.component
            self._keep(key, fact.evidence)
            self._fire(key, rule, cell, at, held)
        cell.ends = None if held is not None else cell.ends
        cell.due = min((time for time in (due, cell.ends) if time is not None), default=None)
        self._state.put(key, cell)

    def resolve(self, key: str, at: datetime) -> None:
        """Resolve what fires under *key*, and begin anew."""
        cell = self._state.get(Cell, key)
        rule = self._book.rules.get(cell.rule) if cell else None
        if cell is None or cell.severity is None:
            self.forget(key)
            return
        if rule is not None and not rule.silent:  # it may have been taken out of the rules since
            self._alert(key, rule, cell, at, firing=False)
        self.forget(key)
        self.incidents.resolved(cell.incident, key, at)

    def take_back(self, since: datetime, at: datetime) -> None:
        """Resolve what fired no earlier than *since*, as of no weight: it was part of what has become clear now."""
        for key in sorted(self.firing.keys):
            cell = self._state.get(Cell, key)
            if cell is not None and cell.fired is not None and cell.fired >= since:
                cell.severity = "info"
                self.incidents.belittle(cell.incident, key, at)
                self.resolve(key, at)

    def resolve_all(self, at: datetime) -> None:
        """Resolve everything, and forget what was counted, but of launches."""
        for key, cell in self._state.every(Cell):
            rule = self._book.rules.get(cell.rule)
            self.resolve(key, at)
            if rule is not None and rule.on.attempt is not None:
                kept = msgspec.structs.replace(cell, severity=None, fired=None, incident="")
                kept.due = conditions.forgotten_at(rule, kept)
                self._state.put(key, kept)

    def forget(self, key: str) -> None:
        """Drop a subject."""
        self.firing.drop(key)
        self._state.drop(key)
        self._state.drop(f"evidence|{key}")

    def rearm(self, at: datetime, blind: Callable[[Rule, Cell], bool]) -> None:
        """Set the timers of what fires anew that fell due while it could not be seen, and can be again."""
        for key in sorted(self.firing.keys):
            cell = self._state.get(Cell, key)
            rule = self._book.rules.get(cell.rule) if cell else None
            if cell is None or rule is None or cell.due is not None or blind(rule, cell):
                continue
            if conditions.clearing(rule) is None:
                continue  # no time clears it
            cell.since = cell.since and at
            cell.due = conditions.clears_at(rule, cell, seen_since=at)
            self._state.put(key, cell)

    def stepped(self, component: Component, at: datetime) -> None:
        """Note that *component* has made a step: what it was blamed for and has got over resolves."""
        for key in sorted(self.firing.keys):
            cell = self._state.get(Cell, key)
            rule = self._book.rules.get(cell.rule) if cell else None
            steps = rule.clear.steps if rule is not None and rule.clear is not None else None
            if cell is None or steps is None or cell.component != component:
                continue
            cell.steps += 1
            self._state.put(key, cell)
            if cell.steps >= steps:
                self.resolve(key, at)

    def fires(self, rule: Rule, fact: Fact) -> bool:
        """Tell whether the rule fires for the fact's subject."""
        return self.key(rule, fact) in self.firing.keys

    def key(self, rule: Rule, fact: Fact) -> str:
        """Return the key of the rule and the fact's subject."""
        return cell_key(rule, rule.component or fact.component, subject(rule, fact))

    def _cell(self, rule: Rule, fact: Fact) -> tuple[str, Cell]:
        key = self.key(rule, fact)
        cell = self._state.get(Cell, key)
        if cell is None:
            component, labels = rule.component or fact.component, subject(rule, fact)
            hits, totals = conditions.windows(rule), conditions.windows(rule, fractions=True)
            cell = Cell(rule=rule.name, component=component, labels=labels, hits=hits, totals=totals)
        return key, cell

    def _has_room(self, rule: Rule, fact: Fact) -> bool:
        """Tell whether the fact's subject is known, or there is room for one more; for a whole rule there is."""
        return not rule.on.subject or self._state.has_room(self.key(rule, fact))

    def _add_total(self, cell: Cell, fact: Fact, at: datetime) -> None:
        cell.others = fact.others
        for total in cell.totals:
            if total is not None:
                total.add(at)

    def _keep(self, key: str, evidence: Evidence) -> None:
        key = f"evidence|{key}"
        row = self._state.get(Records, key) or Records()
        row.records = [*row.records[:1], *row.records[1:][-(EVIDENCE - 2) :], evidence]
        self._state.put(key, row)

    def _fire(self, key: str, rule: Rule, cell: Cell, at: datetime, severity: Severity) -> None:
        cell.severity, cell.fired = severity, cell.fired or at
        self.firing.add(key, rule)
        self._state.put(key, cell)
        if rule.silent:
            return
        cell.incident = self.incidents.place(key, rule, cell, at)
        self._alert(key, rule, cell, at, firing=True)
        self.incidents.revise(cell.incident, at)

    def _alert(self, key: str, rule: Rule, cell: Cell, at: datetime, *, firing: bool) -> None:
        evidence = self._state.get(Records, f"evidence|{key}")
        self._say(
            AlertChanged(
                time=at,
                rule=rule.name,
                failure_mode=rule.failure_mode,
                component=cell.component,
                severity=cell.severity or "info",
                state="firing" if firing else "resolved",
                incident=cell.incident,
                summary=summary(rule, cell, at),
                evidence=list(evidence.records) if evidence else [],
            )
        )


def _is_graver(held: Severity | None, than: Severity | None) -> TypeGuard[Severity]:
    return held is not None and (than is None or SEVERITIES.index(held) > SEVERITIES.index(than))


def _clipped(labels: dict[str, str]) -> dict[str, str]:
    return {name: clip(value) for name, value in labels.items()}
