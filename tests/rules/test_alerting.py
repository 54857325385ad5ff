"""The life of an alert: fires, is raised, resolves; for whom, on what evidence, within what bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.alerts import AlertChanged
from pipeline.events import Asked, Rollout
from rules import state
from rules.engine import Engine
from rules.rows import Cell
from tests.rules.conftest import at

Watch = Callable[..., Any]
ROW_BYTES = 16 * 1024

ONCE = """
[[rule]]
name = "boom"
failure_mode = "boom"
summary = "{component}: {what}"
on = { log = { pattern = 'boom (?P<what>\\S+)' } }
escalate = [{ severity = "critical", immediately = true }]
clear = { quiet = "5m" }
"""
RAISED = """
[[rule]]
name = "boom"
failure_mode = "boom"
summary = "{count} times"
on = { log = { pattern = "boom" } }
escalate = [
  { severity = "info", immediately = true },
  { severity = "warning", persistent = 2, within = "1m" },
  { severity = "critical", persistent = 4, within = "10m" },
]
clear = { quiet = "20m" }
"""
FAILING = """
[[rule]]
name = "failing"
failure_mode = "failing"
summary = "{env} fails with {error}"
on = { rollout = { ok = false }, per = ["env", "error"] }
escalate = [{ severity = "warning", immediately = true }]
"""


def test_it_is_raised_and_never_lowered(watch: Watch) -> None:
    """An alert grows more severe while it fires, and stays as severe as it was until it resolves."""
    run = watch(RAISED)
    for at_s in (0, 100, 130, 160, 900):
        run.log(at_s, "boom")
    run.tick(10_000)
    assert run.alerts == [
        (0, "boom", "info", "firing"),
        (130, "boom", "warning", "firing"),
        (160, "boom", "critical", "firing"),
        (2100, "boom", "critical", "resolved"),
    ]


def test_it_is_raised_at_once_to_the_gravest(watch: Watch) -> None:
    """Of several escalations that hold, the gravest counts, whatever their order in the file."""
    run = watch(RAISED.replace("persistent = 4", "persistent = 2"))
    run.log(0, "boom")
    run.log(1, "boom")
    assert run.alerts[1:] == [(1, "boom", "critical", "firing")]


def test_it_resolves_when_quiet(watch: Watch) -> None:
    """Each hit puts the end off; it resolves at its own deadline and begins anew afterwards."""
    run = watch(ONCE)
    run.log(0, "boom a")
    run.log(200, "boom b")
    run.log(10_000, "boom c")
    assert run.alerts == [
        (0, "boom", "critical", "firing"),
        (500, "boom", "critical", "resolved"),
        (10_000, "boom", "critical", "firing"),
    ]
    assert [evidence.text for evidence in run.last_alert.evidence] == ["boom c"]


def test_it_resolves_with_the_attempt(watch: Watch) -> None:
    """What only a new launch ends does not end by being quiet."""
    run = watch(ONCE.replace('quiet = "5m"', "attempt = true"))
    run.attempt(0, 1)
    run.log(1, "boom a")
    run.tick(100_000)
    assert len(run.alerts) == 1
    run.attempt(100_001, 2)
    assert run.alerts[-1] == (100_001, "boom", "critical", "resolved")


def test_nothing_resolves_while_blind(watch: Watch) -> None:
    """An alert whose source does not see stays; it is quiet for all of its time again once that sees."""
    run = watch(ONCE)
    run.log(0, "boom a")
    run.source(10, "blind")
    run.tick(5000)
    assert len(run.alerts) == 1
    run.source(6000, "seeing")
    run.tick(6299)
    assert len(run.alerts) == 1
    run.tick(6300)
    assert run.alerts[-1] == (6300, "boom", "critical", "resolved")


def test_a_source_that_turns_absent_holds_nothing(watch: Watch) -> None:
    """What is no longer there to be seen, as the page of an engine that was taken out, keeps no alert."""
    run = watch(ONCE)
    run.log(0, "boom a")
    run.source(10, "blind")
    run.source(6000, "absent")
    run.tick(6301)
    assert run.alerts[-1] == (6300, "boom", "critical", "resolved")


def test_another_source_that_sees_resolves_nothing(watch: Watch) -> None:
    """An alert waits for the source that would bring its hits, not for just any one."""
    run = watch(ONCE)
    run.log(0, "boom a")
    run.source(10, "blind")
    run.source(20, "blind", "processes")
    run.tick(5000)
    run.source(6000, "seeing", "processes")
    run.source(6200, "seeing", "files")
    run.tick(6499)
    assert len(run.alerts) == 1
    run.tick(6500)
    assert run.alerts[-1] == (6500, "boom", "critical", "resolved")


def test_a_metric_that_no_longer_comes_is_not_a_good_one(watch: Watch) -> None:
    """An alert on a metric resolves after good values, not because there are none."""
    rules = """
    [[rule]]
    name = "nan"
    failure_mode = "nan"
    summary = ""
    on = { metric = { name = ["loss"] } }
    escalate = [{ severity = "critical", nan = true, persistent = 2, within = "1h" }]
    clear = { quiet = "5m" }
    """
    run = watch(rules)
    nan = float("nan")
    for number, loss in (
        (1, nan),
        (1, nan),
        (2, 0.5),
        (3, nan),
    ):  # the console and the metrics file both tell of step 1
        run.metric(number, number, loss=loss)
    assert run.alerts == [(3, "nan", "critical", "firing")]
    run.tick(9000)
    assert len(run.alerts) == 1
    run.metric(9001, 4, loss=0.5)
    run.tick(9002)
    assert run.alerts[-1][1:] == ("nan", "critical", "resolved")


def test_each_subject_has_its_own(watch: Watch) -> None:
    """A rule that is held per label has an alert for each of its values."""
    run = watch(FAILING)
    run.rollouts(0, bad=1, env="math")
    run.rollouts(1, bad=1, env="code")
    run.rollouts(2, bad=1, env="math")
    assert [alert[0] for alert in run.alerts] == [0, 1]
    assert run.last_alert.summary == "code fails with Oops"


def test_each_component_has_its_own(watch: Watch) -> None:
    """A rule without a component of its own blames whoever says it."""
    run = watch(ONCE)
    run.log(0, "boom a")
    run.log(1, "boom b", "inference.log")
    assert [(one.component, one.summary) for one in run.decisions if hasattr(one, "rule")] == [
        ("trainer", "trainer: a"),
        ("inference", "inference: b"),
    ]


def test_ranks_that_say_the_same_are_one_fact(watch: Watch) -> None:
    """Eight ranks that print one error within a second count once, whatever numbers are in it."""
    run = watch(RAISED)
    for rank in range(8):
        run.log(rank / 10, f"boom on rank {rank} at 0x7f{rank}0deadbeef", f"trainer.{rank}.log", rank=rank)
    assert run.alerts == [(0, "boom", "info", "firing")]


def test_one_rank_that_says_the_same_again_is_another_fact(watch: Watch) -> None:
    """Only others' repetitions are folded, and only for a moment."""
    again, later = watch(RAISED), watch(RAISED)
    again.log(0, "boom 1", "trainer.0.log")
    again.log(0.1, "boom 2", "trainer.0.log")
    later.log(0, "boom 1", "trainer.0.log")
    later.log(2, "boom 2", "trainer.1.log")
    assert [alert[2] for alert in again.alerts] == [alert[2] for alert in later.alerts] == ["info", "warning"]


