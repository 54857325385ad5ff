"""Rules about other rules: several failure modes that fire at the same time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rules.facts import Fact, evidence_of
from rules.rows import Cell, Records
from rules.summaries import summary

if TYPE_CHECKING:
    from datetime import datetime

    from pipeline.alerts import Phase
    from rules.alerting import Alerts
    from rules.lasting import Lasting
    from rules.model import Rule
    from rules.rows import Run
    from rules.rulebook import Rulebook
    from rules.state import State


class Together:
    """What fires together."""

    def __init__(self, state: State, book: Rulebook, run: Run, alerts: Alerts, lasting: Lasting) -> None:
        self._state, self._book, self._run, self._alerts, self._lasting = state, book, run, alerts, lasting
        self._seen: tuple[int, Phase] | None = None

    def follow(self, at: datetime) -> None:
        """Begin or end what other alerts make up, if any of them has changed, or the phase in which rules look."""
        while self._seen != (seen := (self._alerts.firing.changes, self._run.phase)):
            self._seen = seen
            for rule in self._book.by_trigger["together"]:
                self._look(rule, at)

    def _look(self, rule: Rule, at: datetime) -> None:
        wanted = rule.on.together.modes if rule.on.together else []
        parts = [part for mode in wanted if (part := self._part(mode, rule)) is not None]
        if len(parts) == len(wanted):
            said = "; ".join(summary(self._book.rules[cell.rule], cell, at) for _, cell in parts)
            self._lasting.hold(rule, _fact(rule, at, said, self._place(parts)), at)
        else:
            self._lasting.end(rule, _fact(rule, at), at)

    def _part(self, mode: str, whole: Rule) -> tuple[str, Cell] | None:
        """Return an alert of a failure mode; `None` if none fires but that of the whole."""
        for key in self._alerts.firing.of(mode):
            cell = self._state.get(Cell, key)
            if cell is not None and cell.rule in self._book.rules and cell.rule != whole.name:
                return key, cell
        return None

    def _place(self, parts: list[tuple[str, Cell]]) -> str:
        """Return the source of the last part's evidence."""
        row = self._state.get(Records, f"evidence|{parts[-1][0]}")
        return row.records[-1].source if row is not None and row.records else "alerts"


def _fact(rule: Rule, at: datetime, said: str = "", source: str = "alerts") -> Fact:
    evidence, labels = evidence_of(source, None, said), {"parts": said}
    return Fact(time=at, component=rule.component or "host", evidence=evidence, labels=labels)
