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
    run, now = watch(WORKERS), 0
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
