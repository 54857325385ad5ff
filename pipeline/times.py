"""Times of events: UTC, in whole milliseconds, of this era."""

from __future__ import annotations

from datetime import UTC, datetime

EPOCH = datetime.fromtimestamp(0, UTC)
ERA_ENDS = datetime(2100, 1, 1, tzinfo=UTC)
"""A time from then on is a mistake: waiting for it, an engine would write check-ins for thousands of years."""


def cut(time: datetime) -> datetime:
    """Cut *time* to whole milliseconds."""
    return time.replace(microsecond=time.microsecond // 1000 * 1000)


def from_epoch(seconds: float) -> datetime:
    """
    Return seconds since the epoch as an event's time.

    Raises:
        ValueError, OverflowError, OSError: It is not a time of this era.

    """
    return cut(in_era(datetime.fromtimestamp(seconds, UTC)))


def in_era(time: datetime) -> datetime:
    """
    Return *time*, if it can be one of a run.

    Raises:
        ValueError: It cannot.

    """
    if time >= ERA_ENDS:
        message = f"the year {time.year} is too far ahead"
        raise ValueError(message)
    return time
