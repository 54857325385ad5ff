"""A stall is judged by the run's own pace, by its stages, and only by what can be seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.events import Gap, Metrics
from rules.windows import percentile
from tests.rules.conftest import at

Watch = Callable[..., Any]

RULES = """
[[clock]]
name = "trained"
event = "metrics"
of = "trainer"
is_step = true

[[clock]]
name = "rollout"
event = "rollout"

[[milestone]]
name = "loading"
pattern = "^loading"

[[milestone]]
name = "loaded"
pattern = "^loaded"

[[milestone]]
name = "saving"
pattern = "^saving"

[[stage]]
name = "load"
begins = ["loading"]
ends = ["loaded"]
timeout = "30m"

[[stage]]
name = "checkpoint"
begins = ["saving"]
ends = ["trained"]
timeout = "20m"
pause = true

[[rule]]
name = "stall"
failure_mode = "stall"
component = "trainer"
summary = "nothing for {minutes} minutes"
on = { absence = { of = ["trained", "rollout"] } }

[[rule.escalate]]
severity = "critical"
pace = { at_least = "5m", times = 3.0, percentile = 95, last = 20, warm_up = 5, otherwise = "1h" }
"""


def steady(watch: Watch, number: int, pace_s: float) -> tuple[Any, float]:
    """Watch a run that made so many steps; return it with the time of the last one."""
    run = watch(RULES)
    run.configured()
    for i in range(1, number + 1):
        run.step(i * pace_s, i)
    return run, number * pace_s


def fired_after(run: Any, last_s: float) -> float:
    """Let a day pass; return how long after *last_s* the stall fired."""
    run.tick(last_s + 86_400)
    (alert,) = run.alerts
    assert alert[1:] == ("stall", "critical", "firing")
    return alert[0] - last_s


def test_three_times_the_usual_step(watch: Watch) -> None:
    """After ordinary steps of 200 s the run has stalled after 600 s."""
    assert fired_after(*steady(watch, 10, 200)) == 600


def test_five_minutes_at_least(watch: Watch) -> None:
    """Quick steps make nobody nervous before five minutes have passed."""
    assert fired_after(*steady(watch, 10, 2)) == 300


def test_before_there_is_a_pace(watch: Watch) -> None:
    """Six steps make five intervals; before, eight of the longest are waited for, and at first an hour."""
    assert fired_after(*steady(watch, 1, 200)) == 3600
    assert fired_after(*steady(watch, 5, 200)) == 1600
    assert fired_after(*steady(watch, 5, 10)) == 480
    assert fired_after(*steady(watch, 6, 200)) == 600


@given(paces=st.lists(st.integers(1, 4000), min_size=6, max_size=45))
@settings(max_examples=40)
def test_the_95th_percentile_of_the_last_twenty(watch: Watch, paces: list[int]) -> None:
    """Only the last twenty steps count, whatever their order."""
    run, now = watch(RULES), 0
    for number, pace in enumerate(paces):
        now += pace
        run.step(now, number)
    begin = len(run.alerts)
    run.tick(now + 86_400)
    expected = max(300.0, 3 * percentile([float(pace) for pace in paces[1:]][-20:], 95))
    assert len(run.alerts) == begin + 1
    assert run.alerts[-1][0] - now == pytest.approx(expected, abs=0.001)


def test_a_step_with_a_checkpoint_is_not_ordinary(watch: Watch) -> None:
    """A step that saved a checkpoint says nothing of the pace."""
    run, now = steady(watch, 10, 120)
    for number in range(11, 14):
        run.log(now + 60, "saving")
        now += 1000
        run.step(now, number)
    assert fired_after(run, now) == 360


def test_a_pause_has_its_own_patience(watch: Watch) -> None:
    """While a checkpoint is saved, its own time-out is waited for, counted from the last progress."""
    run, now = steady(watch, 10, 120)
    run.log(now + 60, "saving")
    assert fired_after(run, now) == 1200


def test_a_stage_of_the_start_times_out(watch: Watch) -> None:
    """Before there is a pace, the stage that goes on says how long to wait, counted from its begin."""
    run = watch(RULES)
    run.configured()
    run.log(100, "loading")
    assert fired_after(run, 100) == 1800


def test_a_stage_that_ended_times_nothing_out(watch: Watch) -> None:
    """After a stage has ended the general patience holds, counted from the attempt's begin."""
    run = watch(RULES)
    run.configured()
    run.log(100, "loading")
    run.log(200, "loaded")
    assert fired_after(run, 0) == 3600


