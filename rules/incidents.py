"""Which alerts belong together, and which of them is the root cause."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from pipeline.alerts import SEVERITIES, Component, IncidentChanged, IncidentSummary, worst_severity
from rules.rows import Failure, Incident, Member

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.alerts import Decision, Severity
    from rules.model import Rule
    from rules.rows import Cell, Run
    from rules.rulebook import Rulebook
    from rules.state import State

CLOSE_IN_TIME = timedelta(minutes=5)
"""An alert joins an incident whose last one is no older, related or not."""
FAILURES = 5
"""Of earlier attempts, that are remembered."""
CLOSED = 500
"""Incidents that closed, the latest ones, that are kept: the history has them all."""
SAME_MOMENT = timedelta(seconds=2)
"""Clocks of one node do not order what is closer."""
_MEMBERS = 40
"""Of more than that, alerts of one rule that differ only in their subjects are left out."""


class Incidents:
    """The incidents of a run."""

    def __init__(self, state: State, book: Rulebook, run: Run, say: Callable[[Decision], None]) -> None:
        self._state, self._book, self._run, self._say = state, book, run, say
        opened = sorted((i for _, i in state.every(Incident) if i.closed is None), key=lambda i: int(i.id))
        self._open = {i.id: i for i in opened}

    @property
    def any_open(self) -> bool:
        """Whether there is an incident that an alert could join."""
        return bool(self._open)

    def end_attempt(self) -> None:
        """Remember what an attempt ends with: the next one may end alike."""
        for incident in self._open.values():
            if incident.severity == "critical":
                failure = Failure(mode=incident.mode, component=incident.component, step=self._run.step)
                self._run.failures = [*self._run.failures[1 - FAILURES :], failure]

    def place(self, key: str, rule: Rule, cell: Cell, at: datetime) -> str:
        """Put a firing alert into the incident it belongs to, a new one if there is none; return its id."""
        incident = self._open.get(cell.incident) or self._joined(key, rule, cell.component, at) or self._opened(at)
        severity = cell.severity or "info"
        known = next((m for m in incident.members if m.key == key), None)
        if known is not None:
            known.severity, known.firing = severity, True
        elif _has_room(incident.members):
            member = Member(
                key=key, rule=rule.name, mode=rule.failure_mode, component=cell.component, severity=severity, at=at
            )
            incident.members.append(member)
        if known is None:
            incident.last = at
        return incident.id

    def revise(self, id_: str, at: datetime) -> None:
        """Name the root cause anew, and say so if anything that can be seen has changed."""
        incident = self._open.get(id_)
        if incident is None:
            return
        before = _visible(incident)
        root = self._root(incident)
        incident.root, incident.mode, incident.component = root.rule, root.mode, root.component
        incident.severity = worst_severity([m.severity for m in incident.members])
        modes = dict.fromkeys(m.mode for m in incident.members)
        incident.symptoms = [mode for mode in modes if mode != incident.mode]
        incident.again = any(
            (failure.mode, failure.component) == (root.mode, root.component) and self._run.step <= failure.step
            for failure in self._run.failures
        )
        rule = self._book.rules.get(root.rule)
        weighs = incident.severity != "info"
        incident.restart = rule is not None and rule.restart and weighs and not incident.again
        self._state.put(_key(id_), incident)
        if _visible(incident) != before:
            self._changed(incident, at)

    def belittle(self, id_: str, key: str, at: datetime) -> None:
        """Note that an alert is of no weight after all."""
        incident = self._open.get(id_)
        for member in incident.members if incident is not None else ():
            member.severity = "info" if member.key == key else member.severity
        self.revise(id_, at)

    def resolved(self, id_: str, key: str, at: datetime) -> None:
        """Note that an alert resolved; the incident closes with its last one."""
        incident = self._open.get(id_)
        if incident is None:
            return
        for member in incident.members:
            member.firing = member.firing and member.key != key
        if not any(m.firing for m in incident.members):
            incident.closed = at
            del self._open[id_]
            self._changed(incident, at)
        self._state.put(_key(id_), incident)

    def summaries(self) -> list[IncidentSummary]:
        """Return all incidents as they stand, in the order they opened."""
        found = sorted((i for _, i in self._state.every(Incident)), key=lambda i: int(i.id))
        return [
            IncidentSummary(
                id=i.id,
                failure_mode=i.mode,
                component=i.component,
                severity=i.severity,
                opened=i.opened,
                closed=i.closed,
                symptoms=list(i.symptoms),
                proposes_restart=i.restart,
            )
            for i in found
        ]

    def _joined(self, key: str, rule: Rule, component: Component, at: datetime) -> Incident | None:
        for incident in reversed(self._open.values()):
            known = any(m.key == key for m in incident.members)
            if known or at - incident.last <= CLOSE_IN_TIME or self._related(rule, component, incident):
                return incident
        return None

    def _related(self, rule: Rule, component: Component, incident: Incident) -> bool:
        mine = rule.failure_mode, component
        others = [(m.mode, m.component) for m in incident.members if m.firing]
        if mine in others and incident.severity != "info":
            return True
        return any(self._book.causes(mine, other) or self._book.causes(other, mine) for other in others)

    def _opened(self, at: datetime) -> Incident:
        self._forget()
        self._run.incidents += 1
        incident = Incident(id=str(self._run.incidents), opened=at, last=at)
        self._open[incident.id] = incident
        return incident

    def _forget(self) -> None:
        closed = sorted((i.closed, int(i.id)) for _, i in self._state.every(Incident) if i.closed is not None)
        for _, number in closed[:-CLOSED]:
            self._state.drop(_key(str(number)))
            self._state.drop(f"notice|{number}")

    def _root(self, incident: Incident) -> Member:
        """Return the alert that none of the others explains: the gravest, the most specific, the first."""
        members = incident.members
        candidates = [m for m in members if not any(self._explains(other, m) for other in members)]
        gravest = max(SEVERITIES.index(m.severity) for m in candidates or members)
        grave = [m for m in candidates or members if SEVERITIES.index(m.severity) == gravest]
        specific = max(self._specificity(m) for m in grave)
        alike = [m for m in grave if self._specificity(m) == specific]
        first = min(m.at for m in alike)
        return min((m for m in alike if m.at - first < SAME_MOMENT), key=lambda m: m.key)

    def _explains(self, cause: Member, effect: Member) -> bool:
        mine, other = (cause.mode, cause.component), (effect.mode, effect.component)
        return mine != other and self._book.causes(mine, other) and not self._book.causes(other, mine)

    def _specificity(self, member: Member) -> int:
        rule = self._book.rules.get(member.rule)
        return rule.specificity if rule else 0

    def _changed(self, incident: Incident, at: datetime) -> None:
        self._say(
            IncidentChanged(
                time=at,
                id=incident.id,
                state="open" if incident.closed is None else "closed",
                failure_mode=incident.mode,
                component=incident.component,
                severity=incident.severity,
                symptoms=list(incident.symptoms),
                proposes_restart=incident.restart,
            )
        )


def _has_room(members: list[Member]) -> bool:
    """Make room for one more member, if there is one for which another one stands."""
    if len(members) < _MEMBERS:
        return True
    seen: set[tuple[str, Component, Severity]] = set()
    for i, member in enumerate(members):
        stands_for = member.rule, member.component, member.severity
        if stands_for in seen:
            del members[i]
            return True
        seen.add(stands_for)
    return False


def _key(id_: str) -> str:
    return f"incident|{id_}"


def _visible(incident: Incident) -> tuple[object, ...]:
    return incident.mode, incident.component, incident.severity, incident.restart, incident.symptoms
