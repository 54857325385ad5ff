"""Bounds that values hold for a time, and bounds that clear: the engine against a plain reading of the manual."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rules.explain import Explainer
from rules.load import BadFile, decode
from rules.rule_file import RuleFile
from rules.state import State

Watch = Callable[..., Any]

RULE = """
[[rule]]
name = "hot"
failure_mode = "hot"
component = "trainer"
summary = "{value}"
clear = { below = 5.0, for = "3m" }
on = { metric = { name = ["x"] } }
escalate = [{ severity = "warning", above = 8.0, for = "2m" }]
"""


def shown(run: Any) -> list[tuple[float, str]]:
    """Return when it fired and resolved."""
    return [(at_s, state) for at_s, _, _, state in run.alerts]


def test_a_value_must_stay_beyond_its_bound(watch: Watch) -> None:
    """One below it, and the time counts anew; so it does after a restart in the middle."""
    run = watch(RULE)
    for at_s, value in ((0, 9), (60, 9), (110, 7), (130, 9), (240, 9), (250, 9)):
        run.metric(at_s, at_s, x=value)
        run.restart()
    assert shown(run) == [(250, "firing")]


def test_a_value_between_the_bounds_neither_fires_nor_clears(watch: Watch) -> None:
    """What is good must stay so; not a number is not good."""
    run = watch(RULE)
    for at_s, value in ((0, 9), (120, 9), (130, 4), (200, 6), (300, 4), (400, math.nan), (500, 4), (679, 4)):
        run.metric(at_s, at_s, x=value)
        run.restart()
    run.tick(9999)
    assert shown(run) == [(120, "firing")]
    run.metric(10_000, 10_000, x=4)
    assert shown(run)[1:] == [(10_000, "resolved")]


def test_why_tells_what_holds_and_what_clears(watch: Watch) -> None:
    """Whoever asks is told both bounds, and since when the first one is passed."""
    run = watch(RULE)
    run.metric(0, 0, x=9)
    run.metric(60, 60, x=9)
    (subject,) = Explainer(State(run.rows), run.book).rule("hot")
    (condition,) = subject.conditions
    assert (subject.state, subject.clears) == ("pending", "when values have been below 5 for 3m")
    assert condition.needs == "all values for 2m above 8"
    assert condition.has == "all values since 12:00:00 UTC"


@pytest.mark.parametrize(
    ("clear", "why"),
    [
        ("{ below = 5.0 }", '"below" needs for'),
        ('{ below = 5.0, above = 9.0, for = "1m" }', "give exactly one of .*; here: above and below"),
        ('{ quiet = "5m", for = "1m" }', '"quiet" goes without for'),
    ],
)
def test_half_a_bound_is_refused(clear: str, why: str) -> None:
    """And so is a word that says nothing there."""
    text = RULE.replace('{ below = 5.0, for = "3m" }', clear)
    with pytest.raises(BadFile, match=rf"test\.toml:7: .*{why}"):
        decode(text, "test.toml", RuleFile)


def expected(values: list[tuple[int, float]], end_s: int) -> list[tuple[float, str]]:
    """Return when it fires and resolves, second by second."""
    found: list[tuple[float, str]] = []
    at = dict(values)
    hot: int | None = None
    cool: int | None = None
    firing = False
    for second in range(end_s + 1):
        if (value := at.get(second)) is None:
            continue
        hot = (second if hot is None else hot) if value > 8 else None
        if hot is not None and second - hot >= 120 and not firing:
            found.append((second, "firing"))
            firing, cool = True, None
        elif firing:
            cool = (second if cool is None else cool) if value < 5 else None
            if cool is not None and second - cool >= 180:
                found.append((second, "resolved"))
                firing, cool = False, None
    return found


@settings(max_examples=200, deadline=None)
@given(moves=st.lists(st.tuples(st.integers(1, 200), st.sampled_from([9.0, 9.0, 6.0, 4.0, math.nan])), max_size=30))
def test_it_is_as_a_slow_one_says(watch: Watch, moves: list[tuple[int, float]]) -> None:
    """Whatever comes when, with restarts between."""
    values: list[tuple[int, float]] = []
    for after, value in moves:
        values.append(((values[-1][0] if values else 0) + after, value))
    run = watch(RULE)
    for at_s, value in values:
        run.metric(at_s, at_s, x=value)
        run.restart()
    end_s = (values[-1][0] if values else 0) + 1000
    run.tick(end_s)
    assert shown(run) == expected(values, end_s)


def test_what_nobody_saw_or_nobody_lived_does_not_count(watch: Watch) -> None:
    """Two values too far apart, a host that slept, another process of that number: none has lasted."""
    apart = watch(RULE)
    for at_s in (0, 500, 560, 630):
        apart.sample(at_s, "x", 9)
    assert shown(apart) == [(630, "firing")]
    slept = watch(RULE)
    for at_s in (0, 60):
        slept.metric(at_s, at_s, x=9)
    slept.slept(61, 7201)
    slept.metric(7202, 7202, x=9)
    assert shown(slept) == []
    slept.metric(7270, 7270, x=9)
    assert shown(slept) == [(7270, "firing")]
    memory = watch(RULE.replace('["x"]', '["process/trainer/rss_bytes"]'))
    memory.process(0, state="running", rss_bytes=9)
    memory.process(10)
    memory.process(100, state="running", rss_bytes=9)
    memory.process(180, state="running", rss_bytes=9)
    assert shown(memory) == []
    memory.process(220, state="running", rss_bytes=9)
    assert shown(memory) == [(220, "firing")]