def test_any_clock_is_progress(watch: Watch) -> None:
    """Rollouts that come in keep the stall away, though no step is done."""
    run, now = steady(watch, 10, 120)
    for i in range(20):
        run.rollouts(now + i * 300, good=1)
    assert run.alerts == []
    assert fired_after(run, now + 19 * 300) == 360


def test_it_clears_with_progress(watch: Watch) -> None:
    """The stall ends with the next progress, and may come again."""
    run, now = steady(watch, 10, 120)
    run.rollouts(now + 1000, good=1)
    run.tick(now + 10_000)
    assert run.alerts == [
        (now + 360, "stall", "critical", "firing"),
        (now + 1000, "stall", "critical", "resolved"),
        (now + 1360, "stall", "critical", "firing"),
    ]
    assert run.last_alert.summary == "nothing for 6 minutes"


def test_a_step_told_twice_is_one_step(watch: Watch) -> None:
    """The console and the metrics file both tell of a step: the pace is not that of their distance."""
    run = watch(RULES)
    for number in range(1, 11):
        run.step(number * 200, number)
        run.step(number * 200 + 1, number)
    assert fired_after(run, 2000) == 600


def test_blind_files_are_no_stall(watch: Watch) -> None:
    """What would carry the progress is not seen: unknown, and soon judged once it is seen again."""
    run, now = steady(watch, 10, 120)
    run.source(now + 10, "blind")
    run.tick(now + 10_000)
    assert run.alerts == []
    run.source(now + 10_001, "seeing")
    run.rollouts(now + 10_002, good=1)
    assert run.alerts == []
    run.source(now + 10_003, "blind")
    run.source(now + 20_000, "seeing")
    run.tick(now + 20_020)
    assert 20_000 <= run.alerts[0][0] - now <= 20_010


def test_other_blind_sources_do_not_hide_a_stall(watch: Watch) -> None:
    """Whether processes can be seen does not matter to the files' progress."""
    run, now = steady(watch, 10, 120)
    run.source(now, "blind", "processes")
    assert fired_after(run, now) == 360


def test_a_new_attempt_has_no_pace_yet(watch: Watch) -> None:
    """A launch begins with the long patience again."""
    run, now = steady(watch, 10, 120)
    run.attempt(now + 100, 2)
    assert fired_after(run, now + 100) == 3600


def test_it_is_known_after_a_restart(watch: Watch) -> None:
    """Pace, stages and timers are in the rows."""
    run, now = steady(watch, 10, 200)
    run.restart()
    assert fired_after(run, now) == 600


def test_which_file_told_of_a_step_last_is_known_after_a_restart(watch: Watch) -> None:
    """A step told again by another file is no progress, but a change of a row: a restart changes nothing."""
    run, now = steady(watch, 3, 60)
    again: Any = {"writer": "trainer", "step": 3, "completes": True}
    run.apply(Metrics(time=at(now + 1), source="logs/attempt_1/trainer.log", offset=0, **again))
    going_on = dict(run.engine._state.rows)["clock|trained"]
    run.restart()
    assert run.engine._state.rows["clock|trained"] == going_on


def test_only_the_phases_of_the_rule(watch: Watch) -> None:
    """A run that was stopped does not stall."""
    phase = '[[phase]]\nname = "stopped"\nfrom = ["starting"]\nwhen = [["loaded"]]\n'
    run = watch(RULES, phase)
    run.log(0, "loaded")
    run.tick(86_400)
    assert run.alerts == []


def test_plain_durations(watch: Watch) -> None:
    """Absence can also be held for fixed times, each with a severity."""
    rules = RULES[: RULES.index("[[rule.escalate]]")]
    escalate = 'escalate = [{ severity = "warning", for = "1m" }, { severity = "critical", for = "5m" }]'
    run = watch(rules + escalate)
    run.step(0, 1)
    run.tick(1000)
    assert run.alerts == [(60, "stall", "warning", "firing"), (300, "stall", "critical", "firing")]


