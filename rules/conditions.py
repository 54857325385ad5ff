"""When a rule holds for a subject, and when it ceases to: pure questions to a cell."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

from pipeline.alerts import SEVERITIES, Severity
from pipeline.times import EPOCH
from rules.escalation import Clear, Escalation
from rules.pattern import Duration
from rules.windows import Buckets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rules.model import Rule
    from rules.rows import Cell

QUIET = Clear(quiet=Duration("15m"))
_FORGOTTEN_S = 3600.0


def span_s(escalation: Escalation) -> float | None:
    """Return how far back an escalation looks, in seconds; `None` if it counts nothing."""
    if escalation.growing is not None and escalation.within is not None:
        return escalation.within * (escalation.growing + 1)
    if escalation.fraction is not None:
        return escalation.over
    return escalation.within


def windows(rule: Rule, *, fractions: bool = False) -> list[Buckets | None]:
    """Return empty windows for a rule's escalations, or only for its fractions."""
    made: list[Buckets | None] = []
    for escalation in rule.escalate:
        span = span_s(escalation) if not fractions or escalation.fraction is not None else None
        made.append(None if span is None else Buckets.over(span))
    return made


def clearing(rule: Rule) -> Clear | None:
    """Return when a rule's alerts resolve; `None` if what began them has to end."""
    if rule.clear is not None:
        return rule.clear
    if rule.on.lasts:
        return None
    if rule.keep_firing_for is not None:
        return Clear(quiet=rule.keep_firing_for)
    if rule.on.kind == "process" and not rule.has_fraction:
        return Clear(attempt=True)
    fractions = [e.fraction for e in rule.escalate if e.fraction is not None]
    return Clear(fraction=min(fractions) / 2, for_=Duration("10m")) if fractions else QUIET


def share(rule: Rule, cell: Cell, at: datetime) -> tuple[int, int] | None:
    """
    Return hits and all of a window that measures a fraction; `None` if there is none.

    It is the window of the gravest escalation that holds; if none does, the first in which there are hits.
    """
    ranked = [(_weight(rule.escalate[i], hits, of), -i, (hits, of)) for i, hits, of in _shares(cell, at)]
    return max(ranked)[-1] if ranked else None


def _shares(cell: Cell, at: datetime) -> list[tuple[int, int, int]]:
    """Return hits and all of each window that measures a fraction, by its escalation."""
    windows = [(i, hits, total(cell, i, at)) for i, hits in enumerate(cell.hits)]
    return [(i, hits.total(at), of) for i, hits, of in windows if hits is not None and of is not None]


def _weight(escalation: Escalation, hits: int, of: int) -> tuple[int, bool]:
    holds = of >= (escalation.at_least or 1) and hits >= (escalation.fraction or 0.0) * of
    return (SEVERITIES.index(escalation.severity) + 1 if holds else 0), hits > 0


def total(cell: Cell, i: int, at: datetime) -> int | None:
    """Return what the hits of escalation *i* are a fraction of; `None` if it measures none."""
    hits, totals = cell.hits[i], cell.totals[i]
    if hits is None or totals is None:
        return None
    return totals.total(at) if cell.others is None else hits.total(at) + cell.others


def severity_on_hit(rule: Rule, cell: Cell, at: datetime, counted: Sequence[bool]) -> Severity | None:
    """Return how severely the rule holds now that it was hit, for the escalations *counted*; `None` if it does not."""
    held = [e.severity for i, e in enumerate(rule.escalate) if counted[i] and _holds(e, i, cell, at)]
    return max(held, key=SEVERITIES.index, default=None)


def _holds(escalation: Escalation, i: int, cell: Cell, at: datetime) -> bool:
    hits, of = cell.hits[i], total(cell, i, at)
    if escalation.immediately or escalation.of_last is not None or escalation.for_ is not None:
        return True  # the last values, and for how long they were hits, were judged with the series
    if hits is None:
        return False
    if escalation.persistent is not None:
        return hits.total(at) >= escalation.persistent
    if escalation.growing is not None and escalation.within is not None:
        counts = hits.spans(at, escalation.within, escalation.growing + 1)
        return all(before < after for before, after in pairwise(counts))
    if escalation.fraction is not None and of is not None:
        return of >= (escalation.at_least or 1) and hits.total(at) >= escalation.fraction * of
    return False


def lasted(rule: Rule, since: datetime, at: datetime) -> tuple[Severity | None, datetime | None]:
    """Return how severely a state that began at *since* holds at *at*, and when that may change."""
    spans = [(0.0 if e.immediately else e.for_, e.severity) for e in rule.escalate]
    starts = [(since + timedelta(seconds=span), severity) for span, severity in spans if span is not None]
    held = [severity for start, severity in starts if start <= at]
    return max(held, key=SEVERITIES.index, default=None), min((s for s, _ in starts if s > at), default=None)


def note_share(rule: Rule, cell: Cell, at: datetime) -> None:
    """Note since when the share is low enough to clear, in each window; what no longer comes does not tell."""
    clear = clearing(rule) if cell.severity is not None else None
    if clear is None or clear.fraction is None:
        return
    shares = _shares(cell, at)
    if not any(of for *_, of in shares) or any(hits and hits >= clear.fraction * of for _, hits, of in shares):
        cell.since = None
    elif cell.since is None:
        cell.since = at


def note_value(rule: Rule, cell: Cell, at: datetime, *, good: bool) -> None:
    """Note since when values are beyond the bound that clears."""
    if cell.severity is not None and rule.clear is not None and rule.clear.is_bound:
        cell.since = (cell.since or at) if good else None


def clears_at(rule: Rule, cell: Cell, seen_since: datetime = EPOCH) -> datetime | None:
    """Return when a firing alert resolves, as things stand; `None` if time alone does not do it."""
    clear = clearing(rule)
    if clear is None or cell.last_hit is None:
        return None
    if clear.for_ is not None:
        due = None if cell.since is None else cell.since + timedelta(seconds=clear.for_)
        if due is not None and clear.is_bound and (cell.last_other is None or cell.last_other < due):
            return None  # values have to come all the time
        return due
    if clear.quiet is not None:
        if rule.on.metric and (cell.last_other is None or cell.last_other < cell.last_hit):
            return None  # a value that no longer comes is not a good one
        return max(cell.last_hit, seen_since) + timedelta(seconds=clear.quiet)
    return None


def forgotten_at(rule: Rule, cell: Cell) -> datetime:
    """Return when a cell that does not fire can be dropped, should nothing more come."""
    latest = max((t for t in (cell.last_hit, cell.last_other) if t is not None), default=EPOCH)
    reach = max((span or 0.0 for e in rule.escalate if (span := span_s(e)) is not None), default=0.0)
    return latest + timedelta(seconds=reach + _FORGOTTEN_S)
