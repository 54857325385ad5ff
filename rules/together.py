"""Rules about other rules: several failure modes that fire at the same time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rules.facts import Fact, evidence_of
from rules.rows import Cell, Records
from rules.summaries import summary

if TYPE_CHECKING:
    from datetime import datetime

    from rules.alerting import Alerts
    from rules.model import Rule
    from rules.rulebook import Rulebook
    from rules.state import State


class Together:
    """What fires together."""

    def __init__(self, state: State, book: Rulebook, alerts: Alerts) -> None:
        self._state, self._book, self._alerts = state, book, alerts
        self._seen = -1

    def follow(self, at: datetime) -> None:
        """Begin or end what other alerts make up, if any of them has changed."""
        while self._seen != self._alerts.changes:
            self._seen = self._alerts.changes
            for rule in self._book.by_trigger["together"]:
                self._look(rule, at)

    def _look(self, rule: Rule, at: datetime) -> None:
        wanted = rule.on.together.modes if rule.on.together else []
        parts = [self._part(mode, rule) for mode in wanted]
        found = [part for part in parts if part is not None]
        fact = self._fact(rule, found, at)
        begun, holds = self._alerts.has_begun(rule, fact), len(found) == len(wanted)
        if begun and not holds:
            self._alerts.end(rule, fact, at)
        elif holds and not begun:
            self._alerts.begin(rule, fact, at)

    def _part(self, mode: str, whole: Rule) -> tuple[Rule, str, Cell] | None:
        """Return an alert of a failure mode; `None` if none fires."""
        for key, cell in self._alerts.firing():
            rule = self._book.rules.get(cell.rule)
            if rule is not None and rule.failure_mode == mode and rule.name != whole.name:
                return rule, key, cell
        return None

    def _fact(self, rule: Rule, parts: list[tuple[Rule, str, Cell]], at: datetime) -> Fact:
        said = "; ".join(summary(part, cell, at) for part, _, cell in parts)
        rows = [self._state.get(Records, f"evidence|{key}") for _, key, _ in parts]
        records = [row.records[-1] for row in rows if row is not None and row.records]
        source = records[-1].source if records else "alerts"
        return Fact(
            time=at,
            component=rule.component or "host",
            evidence=evidence_of(source, None, said),
            labels={"parts": said},
        )
