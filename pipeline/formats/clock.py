"""
Times of log lines that carry no date, or no year.

A file is dated from one time that is known, its anchor, by going from line to
line: a time of day means the day that the line before it suggests. `begin`
finds the anchor of a file from its end, `begin_forwards` from a time that
precedes it.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Final

import msgspec

from pipeline.formats.headers import Clock, LocalTime, TimeOfDay
from pipeline.times import cut

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from zoneinfo import ZoneInfo

SLACK_S: Final = 5.0
"""How far a file's last line may be ahead of its modification time: two clocks, a flush that was late."""
FORWARD_SLACK_S: Final = 3600.0
"""
How far a file's first line may precede the time that it is dated forwards from. The files of one launch begin seconds
apart, in no fixed order, and what that time comes from may itself have been late; an hour is far from both.
"""

_DAY_S = 86_400
_HALF_DAY_S = 43_200
_STRAGGLER_S = 3_600
"""How late a line of before midnight may come; a larger jump forwards is a silence of the same day."""
_REPEATED_S = range(30 * 60, 90 * 60)
"""A step back of the clock at the end of summer time."""
_STALE = timedelta(minutes=5)
"""How late a line of the first hour may still come within the second."""
_LONGEST_BACK = timedelta(days=1)
_LONGEST_SILENCE = timedelta(days=60)
_NEAR_S = 2 * 3600
"""How far a dated line may be from the time of day before it, to date a whole file."""
_YEARS = range(1970, 2200)
_STEADY_S = 2 * 3600
"""How far from a base lines are dated by addition, if no change of clocks is within twice that."""
_STEADY = timedelta(seconds=_STEADY_S)


class ClockState(msgspec.Struct, frozen=True, kw_only=True):
    """How far a file has been dated."""

    last: datetime
    """The last time that a line had, UTC; before the first one, the anchor."""


class LogClock:
    """
    Dates the lines of one file, in their order.

    Only a jump of more than 12 hours back is a change of day; a jump of
    almost a day forwards is a line of the evening that came late. A gap of
    more than 12 hours cannot be told from a smaller one. A date of days ago, or
    of months ahead, is text from elsewhere that looks like a header: no time.
    """

    def __init__(self, zone: ZoneInfo, state: ClockState) -> None:
        self.zone = zone
        self.state = state
        self._base = _Base(state.last, zone)

    def time(self, clock: Clock | None) -> datetime | None:
        """Return the time of the next line, UTC, in whole milliseconds; `None` if its *clock* tells none."""
        if isinstance(clock, TimeOfDay):
            found = self._base.reading(clock.seconds, self.state.last)
            if found is None and (found := _date(clock, self.state.last, self.zone)) is not None:
                self._base = _Base(found, self.zone)
        else:
            found = _date(clock, self.state.last, self.zone)
        if found is None or not -_LONGEST_BACK <= found - self.state.last <= _LONGEST_SILENCE:
            return None
        time = cut(found)
        self.state = ClockState(last=time)
        return time


def begin(clocks: Iterable[Clock | None], last: datetime, zone: ZoneInfo) -> ClockState:
    """
    Return the anchor of a file whose lines show *clocks*, in order.

    The first line with a date decides, if it agrees with the times of day
    before it; without one, *last* does, the file's modification time: its last
    line is of the latest such time of day that is not after it. No more clocks
    are read than needed.
    """
    walk = _Walk()
    for clock in clocks:
        if isinstance(clock, TimeOfDay):
            if clock.seconds < _DAY_S:
                walk.step(clock.seconds)
        elif (dated := _before(clock, last, zone)) is not None and walk.is_near(dated, zone):
            return ClockState(last=cut(walk.back_from(dated, zone)))
    if walk.first is None:
        return ClockState(last=cut(last))
    return ClockState(last=cut(walk.back_from(_latest(walk.second, last, zone), zone)))


def begin_forwards(first: Clock | None, not_before: datetime, zone: ZoneInfo) -> ClockState:
    """Return the anchor of a file that begins with *first*, at or after *not_before* give or take an hour."""
    earliest = not_before - timedelta(seconds=FORWARD_SLACK_S)
    if isinstance(first, TimeOfDay) and first.seconds < _DAY_S:
        today = earliest.astimezone(zone).date()
        moments = (m for days in range(3) for m in _moments(today + timedelta(days=days), first.seconds, zone))
        return ClockState(last=cut(next((moment for moment in moments if moment >= earliest), not_before)))
    return ClockState(last=cut(_date(first, not_before, zone) or not_before))


class _Base:
    """A time around which the clocks of a zone run evenly, so that most lines are dated by a mere addition."""

    def __init__(self, time: datetime, zone: ZoneInfo) -> None:
        self._time = time.replace(microsecond=0)
        local = self._time.astimezone(zone)
        self._second = _second_of(local)
        around = (self._time + timedelta(seconds=side * _STEADY_S) for side in (-2, 2))
        self._steady = len({moment.astimezone(zone).utcoffset() for moment in around}) == 1

    def reading(self, second: int, last: datetime) -> datetime | None:
        """Return the time near this one that reads *second* of the day; `None` where a line after *last* may differ."""
        seconds = second - self._second
        if not self._steady or abs(seconds) > _STEADY_S or abs(last - self._time) > _STEADY:
            return None
        return self._time + timedelta(seconds=seconds)


