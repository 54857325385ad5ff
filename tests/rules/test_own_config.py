"""Thresholds that a rule takes from the run's own config."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rules.explain import Explainer
from rules.load import BadFile, decode
from rules.rule_file import RuleFile
from rules.state import State

Watch = Callable[..., Any]

SHARE = """
[[rule]]
name = "failing"
failure_mode = "failing"
summary = "{hits} of {total}"
on = { rollout = { ok = false } }

[[rule.escalate]]
severity = "warning"
fraction = 0.5
over = "1h"
at_least = 40
config = { at_least = { key = "batch_size", times = 0.5 } }
"""
ABOVE = """
[[rule]]
name = "full"
failure_mode = "full"
component = "trainer"
summary = "{value}"
on = { metric = { name = ["tokens"] } }

[[rule.escalate]]
severity = "warning"
above = 500.0
persistent = 3
within = "1h"
config = { above = { key = "seq_len" }, persistent = { key = "group_size", times = 0.1 } }
"""


def test_what_the_config_says_holds(watch: Watch) -> None:
    """Half a batch is a sample here; for a run whose config does not say, forty are."""
    run = watch(SHARE)
    run.configured(batch_size=16)
    run.rollouts(10, bad=7)
    assert run.alerts == []
    run.rollouts(20, bad=1)
    assert run.alerts == [(20, "failing", "warning", "firing")]


@pytest.mark.parametrize("fields", [None, {}, {"batch_size": None, "max_steps": 3}])
def test_what_the_rule_says_holds_where_it_does_not(watch: Watch, fields: dict[str, Any] | None) -> None:
    """No config, or one without the key, leaves the number that the rule gives."""
    run = watch(SHARE)
    if fields is not None:
        run.configured(**fields)
    run.rollouts(10, bad=39)
    assert run.alerts == []
    run.rollouts(20, bad=1)
    assert run.alerts == [(20, "failing", "warning", "firing")]


def test_a_whole_number_is_no_less_than_it_may_be(watch: Watch) -> None:
    """A tenth of eight hits would be none: two it is, the least that persists."""
    run = watch(ABOVE)
    run.configured(seq_len=100, group_size=8)
    run.metric(10, 1, tokens=100)
    run.metric(20, 2, tokens=101)
    assert run.alerts == []
    run.metric(30, 3, tokens=101)
    assert run.alerts == [(30, "full", "warning", "firing")]


def test_of_so_many_values_no_more_can_be_hits(watch: Watch) -> None:
    """Eight hits among four values never come: four do."""
    run = watch(ABOVE.replace('within = "1h"', "of_last = 4").replace("times = 0.1", "times = 1.0"))
    run.configured(seq_len=100, group_size=8)
    for number in range(1, 5):
        run.metric(number * 10, number, tokens=101)
    assert run.alerts == [(40, "full", "warning", "firing")]


def test_a_multiple_is_a_number_that_there_can_be() -> None:
    """Infinitely many is refused where it is read, not where it is reckoned with."""
    with pytest.raises(BadFile, match=r"test\.toml:13: .*times"):
        decode(SHARE.replace("times = 0.5", "times = inf"), "test.toml", RuleFile)


def test_another_config_replaces_the_last_one(watch: Watch) -> None:
    """A launch with another config is judged by that one, and by the rule's number where it says no more."""
    run = watch(ABOVE)
    for at_s, seq_len in ((0, 100), (100, None), (200, 300)):
        run.configured(at_s, seq_len=seq_len, group_size=20)
        run.metric(at_s + 10, at_s, tokens=400)
        run.metric(at_s + 20, at_s + 1, tokens=400)
    assert run.alerts == [(20, "full", "warning", "firing")]
    assert [row["hits"] for row in hits(run)] == [4]


def test_it_is_so_after_a_restart(watch: Watch) -> None:
    """An engine that goes on from the rows knows the config, and so does whoever asks why."""
    run = watch(ABOVE)
    run.configured(seq_len=100, group_size=20)
    run.restart()
    run.metric(10, 1, tokens=101)
    assert [row["needs"] for row in hits(run)] == ["2 hits within 1h; a hit is a value above 100"]
    run.metric(20, 2, tokens=101)
    assert run.alerts == [(20, "full", "warning", "firing")]


def test_runs_do_not_share_it(watch: Watch) -> None:
    """Two runs judged by one book of rules have each their own config."""
    one = watch(SHARE)
    other = type(one)(one.book)
    one.configured(batch_size=2)
    for run in (one, other):
        run.rollouts(10, bad=20)
    assert (len(one.alerts), len(other.alerts)) == (1, 0)


def test_the_number_is_asked_for() -> None:
    """A config may not say: then a number is needed."""
    text = ABOVE.replace("above = 500.0\n", "")
    with pytest.raises(BadFile, match=r'test\.toml:.*"config" gives above: say above as well'):
        decode(text, "test.toml", RuleFile)


def test_an_unknown_key_is_named() -> None:
    """A key that no config has is refused, with those that there are."""
    with pytest.raises(BadFile, match=r'test\.toml:13: .*"batchsize" is not one of .*batch_size'):
        decode(SHARE.replace('"batch_size"', '"batchsize"'), "test.toml", RuleFile)


def hits(run: Any) -> list[dict[str, Any]]:
    """Return what each condition of each subject needs, and the hits of it."""
    found = Explainer(State(run.rows), run.book).rule("full")
    return [{"needs": one.needs, "hits": one.hits} for subject in found for one in subject.conditions]


def test_a_threshold_that_does_not_go_with_the_rest(watch: Watch) -> None:
    """What the config gives is then not taken, now or at the next start."""
    run = watch(
        """
[[rule]]
name = "between"
failure_mode = "between"
component = "trainer"
summary = "between"
on = { metric = { name = ["x"] } }
escalate = [
  { severity = "info", above = 100.0, below = 40000.0, config = { above = { key = "seq_len" } }, immediately = true },
]
"""
    )
    run.configured(seq_len=65536)
    run.restart()
    run.metric(1, 1, x=200.0)
    assert [alert[1] for alert in run.alerts] == ["between"]
