"""Values against their own past: the engine's baselines as a slow and obvious reading of the manual has them."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import fmean, median
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

Watch = Callable[..., Any]

WORDS = {"spike": 2.0, "drop": 0.5, "deviation": 4.0, "above": 5.0, "below": 1.0}
SLOPE = {"slope": 20.0}
AT_ONCE = ("persistent = 2, of_last = 2", "immediately = true")
VALUES = st.one_of(
    st.sampled_from([0.0, 1.0, 1.0, 1.1, 0.9, 2.0, 2.5, 10.0, -3.0, math.nan]),
    st.floats(-5, 20, allow_nan=False).map(lambda value: round(value, 3)),
)


def rule(word: str, baseline: dict[str, Any], hits: int, of_last: int) -> str:
    """Return a rule about one series."""
    shown = ", ".join(f"{key} = {str(value).lower()}" for key, value in baseline.items())
    return f"""
[[rule]]
name = "odd"
failure_mode = "odd"
component = "trainer"
summary = "{{value}}"
clear = {{ quiet = "9h" }}
baseline = {{ {shown} }}
on = {{ metric = {{ name = ["x"] }} }}
escalate = [{{ severity = "warning", {word} = {(WORDS | SLOPE)[word]}, persistent = {hits}, of_last = {of_last} }}]
"""


def is_hit(word: str, value: float, known: list[float], warm_up: int) -> bool:
    """Tell whether a value is a hit, all that counts as usual being *known*."""
    if math.isnan(value):
        return False
    if word == "above":
        return value > WORDS[word]
    if word == "below":
        return value < WORDS[word]
    if len(known) < warm_up:
        return False
    middle = median(known)
    spread = 1.4826 * median([abs(one - middle) for one in known])
    spread = spread or 1.2533 * fmean([abs(one - middle) for one in known])
    away = (value - middle) / spread if spread else math.copysign(math.inf, value - middle) if value != middle else 0.0
    if word == "spike":
        return value > WORDS[word] * middle and away > 3
    if word == "drop":
        return value < (1 - WORDS[word]) * middle and away < -3
    return abs(away) > WORDS[word]


def first_alert(values: list[float], word: str, baseline: dict[str, Any], hits: int, of_last: int) -> int | None:
    """Return at which value the rule first holds, going through all of them anew for each."""
    usual: list[float] = []
    marks: list[bool] = []
    for number, value in enumerate(values):
        known = usual[: baseline["values"]] if baseline["frozen"] else usual[-baseline["values"] :]
        hit = is_hit(word, value, known, baseline["warm_up"])
        marks.append(hit)
        if hit and sum(marks[-of_last:]) >= hits:
            return number
        if not (math.isnan(value) or hit or number < baseline["skip"]):
            usual.append(value)
    return None


@settings(max_examples=400, deadline=None)
@given(
    values=st.lists(VALUES, max_size=40),
    word=st.sampled_from(sorted(WORDS)),
    baseline=st.fixed_dictionaries(
        {
            "values": st.integers(8, 12),
            "frozen": st.booleans(),
            "skip": st.integers(0, 4),
            "warm_up": st.integers(2, 8),
        }
    ),
    hits=st.integers(2, 4),
    more=st.integers(0, 3),
)
def test_a_baseline_is_as_a_slow_one_says(
    watch: Watch, values: list[float], word: str, baseline: dict[str, Any], hits: int, more: int
) -> None:
    """Whatever comes, and with a restart after each value, the rule first holds where the slow one does."""
    run = watch(rule(word, baseline, hits, hits + more))
    for number, value in enumerate(values):
        run.metric(number * 60, number, x=value)
        run.restart()
    expected = first_alert(values, word, baseline, hits, hits + more)
    fired = [at_s / 60 for at_s, _, _, state in run.alerts if state == "firing"][:1]
    assert fired == ([] if expected is None else [expected])


def test_infinite_is_above_and_no_number(watch: Watch) -> None:
    """It is beyond every bound, out of the ordinary, what `nan` looks for, and never usual."""
    for word in ("above = 5.0", "nan = true", "spike = 2.0", "deviation = 4.0"):
        run = watch(rule("above", {"values": 3, "warm_up": 2}, 2, 2).replace("above = 5.0", word).replace(*AT_ONCE))
        for i, value in enumerate((1.0, 1.0, 1.0, math.inf, 1.0)):
            run.metric(i, i, x=value)
            run.restart()
        assert [(at_s, state) for at_s, _, _, state in run.alerts] == [(3, "firing")], word
        assert run.last_alert.summary == "inf"


def test_a_trend_needs_time(watch: Watch) -> None:
    """Late rows, which all have the time they came at, have none; a clock that was set back neither."""
    run = watch(rule("slope", {"values": 3, "warm_up": 2}, 2, 2).replace(*AT_ONCE))
    run.metric(0, 0, x=1.0)
    run.tick(700)
    for i in range(1, 20):
        run.metric(100 + i, i, x=float(i))
    assert run.alerts == []


def test_a_trend_up_or_down(watch: Watch) -> None:
    """Beyond so much an hour in the direction that the sign says; hits belong to it, and not to what is usual."""
    for slope, step, fires in (
        (30.0, 1, True),
        (30.0, -1, False),
        (-30.0, -1, True),
        (-30.0, 1, False),
        (90.0, 1, False),
    ):
        run = watch(rule("slope", {"values": 3, "warm_up": 2}, 2, 2).replace("slope = 20.0", f"slope = {slope}"))
        for i in range(30):
            run.metric(60 * i, i, x=float(i * step))
            run.restart()
        assert bool(run.alerts) is fires, (slope, step)


def test_a_trend_leaves_alone_what_is_usual(watch: Watch) -> None:
    """A rule may look at both."""
    both = rule("spike", {"values": 10, "warm_up": 8, "frozen": True}, 12, 12)
    both = both.replace("of_last = 12 }", 'of_last = 12 }, { severity = "critical", slope = 1e9, immediately = true }')
    run = watch(both)
    for i in range(40):
        run.metric(60 * i, i, x=1.0 if i < 10 else 10.0)
    assert [(at_s, state) for at_s, _, _, state in run.alerts] == [(60 * 21, "firing")]


def test_the_largest_numbers_there_are(watch: Watch) -> None:
    """Their sum is more than a number can be: nothing fails."""
    for word in ("deviation", "spike", "drop"):
        run = watch(rule(word, {"values": 12, "warm_up": 2}, 2, 2))
        for i, value in enumerate([1.7e308, 1.7e308, -1.7e308, *[0.0] * 8, 1.0, -1.7e308]):
            run.metric(i, i, x=value)
            run.restart()


RATIO = """
[[rule]]
name = "ratio"
failure_mode = "ratio"
component = "trainer"
summary = "{value}"
clear = { below = 1.0, for = "5s" }
on = { metric = { name = ["x"], over = "y", where = [{ name = "z", above = 3.0 }] } }
escalate = [{ severity = "warning", above = 2.0, immediately = true }]
"""


def test_a_line_that_says_less_than_the_row_does_not_stand_for_it(watch: Watch) -> None:
    """The console tells of a step before the metrics file does, and lacks what is divided by, or asked."""
    run = watch(RATIO)
    for step in range(3):
        run.metric(2 * step, step, x=9.0)
        run.metric(2 * step, step, x=9.0, y=3.0)
        run.metric(2 * step + 1, step, x=9.0, y=3.0, z=5.0)
    assert [(at_s, state) for at_s, _, _, state in run.alerts] == [(1, "firing")]


def test_what_is_not_looked_at_clears_nothing_and_counts_nowhere(watch: Watch) -> None:
    """A value whose row is not as asked is neither a good one nor one of all."""
    run = watch(RATIO)
    run.metric(0, 0, x=9.0, y=3.0, z=5.0)
    for step in range(1, 20):
        run.metric(step, step, x=9.0, y=3.0, z=1.0)
    assert [alert[3] for alert in run.alerts] == ["firing"]
    share = RATIO.replace("immediately = true", 'fraction = 0.5, over = "1h", at_least = 3').replace(
        "below = 1.0", "fraction = 0.1"
    )
    run = watch(share)
    for step in range(12):
        run.metric(step, step, x=9.0, y=3.0, z=5.0 if step % 4 == 0 else 1.0)
    assert [alert[0] for alert in run.alerts] == [8]
