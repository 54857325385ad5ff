"""
What no rule knows: warnings and errors that match none, as templates with counts.

A rule book is never complete. What it passes over in silence would look like health,
so it is kept, folded and counted, and shown to people.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rules.facts import template
from rules.folding import FOLDED
from rules.pattern import Pattern
from rules.rows import Unknown

if TYPE_CHECKING:
    from datetime import datetime

    from pipeline.alerts import Phase
    from rules.facts import Fact
    from rules.rows import Run
    from rules.rulebook import Rulebook
    from rules.state import State

MOST = 60
"""Templates of an attempt; what comes beyond is counted together. As many of earlier attempts are remembered."""
EXAMPLE_BYTES = 200
_TEARDOWN: tuple[Phase, ...] = ("finished", "failed", "stopped")
_LEVELS = ("WARNING", "ERROR", "CRITICAL")
_TROUBLE = Pattern(
    r"(?i)error\b|exception|traceback|\bfail(s|ed|ure|ures|ing)?\b|\bfatal\b|\bkilled\b|\babort|\bpanic|\bcorrupt"
    r"|\btimed? ?out\b|\brefused\b|\bdenied\b|\bcannot\b|\bunable to\b|\bwarning\b|core dumped|segmentation fault"
)
"""What a record without a level says when something is wrong."""
_REST = "unknown|rest"


class Unknowns:
    """The records that no rule knows, by template."""

    def __init__(self, state: State, book: Rulebook, run: Run) -> None:
        self._state, self._book, self._run = state, book, run
        self._rows = {key: row for key, row in state.every(Unknown) if key != _REST}

    def take(self, fact: Fact, at: datetime) -> None:
        """Count a record that matched no rule and no milestone, if it tells of trouble."""
        if self._run.phase in _TEARDOWN or not _tells_of_trouble(fact) or self._book.is_known(fact.text):
            return
        key = f"unknown|{template(f'{fact.component} {fact.text}')}"
        if not self._has_room(key):
            key = _REST
        row = self._state.get(Unknown, key) or Unknown(component=fact.component, is_rest=key == _REST)
        if row.count and row.by != fact.by and at - row.last <= FOLDED:
            return  # another rank or process says the same
        if not row.count:
            row.first, row.component, row.example = at, fact.component, _example(fact.text)
            row.source, row.level = fact.evidence.source, fact.level
        row.count, row.last, row.by = row.count + 1, at, fact.by
        if key != _REST:
            self._rows[key] = row
        self._state.put(key, row)

    def begin(self) -> None:
        """Begin an attempt: what has been seen is remembered, but counted anew."""
        self._state.drop(_REST)
        seen = sorted(self._rows.items(), key=lambda item: (item[1].last, item[0]))
        for key, _ in seen[:-MOST]:
            del self._rows[key]
            self._state.drop(key)
        for key, row in self._rows.items():
            row.count, row.told, row.is_new = 0, 0, False
            self._state.put(key, row)

    def all(self) -> list[Unknown]:
        """Return what this attempt brought, the most frequent first, what there was no room for last."""
        found = sorted((row for row in self._rows.values() if row.count), key=_frequent)
        rest = self._state.get(Unknown, _REST)
        return found if rest is None else [*found, rest]

    def untold(self) -> list[tuple[int, Unknown]]:
        """Return what came since the last call of `tell`, and how often."""
        counts = [(row.count - row.told, row) for row in self.all() if row.count > row.told]
        return sorted(counts, key=lambda pair: (-pair[0], _frequent(pair[1])))

    def tell(self) -> None:
        """Note that all so far has been told."""
        for key, row in [*self._rows.items(), (_REST, self._state.get(Unknown, _REST))]:
            if row is not None and row.told != row.count:
                row.told = row.count
                self._state.put(key, row)

    def _has_room(self, key: str) -> bool:
        if (row := self._rows.get(key)) is not None and row.count:
            return True
        return sum(1 for row in self._rows.values() if row.count) < MOST


def _tells_of_trouble(fact: Fact) -> bool:
    return fact.level in _LEVELS or (fact.level is None and _TROUBLE.search(fact.text) is not None)


def _example(text: str) -> str:
    return text.encode(errors="replace")[:EXAMPLE_BYTES].decode(errors="ignore")


def _frequent(row: Unknown) -> tuple[int, str, str]:
    return -row.count, row.component, row.example