def test_ranks_that_say_several_things_at_once(watch: Watch) -> None:
    """What one rank says in several records, the others say in the same order or any other: each is one fact."""
    run = watch(RAISED)
    for i, (rank, what) in enumerate([(0, "a"), (0, "b"), (1, "a"), (1, "b"), (3, "b"), (2, "a"), (2, "b"), (3, "a")]):
        run.log(i / 10, f"boom {what}", f"trainer.{rank}.log", rank=rank)
        run.restart()
    assert run.alerts == [(0, "boom", "info", "firing"), (0.1, "boom", "warning", "firing")]
    run.log(5, "boom a", "trainer.1.log", rank=1)
    run.log(5, "boom a", "trainer.2.log", rank=2)
    run.log(6, "boom b", "trainer.1.log", rank=1)
    assert run.alerts[2:] == [(6, "boom", "critical", "firing")]


def test_evidence_is_the_first_and_the_latest(watch: Watch) -> None:
    """Five records at most: the one it began with, and the last ones."""
    run = watch(RAISED.replace("persistent = 4", "persistent = 9"))
    for i in range(9):
        run.log(i, f"boom {i}")
    assert [evidence.text for evidence in run.last_alert.evidence] == [f"boom {i}" for i in (0, 5, 6, 7, 8)]


@pytest.mark.parametrize("letter", ["x", "ü", "💥"])
def test_a_record_of_evidence_has_two_kibibytes(watch: Watch, letter: str) -> None:
    """A long record is cut by its bytes, not its characters."""
    run = watch(ONCE)
    run.log(0, "boom " + letter * 100_000)
    (evidence,) = run.last_alert.evidence
    assert 1500 <= len(evidence.text.encode()) <= 2048


