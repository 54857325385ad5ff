"""Dating lines that carry no date."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.formats.clock import ClockState, LogClock, begin, begin_forwards
from pipeline.formats.headers import Clock, LocalTime, TimeOfDay

LOS_ANGELES = ZoneInfo("America/Los_Angeles")
SYDNEY = ZoneInfo("Australia/Sydney")
ZONE = ZoneInfo("UTC")


def at(text: str, zone: ZoneInfo = ZONE, fold: int = 0) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold).astimezone(UTC)


def of_day(text: str) -> TimeOfDay:
    hours, minutes, *seconds = (int(part) for part in text.split(":"))
    return TimeOfDay(seconds=hours * 3600 + minutes * 60 + sum(seconds))


def shown(time: datetime, zone: ZoneInfo) -> TimeOfDay:
    return of_day(time.astimezone(zone).strftime("%H:%M:%S"))


def dated(clocks: list[Clock | None], state: ClockState, zone: ZoneInfo = ZONE) -> list[datetime | None]:
    clock = LogClock(zone, state)
    return [clock.time(each) for each in clocks]


def dated_by_end(clocks: list[Clock | None], end: datetime, zone: ZoneInfo = ZONE) -> list[datetime | None]:
    return dated(clocks, begin(clocks, end, zone), zone)


@given(
    st.integers(0, 3 * 365 * 86_400),
    st.lists(st.integers(0, 11 * 3600), max_size=30),
    st.sampled_from(["UTC", "Asia/Kolkata", "America/Phoenix"]),
    st.integers(-5, 3600),
)
def test_a_whole_file_is_dated_from_its_end(start_s: int, gaps_s: list[int], name: str, lag_s: int) -> None:
    """Times of day over any number of midnights become the times they were, from the modification time alone."""
    zone = ZoneInfo(name)
    times = [at("2025-01-01") + timedelta(seconds=start_s)]
    for gap_s in gaps_s:
        times.append(times[-1] + timedelta(seconds=gap_s))
    clocks: list[Clock | None] = [shown(time, zone) for time in times]
    assert dated_by_end(clocks, times[-1] + timedelta(seconds=lag_s), zone) == times


@given(
    st.sampled_from(
        [
            ("America/Los_Angeles", "2026-03-08 10:00"),
            ("America/Los_Angeles", "2026-11-01 09:00"),
            ("Australia/Sydney", "2026-04-04 16:00"),
            ("Australia/Sydney", "2026-10-03 16:00"),
            ("Australia/Lord_Howe", "2026-04-04 15:00"),
            ("Europe/Berlin", "2026-10-25 01:00"),
        ]
    ),
    st.integers(-20_000, -3_600),
    st.lists(st.integers(0, 600), min_size=1, max_size=200),
)
def test_a_steady_file_is_dated_through_a_change_of_clocks(
    change: tuple[str, str], begin_s: int, gaps_s: list[int]
) -> None:
    """Where lines come every ten minutes, the repeated and the skipped hour are told from them."""
    zone = ZoneInfo(change[0])
    times = [at(change[1]) + timedelta(seconds=begin_s)]
    for gap_s in gaps_s:
        times.append(times[-1] + timedelta(seconds=gap_s))
    clocks: list[Clock | None] = [shown(time, zone) for time in times]
    assert dated(clocks, ClockState(last=times[0]), zone) == times
    assert dated_by_end(clocks, times[-1], zone) == times


def test_the_repeated_hour_is_seen_by_the_step_back() -> None:
    """A step back of an hour at the end of summer time is going on, not a straggler."""
    times = ["00:50:00", "01:30:00", "01:59:59", "01:00:00", "01:40:00", "02:00:00"]
    found = dated_by_end([of_day(time) for time in times], at("2026-11-01 02:00:03", LOS_ANGELES), LOS_ANGELES)
    assert found == [
        at(f"2026-11-01 {time}", LOS_ANGELES, fold) for time, fold in zip(times, (0, 0, 0, 1, 1, 0), strict=True)
    ]


def test_a_straggler_of_the_first_hour_stays_in_it() -> None:
    """Just after the step back a line of some seconds before it is not an hour ahead."""
    state = ClockState(last=at("2026-11-01 01:00:05", LOS_ANGELES, fold=1))
    assert dated([of_day("01:59:58")], state, LOS_ANGELES) == [at("2026-11-01 01:59:58", LOS_ANGELES)]


def test_a_file_within_the_second_hour_is_dated_in_it() -> None:
    """A file that begins and ends in the repeated hour follows its modification time."""
    clocks: list[Clock | None] = [of_day("01:10"), of_day("01:20")]
    for fold in (0, 1):
        end = at("2026-11-01 01:20:02", LOS_ANGELES, fold)
        assert dated_by_end(clocks, end, LOS_ANGELES)[-1] == end - timedelta(seconds=2)


def test_a_time_that_does_not_exist_is_dated_all_the_same() -> None:
    """A reading within the skipped hour is taken as of the clock before the change."""
    state = ClockState(last=at("2026-03-08 01:59:00", LOS_ANGELES))
    assert dated([of_day("02:01")], state, LOS_ANGELES) == [at("2026-03-08 03:01:00", LOS_ANGELES)]


def test_a_small_step_back_is_no_change_of_day() -> None:
    """Lines out of order keep their day, on either side of midnight."""
    clocks: list[Clock | None] = [
        of_day(time) for time in ("23:59:50", "23:59:40", "00:00:01", "23:59:59", "00:00:02", "00:00:00")
    ]
    days = [1, 1, 2, 1, 2, 2]
    found = dated_by_end(clocks, at("2026-08-02 00:00:05"))
    assert [time.day for time in found if time] == days


def test_a_long_silence_is_no_straggler() -> None:
    """Half a day without a line, then one of the same day, does not go back to the day before."""
    assert dated_by_end([of_day("06:00"), of_day("19:00")], at("2026-08-02 19:00:01")) == [
        at("2026-08-02 06:00"),
        at("2026-08-02 19:00"),
    ]


def test_the_end_may_be_a_little_ahead_of_the_modification_time() -> None:
    """Five seconds are granted; more than that is the day before."""
    assert dated_by_end([of_day("12:00:05")], at("2026-08-02 12:00:00")) == [at("2026-08-02 12:00:05")]
    assert dated_by_end([of_day("12:00:06")], at("2026-08-02 12:00:00")) == [at("2026-08-01 12:00:06")]


def test_a_line_with_a_date_dates_those_around_it() -> None:
    """One absolute line in a file outweighs its modification time, before and after it."""
    clocks: list[Clock | None] = [
        of_day("23:59:00"),
        of_day("00:01:00"),
        at("2026-08-02 00:02:00"),
        None,
        of_day("00:03:00"),
    ]
    found = dated_by_end(clocks, at("2026-08-19 12:00"))
    assert found == [
        at("2026-08-01 23:59"),
        at("2026-08-02 00:01"),
        at("2026-08-02 00:02"),
        None,
        at("2026-08-02 00:03"),
    ]


def test_a_date_without_a_year_is_the_nearest_before_the_end() -> None:
    """The year follows from the file's last time, then from the line before."""
    clocks: list[Clock | None] = [
        LocalTime(month=12, day=31, seconds=86_399.5),
        LocalTime(month=1, day=1, seconds=1.0),
        of_day("00:00:02"),
    ]
    found = dated_by_end(clocks, at("2027-01-01 00:00:02"))
    assert found == [at("2026-12-31 23:59:59.500"), at("2027-01-01 00:00:01"), at("2027-01-01 00:00:02")]
    leap: list[Clock | None] = [LocalTime(month=2, day=29, seconds=0)]
    assert dated_by_end(leap, at("2027-01-01 00:00")) == [at("2024-02-29 00:00")]


