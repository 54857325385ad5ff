"""Rules that are edited while a run is watched: the next start goes on with what there was."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest

from pipeline.alerts import SEVERITIES, Severity
from tests.rules.conftest import SURROUNDINGS, book

Watch = Callable[..., Any]

RULES = """
[[rule]]
name = "said"
failure_mode = "said"
summary = "said {count} times"
clear = { quiet = "1h" }
on = { log = { pattern = "^bad", among = "^(bad|good)", component = ["trainer"] } }
escalate = [SAID]

[[rule]]
name = "value"
failure_mode = "value"
component = "trainer"
summary = "{value}"
clear = { quiet = "1h" }
on = { metric = { name = ["x"] } }
escalate = [VALUE]
"""
NOW = '{ severity = "info", immediately = true }'
TWICE = '{ severity = "warning", persistent = 2, within = "10m" }'
SLOW = '{ severity = "warning", persistent = 2, within = "1h" }'
SHARE = '{ severity = "critical", fraction = 0.5, over = "10m", at_least = 2 }'
SHAPES = [NOW, TWICE, SLOW, SHARE, f"{NOW}, {TWICE}", f"{TWICE}, {SHARE}", f"{NOW}, {TWICE}, {SHARE}"]


def written(shape: str) -> str:
    """Return both rules with escalations of that shape."""
    value = shape.replace("severity", "above = 1.0, severity")
    return RULES.replace("SAID", shape).replace("VALUE", value)


def gravest(shape: str) -> Severity:
    """Return the severity of what that many hits come to."""
    return "critical" if SHARE in shape else "warning" if shape != NOW else "info"


@pytest.mark.parametrize(("before", "after"), list(permutations(SHAPES, 2)))
def test_an_edited_rule_goes_on(watch: Watch, before: str, after: str) -> None:
    """Whatever its escalations were and are: it neither fails nor forgets what fires, and can hold anew."""
    run = watch(written(before))
    run.log(0, "good")
    run.log(1, "bad")
    run.metric(2, 2, x=2.0)
    run.log(3, "bad")
    run.metric(4, 4, x=2.0)
    assert {alert[1] for alert in run.alerts} == {"said", "value"}
    run.book = book(SURROUNDINGS, written(after))
    run.restart()
    for at_s in (10, 11, 12, 13):
        run.log(at_s, "bad")
        run.metric(at_s, at_s, x=2.0)
    said = {alert[2] for alert in run.alerts if alert[1] == "said"}
    assert max(said, key=SEVERITIES.index) == max(map(gravest, (before, after)), key=SEVERITIES.index)
    assert all(alert[3] == "firing" for alert in run.alerts)
    assert len(run.summary.incidents) == 1