@pytest.mark.parametrize("letter", ["x", "💥", "\x00", "\ud800"], ids=["ascii", "wide", "nul", "surrogate"])
def test_rows_stay_small_whatever_a_run_says(watch: Watch, letter: str) -> None:
    """No label, path or message makes a row larger than 16 KiB."""
    rules = """
    [[rule]]
    name = "all"
    failure_mode = "all"
    summary = "{env} {agent} {rank} {node} {role} {pid} {source} {error} {process} {what} {more}"
    on = { log = { pattern = '(?s)boom(?P<what>.*)(?P<more>.*)' }, per = ["env", "rank", "source", "process"] }
    escalate = [{ severity = "critical", immediately = true }]

    [[rule]]
    name = "ended"
    failure_mode = "ended"
    summary = "{env} {error}"
    on = { rollout = { ok = false }, per = ["env", "agent", "error", "source"] }
    escalate = [{ severity = "critical", immediately = true }]

    [[rule]]
    name = "gone"
    failure_mode = "gone"
    summary = "{node}"
    on = { process = {}, per = ["node"] }
    escalate = [{ severity = "critical", immediately = true }]

    [[rule]]
    name = "blind"
    failure_mode = "blind"
    summary = "{source} {reason}"
    on = { blind = {}, per = ["source"] }
    escalate = [{ severity = "warning", for = "1s" }]
    """
    run, long = watch(rules), letter * 20_000
    for i in range(100):
        run.log(i, f"boom {i} {long}", f"env/{i}{long[:4000]}.log", process=long, rank=i)
        run.rollouts(i, bad=1, env=f"{i}{long}", agent=long, message=long)
        run.process(i, node=f"{i}{long}", pid=i)
        run.source(i, "blind", f"{i}{long}", reason=long)
    assert run.alerts
    assert {key: len(row) for key, row in run.rows.items() if len(row) > ROW_BYTES} == {}
    assert max(len(key.encode()) for key in run.rows) < 2048
    run.restart()
    run.tick(200)


def test_subjects_are_forgotten(watch: Watch) -> None:
    """What has not fired and of which nothing more is heard leaves no row."""
    rules = FAILING.replace("immediately = true", 'persistent = 2, within = "10m"')
    run = watch(rules)
    for i in range(50):
        run.rollouts(i, bad=1, env=f"env-{i}")
    assert len([key for key in run.rows if key.startswith("cell|")]) == 50
    run.tick(100_000)
    assert not [key for key in run.rows if key.startswith(("cell|", "evidence|"))]