def test_a_date_from_elsewhere_misleads_nobody() -> None:
    """Text with an old date, as a sandbox may print it, is no time and dates nothing around it."""
    old = at("2024-02-01 04:30")
    clocks: list[Clock | None] = [
        of_day("12:00"),
        old,
        of_day("12:01"),
        LocalTime(month=2, day=1, seconds=0),
        of_day("12:02"),
    ]
    found = dated_by_end(clocks, at("2026-08-19 12:02"))
    assert found == [at("2026-08-19 12:00"), None, at("2026-08-19 12:01"), None, at("2026-08-19 12:02")]


def test_local_dates_are_of_the_zone() -> None:
    """A dated local line is converted with the offset of its day."""
    state = ClockState(last=at("2026-08-19 12:00"))
    assert dated([LocalTime(month=8, day=19, seconds=43_200.1239, year=2026)], state, LOS_ANGELES) == [
        at("2026-08-19 19:00:00.123")
    ]


@pytest.mark.parametrize(
    "clock",
    [
        None,
        TimeOfDay(seconds=86_400),
        LocalTime(month=13, day=1, seconds=0),
        LocalTime(month=2, day=30, seconds=0, year=2026),
        LocalTime(month=12, day=31, seconds=86_399, year=9999),
        LocalTime(month=1, day=1, seconds=0, year=0),
    ],
)
def test_what_tells_no_time_changes_nothing(clock: Clock | None) -> None:
    """Impossible dates are no times, and the lines around them are dated as if they were not there."""
    state = ClockState(last=at("2026-08-19 12:00"))
    reader = LogClock(LOS_ANGELES, state)
    assert reader.time(clock) is None
    assert reader.state == state
    assert begin([clock], at("2026-08-19 12:00"), LOS_ANGELES) == state
    assert begin_forwards(clock, at("2026-08-19 12:00"), LOS_ANGELES) == state


def test_a_copied_file_is_dated_forwards() -> None:
    """The first line is the first such time of day after the launch, or shortly before it."""
    launch = at("2026-08-19 23:30")
    assert begin_forwards(of_day("23:29:50"), launch, ZONE).last == at("2026-08-19 23:29:50")
    assert begin_forwards(of_day("00:10"), launch, ZONE).last == at("2026-08-20 00:10")
    assert begin_forwards(of_day("22:00"), launch, ZONE).last == at("2026-08-20 22:00")
    assert begin_forwards(at("2026-08-21 01:00"), launch, ZONE).last == at("2026-08-21 01:00")
    assert begin_forwards(LocalTime(month=8, day=19, seconds=0), launch, ZONE).last == at("2026-08-19 00:00")


@given(st.integers(0, 86_399), st.integers(0, 365 * 86_400))
def test_a_state_goes_on_after_a_restart(second: int, start_s: int) -> None:
    """The state that is written to disk dates the next line as the running clock does."""
    clock = LogClock(SYDNEY, ClockState(last=at("2026-01-01") + timedelta(seconds=start_s)))
    clock.time(TimeOfDay(seconds=3 * 3600))
    kept = msgspec.json.decode(msgspec.json.encode(clock.state), type=ClockState)
    assert kept == clock.state
    assert LogClock(SYDNEY, kept).time(TimeOfDay(seconds=second)) == clock.time(TimeOfDay(seconds=second))
