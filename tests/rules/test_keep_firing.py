"""What lasted and has ended goes on firing for as long as its rule says, so that what flaps is one alert."""

from __future__ import annotations

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

ABSENCE = """
[[clock]]
name = "rollout"
event = "rollout"

[[rule]]
name = "none"
failure_mode = "none"
component = "env"
summary = "none"
keep_firing_for = "5m"
on = { absence = { of = ["rollout"] } }
escalate = [{ severity = "warning", for = "10m" }]
"""
UNTIL = """
[[rule]]
name = "save"
failure_mode = "save"
component = "trainer"
summary = "save"
keep_firing_for = "5m"
on = { log = { pattern = "^saving", until = "^saved" } }
escalate = [{ severity = "warning", for = "1m" }]
"""
TOGETHER = """
[[rule]]
name = "a"
failure_mode = "a"
summary = "a"
silent = true
keep_firing_for = "1m"
on = { log = { pattern = "^a" } }
escalate = [{ severity = "info", immediately = true }]

[[rule]]
name = "b"
failure_mode = "b"
summary = "b"
silent = true
clear = { quiet = "1h" }
on = { log = { pattern = "^b" } }
escalate = [{ severity = "info", immediately = true }]

[[rule]]
name = "both"
failure_mode = "both"
component = "trainer"
summary = "both"
keep_firing_for = "5m"
on = { together = { modes = ["a", "b"] } }
escalate = [{ severity = "warning", immediately = true }]
"""


BLIND = """
[[rule]]
name = "page"
failure_mode = "page"
component = "host"
summary = "{source}"
keep_firing_for = "10m"
on = { blind = { failed = false } }
escalate = [{ severity = "info", for = "5m" }]
"""


def test_an_absence_that_ended_goes_on_for_a_while(watch: Watch) -> None:
    """A rollout ends it five minutes later; without another one after that it is looked for anew."""
    run = watch(ABSENCE)
    run.configured()
    run.rollouts(700, good=1)
    run.tick(1299)
    assert run.alerts == [(600, "none", "warning", "firing"), (1000, "none", "warning", "resolved")]
    run.tick(1300)
    assert run.alerts[2:] == [(1300, "none", "warning", "firing")]


def test_what_is_absent_again_before_that_is_the_same(watch: Watch) -> None:
    """While it goes on firing, another absence is no other alert."""
    run = watch(ABSENCE.replace('"5m"', '"20m"'))
    run.configured()
    run.rollouts(700, good=1)
    run.restart()
    run.tick(5000)
    assert run.alerts == [(600, "none", "warning", "firing")]
    run.rollouts(5000, good=1)
    for at_s in (5500, 6000):
        run.rollouts(at_s, good=1)
    run.tick(6200)
    assert run.alerts[1:] == [(6200, "none", "warning", "resolved")]


def test_an_end_is_followed_by_the_resolution(watch: Watch) -> None:
    """So it is with what was begun; what never fired leaves at once."""
    run = watch(UNTIL)
    run.log(0, "saving")
    run.log(10, "saved")
    assert not [key for key in run.rows if key.startswith("cell|")]
    run.log(100, "saving")
    run.log(200, "saved")
    run.restart()
    run.tick(1000)
    assert run.alerts == [(160, "save", "warning", "firing"), (500, "save", "warning", "resolved")]


def test_parts_that_come_again_are_the_same_whole(watch: Watch) -> None:
    """Of hits it is as long as nothing was hit; what they make up does not flap with them."""
    run = watch(TOGETHER)
    run.log(0, "b")
    for at_s in (10, 200, 400):
        run.log(at_s, "a")
        run.restart()
    run.tick(2000)
    assert run.alerts == [(10, "both", "warning", "firing"), (760, "both", "warning", "resolved")]


def test_what_begins_again_and_again_is_the_same(watch: Watch) -> None:
    """One alert for what is too slow each time, and the next ones no more than five minutes later."""
    run = watch(UNTIL)
    for i in range(20):
        run.log(100 * i, "saving")
        run.log(100 * i + 70, "saved")
        run.restart()
    assert run.alerts == [(60, "save", "warning", "firing")]
    run.tick(5000)
    assert run.alerts[1:] == [(100 * 19 + 70 + 300, "save", "warning", "resolved")]


