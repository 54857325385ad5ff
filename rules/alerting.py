"""The life cycle of alerts: hits are counted, a rule holds for a subject, fires, and resolves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from pipeline.alerts import AlertChanged, Severity, is_graver
from rules import conditions
from rules.facts import clip
from rules.firing import Firing
from rules.folding import is_repeated
from rules.incidents import Incidents
from rules.rows import Cell, Records
from rules.subjects import cell_key, subject
from rules.summaries import summary

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from pipeline.alerts import Component, Decision, Evidence
    from rules.facts import Fact
    from rules.model import Rule
    from rules.rows import Run
    from rules.rulebook import Rulebook
    from rules.state import State

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
        if not self.admits(rule, fact.time) or (key := self.key_with_room(rule, fact)) is None:
            return
        cell = self.cell(key, rule, fact)
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
        cell.share = conditions.share(rule, cell, at)
        held = conditions.severity_on_hit(rule, cell, at, counted)
        self.settle(key, rule, cell, at, held)

    def other(self, rule: Rule, fact: Fact, at: datetime, *, good: bool = True) -> None:
        """Count a fact of the trigger's kind that is no hit; *good* tells whether it also is one that clears."""
        if not self.admits(rule, fact.time) or (key := self.key_with_room(rule, fact)) is None:
            return
        if not rule.has_fraction and key not in self._state.rows:
            return
        cell = self.cell(key, rule, fact)
        self._add_total(cell, fact, at)
        cell.last_other = at
        if cell.severity is None:  # as most are, of which there may be very many
            cell.due = cell.due or conditions.forgotten_at(rule, cell)
            self._state.put(key, cell)
            return
        conditions.note_share(rule, cell, at)
        conditions.note_value(rule, cell, at, good=good)
        self.settle(key, rule, cell, at, None)

    def settle(self, key: str, rule: Rule, cell: Cell, at: datetime, held: Severity | None) -> None:
        """Fire or raise what holds, resolve what has cleared, and set the timer for what time alone will change."""
        if is_graver(held, cell.severity):
            self.fire(key, rule, cell, at, held)
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
            cell.due = None if cell.severity is not None else conditions.forgotten_at(rule, cell)
            self._state.put(key, cell)
        else:
            conditions.note_share(rule, cell, at)
            self.settle(key, rule, cell, at, None)

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

    def take_back(self, modes: Sequence[str], since: datetime, at: datetime) -> None:
        """
        Resolve what fired no earlier than *since*, as of no weight: it was part of what has become clear now.

        Not if anything of weight is of another failure mode: then it was a part of that.
        """
        lately: list[tuple[str, Cell, bool]] = []
        for key in sorted(self.firing.keys):
            cell = self._state.get(Cell, key)
            rule = self._book.rules.get(cell.rule) if cell else None
            if cell is not None and rule is not None and (cell.fired or at) >= since:
                lately.append((key, cell, rule.failure_mode in modes))
        if any(cell.severity == "critical" and not is_part for _, cell, is_part in lately):
            return
        for key, cell, is_part in lately:
            if is_part:
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
        component = "host" if rule.on.absence is not None else fact.component  # who is stuck may change meanwhile
        return cell_key(rule, rule.component or component, subject(rule, fact))

    def key_with_room(self, rule: Rule, fact: Fact) -> str | None:
        """Return the key of the fact's subject if it is known or has room; a rule of one subject has."""
        key = self.key(rule, fact)
        return key if not rule.on.subject or self._state.has_room(key) else None

    def cell(self, key: str, rule: Rule, fact: Fact) -> Cell:
        """Return the cell of a rule and the fact's subject, a new one if there is none."""
        cell = self._state.get(Cell, key)
        if cell is None:
            component, labels = rule.component or fact.component, subject(rule, fact)
            hits, totals = conditions.windows(rule), conditions.windows(rule, fractions=True)
            cell = Cell(rule=rule.name, component=component, labels=labels, hits=hits, totals=totals)
        return cell

    def describe(self, key: str, cell: Cell, fact: Fact) -> None:
        """Take from a fact what the summary says, and its evidence."""
        cell.fields = _clipped(fact.labels)
        self._keep(key, fact.evidence)

    def _add_total(self, cell: Cell, fact: Fact, at: datetime) -> None:
        cell.others = fact.others
        for total in cell.totals:
            if total is not None and fact.others is None:
                total.add(at)

    def _keep(self, key: str, evidence: Evidence) -> None:
        key = f"evidence|{key}"
        row = self._state.get(Records, key) or Records()
        row.records = [*row.records[:1], *row.records[1:][-(EVIDENCE - 2) :], evidence]
        self._state.put(key, row)

    def fire(self, key: str, rule: Rule, cell: Cell, at: datetime, severity: Severity) -> None:
        """Let an alert fire, or grow graver."""
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


def _clipped(labels: dict[str, str]) -> dict[str, str]:
    return {name: clip(value) for name, value in labels.items()}
