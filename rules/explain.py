"""
Why an alert fires, and why a rule does not: evidence, thresholds, windows, timers.

Asked of the rows that the engine left, by whoever reads them: nothing is changed.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Literal

import msgspec

from pipeline.alerts import Component, Evidence, Severity
from rules.alerting import Alerts
from rules.conditions_in_words import Condition, clears, condition, usual
from rules.edited import adapt
from rules.incidents import CLOSE_IN_TIME
from rules.lasting import Lasting
from rules.pattern import Duration
from rules.rows import Cell, Incident, Member, Moved, Notice, Records, Run, Series, Source
from rules.sources import PROCESSES, Sources
from rules.summaries import summary

if TYPE_CHECKING:
    from rules.model import Rule
    from rules.rulebook import Rulebook
    from rules.state import State

_CELL = "cell|"


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """One rule for one subject. Its texts may quote the run: they are untrusted."""

    id: str
    """The key of its alert."""
    rule: str
    failure_mode: str
    component: Component | None
    labels: dict[str, str]
    state: Literal["firing", "pending", "quiet"]
    severity: Severity | None
    """While it fires."""
    since: datetime | None
    incident: str
    summary: str
    hits: int
    last_hit: datetime | None
    conditions: list[Condition]
    waits: list[str]
    """What it waits for, while it does not fire."""
    clears: str
    """When it resolves, in words."""
    due: datetime | None
    """When it is looked at next if nothing comes."""
    evidence: list[Evidence]


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """An alert's part in an incident."""

    role: Literal["root", "symptom"]
    reason: str
    rule: str
    failure_mode: str
    component: Component
    severity: Severity
    since: datetime
    firing: bool
    subject: Subject | None
    """`None` once it has resolved: then only the history has its evidence."""


class Explained(msgspec.Struct, frozen=True, kw_only=True):
    """An incident."""

    id: str
    state: Literal["open", "closed"]
    failure_mode: str
    component: Component
    severity: Severity
    opened: datetime
    closed: datetime | None
    proposes_restart: bool
    messages: int
    """Sent about it so far."""
    next_message: datetime | None
    """When the next one is due, if nothing changes."""
    parts: list[Part]


