"""What lasts: it begins and ends, and a rule holds once it has lasted for a time."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

from pipeline.alerts import Severity, is_graver
from rules import conditions
from rules.rows import Cell, Records
from rules.sleeps import awake_from

if TYPE_CHECKING:
    from rules.alerting import Alerts
    from rules.facts import Fact
    from rules.model import Rule
    from rules.rows import Run
    from rules.state import State

LOOK_AGAIN = timedelta(seconds=10)
"""While a source is blind, what should have come is looked at again that much later."""


class Lasting:
    """
    What lasts, by rule and subject.

    It is pending until it has lasted long enough, and then fires. Once it has ended its alert resolves; if the rule
    says to keep it firing, that much later, unless it has lasted long enough again by then.
    """

    def __init__(self, state: State, run: Run, alerts: Alerts) -> None:
        self._state, self._run, self._alerts = state, run, alerts

    def begin(self, rule: Rule, fact: Fact, at: datetime) -> None:
        """Note that something has begun; if it begins anew, it counts from then on."""
        if not self._alerts.admits(rule, fact.time) or (key := self._alerts.key_with_room(rule, fact)) is None:
            return
        self.end(rule, fact, at)
        cell = self._alerts.cell(key, rule, fact)
        cell.count, cell.since, cell.last_hit = 1, at, at
        self._alerts.describe(key, cell, fact)
        self.overdue(key, rule, cell, at, blind=False)

    def hold(self, rule: Rule, fact: Fact, at: datetime) -> None:
        """Note that a state holds: it begins, or goes on."""
        cell = self._state.get(Cell, self._alerts.key(rule, fact))
        if cell is None or cell.since is None:
            self.begin(rule, fact, at)

    def end(self, rule: Rule, fact: Fact, at: datetime) -> None:
        """Note that it has ended: its alert resolves, at once or as long after as the rule says."""
        cell = self._state.get(Cell, key := self._alerts.key(rule, fact))
        if cell is None or cell.severity is None or rule.keep_firing_for is None:
            self._alerts.resolve(key, at)
            return
        cell.since = None
        cell.ends = cell.due = cell.ends or at + timedelta(seconds=rule.keep_firing_for)
        self._state.put(key, cell)

    def overdue(self, key: str, rule: Rule, cell: Cell, at: datetime, *, blind: bool) -> None:
        """Fire a rule about what has begun and not ended for too long, unless the end may not have been seen."""
        held, due = None, None
        if cell.since is not None and self._alerts.admits(rule, at):
            since = awake_from(cell.since, self._run)
            held, due = (None, at + LOOK_AGAIN) if blind else conditions.lasted(rule, since, at)
            cell.fields["minutes"] = f"{(at - since).total_seconds() / 60:.0f}"
        self._hold(key, rule, cell, at, held, due)

    def lasts(self, rule: Rule, fact: Fact, at: datetime, held: Severity | None, due: datetime | None) -> None:
        """Keep a state that is known elsewhere: absence, blindness."""
        if (key := self._alerts.key_with_room(rule, fact)) is None:
            return
        cell = self._alerts.cell(key, rule, fact)
        if is_graver(held, cell.severity):
            cell.last_hit, cell.component = at, fact.component
            self._alerts.describe(key, cell, fact)
        self._hold(key, rule, cell, at, held, due)

    def let_go(self, key: str, at: datetime, *, blind: bool) -> bool:
        """Resolve what has ended and was kept firing for long enough, unless it may hold again unseen; tell whether."""
        cell = self._state.get(Cell, key)
        if cell is None or cell.ends is None or cell.ends > at:
            return False
        if blind:
            cell.ends = cell.due = at + LOOK_AGAIN
            self._state.put(key, cell)
            return False
        records = self._state.get(Records, f"evidence|{key}")
        self._alerts.resolve(key, at)
        if cell.since is not None and records is not None:  # it has begun again, and may fire again
            self._state.put(f"evidence|{key}", records)
            again = msgspec.structs.replace(cell, severity=None, fired=None, incident="", ends=None)
            again.due = again.since
            self._state.put(key, again)
        return True

    def _hold(  # noqa: PLR0913, PLR0917 - all that is known of it
        self, key: str, rule: Rule, cell: Cell, at: datetime, held: Severity | None, due: datetime | None
    ) -> None:
        cell.ends = cell.ends if held is None else None
        cell.due = min((time for time in (due, cell.ends) if time is not None), default=None)
        self._state.put(key, cell)
        if is_graver(held, cell.severity):
            self._alerts.fire(key, rule, cell, at, held)
