"""What fires: looked up by failure mode, and what it makes of the run's health."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from rules.rows import Cell

if TYPE_CHECKING:
    from pipeline.alerts import Health
    from rules.model import Rule
    from rules.rulebook import Rulebook
    from rules.state import State


class Firing:
    """The keys of the alerts that fire."""

    def __init__(self, state: State, book: Rulebook) -> None:
        self._state, self._book = state, book
        self.keys: set[str] = set()
        self._modes: dict[str, set[str]] = defaultdict(set)
        self._healths: list[Health] | None = None
        """Asked for after each event; `None` when what fires has changed."""
        self.changes = 0
        """How often that was."""
        for key, cell in state.every(Cell):
            if cell.severity is not None:
                self.add(key, book.rules.get(cell.rule))

    def add(self, key: str, rule: Rule | None) -> None:
        """Note that an alert fires, or fires more severely; its rule may have been taken out since."""
        self.keys.add(key)
        if rule is not None:
            self._modes[rule.failure_mode].add(key)
        self._changed()

    def drop(self, key: str) -> None:
        """Note that an alert fires no longer."""
        if key in self.keys:
            self.keys.discard(key)
            for keys in self._modes.values():
                keys.discard(key)
            self._changed()

    def of(self, mode: str) -> list[str]:
        """Return the keys of the alerts of a failure mode, sorted."""
        return sorted(self._modes[mode]) if mode in self._modes else []

    def healths(self) -> list[Health]:
        """Return what each alert makes of the run's health."""
        if self._healths is None:
            cells = [cell for key in self.keys if (cell := self._state.get(Cell, key)) is not None]
            rules = self._book.rules
            told = [rules[c.rule] for c in cells if c.severity != "info" and c.rule in rules]
            self._healths = [rule.health for rule in told if not rule.silent]
        return self._healths

    def _changed(self) -> None:
        self._healths = None
        self.changes += 1
