"""Rows of rules that have been edited since: what no longer fits them is counted anew, what fires goes on firing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rules import conditions
from rules.rows import Cell, Series

if TYPE_CHECKING:
    from rules.rulebook import Rulebook
    from rules.state import State
    from rules.windows import Buckets


def adapt(state: State, book: Rulebook) -> None:
    """Let the rows that were read back fit the rules in force."""
    for key, cell in state.every(Cell):
        rule = book.rules.get(cell.rule)
        if rule is None:
            continue
        hits, totals = conditions.windows(rule), conditions.windows(rule, fractions=True)
        if _widths(cell.hits) != _widths(hits) or _widths(cell.totals) != _widths(totals):
            cell.hits, cell.totals = hits, totals
            state.put(key, cell)
    for key, series in state.every(Series):
        rule = book.rules.get(key.removeprefix("series|cell|").partition("|")[0])
        if rule is not None and len(series.recent) != len(rule.escalate):
            series.recent, series.held_since = [0] * len(rule.escalate), {}
            state.put(key, series)


def _widths(windows: list[Buckets | None]) -> list[float | None]:
    return [None if one is None else one.width_s for one in windows]
