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


class _Text(str):
    """A figure: text, and a number if it reads as one and is asked for as such."""

    __slots__ = ()

    def __format__(self, spec: str) -> str:
        kinds = (float, int, str) if "." in spec else (str, float, int)  # of text a precision would cut it
        for kind in kinds:
            try:
                return format(kind(str(self)), spec)
            except (ValueError, OverflowError):
                continue
        return str(self)


class _Figures(dict[str, object]):
    """What a summary can name; what is not known is shown as a question mark."""

    def __missing__(self, key: str) -> _Unknown:
        return _Unknown()


def summary(rule: Rule, cell: Cell, at: datetime) -> str:
    """Return the rule's summary with its figures filled in."""
    said = cell.fields | cell.labels | {"component": cell.component}
    figures = _Figures({name: _Text(text) for name, text in said.items()} | {"count": cell.count})
    now = conditions.share(rule, cell, at)
    hits, total = now if now is not None and now[1] else cell.share or (0, 0)
    if total:
        figures |= {"hits": hits, "total": total, "fraction": hits / total}
    try:
        return rule.summary.format_map(figures)
    except (ValueError, TypeError, AttributeError, LookupError):
        return rule.summary
