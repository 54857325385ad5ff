"""Sliding counts and percentiles, against the obvious way to compute them."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules.windows import BUCKETS, Buckets, percentile

START = datetime(2026, 8, 19, 12, tzinfo=UTC)
SPANS = st.sampled_from([0.6, 60.0, 90.0, 900.0, 1200.0, 7200.0, 86_400.0])
STEPS = st.lists(st.integers(0, 400_000), max_size=60)
"""Milliseconds between what is added; scaled to the span."""


def times(span_s: float, steps: list[int]) -> list[datetime]:
    """Return times that go on by *steps*, many of them within one span."""
    now, found = START, []
    for step in steps:
        now += timedelta(milliseconds=int(step * span_s / 900))
        found.append(now)
    return found


def in_span(added: list[datetime], at: datetime, width_s: float, until: int, since: int) -> int:
    """Count slowly: what lies in the buckets from *since* to *until* before the one of *at*."""
    newest = math.floor(at.timestamp() / width_s)
    ages = [newest - math.floor(time.timestamp() / width_s) for time in added]
    return sum(until <= age < since for age in ages)


@given(span_s=SPANS, steps=STEPS, later=st.integers(0, 1_000_000))
def test_a_total_is_the_count_of_its_span(span_s: float, steps: list[int], later: int) -> None:
    """A total counts what was added in the last 60 buckets, however long ago the last one was."""
    added, window = times(span_s, steps), Buckets.over(span_s)
    for time in added:
        window.add(time)
    at = (added or [START])[-1] + timedelta(milliseconds=later)
    assert window.total(at) == in_span(added, at, window.width_s, 0, BUCKETS)


@given(span_s=SPANS, steps=STEPS)
def test_a_total_is_exact_to_a_bucket(span_s: float, steps: list[int]) -> None:
    """What is younger than the span less a bucket always counts, what is older than the span never does."""
    added, window = times(span_s, steps), Buckets.over(span_s)
    for time in added:
        window.add(time)
    at = (added or [START])[-1]
    ages_s = [(at - time).total_seconds() for time in added]
    surely = sum(age_s <= span_s - window.width_s for age_s in ages_s)
    perhaps = sum(age_s <= span_s for age_s in ages_s)
    assert surely <= window.total(at) <= perhaps


@given(steps=STEPS, number=st.integers(2, 12))
def test_spans_follow_each_other(steps: list[int], number: int) -> None:
    """Spans count each hit once: together they are the total."""
    span_s = 900.0
    added, window = times(span_s, steps), Buckets.over(span_s)
    for time in added:
        window.add(time)
    at = (added or [START])[-1]
    counts = window.spans(at, span_s / number, number)
    assert len(counts) == number
    assert sum(counts) == window.total(at)


@given(steps=STEPS)
def test_a_window_goes_on_after_it_was_stored(steps: list[int]) -> None:
    """A window that was encoded and read back counts as one that was not."""
    kept, stored = Buckets.over(900.0), Buckets.over(900.0)
    for time in times(900.0, steps):
        kept.add(time)
        stored = msgspec.msgpack.decode(msgspec.msgpack.encode(stored), type=Buckets)
        stored.add(time)
        assert len(stored.counts) <= BUCKETS
    assert stored == kept


def test_a_window_is_bounded() -> None:
    """A hundred thousand hits over months take sixty numbers."""
    window = Buckets.over(900.0)
    for i in range(100_000):
        window.add(START + timedelta(seconds=i * 61))
    assert len(window.counts) <= BUCKETS
    assert window.total(START + timedelta(seconds=99_999 * 61)) == 15


def slow_percentile(values: list[float], percent: float) -> float:
    """Look the percentile up on the line through the ranked values."""
    ranked = sorted(values)
    for i in range(len(ranked) - 1):
        left, right = 100 * i / (len(ranked) - 1), 100 * (i + 1) / (len(ranked) - 1)
        if left <= percent <= right:
            return ranked[i] + (ranked[i + 1] - ranked[i]) * (percent - left) / (right - left)
    return ranked[-1]


@given(values=st.lists(st.floats(0, 1e6), min_size=1, max_size=60), percent=st.floats(0.1, 100))
def test_a_percentile_lies_on_the_line_through_the_ranks(values: list[float], percent: float) -> None:
    """A percentile is interpolated between the two values next to it."""
    assert percentile(values, percent) == pytest.approx(slow_percentile(values, percent), rel=1e-9, abs=1e-6)


def test_percentiles_that_one_can_compute_in_the_head() -> None:
    """The order of values does not matter; of one value every percentile is that one."""
    assert percentile([30.0, 10.0, 20.0], 50) == 20
    assert percentile([0.0, 100.0], 95) == pytest.approx(95)
    assert percentile([7.0], 95) == 7
    assert percentile([float(i) for i in range(1, 21)], 95) == pytest.approx(19.05)


def test_there_is_no_percentile_of_nothing() -> None:
    """An empty list is refused."""
    with pytest.raises(IndexError):
        percentile([], 95)
