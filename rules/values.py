"""Numbers that change over time: each series against bounds, against its own past, and against where it is heading."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from rules import facts
from rules.bounds import is_within
from rules.escalation import Baseline
from rules.rows import Series, push
from rules.sleeps import awake_from
from rules.triggers import matches_labels

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pipeline.alerts import Component
    from pipeline.events import DiskSpace, Metrics, ProcessState, Sample
    from rules.alerting import Alerts
    from rules.escalation import Escalation
    from rules.facts import Fact
    from rules.model import Rule
    from rules.rows import Run
    from rules.rulebook import Rulebook
    from rules.state import State

SIGMAS = 3.0
"""A spike or a drop also is that many standard deviations away, as the median absolute deviation estimates them."""
SIGMA = 1.4826
"""Standard deviations in a median absolute deviation, if what it is of were normal."""
MEAN_SIGMA = 1.2533
"""The same in a mean absolute deviation."""
_REMEMBERED = (1 << 60) - 1
_TREND_VALUES, _TREND_S = 9, 600.0
"""A trend is taken from that many values at least, over that long at least."""
_PLAIN = Baseline()


class Values:
    """The series that rules look at."""

    def __init__(self, state: State, book: Rulebook, run: Run, alerts: Alerts) -> None:
        self._state, self._book, self._run, self._alerts = state, book, run, alerts

    def begin(self) -> None:
        """Begin an attempt: what was usual in the last one may not be in this one."""
        for key, _ in self._state.every(Series):
            self._state.drop(key)

    def metrics(self, event: Metrics, at: datetime) -> None:
        """Take the figures of a step."""
        component = self._book.components.writer.get(event.writer)
        if component is None:
            return
        for name, value in event.values.items():
            for rule in self._rules(name, event.time, event.writer):
                if rule.on.metric is not None and rule.on.metric.labels:
                    continue  # which are of pages
                self._count(rule, value, facts.of_metric(event, name, value, component), at, event.values, event.step)

    def sample(self, event: Sample, at: datetime) -> None:
        """Take a value of a Prometheus page."""
        for rule in self._rules(event.name, event.time):
            if rule.on.metric is not None and not matches_labels(rule.on.metric, event):
                continue
            self._count(rule, event.value, facts.of_sample(event, rule.component or "host"), at, {})

    def disk(self, event: DiskSpace, at: datetime) -> None:
        """Take the space of a file system."""
        ratio = event.free_bytes / event.total_bytes if event.total_bytes else math.nan
        row = {"disk/free_ratio": ratio, "disk/free_bytes": float(event.free_bytes)}
        for name, value in row.items():
            for rule in self._rules(name, event.time):
                self._count(rule, value, facts.of_disk(event, name, value), at, row)

    def process(self, event: ProcessState, component: Component, at: datetime) -> None:
        """Take the memory that a process holds; what is gone holds none."""
        name = f"process/{event.role}/rss_bytes"
        for rule in self._rules(name, event.time):
            fact = facts.of_memory(event, name, component)
            if event.state != "running":
                self._state.drop(f"series|{self._alerts.key(rule, fact)}")
                self._alerts.other(rule, fact, at)
            elif event.rss_bytes is not None:
                self._count(rule, float(event.rss_bytes), fact, at, {})

    def _rules(self, name: str, time: datetime, writer: str = "") -> list[Rule]:
        found = [
            rule for rule in self._book.of_metric(name) if rule.on.metric and rule.on.metric.writer in (None, writer)
        ]
        return [rule for rule in found if self._alerts.admits(rule, time)]

    def _count(  # noqa: PLR0913, PLR0917 - all that is known of a value
        self, rule: Rule, value: float, fact: Fact, at: datetime, row: Mapping[str, float], step: int | None = None
    ) -> None:
        key = f"series|{self._alerts.key(rule, fact)}"
        if not self._state.has_room(key):
            return
        series = self._state.get(Series, key) or Series(
            name=facts.clip(fact.labels.get("series", "")), recent=[0] * len(rule.escalate)
        )
        if step is not None and (series.step == step or not _is_whole(rule, row)):
            return  # the console tells of a step before the metrics file does, and of less
        figure = _figure(rule, value, row, series, at)
        series.step = step
        if figure is not None:
            self._judge(rule, figure, fact, at, series, step, fits=_fits(rule, row))
        self._state.put(key, series)

    def _judge(  # noqa: PLR0913, PLR0917 - all that is known of a value
        self, rule: Rule, figure: float, fact: Fact, at: datetime, series: Series, step: int | None, *, fits: bool
    ) -> None:
        """Judge a value; one that is not looked at is no hit, and is not remembered either."""
        hits = [fits and is_hit(one, figure, series, rule.baseline or _PLAIN) for one in rule.escalate]
        self._note_held(rule, hits, series, at, step)
        if fits:
            self._tell(rule, figure, fact, at, series, hits)
            _remember(rule, figure, at, series, hit=any(hits))
        elif not rule.has_fraction:
            self._alerts.other(rule, fact, at, good=_is_good(rule, figure))

    def _note_held(self, rule: Rule, hits: list[bool], series: Series, at: datetime, step: int | None) -> None:
        """Note since when all values are hits, where that matters; what was not seen for longer than that is not."""
        for i, escalation in enumerate(rule.escalate):
            span = escalation.for_
            unseen = span is not None and step is None and at - series.at > timedelta(seconds=span)
            if not hits[i] or unseen:
                series.held_since.pop(i, None)
            if hits[i] and span is not None:
                series.held_since.setdefault(i, at)
        series.at = at

    def _tell(  # noqa: PLR0913, PLR0917 - all that is known of a value
        self, rule: Rule, figure: float, fact: Fact, at: datetime, series: Series, hits: list[bool]
    ) -> None:
        counted = [self._counts(rule.escalate[i], i, hit, series, at) for i, hit in enumerate(hits)]
        if not any(hits):
            self._alerts.other(rule, fact, at, good=_is_good(rule, figure))
            return
        usual = f"{median(series.values):.4g}" if series.values else "unknown"
        labels = fact.labels | {"value": f"{figure:.4g}", "usual": usual}
        self._alerts.hit(rule, msgspec.structs.replace(fact, labels=labels), at, counted)

    def _counts(self, escalation: Escalation, i: int, hit: bool, series: Series, at: datetime) -> bool:  # noqa: FBT001 - as it is listed
        """Tell whether the value counts for an escalation, among the last ones and by how long they have been hits."""
        series.recent[i] = (series.recent[i] << 1 | hit) & _REMEMBERED
        last, since = escalation.of_last, awake_from(series.held_since.get(i, at), self._run)
        enough = last is None or _recent(series.recent[i], last) >= (escalation.persistent or 1)
        return hit and enough and (at - since).total_seconds() >= (escalation.for_ or 0.0)


def is_hit(escalation: Escalation, value: float, series: Series, baseline: Baseline) -> bool:
    """Tell whether *value* is one that the escalation counts: all that it asks of a value is met."""
    if escalation.nan and not math.isfinite(value):
        return True
    asked: list[bool] = []
    if escalation.above is not None or escalation.below is not None:
        asked.append(is_within(value, escalation.above, escalation.below))
    past = series.values if len(series.values) >= baseline.warm_up else None
    if escalation.spike is not None:
        asked.append(past is not None and value > escalation.spike * median(past) and _apart(value, past) > SIGMAS)
    if escalation.drop is not None:
        asked.append(
            past is not None and value < (1 - escalation.drop) * median(past) and _apart(value, past) < -SIGMAS
        )
    if escalation.deviation is not None:
        asked.append(past is not None and abs(_apart(value, past)) > escalation.deviation)
    if escalation.slope is not None:
        rise = trend(series)
        asked.append(rise is not None and _steeper(rise * 3600, escalation.slope))
    if escalation.reaches is not None and escalation.ahead is not None:
        left_s = time_left_s(series, value, escalation.reaches)
        asked.append(left_s is not None and left_s <= escalation.ahead)
    return bool(asked) and all(asked)


def time_left_s(series: Series, value: float, limit: float) -> float | None:
    """Return the seconds until the series reaches *limit* if it goes on as it did; `None` if it does not head there."""
    slope = trend(series)
    left_s = (limit - value) / slope if slope else -1.0
    return left_s if left_s >= 0 else None


def trend(series: Series) -> float | None:
    """
    Return by how much the series rises in a second; `None` if too little of it is known.

    It is taken between the medians of its first and its last third: single values do not turn it.
    """
    third = len(series.trend) // 3
    if 3 * third < _TREND_VALUES or series.trend[-1][0] - series.trend[0][0] < _TREND_S:
        return None
    (begin_s, begin), (end_s, end) = (
        (median(time for time, _ in part), median(value for _, value in part))
        for part in (series.trend[:third], series.trend[-third:])
    )
    return (end - begin) / (end_s - begin_s) if end_s > begin_s else None  # late rows all have the time they came at


def _steeper(rise: float, limit: float) -> bool:
    """Tell whether a rise goes beyond a limit, or a fall beyond one below zero."""
    return rise > limit if limit > 0 else rise < limit


def _apart(value: float, past: list[float]) -> float:
    """Return how many standard deviations *value* lies above the median of *past*; infinitely many if none varies."""
    middle = median(past)
    spread = SIGMA * median(abs(one - middle) for one in past)
    spread = spread or MEAN_SIGMA * sum(abs(one - middle) for one in past) / len(past)  # most are alike, not all
    if spread:
        return (value - middle) / spread
    return math.copysign(math.inf, value - middle) if value != middle else 0.0


def _figure(rule: Rule, value: float, row: Mapping[str, float], series: Series, at: datetime) -> float | None:
    """Return what the rule looks at: the value, its ratio to another of the row, or its rate per minute."""
    trigger = rule.on.metric
    if trigger is None:
        return None
    if trigger.over is not None:
        other = row.get(trigger.over)
        return value / other if other else None
    if not trigger.rate:
        return value
    before, series.last = series.last, (at.timestamp(), value)
    if before is None or at.timestamp() <= before[0] or value < before[1]:  # the first one, or the counter began anew
        return None
    if not math.isfinite(value - before[1]):
        return None
    return (value - before[1]) / (at.timestamp() - before[0]) * 60


def _is_whole(rule: Rule, row: Mapping[str, float]) -> bool:
    """Tell whether a row of a step has all that the rule asks for."""
    trigger = rule.on.metric
    asked = [] if trigger is None else [one.name for one in trigger.where] + ([trigger.over] if trigger.over else [])
    return all(name in row for name in asked)


def _fits(rule: Rule, row: Mapping[str, float]) -> bool:
    """Tell whether the other numbers of the row are as the rule wants them."""
    where = rule.on.metric.where if rule.on.metric else ()
    return all(one.has(row.get(one.name)) for one in where)


def _remember(rule: Rule, figure: float, at: datetime, series: Series, *, hit: bool) -> None:
    """Let the series' past grow, but not by what is out of the ordinary."""
    baseline = rule.baseline or _PLAIN
    series.seen += 1
    if not math.isfinite(figure) or series.seen <= baseline.skip:
        return
    if any(one.reaches is not None or one.slope is not None for one in rule.escalate):
        push(series.trend, (at.timestamp(), figure))
    if not hit and not (baseline.frozen and len(series.values) >= baseline.values):
        push(series.values, figure)
        del series.values[: -baseline.values]


def _is_good(rule: Rule, figure: float) -> bool:
    return rule.clear is None or rule.clear.is_good(figure)


def _recent(mask: int, last: int) -> int:
    return (mask & ((1 << last) - 1)).bit_count()
