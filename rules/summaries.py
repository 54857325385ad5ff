"""The one line that a person reads of an alert, from its rule and what is known of its subject."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rules import conditions

if TYPE_CHECKING:
    from datetime import datetime

    from rules.model import Rule
    from rules.rows import Cell


class _Unknown:
    """A figure that is not known, in whatever format it is asked for."""

    def __format__(self, spec: str) -> str:
        return "?"


class _Figures(dict[str, object]):
    """What a summary can name; what is not known is shown as a question mark."""

    def __missing__(self, key: str) -> _Unknown:
        return _Unknown()


def summary(rule: Rule, cell: Cell, at: datetime) -> str:
    """Return the rule's summary with its figures filled in."""
    figures = _Figures(cell.fields | cell.labels | {"component": cell.component, "count": cell.count})
    now = conditions.share(cell, at)
    hits, total = now if now is not None and now[1] else cell.share or (0, 0)
    if total:
        figures |= {"hits": hits, "total": total, "fraction": hits / total}
    try:
        return rule.summary.format_map(figures)
    except (ValueError, TypeError, AttributeError, LookupError):
        return rule.summary
