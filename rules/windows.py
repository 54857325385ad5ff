"""Counts over a sliding time, in at most 60 buckets: bounded, and the same whenever it is asked."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from datetime import datetime

BUCKETS = 60


class Buckets(msgspec.Struct):
    """
    Counts of the last `width_s * BUCKETS` seconds.

    Buckets are aligned to the epoch, so that the same events give the same
    counts wherever a batch ends. A span reaches back to the bucket it begins
    in, that one left out: it is exact to one `width_s`.
    """

    width_s: float
    last: int = 0
    """Number of the newest bucket, counted from the epoch."""
    counts: list[int] = []
    """Of the buckets up to the newest one, oldest first."""

    @classmethod
    def over(cls, span_s: float) -> Buckets:
        """Return empty buckets that reach back *span_s* seconds."""
        return cls(width_s=span_s / BUCKETS)

    def add(self, at: datetime, count: int = 1) -> None:
        """Count *count* more at *at*, which is not before what was added last."""
        number = self._number(at)
        ahead = number - self.last
        if not self.counts or ahead >= BUCKETS:
            self.counts = [0]
        elif ahead > 0:
            self.counts = (self.counts + [0] * ahead)[-BUCKETS:]
        self.last = max(number, self.last)
        self.counts[-1] += count

    def total(self, at: datetime, span_s: float | None = None) -> int:
        """Return the count of the last *span_s* seconds before *at*, of all that is kept without it."""
        return self._between(at, 0.0, span_s or self.width_s * BUCKETS)

    def spans(self, at: datetime, span_s: float, number: int) -> list[int]:
        """Return the counts of the last *number* spans of *span_s* seconds, the newest last."""
        return [self._between(at, i * span_s, (i + 1) * span_s) for i in reversed(range(number))]

    def _between(self, at: datetime, until_s: float, since_s: float) -> int:
        newest, buckets = self._number(at), len(self.counts)
        stop = newest - round(until_s / self.width_s) + 1
        start = newest - round(since_s / self.width_s) + 1
        first = self.last - buckets + 1
        return sum(self.counts[max(0, start - first) : max(0, stop - first)])

    def _number(self, at: datetime) -> int:
        return math.floor(at.timestamp() / self.width_s)


def percentile(values: list[float], percent: float) -> float:
    """
    Return the *percent*-th percentile, interpolated linearly between neighbours.

    Raises:
        IndexError: There are no values.

    """
    ranked = sorted(values)
    place = percent / 100 * (len(ranked) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ranked) - 1)
    return ranked[below] + (ranked[above] - ranked[below]) * (place - below)