class _Walk:
    """Counts the days from the first time of day of a file to its last."""

    def __init__(self) -> None:
        self.first: int | None = None
        self.second = 0
        self._days = 0
        self._repeated = False

    def step(self, second: int) -> None:
        if self.first is None:
            self.first = second
        else:
            self._repeated = self._repeated or self.second - second in _REPEATED_S
            self._days += _days_between(self.second, second)
        self.second = second

    def is_near(self, time: datetime, zone: ZoneInfo) -> bool:
        """Tell whether a dated line agrees with the time of day before it; text from elsewhere seldom does."""
        seconds = abs(_second_of(time.astimezone(zone)) - self.second)
        return self.first is None or min(seconds, _DAY_S - seconds) <= _NEAR_S

    def back_from(self, end: datetime, zone: ZoneInfo) -> datetime:
        """Return the time of the first line; *end* is that of the last one, or of one just after it."""
        if self.first is None:
            return end
        local = end.astimezone(zone)
        days = self._days + _days_between(self.second, _second_of(local))
        moments = _moments(local.date() - timedelta(days=days), self.first, zone)
        # in the repeated hour: a clock that steps back in between began in the first, a steady one in the second
        return moments[0] if self._repeated or moments[-1] > end + timedelta(seconds=SLACK_S) else moments[-1]


def _date(clock: Clock | None, last: datetime, zone: ZoneInfo) -> datetime | None:
    """Return the time that *clock* shows on a line that follows one of *last*."""
    if clock is None or isinstance(clock, datetime):
        return clock
    if isinstance(clock, LocalTime):
        years = (clock.year,) if clock.year is not None else range(last.year - 1, last.year + 2)
        times = [_going_on(moments, last, zone) for moments in _moments_of(clock, years, zone)]
        return min(times, key=lambda time: abs(time - last), default=None)
    if clock.seconds >= _DAY_S:
        return None
    local = last.astimezone(zone)
    day = local.date() + timedelta(days=_days_between(_second_of(local), clock.seconds))
    return _going_on(_moments(day, clock.seconds, zone), last, zone)


def _before(clock: Clock | None, last: datetime, zone: ZoneInfo) -> datetime | None:
    """Return the latest time that *clock* can mean in a file whose last time is *last*."""
    if not isinstance(clock, LocalTime):
        return _date(clock, last, zone)
    # nine years always hold a 29 February
    years = (clock.year,) if clock.year is not None else range(last.year + 1, last.year - 9, -1)
    limit = last + timedelta(seconds=SLACK_S)
    times = [moments[0] for moments in _moments_of(clock, years, zone)]
    return next((time for time in times if time <= limit or clock.year is not None), None)


def _latest(second: int, last: datetime, zone: ZoneInfo) -> datetime:
    """Return the latest time that reads *second* of the day and is not after *last*."""
    limit = last + timedelta(seconds=SLACK_S)
    today = limit.astimezone(zone).date()
    moments = (m for days in range(3) for m in reversed(_moments(today - timedelta(days=days), second, zone)))
    return next((moment for moment in moments if moment <= limit), last)


def _days_between(before: int, after: int) -> int:
    """Return how many days later *after* is, both seconds of the day, of two lines that follow each other."""
    if after - before < -_HALF_DAY_S:
        return 1
    return -1 if after - before > _DAY_S - _STRAGGLER_S else 0


def _going_on(moments: list[datetime], last: datetime, zone: ZoneInfo) -> datetime:
    """Choose among the *moments* that a clock reads alike, in a repeated hour, on a line that follows *last*."""
    early, late = moments[0], moments[-1]
    if early == late:
        return early
    back = last - early
    in_second = last.astimezone(zone).fold == 1
    return late if back >= (late - early) / 2 or (in_second and back > _STALE) else early


def _moments_of(clock: LocalTime, years: Iterable[int], zone: ZoneInfo) -> Iterator[list[datetime]]:
    for year in years:
        try:
            day = date(year, clock.month, clock.day)
        except ValueError:
            continue
        if year in _YEARS:
            yield _moments(day, clock.seconds, zone)


def _moments(day: date, seconds: float, zone: ZoneInfo) -> list[datetime]:
    """Return the times, in order, at which clocks of *zone* read *seconds* of *day*: two where an hour is repeated."""
    wall = datetime(day.year, day.month, day.day, tzinfo=zone) + timedelta(seconds=seconds)
    first, second = (wall.replace(fold=fold).astimezone(UTC) for fold in (0, 1))
    # where an hour is skipped both readings exist too, the other way round; the clock before the change is meant
    return [first, second] if first < second else [first]


def _second_of(local: datetime) -> int:
    return local.hour * 3600 + local.minute * 60 + local.second
