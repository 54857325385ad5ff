"""Shares of what is not rollouts: of records that say how something ended, of processes of a kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rules.explain import Explainer
from rules.state import State

Watch = Callable[..., Any]

REQUESTS = """
[[rule]]
name = "requests"
failure_mode = "requests"
component = "inference"
summary = "{hits} of {total}: {fraction:.0%}"
clear = { fraction = 0.2, for = "1m" }
escalate = [{ severity = "warning", fraction = 0.5, over = "10m", at_least = 4 }]

[rule.on.log]
component = ["inference"]
pattern = "^answered 5"
among = "^answered [0-9]"
not = "health"
"""
WORKERS = """
[[rule]]
name = "workers"
failure_mode = "workers"
component = "env"
summary = "{hits} of {total}"
on = { process = { role = ["env_worker"], state = ["exited", "zombie"], not_exit_code = [0] }, per = ["node"] }
escalate = [{ severity = "critical", fraction = 0.5, of = "processes", over = "10m", at_least = 4 }]
"""


def answered(run: Any, at_s: float, *texts: str, **fields: Any) -> None:
    """Let the log of inference say each text."""
    for text in texts:
        run.log(at_s, text, source="inference.log", **fields)
        run.restart()


def workers(run: Any, at_s: float, state: str, *pids: int, **fields: Any) -> None:
    """Tell of env workers."""
    for pid in pids:
        run.process(at_s, "env_worker", state, pid=pid, **fields)
        run.restart()


def test_a_share_of_records(watch: Watch) -> None:
    """Those among which the hits are count with them; what `not` takes out, and other logs, do not."""
    run = watch(REQUESTS)
    answered(
        run, 0, "answered 200", "answered 200", "answered 500", "answered 500 health", "said", "answered 200 health"
    )
    run.log(1, "answered 500")  # the trainer's
    assert run.alerts == []
    answered(run, 2, "answered 503")
    assert run.alerts == [(2, "requests", "warning", "firing")]
    assert run.last_alert.summary == "2 of 4: 50%"
    answered(run, 3, *["answered 200"] * 7)
    run.tick(63)
    assert run.alerts[1:] == [(63, "requests", "warning", "resolved")]


def test_the_same_answer_of_two_processes_is_two(watch: Watch) -> None:
    """Elsewhere ranks that say the same are one fact; a share counts both, as it counts both good ones."""
    run = watch(REQUESTS)
    for process in ("APIServer", "APIServer_1"):
        answered(run, 0, "answered 200", "answered 500", process=process)
    assert run.alerts == [(0, "requests", "warning", "firing")]


def test_why_counts_them(watch: Watch) -> None:
    """Whoever asks is told of how many."""
    run = watch(REQUESTS)
    answered(run, 0, "answered 200", "answered 200", "answered 500")
    (subject,) = Explainer(State(run.rows), run.book).rule("requests")
    (condition,) = subject.conditions
    assert (subject.state, condition.hits, condition.total) == ("pending", 1, 3)
    assert condition.needs == "50% of the records over 10m, of at least 4"


def test_a_share_of_processes(watch: Watch) -> None:
    """Those of the node that still run are the others; a zombie that goes is one, and who ends well leaves."""
    run = watch(WORKERS)
    workers(run, 0, "running", 1, 2, 3, 4, 5)
    workers(run, 0, "running", 1, 2, 3, node="n1")
    workers(run, 0, "running", 1000)
    run.process(0, "env_server", "running", pid=9)
    workers(run, 10, "zombie", 1)
    workers(run, 20, "exited", 1, exit_code=-9)
    workers(run, 30, "exited", 1000, exit_code=0)
    workers(run, 40, "exited", 2, exit_code=-9)
    assert run.alerts == []
    (subject,) = (one for one in Explainer(State(run.rows), run.book).rule("workers") if one.labels["node"] == "n0")
    assert [(one.hits, one.total) for one in subject.conditions] == [(2, 5)]
    workers(run, 50, "exited", 3, exit_code=-9)
    assert run.alerts == [(50, "workers", "critical", "firing")]
    assert run.last_alert.summary == "3 of 5"


def test_too_few_processes_do_not_tell(watch: Watch) -> None:
    """`at_least` is of those that there are."""
    run = watch(WORKERS)
    workers(run, 0, "running", 1, 2, 3)
    workers(run, 10, "exited", 1, 2, 3, exit_code=-9)
    assert run.alerts == []


@settings(max_examples=150, deadline=None)
@given(
    moves=st.lists(
        st.tuples(st.integers(0, 400), st.sampled_from(["running", "zombie", "exited"]), st.integers(1, 6)), max_size=40
    )
)
def test_it_is_as_a_slow_one_says(watch: Watch, moves: list[tuple[int, str, int]]) -> None:
    """Whatever starts and ends: those that ended within ten minutes against them and all that run."""
    run, now = watch(WORKERS.replace("[[rule]]", "[[rule]]\nclear = { attempt = true }")), 0
    alive: dict[int, bool] = {}
    ended: list[int] = []
    expected: list[int] = []
    for after, state, pid in moves:
        now += after * 10  # whole buckets of the window
        was = alive.get(pid)
        if state != "running" and was is not False:
            ended.append(now)
            lately = sum(now - at < 600 for at in ended)
            others = sum(alive[one] for one in alive if one != pid)
            if not expected and lately >= 0.5 * (lately + others) and lately + others >= 4:
                expected.append(now)
        alive[pid] = state == "running"
        workers(run, now, state, pid)
    assert [at_s for at_s, *_ in run.alerts] == expected


def test_whose_code_is_known_late_is_one_as_well(watch: Watch) -> None:
    """A zombie of another user has no exit code yet; what goes with one counts then, and each process once."""
    crashed = WORKERS.replace("not_exit_code = [0]", "exit_code = [-11]")
    run = watch(crashed)
    workers(run, 0, "running", 1, 2, 3, 4)
    workers(run, 10, "zombie", 1, 2)
    assert run.alerts == []
    workers(run, 20, "exited", 1, 2, exit_code=-11)
    assert [(alert[0], run.last_alert.summary) for alert in run.alerts] == [(20, "2 of 4")]


def test_one_that_dies_is_one_hit(watch: Watch) -> None:
    """So it is without a share: a zombie that goes in the end is no second death, the next one with its number is."""
    twice = WORKERS.replace(
        'fraction = 0.5, of = "processes", over = "10m", at_least = 4', 'persistent = 2, within = "1h"'
    )
    run = watch(twice)
    workers(run, 0, "running", 1)
    workers(run, 10, "zombie", 1)
    workers(run, 20, "exited", 1, exit_code=-9)
    assert run.alerts == []
    workers(run, 30, "running", 1)
    workers(run, 40, "exited", 1, exit_code=-9)
    assert [alert[0] for alert in run.alerts] == [40]


def test_the_others_are_of_the_same_subject(watch: Watch) -> None:
    """Per role and without a component they are of that role, or of that component."""
    per_role = WORKERS.replace('role = ["env_worker"], ', "").replace('per = ["node"]', 'per = ["role"]')
    of_all = per_role.replace(', per = ["role"]', "")
    for rules in (per_role, per_role.replace('component = "env"', ""), of_all.replace('component = "env"', "")):
        run = watch(rules.replace("at_least = 4", "at_least = 2"))
        workers(run, 0, "running", *range(1, 9), node="n1")
        for pid in (11, 12):
            run.process(0, "trainer", "running", pid=pid)
        for pid in (11, 12):
            run.process(10, "trainer", "exited", pid=pid, exit_code=1)
        assert [alert[0] for alert in run.alerts] == [10], rules
        assert run.last_alert.summary == "1 of 2"
    whole = watch(of_all)
    workers(whole, 0, "running", *range(1, 9), node="n1")
    whole.process(10, "trainer", "exited", exit_code=1)
    (subject,) = Explainer(State(whole.rows), whole.book).rule("workers")
    assert [(one.hits, one.total) for one in subject.conditions] == [(1, 9)]


def test_a_share_of_processes_goes_on_after_the_last_death(watch: Watch) -> None:
    """With a bound of its own it clears as the deaths grow old; told to keep firing, so long after the last one."""
    for clear, resolved in (('clear = { fraction = 0.2, for = "1m" }', 720), ('keep_firing_for = "20m"', 1210)):
        run = watch(WORKERS.replace("[[rule]]", f"[[rule]]\n{clear}"))
        workers(run, 0, "running", 1, 2, 3, 4)
        workers(run, 10, "exited", 1, 2, exit_code=-9)
        for at_s in range(60, 1500, 60):
            workers(run, at_s, "running", 3, 4)
        assert run.alerts[-1][3] == "resolved"
        assert abs(run.alerts[-1][0] - resolved) <= 30


def test_what_is_quoted_is_in_no_share(watch: Watch) -> None:
    """Neither as a hit nor as one of the others."""
    run = watch(REQUESTS, '[[known]]\nwhy = "quoted"\npattern = "quoted"\nquoted = true')
    answered(run, 0, *["answered 500 quoted"] * 6, *["answered 500"] * 4)
    assert run.alerts == [(0, "requests", "warning", "firing")]
    assert run.last_alert.summary == "4 of 4: 100%"
