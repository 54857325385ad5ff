"""What a rule's escalations ask for, and how much of it there is, in words."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

import msgspec

from pipeline.alerts import Severity
from rules import conditions
from rules.escalation import Baseline

if TYPE_CHECKING:
    from datetime import datetime

    from rules.escalation import Clear, Escalation
    from rules.model import Rule
    from rules.rows import Cell, Series

OF = {"rollout": "rollouts", "log": "records", "metric": "values", "process": "processes"}
"""What a fraction is of, by the kind of trigger."""
_PLAIN = Baseline()


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """One escalation of a rule, as it stands for a subject."""

    severity: Severity
    needs: str
    """In words: `3 hits within 15m`."""
    has: str
    """In words: `2 of 3 hits`."""
    hits: int = 0
    """In the window, as of now."""
    total: int | None = None
    """What the hits are a share of, where the condition is about one."""


def condition(rule: Rule, number: int, cell: Cell | None, series: Series | None, at: datetime) -> Condition:
    """Return what the escalation *number* of a rule needs, and what it has."""
    escalation = rule.escalate[number]
    hits = _hits(escalation, number, cell, series, at)
    total = conditions.total(cell, number, at) if cell and number < len(cell.totals) else None
    total = total or (None if escalation.fraction is None else 0)
    return Condition(
        severity=escalation.severity,
        needs=needs(rule, escalation),
        has=_has(escalation, number, cell, series, hits, total, at),
        hits=hits,
        total=total,
    )


def needs(rule: Rule, escalation: Escalation) -> str:
    """Return what an escalation asks for."""
    said = _asked(escalation)
    if rule.on.metric is not None and escalation.for_ is not None:
        return f"all values for {escalation.for_} {said}{_once_known(rule, escalation)}"
    return _needs(rule, escalation) + (f"; a hit is a value {said}{_once_known(rule, escalation)}" if said else "")


def _once_known(rule: Rule, escalation: Escalation) -> str:
    if not (escalation.spike or escalation.drop or escalation.deviation):
        return ""
    return f", once {(rule.baseline or _PLAIN).warm_up} values are known"


def clears(rule: Rule) -> str:
    """Return when an alert of the rule resolves."""
    clear = conditions.clearing(rule)
    if clear is None:
        later = f", {rule.keep_firing_for} later" if rule.keep_firing_for else ""
        return f"when what began it is over{later}"
    if clear.attempt:
        return "with the next launch"
    if clear.steps:
        return f"with the next launch, or after {clear.steps} further steps, if those are made by what is to blame"
    if clear.fraction is not None:
        return f"when the share has been below {clear.fraction:.0%} for {clear.for_}"
    if clear.is_bound:
        return f"when values have been {_beyond(clear)} for {clear.for_}"
    good = ", good values coming" if rule.on.metric else ""
    return f"after {clear.quiet} without a hit{good}"


def usual(rule: Rule, series: Series) -> str:
    """Return what is usual for a series, as the rule sees it; nothing if it does not ask."""
    if not any(e.spike or e.drop or e.deviation for e in rule.escalate):
        return ""
    warm_up, known = (rule.baseline or _PLAIN).warm_up, len(series.values)
    if known < warm_up:
        return f"what is usual is not known yet: {known} of {warm_up} values"
    return f"usual is {median(series.values):.4g}"


def _needs(rule: Rule, escalation: Escalation) -> str:
    if escalation.persistent is not None:
        where = f"among the last {escalation.of_last} values" if escalation.of_last else f"within {escalation.within}"
        return f"{escalation.persistent} hits {where}"
    if escalation.growing is not None:
        return f"more hits in each of {escalation.growing} spans of {escalation.within} than in the one before"
    if escalation.fraction is not None:
        sample = f"{OF[rule.on.kind]} over {escalation.over}, of at least {escalation.at_least}"
        return f"{escalation.fraction:.0%} of the {sample}"
    if escalation.for_ is not None:
        return f"to last {escalation.for_}"
    if escalation.pace is not None:
        pace = escalation.pace
        return (
            f"to last {pace.times:g} times the {pace.percentile:g}th percentile of the run's ordinary steps, "
            f"at least {pace.at_least}"
        )
    return "one hit"


def _has(  # noqa: PLR0913, PLR0917 - all that an escalation is about
    escalation: Escalation,
    number: int,
    cell: Cell | None,
    series: Series | None,
    hits: int,
    total: int | None,
    at: datetime,
) -> str:
    window = cell.hits[number] if cell and number < len(cell.hits) else None
    if escalation.persistent is not None:
        return f"{hits} of {escalation.persistent} hits" if hits < escalation.persistent else f"{hits} hits"
    if escalation.growing is not None and escalation.within is not None and window is not None:
        counts = window.spans(at, escalation.within, escalation.growing + 1)
        return f"{', '.join(map(str, counts))} hits, the newest span last"
    if total is not None:
        share = f" ({hits / total:.0%})" if total else ""
        return f"{hits} of {total}{share}"
    if series is not None and number in series.held_since:
        return f"all values since {series.held_since[number]:%H:%M:%S} UTC"
    if escalation.for_ is not None or escalation.pace is not None:
        return ""
    return "no hit" if not hits else "1 hit" if hits == 1 else f"{hits} hits"


def _hits(escalation: Escalation, number: int, cell: Cell | None, series: Series | None, at: datetime) -> int:
    if escalation.of_last is not None:
        recent = series.recent[number] if series and number < len(series.recent) else 0
        return (recent & ((1 << escalation.of_last) - 1)).bit_count()
    if escalation.for_ is not None and series is not None:
        return int(number in series.held_since)
    if cell is None:
        return 0
    window = cell.hits[number] if number < len(cell.hits) else None
    return window.total(at) if window is not None else cell.count


def _beyond(bounds: Escalation | Clear) -> str:
    above = [f"above {bounds.above:g}"] if bounds.above is not None else []
    below = [f"below {bounds.below:g}"] if bounds.below is not None else []
    return " and ".join([*above, *below])


def _asked(escalation: Escalation) -> str:
    """Return what makes a value a hit."""
    asked = {
        _beyond(escalation): escalation.above is not None or escalation.below is not None,
        f"more than {escalation.spike or 0:g} times the usual one": escalation.spike,
        f"more than {escalation.drop or 0:.0%} below the usual one": escalation.drop,
        f"{escalation.deviation or 0:g} standard deviations off the usual one": escalation.deviation,
        f"whose trend is beyond {escalation.slope or 0:+g} an hour": escalation.slope is not None,
        f"that will reach {escalation.reaches or 0:g} within {escalation.ahead}": escalation.reaches is not None,
    }
    met = " and ".join(words for words, given in asked.items() if given)
    return " or ".join([*(["that is not a number, or infinite"] if escalation.nan else []), *([met] if met else [])])