def test_a_page_that_is_blind_for_good_is_told_again(watch: Watch) -> None:
    """The time that it takes to be told goes beyond the end of the last alert: neither timer is lost."""
    run = watch(BLIND)
    for at_s, state in ((0, "blind"), (400, "seeing"), (900, "blind")):
        run.source(at_s, state, "metrics:http://e")
        run.restart()
    run.tick(9000)
    assert [(at_s, state) for at_s, _, _, state in run.alerts] == [
        (300, "firing"),
        (1000, "resolved"),
        (1200, "firing"),
    ]


def test_what_is_not_seen_does_not_resolve(watch: Watch) -> None:
    """What ended may hold again while nobody sees it."""
    until, absence = watch(UNTIL), watch(ABSENCE)
    until.log(0, "saving")
    until.log(100, "saved")
    absence.configured()
    absence.rollouts(700, good=1)
    for run in (until, absence):
        run.source(200 if run is until else 800, "blind")
        run.restart()
        run.tick(5000)
        assert [alert[3] for alert in run.alerts] == ["firing"]
        run.source(5000, "seeing")
    until.tick(5020)
    assert [alert[3] for alert in until.alerts] == ["firing", "resolved"]


def test_parts_that_hold_for_a_moment_each_do_not_add_up(watch: Watch) -> None:
    """How long it lasts counts from when it began again."""
    head, _, tail = TOGETHER.rpartition("immediately = true }")
    run = watch(f'{head}immediately = true }}, {{ severity = "critical", for = "10m" }}{tail}')
    run.log(0, "b")
    for i in range(12):
        run.log(120 * i, "a")
        run.restart()
    assert [alert[2] for alert in run.alerts] == ["warning"]


def test_why_says_so(watch: Watch) -> None:
    """Whoever asks is told when it resolves."""
    run = watch(UNTIL)
    run.log(0, "saving")
    run.tick(100)
    (subject,) = Explainer(State(run.rows), run.book).rule("save")
    assert subject.clears == "when what began it is over, 5m later"
    run.log(120, "saved")
    (subject,) = Explainer(State(run.rows), run.book).rule("save")
    assert (subject.state, subject.clears) == ("firing", "it has ended: at 12:07:00 UTC, unless it holds again")


def test_two_words_for_it_are_refused() -> None:
    """Either word, not both."""
    with pytest.raises(BadFile, match=r"test\.toml:2: .*give clear or keep_firing_for, not both"):
        decode(UNTIL.replace("on =", 'clear = { quiet = "1m" }\non ='), "test.toml", RuleFile)


@settings(max_examples=150, deadline=None)
@given(moves=st.lists(st.tuples(st.integers(1, 300), st.booleans()), max_size=12))
def test_it_is_as_a_slow_one_says(watch: Watch, moves: list[tuple[int, bool]]) -> None:
    """Begun and ended in whatever order, with restarts between, it fires and resolves as a plain reading has it."""
    run, now = watch(UNTIL), 0
    begun: int | None = None
    ends: int | None = None
    firing = False
    expected: list[tuple[float, str]] = []
    for after, begins in [*moves, (10_000, False)]:
        for at_s in range(now + 1, now + after + 1):  # what is due at the time of an event comes before it
            if begun is not None and at_s - begun == 60:
                expected += [] if firing else [(at_s, "firing")]
                firing, ends = True, None
            if ends == at_s:
                firing, ends = False, None
                expected.append((at_s, "resolved"))
        now += after
        begun = now if begins else None
        ends = (ends or now + 300) if firing else None
        run.log(now, "saving" if begins else "saved")
        run.restart()
    got = [(at_s, state) for at_s, _, _, state in run.alerts]
    assert got == expected


def test_what_holds_again_at_the_very_end_is_the_same(watch: Watch) -> None:
    """Of blindness and of absence as of what begins: no alert resolves and fires in one moment."""
    blind = watch(BLIND.replace('for = "5m"', 'for = "1m"'))
    for at_s, state in ((0, "blind"), (120, "seeing"), (660, "blind")):
        blind.source(at_s, state, "metrics:http://e")
    absence = watch(ABSENCE.replace('for = "10m"', 'for = "3m"'))
    absence.configured()
    for at_s in (0, 240, 360):
        absence.rollouts(at_s, good=1)
    for run in (blind, absence):
        run.tick(5000)
        assert [alert[3] for alert in run.alerts] == ["firing"]