class Explainer:
    """Answers questions about the rows of an engine, at the time of its clock."""

    def __init__(self, state: State, book: Rulebook) -> None:
        self._state, self._book = state, book.of_one_run()
        self._run = state.get(Run, "run") or Run()
        self._book.configure(self._run.config)
        adapt(state, self._book)
        alerts = Alerts(state, book, self._run, lambda _: None)
        self._sources = Sources(state, book, alerts, Lasting(state, self._run, alerts))

    def alerts(self) -> list[Subject]:
        """Return what fires, then what may fire yet."""
        told = [(key, self._book.rules[cell.rule]) for key, cell in self._known()]
        found = [self._subject(key, rule) for key, rule in told if not rule.silent]
        firing = [one for one in found if one.state == "firing"]
        pending = [one for one in found if one.state == "pending"]
        return [*sorted(firing, key=lambda one: (one.since or self._run.clock, one.id)), *pending]

    def rule(self, name: str) -> list[Subject]:
        """
        Return each subject of a rule; what it waits for where it has none yet.

        Raises:
            KeyError: No such rule is in force.

        """
        rule = self._book.rules[name]
        keys = self._keys(f"{name}|")
        return [self._subject(key, rule) for key in keys] or [self._subject(f"{_CELL}{name}", rule)]

    def matching(self, prefix: str) -> list[Subject]:
        """Return the subjects whose id begins with *prefix*."""
        keys = [key for key in self._keys(prefix) if _rule_of(key) in self._book.rules]
        return [self._subject(key, self._book.rules[_rule_of(key)]) for key in keys]

    def incident(self, id_: str) -> Explained | None:
        """Return what an incident is made of; `None` if it is not known."""
        incident = self._state.get(Incident, f"incident|{id_}")
        if incident is None:
            return None
        notice = self._state.get(Notice, f"notice|{id_}") or Notice()
        parts = [self._part(member, incident) for member in incident.members]
        return Explained(
            id=incident.id,
            state="open" if incident.closed is None else "closed",
            failure_mode=incident.mode,
            component=incident.component,
            severity=incident.severity,
            opened=incident.opened,
            closed=incident.closed,
            proposes_restart=incident.restart,
            messages=notice.messages,
            next_message=notice.due,
            parts=sorted(parts, key=lambda part: (part.role != "root", part.since)),
        )

    def _known(self) -> list[tuple[str, Cell]]:
        return [(key, cell) for key, cell in self._state.every(Cell) if cell.rule in self._book.rules]

    def _keys(self, prefix: str) -> list[str]:
        cells = {key for key, _ in self._state.every(Cell)}
        series = {key.removeprefix("series|") for key, _ in self._state.every(Series)}
        return sorted(key for key in cells | series if key.startswith(_CELL + prefix))

    def _subject(self, key: str, rule: Rule) -> Subject:
        cell, series = self._state.get(Cell, key), self._state.get(Series, f"series|{key}")
        at, records = self._run.clock, self._state.get(Records, f"evidence|{key}")
        found = [condition(rule, number, cell, series, at) for number in range(len(rule.escalate))]
        firing = cell is not None and cell.severity is not None
        lasts = rule.on.lasts and rule.on.absence is None
        begun = any(one.hits for one in found) or (lasts and cell is not None)
        pending = begun and self._run.phase in rule.during
        return Subject(
            id=key.removeprefix(_CELL).rstrip("|"),
            rule=rule.name,
            failure_mode=rule.failure_mode,
            component=cell.component if cell else rule.component,
            labels=cell.labels if cell else {"series": series.name} if series else {},
            state="firing" if firing else "pending" if pending else "quiet",
            severity=cell.severity if cell else None,
            since=cell.fired if cell else None,
            incident=cell.incident if cell else "",
            summary=summary(rule, cell, at) if cell and cell.fields else "",
            hits=cell.count if cell else 0,
            last_hit=cell.last_hit if cell else None,
            conditions=found,
            waits=[] if firing else self._waits(rule, cell, series, begun=begun),
            clears=_ended(cell) if cell and cell.ends and cell.since is None else clears(rule),
            due=cell.due if cell else None,
            evidence=records.records if records else [],
        )

    def _waits(self, rule: Rule, cell: Cell | None, series: Series | None, *, begun: bool) -> list[str]:
        """Return what has to come, beside what the conditions need, and what keeps it from being seen."""
        run = self._run
        waits = []
        if run.phase not in rule.during:
            waits.append(f"the phase is {run.phase}, the rule looks during {', '.join(rule.during)}")
        waits += self._unseen(rule, cell)
        if rule.on.absence is not None:
            return waits + self._absence(rule, None if waits else cell)
        if rule.on.together is not None:
            waits.append(f"alerts of {' and '.join(rule.on.together.modes)} at the same time")
        if rule.on.lasts and cell is not None and cell.due is not None:
            waits.append(f"fires at {cell.due:%Y-%m-%d %H:%M:%S} UTC unless it ends before")
        if series is not None:
            come = "1 value has come" if series.seen == 1 else f"{series.seen} values have come"
            waits += [words for words in (come, usual(rule, series)) if words]
        return waits if begun else [*waits, "nothing that it looks for has come, or not lately"]

    def _absence(self, rule: Rule, cell: Cell | None) -> list[str]:
        clocks = rule.on.absence.of if rule.on.absence else []
        rows = [(name, self._state.get(Moved, f"clock|{name}")) for name in clocks]
        moved = [f"{name} {row.number} at {row.at:%H:%M:%S} UTC" for name, row in rows if row is not None]
        waits = [f"last moved: {', '.join(moved)}" if moved else f"none of {', '.join(clocks)} has moved yet"]
        if cell is not None and cell.due is not None:
            waits.append(f"fires at {cell.due:%Y-%m-%d %H:%M:%S} UTC unless one of them moves before")
        return waits

    def _unseen(self, rule: Rule, cell: Cell | None) -> list[str]:
        asked = cell or Cell(rule=rule.name, component=rule.component or "host")
        wanted = {"blind"} if self._sources.blind(rule, asked) else set()
        rows = [(key.removeprefix("source|"), row) for key, row in self._state.every(Source)]
        unseen = [f"{name} is not seen since {row.since:%H:%M:%S} UTC" for name, row in rows if row.state in wanted]
        never = [f"{name} is not to be seen here" for name, row in rows if row.state == "absent" and name == PROCESSES]
        return unseen + (never if rule.on.process is not None else [])

    def _part(self, member: Member, incident: Incident) -> Part:
        is_root = member.rule == incident.root
        rule = self._book.rules.get(member.rule)
        there = member.firing and rule is not None and self._state.get(Cell, member.key) is not None
        return Part(
            role="root" if is_root else "symptom",
            reason=self._reason(member, incident),
            rule=member.rule,
            failure_mode=member.mode,
            component=member.component,
            severity=member.severity,
            since=member.at,
            firing=member.firing,
            subject=self._subject(member.key, rule) if there and rule is not None else None,
        )

    def _reason(self, member: Member, incident: Incident) -> str:
        if member.rule == incident.root:
            others = len(incident.members) - 1
            return "nothing else in the incident explains it" if others else "it came alone"
        mine = member.mode, member.component
        causes = [m for m in incident.members if m is not member and self._book.causes((m.mode, m.component), mine)]
        if causes:
            return f"follows from {causes[0].mode} in {causes[0].component}, as a cascade says"
        return f"came within {Duration(CLOSE_IN_TIME.total_seconds())} of another alert"


def _ended(cell: Cell) -> str:
    return f"it has ended: at {cell.ends:%H:%M:%S} UTC, unless it holds again"


def _rule_of(key: str) -> str:
    return key.removeprefix(_CELL).partition("|")[0]