def test_rows_are_capped(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Subjects beyond the cap are dropped and counted; what is known goes on, and each alert comes once."""
    monkeypatch.setattr(state, "KEYS", 200)
    run = watch(FAILING, ONCE)
    for i in range(1000):
        run.rollouts(i / 10, bad=2, env=f"env-{i}")
    assert len(run.rows) <= 200
    fired = [(one.rule, one.summary) for one in run.decisions if hasattr(one, "rule")]
    assert len(fired) == len(set(fired)) < 200
    left_out = run.engine._state.dropped["subjects"]
    assert left_out > 0
    run.restart()
    said = run.apply(Asked(time=at(199), what="checkin"))[-1].text
    assert f"Not kept, as there is no room for more, so far: {left_out} subjects" in said
    run.log(200, "boom a")
    assert run.alerts[-1] == (200, "boom", "critical", "firing")
    assert run.rows.keys() == run.engine._state.rows.keys()
    assert len(run.summary.incidents) == 1


def test_the_cap_is_a_hundred_thousand() -> None:
    """The number is part of the design."""
    assert state.KEYS == 100_000


def test_a_summary_names_what_it_can(watch: Watch) -> None:
    """A figure that is not known is a question mark, whatever its format."""
    run = watch(ONCE.replace("{component}: {what}", "{what:>4} {fraction:.0%} of {nothing}"))
    run.log(0, "boom a")
    assert run.last_alert.summary == "   a ? of ?"


@given(what=st.text(st.characters(), min_size=1))
@settings(max_examples=50)
def test_text_of_a_run_is_not_a_format(watch: Watch, what: str) -> None:
    """Braces and format words in a record come through as they are."""
    run = watch(FAILING)
    ended = {"offset": 0, "kind": "train", "step": 1, "env": "{env}", "ok": False, "source": "r"}
    run.rollouts(0)
    event = msgspec.convert(ended | {"type": "rollout", "time": "2026-08-19T12:00:01Z", "error": what}, Rollout)
    run.apply(event)
    assert run.last_alert.summary == "{env} fails with " + what[:200].encode(errors="replace").decode()


def test_a_rule_that_is_gone_is_forgotten(watch: Watch) -> None:
    """Rows of a rule that the book no longer has do no harm, and leave when their timer falls due."""
    run = watch(ONCE)
    run.log(0, "boom a")
    run.book = watch(FAILING).book
    run.restart()
    run.tick(10_000)
    assert not [row for _, row in run.engine._state.every(Cell)]
    assert isinstance(run.engine, Engine)


@pytest.mark.parametrize("ends", ["tick", "attempt"])
def test_an_incident_closes_without_the_rule_that_opened_it(watch: Watch, ends: str) -> None:
    """What fired when its rule was taken away ends where it would have: its incident does not stay open for ever."""
    run = watch(ONCE)
    run.attempt(0, 1)
    run.log(1, "boom a")
    run.book = watch(FAILING).book
    run.restart()
    (run.tick if ends == "tick" else lambda at_s: run.attempt(at_s, 2))(10_000 if ends == "tick" else 100)
    assert [state for _, _, state, _ in run.incidents] == ["open", "closed"]


def test_the_health_follows_what_fires(watch: Watch) -> None:
    """It is worse with the first alert and better with the end of the last one, each told once."""
    run = watch(ONCE)
    for at_s in (0, 10, 20):
        run.log(at_s, "boom a")
    run.log(30, "all is well")
    run.tick(10_000)
    assert [(at_s, health) for at_s, health, _ in run.healths] == [(0, "Degraded"), (320, "Healthy")]


STEPS = """
[[clock]]
name = "trained"
event = "metrics"
of = "trainer"
is_step = true

[[rule]]
name = "boom"
failure_mode = "boom"
summary = "{component}"
on = { log = { pattern = "boom" } }
escalate = [{ severity = "critical", immediately = true }]
clear = { steps = 3 }
"""


def test_what_the_trainer_has_got_over_resolves(watch: Watch) -> None:
    """Further steps show that it goes on; a hit among them counts anew, and a step that is told twice is one."""
    run = watch(STEPS)
    run.log(0, "boom")
    run.step(10, 1)
    run.step(20, 2)
    run.log(25, "boom")
    for at_s, number in ((30, 3), (40, 4), (41, 4)):
        run.step(at_s, number)
    run.restart()
    assert len(run.alerts) == 1
    run.step(50, 5)
    assert run.alerts == [(0, "boom", "critical", "firing"), (50, "boom", "critical", "resolved")]


def test_steps_of_the_trainer_say_nothing_of_another(watch: Watch) -> None:
    """An engine that failed stays so until the next launch, however far the trainer comes."""
    run = watch(STEPS)
    run.attempt(0, 1)
    run.log(1, "boom", source="inference.log")
    for number in range(1, 9):
        run.step(number * 10, number)
    assert len(run.alerts) == 1
    run.attempt(100, 2)
    assert run.alerts[-1] == (100, "boom", "critical", "resolved")


LAUNCHES = """
[[rule]]
name = "loop"
failure_mode = "loop"
component = "launcher"
summary = "{count} launches"
on = { attempt = {} }
escalate = [{ severity = "warning", persistent = 3, within = "1h" }]

[[rule]]
name = "boom"
failure_mode = "boom"
summary = "boom"
on = { log = { pattern = "boom" } }
escalate = [{ severity = "critical", immediately = true }]
clear = { attempt = true }
"""


def test_launches_are_counted_over_launches_and_each_has_its_own_incidents(watch: Watch) -> None:
    """What counts launches goes on, and is told with each anew: the crash of a later launch is its own incident."""
    run = watch(LAUNCHES)
    for number in range(1, 6):
        run.attempt(number * 600, number)
        run.restart()
        run.log(number * 600 + 60, "boom", attempt=number)
    loops = [(at_s, state) for at_s, rule, _, state in run.alerts if rule == "loop"]
    expected = [(1800, "firing"), (2400, "resolved"), (2400, "firing"), (3000, "resolved"), (3000, "firing")]
    assert loops == expected
    open_, *others = [one for one in run.summary.incidents if one.closed is None]
    assert (open_.failure_mode, others) == ("boom", [])
    assert len({one[1] for one in run.incidents}) == 5


def test_what_a_log_said_first_stays_the_error_while_it_fires(watch: Watch) -> None:
    """What follows a crash in its log is said of it, and not why; once it has resolved, another one counts."""
    run = watch(ONCE.replace('"{component}: {what}"', '"{what}: {error}"'))
    run.log(0, "boom a\nKeyError: 'x'")
    run.log(1, "boom b ; starting cleanup")
    run.tick(302)
    run.log(400, "boom c")
    assert [one.summary for one in run.decisions if isinstance(one, AlertChanged)] == [
        "a: KeyError: 'x'",
        "b: KeyError: 'x'",
        "c: boom c",
    ]