def test_who_is_ahead_says_who_is_stuck(watch: Watch) -> None:
    """The first pair of clocks of which one is ahead names the component; without one the rule's own is named."""
    blame = 'blame = [{ component = "env", ahead = "trained", behind = "rollout" }]'
    rules = RULES.replace('of = ["trained", "rollout"] }', f'of = ["trained", "rollout"], {blame} }}')
    told = []
    for step, rollout in [(3, 2), (2, 2)]:
        run = watch(rules)
        run.rollouts(1, good=1, step=rollout)
        run.step(2, step)
        run.tick(86_400)
        told.append(run.last_alert.component)
    assert told == ["env", "trainer"]


def test_the_run_sleeps_with_its_host(watch: Watch) -> None:
    """The time of a suspension is nobody's: neither a stall nor a step that took so long."""
    run, last = steady(watch, 10, 100)
    run.apply(Gap(time=at(last + 200), until=at(last + 4000), cause="suspension"))
    run.tick(last + 4099)
    assert run.alerts == []
    run.tick(last + 4101)
    assert [one[0] for one in run.alerts] == [last + 4100]


def test_a_step_does_not_take_the_time_of_a_sleep(watch: Watch) -> None:
    """A step with a suspension in it is as long as the run was awake in it."""
    run, last = steady(watch, 10, 100)
    run.apply(Gap(time=at(last + 200), until=at(last + 4000), cause="suspension"))
    run.step(last + 4050, 11)
    assert fired_after(run, last + 4050) < 3 * 250


def test_a_sleep_before_anything_moved(watch: Watch) -> None:
    """The hour that the start is given is an hour awake."""
    run = watch(RULES)
    run.log(10, "hello")
    run.apply(Gap(time=at(60), until=at(7260), cause="suspension"))
    assert fired_after(run, 10) == 3600 + 7200


def test_a_step_that_is_told_of_after_the_sleep_it_was_before(watch: Watch) -> None:
    """What was written in the last moment is read only afterwards: neither it nor the next step took the sleep."""
    run, last = steady(watch, 10, 60)
    run.apply(Gap(time=at(last + 59.9), until=at(last + 7259.9), cause="suspension"))
    run.step(last + 60, 11)
    run.step(last + 7320, 12)
    assert fired_after(run, last + 7320) == 300


@given(
    moves=st.lists(
        st.tuples(st.integers(1, 900), st.sampled_from(["step", "sleep", "restart"])), min_size=3, max_size=10
    )
)
@settings(max_examples=60, deadline=None)
def test_sleeps_change_nothing_but_the_time(watch: Watch, moves: list[tuple[int, str]]) -> None:
    """With sleeps between, the stall fires as much later as was slept, and not at all where it would not have."""
    awake, slept = watch(RULES), watch(RULES)
    now = shift = number = 0
    for for_s, what in [(60, "step")] * 7 + moves:
        if what == "sleep":
            slept.apply(Gap(time=at(now + shift), until=at(now + shift + for_s), cause="suspension"))
            shift += for_s
        elif what == "step":
            now += for_s
            number += 1
            awake.step(now, number)
            slept.step(now + shift, number)
        else:
            slept.restart()
    awake.tick(now + 86_400)
    slept.tick(now + shift + 86_400)
    states = [[one[1:] for one in run.alerts] for run in (awake, slept)]
    assert states[0] == states[1]
    assert slept.alerts[-1][0] - awake.alerts[-1][0] == pytest.approx(shift)


def test_what_nobody_watched_is_no_sleep(watch: Watch) -> None:
    """While only we were down the run went on, or should have."""
    run, last = steady(watch, 10, 100)
    run.apply(Gap(time=at(last + 200), until=at(last + 4000), cause="downtime"))
    assert fired_after(run, last) == 300


def test_a_stage_sleeps_as_well(watch: Watch) -> None:
    """So do stages: half an hour awake is given to loading."""
    run = watch(RULES)
    run.log(0, "loading")
    run.apply(Gap(time=at(600), until=at(6000), cause="suspension"))
    assert fired_after(run, 0) == 1800 + 5400
