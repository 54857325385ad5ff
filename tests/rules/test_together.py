"""Rules about several failure modes that fire at the same time, and rules that tell nobody."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.alerts import HealthChanged
from rules.explain import Explainer
from rules.load import BadFile, decode
from rules.rule_file import RuleFile
from rules.state import State
from tests.rules.conftest import RUNNING

Watch = Callable[..., Any]

PARTS = "".join(
    f"""
[[rule]]
name = "{name}-fires"
failure_mode = "{name}"
component = "trainer"
summary = "{name} {{what}}"
silent = {silent}
on = {{ log = {{ pattern = '{name}: (?P<what>\\w+)' }} }}
escalate = [{{ severity = "warning", immediately = true }}]
clear = {{ quiet = "1m" }}
"""
    for name, silent in (("a", "true"), ("b", "true"), ("c", "false"))
)
BOTH = """
[[rule]]
name = "both"
failure_mode = "both"
component = "trainer"
summary = "together: {parts}"
on = { together = { modes = ["a", "b"] } }
escalate = [{ severity = "info", immediately = true }, { severity = "critical", for = "30s" }]
"""
CHAIN = """
[[rule]]
name = "chain"
failure_mode = "chain"
component = "trainer"
summary = "x"
on = { together = { modes = ["both", "c"] } }
escalate = [{ severity = "warning", immediately = true }]
"""


def test_both_have_to_fire(watch: Watch) -> None:
    """It begins with the last part, grows graver while both last, and ends with the first that resolves."""
    run = watch(PARTS, BOTH)
    run.log(0, "a: one")
    run.log(20, "b: two")
    run.tick(200)
    assert run.alerts == [
        (20, "both", "info", "firing"),
        (50, "both", "critical", "firing"),
        (60, "both", "critical", "resolved"),
    ]
    assert run.last_alert.summary == "together: a one; b two"
    assert [one.text for one in run.last_alert.evidence] == ["a one; b two"]


def test_one_alone_tells_nothing(watch: Watch) -> None:
    """A silent rule makes no alert, no incident and no change of health, and is no root."""
    run = watch(PARTS, BOTH)
    run.log(0, "a: one")
    run.tick(30)
    run.log(70, "b: two")
    run.tick(300)
    assert (run.alerts, run.incidents) == ([], [])
    assert {one.health for one in run.decisions if isinstance(one, HealthChanged)} == {"Healthy"}


def test_the_incident_is_that_of_the_whole(watch: Watch) -> None:
    """Parts that are told stand in the incident, silent ones do not."""
    run = watch(PARTS, BOTH, CHAIN)
    run.log(0, "a: one")
    run.log(0, "b: one")
    run.log(10, "c: one")
    run.tick(11)
    (incident,) = run.summary.incidents
    assert sorted([incident.failure_mode, *incident.symptoms]) == ["both", "c", "chain"]


def test_a_whole_may_be_a_part(watch: Watch) -> None:
    """What several make up can be part of more; it ends with them."""
    run = watch(PARTS, BOTH, CHAIN)
    run.log(0, "a: one")
    run.log(1, "c: one")
    run.log(2, "b: one")
    assert [one for one in run.alerts if one[1] != "c-fires"] == [
        (2, "both", "info", "firing"),
        (2, "chain", "warning", "firing"),
    ]
    run.tick(60)
    assert {(one[1], one[3]) for one in run.alerts if one[0] == 60} == {("both", "resolved"), ("chain", "resolved")}


@pytest.mark.parametrize("restarted", [False, True])
def test_parts_that_fired_before_its_phase(watch: Watch, restarted: bool) -> None:
    """A rule that looks in a later phase begins with it, restarted in between or not."""
    run = watch(PARTS, BOTH.replace("on =", 'during = ["running"]\non ='), RUNNING)
    run.log(0, "a: one")
    run.log(1, "b: one")
    if restarted:
        run.restart()
    run.log(10, "go")
    assert run.alerts == [(10, "both", "info", "firing")]


def test_why_names_the_modes(watch: Watch) -> None:
    """Who asks is told what it waits for; a silent rule is shown when asked for, and not in the list."""
    run = watch(PARTS, BOTH)
    run.log(0, "a: one")
    explainer = Explainer(State(run.rows), run.book)
    (subject,) = explainer.rule("both")
    assert "alerts of a and b at the same time" in subject.waits
    assert [one.state for one in explainer.rule("a-fires")] == ["firing"]
    assert explainer.alerts() == []


def test_a_mode_twice_is_no_company() -> None:
    """A failure mode stands once."""
    with pytest.raises(BadFile, match=r"test\.toml:7: .*names a failure mode twice"):
        decode(BOTH.replace('["a", "b"]', '["a", "a"]'), "test.toml", RuleFile)


def test_one_mode_is_no_company() -> None:
    """A rule about one failure mode is refused."""
    with pytest.raises(BadFile, match=r"test\.toml:7: .*at least 2 long"):
        decode(BOTH.replace('["a", "b"]', '["a"]'), "test.toml", RuleFile)


@settings(max_examples=200)
@given(moves=st.lists(st.tuples(st.integers(1, 45), st.sampled_from("ab")), max_size=12))
def test_it_is_as_a_slow_one_says(watch: Watch, moves: list[tuple[int, str]]) -> None:
    """Second by second it fires while both parts do, whatever the order and wherever it is restarted."""
    # hits at even seconds, ends at odd ones: no two changes at a time
    run, now, last = watch(PARTS.replace('"1m"', '"61s"'), BOTH), 0, dict[str, int]()
    held: list[bool] = []

    def second(at_s: int) -> bool:
        return all(name in last and at_s - last[name] < 61 for name in "ab")

    for after, name in [*moves, (100, "")]:
        held += [second(at_s) for at_s in range(now, now + 2 * after)]
        now += 2 * after
        if name:
            last[name] = now
            run.log(now, f"{name}: x")
            run.restart()
        else:
            run.tick(now)
    expected, at_s = list[tuple[int, str]](), 0
    for fires, seconds in groupby(held):
        expected += [(at_s, "firing")] if fires else [(at_s, "resolved")] if at_s and expected else []
        at_s += len(list(seconds))
    changes = [(one[0], one[3]) for one in run.alerts if (one[2], one[3]) != ("critical", "firing")]
    assert changes == expected
