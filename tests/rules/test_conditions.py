"""When a rule holds and when it ceases to: the words of escalation and clearing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rules import conditions
from rules.escalation import Clear
from rules.load import decode
from rules.model import Rule
from rules.pattern import Duration
from rules.rule_file import RuleFile

LOG = """
[[rule]]
name = "boom"
failure_mode = "boom"
summary = "{count} times"
on = { log = { pattern = "boom" } }
"""
SHARE = """
[[rule]]
name = "failing"
failure_mode = "failing"
summary = "{fraction:.0%} of {total}"
on = { rollout = { ok = false }, per = ["env"] }
escalate = [
  { severity = "warning", fraction = 0.25, over = "10m", at_least = 8 },
  { severity = "critical", fraction = 0.5, over = "10m", at_least = 8 },
]
clear = { fraction = 0.1, for = "5m" }
"""
Watch = Callable[..., Any]


def rule(text: str) -> Rule:
    """Return the one rule of a TOML text."""
    return decode(text, "test.toml", RuleFile).rule[0]


VALUES = """
[[rule]]
name = "values"
failure_mode = "values"
component = "host"
summary = "{fraction:.0%} of {total}"
on = { metric = { name = ["x"] } }
escalate = [
  { severity = "critical", above = 100.0, fraction = 0.5, over = "10m", at_least = 4 },
  { severity = "warning", above = 10.0, fraction = 0.5, over = "10m", at_least = 4 },
]
"""


def test_immediately(watch: Watch) -> None:
    """The first hit fires, further ones add evidence and nothing else."""
    run = watch(LOG + 'escalate = [{ severity = "critical", immediately = true }]')
    run.log(1, "boom")
    run.log(2, "boom")
    assert run.alerts == [(1, "boom", "critical", "firing")]


def test_persistent(watch: Watch) -> None:
    """So many hits within the time fire; the same number spread over longer does not."""
    run = watch(LOG + 'escalate = [{ severity = "warning", persistent = 3, within = "10m" }]')
    for at_s in (0, 400, 800, 1200):
        run.log(at_s, "boom")
    assert run.alerts == []
    run.log(1300, "boom")
    assert run.alerts == [(1300, "boom", "warning", "firing")]


def test_growing(watch: Watch) -> None:
    """More in each span than in the one before fires; as many as before does not."""
    rules = LOG + 'escalate = [{ severity = "warning", growing = 2, within = "1m" }]'
    flat, growing = watch(rules), watch(rules)
    for minute, counts in enumerate([(2, 1), (2, 2), (2, 3), (2, 4)]):
        for run, count in zip((flat, growing), counts, strict=True):
            for i in range(count):
                run.log(minute * 60 + i, "boom")
    assert flat.alerts == []
    assert growing.alerts[0][:3] == (62, "boom", "warning") or growing.alerts[0][0] <= 122


def test_a_fraction_needs_its_sample(watch: Watch) -> None:
    """Seven failures of seven say nothing where eight are asked for; the eighth rollout decides."""
    run = watch(SHARE)
    run.rollouts(10, bad=7)
    assert run.alerts == []
    run.rollouts(20, bad=1)
    assert run.alerts == [(20, "failing", "critical", "firing")]
    assert run.last_alert.summary == "100% of 8"


def test_a_fraction_is_of_what_the_trigger_counts(watch: Watch) -> None:
    """Good rollouts are the rest of the fraction; cancelled ones are in neither part."""
    run = watch(SHARE)
    run.rollouts(10, good=30)
    run.rollouts(20, bad=100, cancelled=True)
    run.rollouts(30, bad=9)
    assert run.alerts == []
    run.rollouts(40, bad=1)
    assert run.alerts == [(40, "failing", "warning", "firing")]


def test_a_fraction_clears_after_it_was_low_for_its_time(watch: Watch) -> None:
    """A low share resolves when it has stayed low, at its own deadline."""
    run = watch(SHARE)
    run.rollouts(0, bad=8)
    run.rollouts(700, good=20)
    run.rollouts(900, good=20)
    run.tick(3000)
    assert run.alerts[-1] == (1000, "failing", "critical", "resolved")


def test_a_fraction_that_rises_again_does_not_clear(watch: Watch) -> None:
    """A share that was low and rose keeps the alert until it has been low for all of the time anew."""
    run = watch(SHARE)
    run.rollouts(0, bad=8)
    run.rollouts(700, good=20)
    run.rollouts(800, bad=4)
    run.rollouts(1000, good=2)
    run.tick(1100)
    assert run.alerts[-1][3] == "firing"
    run.rollouts(1200, good=40)
    run.rollouts(1500, good=1)
    assert run.alerts[-1] == (1500, "failing", "critical", "resolved")


def test_a_fraction_clears_though_little_comes(watch: Watch) -> None:
    """Fewer than it takes to fire are enough to resolve, if they are good; none are not."""
    silent, thin = watch(SHARE), watch(SHARE)
    for run in (silent, thin):
        run.rollouts(0, bad=8)
    silent.tick(50_000)
    assert silent.alerts == [(0, "failing", "critical", "firing")]
    for at_s in range(300, 1000, 100):
        thin.rollouts(at_s, good=1)
    thin.tick(1100)
    assert thin.alerts[1:] == [(900, "failing", "critical", "resolved")]


def test_a_share_of_one_window_does_not_clear_another(watch: Watch) -> None:
    """Two windows of one rule look at different hits: it clears once both are low, and tells of the one that holds."""
    run = watch(VALUES)
    for i in range(80):
        run.sample(45 * i, "x", 20)
    assert [alert[0] for alert in run.alerts] == [135]
    assert run.last_alert.summary == "100% of 4"


def test_a_share_is_judged_at_a_hit(watch: Watch) -> None:
    """What makes the sample large enough and is good is no reason to wake anybody; the next hit is."""
    run = watch(SHARE)
    run.rollouts(0, bad=7)
    run.rollouts(1, good=1)
    assert run.alerts == []
    run.rollouts(2, bad=1)
    assert run.alerts == [(2, "failing", "critical", "firing")]


def test_a_share_is_low_only_while_it_is_seen(watch: Watch) -> None:
    """A share that was low before its source turned blind has to be low for all of its time again."""
    run = watch(SHARE)
    run.rollouts(0, bad=8)
    run.rollouts(700, good=20)
    run.source(800, "blind")
    run.source(1100, "seeing")
    run.rollouts(1101, good=20)
    run.tick(1399)
    assert len(run.alerts) == 1
    run.tick(1400)
    assert run.alerts[-1] == (1400, "failing", "critical", "resolved")


def test_a_sample_that_shrinks_does_not_clear(watch: Watch) -> None:
    """A share that was low on enough rollouts resolves nothing if hardly any came since."""
    rules = SHARE.replace('for = "5m"', 'for = "20m"')
    run = watch(rules)
    run.rollouts(0, bad=8)
    run.rollouts(700, good=20)
    run.tick(50_000)
    assert run.alerts == [(0, "failing", "critical", "firing")]


@pytest.mark.parametrize(
    ("escalate", "on", "expected"),
    [
        ("immediately = true", 'log = { pattern = "x" }', conditions.QUIET),
        ("immediately = true", "process = {}", Clear(attempt=True)),
        ('for = "5m"', "blind = {}", None),
        ('for = "5m"', 'absence = { of = ["step"] }', None),
        (
            'fraction = 0.5, over = "10m", at_least = 8',
            "rollout = { ok = false }",
            Clear(fraction=0.25, for_=Duration("10m")),
        ),
    ],
    ids=["log", "process", "blind", "absence", "fraction"],
)
def test_how_a_rule_clears_that_does_not_say(escalate: str, on: str, expected: Clear | None) -> None:
    """Logs clear when quiet, fractions at half of theirs, processes with the attempt, the rest when it ends."""
    text = f'[[rule]]\nname = "x"\nfailure_mode = "x"\nsummary = ""\non = {{ {on} }}\n'
    assert conditions.clearing(rule(text + f'escalate = [{{ severity = "info", {escalate} }}]')) == expected


def test_nan_above_and_below(watch: Watch) -> None:
    """A metric is hit by what is no number, by what is above, by what is below; each only where asked for."""
    rules = """
    [[rule]]
    name = "loss"
    failure_mode = "loss"
    summary = "{metric} is {value} at step {step}"
    on = { metric = { name = ["loss/*"] } }
    escalate = [
      { severity = "critical", immediately = true, nan = true },
      { severity = "warning", immediately = true, above = 10.0 },
      { severity = "info", immediately = true, below = 0.0 },
    ]
    """
    run = watch(rules)
    run.metric(0, 1, **{"loss/mean": 10.0, "grad": 99.0})
    run.metric(1, 2, **{"loss/mean": 0.0})
    assert run.alerts == []
    run.metric(2, 3, **{"loss/mean": -0.5})
    assert run.alerts == [(2, "loss", "info", "firing")]
    run.metric(3, 4, **{"loss/mean": 10.5})
    assert run.alerts[1:] == [(3, "loss", "warning", "firing")]
    run.metric(4, 5, **{"loss/mean": float("nan")})
    assert run.alerts[-1] == (4, "loss", "critical", "firing")
    assert run.last_alert.summary == "loss/mean is nan at step 5"
