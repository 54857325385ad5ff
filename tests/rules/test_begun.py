"""What one record has begun and another ends: it is waited for, and told if it takes too long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.events import Gap
from rules.explain import Explainer
from rules.state import State
from tests.rules.conftest import RUNNING, at

Watch = Callable[..., Any]

SAVE = """
[[rule]]
name = "save-hangs"
failure_mode = "hangs"
component = "trainer"
summary = "saving {id} takes {minutes} minutes"
on = { log = { pattern = '^saving (?P<id>\\d+)', until = '^saved (?P<id>\\d+)' }, per = ["id"] }
escalate = [{ severity = "warning", for = "5m" }, { severity = "critical", for = "20m" }]
"""
PULL = """
[[rule]]
name = "pull-hangs"
failure_mode = "hangs"
summary = "{component} pulls for {minutes} minutes"
during = ["starting"]
on = { log = { pattern = '^pulling', until = '^(pulled|already there)', level = ["INFO"] } }
escalate = [{ severity = "warning", for = "5m" }]
"""


def test_what_ends_in_time_is_quiet(watch: Watch) -> None:
    """An end in time leaves nothing behind."""
    run = watch(SAVE)
    run.log(0, "saving 1")
    run.log(299, "saved 1")
    run.tick(10_000)
    assert run.alerts == []
    assert not [key for key in run.rows if key.startswith(("cell|", "evidence|"))]


def test_what_does_not_end_is_told_and_resolves_with_its_end(watch: Watch) -> None:
    """It fires after so long, grows graver, and resolves when the end comes after all."""
    run = watch(SAVE)
    run.log(0, "saving 1")
    run.tick(400)
    assert run.last_alert.summary == "saving 1 takes 5 minutes"
    assert [one.text for one in run.last_alert.evidence] == ["saving 1"]
    run.tick(1300)
    run.log(1400, "saved 1")
    assert run.alerts == [
        (300, "save-hangs", "warning", "firing"),
        (1200, "save-hangs", "critical", "firing"),
        (1400, "save-hangs", "critical", "resolved"),
    ]


def test_an_end_is_of_its_own_beginning(watch: Watch) -> None:
    """A group that both patterns name tells which one has ended."""
    run = watch(SAVE)
    run.log(0, "saving 1")
    run.log(10, "saving 2")
    run.log(20, "saved 2")
    run.tick(400)
    assert run.alerts == [(300, "save-hangs", "warning", "firing")]


def test_a_new_beginning_counts_from_then_on(watch: Watch) -> None:
    """What begins anew has got on: an end that was missed is no alarm, and what fires resolves."""
    run = watch(SAVE)
    for at_s in (0, 200, 400):
        run.log(at_s, "saving 1")
    run.tick(699)
    assert run.alerts == []
    run.log(900, "saving 1")
    assert run.alerts == [(700, "save-hangs", "warning", "firing"), (900, "save-hangs", "warning", "resolved")]


def test_an_end_may_have_another_level(watch: Watch) -> None:
    """The level is that of the beginning; without a component of the rule an end is of the one that began."""
    run = watch(PULL)
    run.log(0, "pulling", level="INFO")
    run.log(0, "pulling", source="inference.log", level="INFO")
    run.log(0, "pulling", source="orchestrator.log", level="DEBUG")
    run.log(100, "already there", level="WARNING")
    run.tick(400)
    assert run.last_alert.summary == "inference pulls for 5 minutes"
    assert len(run.alerts) == 1


def test_a_phase_that_the_rule_does_not_look_at(watch: Watch) -> None:
    """What goes on into another phase than the rule's is not told."""
    run = watch(PULL, RUNNING)
    run.log(0, "pulling", level="INFO")
    run.log(10, "go")
    run.tick(400)
    assert run.phase == "running"
    assert run.alerts == []


def test_a_sleep_is_no_part_of_it(watch: Watch) -> None:
    """While the host slept nothing could end."""
    run = watch(SAVE)
    run.log(0, "saving 1")
    run.apply(Gap(time=at(100), until=at(5000), cause="suspension"))
    run.tick(6000)
    assert run.alerts == [(5200, "save-hangs", "warning", "firing")]
    assert run.last_alert.summary == "saving 1 takes 5 minutes"


def test_an_end_that_cannot_be_seen(watch: Watch) -> None:
    """While its log is not seen nothing is told, and afterwards only if the end has not come meanwhile."""
    run = watch(SAVE)
    run.log(0, "saving 1")
    run.source(100, "blind")
    run.tick(1000)
    assert run.alerts == []
    run.source(1001, "seeing")
    run.tick(1020)
    assert run.alerts == [(1010, "save-hangs", "warning", "firing")]


def test_the_next_launch_begins_anew(watch: Watch) -> None:
    """What an attempt has begun is over with it."""
    run = watch(SAVE)
    run.attempt(0, 1)
    run.log(0, "saving 1")
    run.attempt(100, 2)
    run.tick(1000)
    assert run.alerts == []


def test_why_says_until_when_it_waits(watch: Watch) -> None:
    """Somebody who asks why nothing fires is told when it will."""
    run = watch(SAVE)
    run.log(0, "saving 1")
    (subject,) = Explainer(State(run.rows), run.book).rule("save-hangs")
    assert (subject.state, subject.labels) == ("pending", {"id": "1"})
    assert subject.waits == ["fires at 2026-08-19 12:05:00 UTC unless it ends before"]
    assert subject.clears == "when what began it is over"


@settings(max_examples=200)
@given(
    moves=st.lists(st.tuples(st.integers(1, 400), st.sampled_from(["saving", "saved"]), st.integers(1, 2)), max_size=12)
)
def test_it_is_as_a_slow_one_says(watch: Watch, moves: list[tuple[int, str, int]]) -> None:
    """Whatever comes in whatever order, with restarts between, fires what has been open for so long."""
    run, now, begun, expected = watch(SAVE), 0, dict[int, int](), list[tuple[float, str]]()

    def pass_until(at_s: int) -> None:
        for since in begun.values():
            expected.extend((since + limit, "firing") for limit in (300, 1200) if now < since + limit <= at_s)

    for after, what, which in moves:
        pass_until(now + after)
        now += after
        if which in begun and now - begun[which] >= 300:
            expected.append((now, "resolved"))
        begun.pop(which, None)
        if what == "saving":
            begun[which] = now
        run.log(now, f"{what} {which}")
        run.restart()
    assert sorted((at_s, state) for at_s, _, _, state in run.alerts) == sorted(expected)
