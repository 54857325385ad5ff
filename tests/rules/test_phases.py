"""The phases of a run, by the lines that prime-rl writes in both eras, and what health makes of them."""

from __future__ import annotations

from typing import Any

import pytest

LOOP, TRAINER, ORCHESTRATOR = "Starting orchestrator loop (max_steps=8)", "trainer.log", "orchestrator.log"
LOGS = "logs/attempt_1"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"


def begin(run: Any, max_steps: int | None = 8) -> None:
    """Launch a run and let it train."""
    run.configured(max_steps=max_steps)
    run.attempt(0, 1)
    run.log(10, LOOP, f"{LOGS}/orchestrator.log")


def test_it_starts(run: Any) -> None:
    """The first event begins the run: starting, and healthy."""
    run.log(0, "Starting RL trainer in World(world_size=2)", f"{LOGS}/trainer.log")
    assert run.healths == [(0, "Healthy", "starting")]


def test_a_tick_is_no_begin(run: Any) -> None:
    """As long as only time passes there is nothing to say."""
    run.tick(0)
    run.tick(100_000)
    assert run.decisions == []
    assert not run.engine.has_begun


@pytest.mark.parametrize("how", ["loop", "trained", "shipped"])
def test_it_runs(run: Any, how: str) -> None:
    """The orchestrator's loop, a trained step, or a shipped batch: the run is running."""
    run.attempt(0, 1)
    if how == "loop":
        run.log(10, LOOP, f"{LOGS}/orchestrator.log")
    else:
        run.step(10, 1, "trainer" if how == "trained" else "orchestrator")
    assert run.healths[-1] == (10, "Healthy", "running")


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("orchestrator.log", "Shipped the final batch — draining pipeline (cancelled 3 in-flight train episode(s))"),
        ("orchestrator.log", "Draining pipeline (cancelled 3 in-flight rollouts)"),
        ("orchestrator.log", "Step 9 exceeds max_steps=8 — draining pipeline"),
        ("orchestrator.log", "Pipeline drained, exiting main loop"),
        ("trainer.log", "RL trainer finished!"),
        ("orchestrator.log", "Orchestrator finished."),
    ],
)
def test_it_finishes(run: Any, source: str, text: str) -> None:
    """The end game begins with the drain of the pipeline, in the words of either era, or with who is done first."""
    begin(run)
    run.log(20, text, f"{LOGS}/{source}")
    assert run.healths[-1] == (20, "Healthy", "finishing")


def test_the_last_step_is_the_end_game(run: Any) -> None:
    """The run finishes once the last step of its config is trained; an endless one does not."""
    begin(run)
    for number in range(1, 9):
        run.step(10 + number, number)
    assert run.healths[-1] == (18, "Healthy", "finishing")


def test_an_endless_run_has_no_last_step(run: Any) -> None:
    """Without a number of steps in the config, no step is the last."""
    begin(run, max_steps=None)
    run.step(100, 100_000)
    assert run.phase == "running"


@pytest.mark.parametrize("order", [("trainer", "orchestrator"), ("orchestrator", "trainer")], ids="-".join)
def test_it_finished_by_its_parts(run: Any, order: tuple[str, str]) -> None:
    """Trainer and orchestrator are done: the run is, whatever the launcher still does."""
    says = {"trainer": "RL trainer finished!", "orchestrator": "Orchestrator finished."}
    begin(run)
    for i, who in enumerate(order):
        run.log(20 + i, says[who], f"{LOGS}/{who}.log")
    assert run.healths[-2:] == [(20, "Healthy", "finishing"), (21, "Healthy", "finished")]


def test_it_finished_by_the_launcher(run: Any) -> None:
    """The launcher's own word ends the run; what still fired then is over, and the run is healthy."""
    begin(run)
    for i in range(6):
        run.log(20 + i * 10, "No available workers (all circuits open or unhealthy)", f"{LOGS}/inference.log")
    assert run.healths[-1][1] != "Healthy"
    run.host(100, "Training finished!")
    assert run.healths[-1] == (100, "Healthy", "finished")
    assert run.alerts[-1][3] == "resolved"
    assert run.incidents[-1][2] == "closed"


def test_nothing_follows_the_end(run: Any) -> None:
    """After a normal end the processes go, and nothing more is a failure."""
    begin(run)
    run.host(20, "Training finished!")
    said = len(run.decisions)
    run.process(21, "inference", exit_code=-15)
    run.process(22, "trainer", exit_code=0)
    run.log(23, "EngineDeadError", f"{LOGS}/inference.log")
    run.tick(500_000)
    assert len(run.decisions) == said


@pytest.mark.parametrize(
    "text",
    ["Error: Trainer failed with exit code 1", "Trainer failed with exit code -9", "Terminating all processes..."],
)
def test_it_failed_by_the_launcher(run: Any, text: str) -> None:
    """The launcher's verdict ends the run: failed, and down."""
    begin(run)
    run.host(20, text)
    assert run.healths[-1] == (20, "Down", "failed")


def test_it_failed_by_its_processes(run: Any) -> None:
    """Without a launcher's word the run has failed once trainer and orchestrator are both gone."""
    begin(run)
    run.process(11, "trainer", "running", pid=1)
    run.process(11, "trainer", "running", pid=2)
    run.process(11, "orchestrator", "running", pid=3)
    run.process(20, "trainer", pid=1)
    run.process(21, "orchestrator", pid=3)
    assert run.phase == "running"
    run.process(22, "trainer", pid=2)
    assert run.phase == "failed"


def test_teardown_adds_nothing(run: Any) -> None:
    """What dies after the launcher's verdict was torn down with the rest: no alert, no other root."""
    begin(run)
    run.log(20, OOM, f"{LOGS}/trainer.log", level="ERROR")
    run.host(30, "Error: Trainer failed with exit code 1")
    before = run.summary.incidents
    run.log(31, "EngineDeadError: EngineCore died", f"{LOGS}/inference.log", level="ERROR")
    run.process(32, "inference", exit_code=-6)
    run.process(33, "orchestrator", exit_code=1)
    run.log(34, "Received Signals.SIGTERM death signal", f"{LOGS}/trainer.log")
    run.tick(100_000)
    assert run.summary.incidents == before
    assert (run.phase, run.summary.health, before[0].failure_mode) == ("failed", "Down", "cuda-oom")


def test_late_evidence_revises_the_root(run: Any) -> None:
    """A record from before the failure that is read after it may still say what began it."""
    begin(run)
    run.log(20, "Fatal error in train", f"{LOGS}/trainer.log", level="ERROR")
    run.host(30, "Error: Trainer failed with exit code 1")
    assert run.incidents[-1][3] == "process-exited"
    run.log(19, OOM, f"{LOGS}/trainer/torchrun/none_0/attempt_0/1/stdout.log", level="ERROR")
    assert run.incidents[-1] == (30, "1", "open", "cuda-oom")
    run.log(31, OOM.replace("2.00", "4.00"), f"{LOGS}/inference.log", level="ERROR")
    assert len(run.summary.incidents) == 1
    assert run.summary.incidents[0].component == "trainer"


@pytest.mark.parametrize(
    ("origin", "text"),
    [
        ("launcher", "Received SIGTERM, terminating all processes..."),
        ("launcher", "Received interrupt signal, terminating all processes..."),
    ],
)
def test_it_was_stopped(run: Any, origin: str, text: str) -> None:
    """A person's signal stops the run, which keeps the health it had, and what follows is teardown."""
    begin(run)
    run.host(20, text, origin)
    run.process(21, "trainer", exit_code=-15)
    run.process(22, "orchestrator", exit_code=-15)
    run.host(30, "Terminating all processes...")
    run.tick(100_000)
    assert run.healths[-1] == (20, "Healthy", "stopped")
    assert run.summary.incidents == []


@pytest.mark.parametrize("after_s", [-5, 0, 59, 60])
def test_the_scheduler_stops_a_run(run: Any, after_s: float) -> None:
    """A signal with the scheduler's line within a minute is the scheduler's: failed, with its incident."""
    begin(run)
    signal = (100.0, "Received SIGTERM, terminating all processes...", "launcher")
    limit = "slurmstepd: error: *** JOB 7 ON node-0 CANCELLED AT 2026-08-19T14:00:00 DUE TO TIME LIMIT ***"
    for at_s, text, origin in sorted([signal, (100.0 + after_s, limit, "scheduler")]):
        run.host(at_s, text, origin)
    assert (run.phase, run.summary.health) == ("failed", "Down")
    (incident,) = run.summary.incidents
    assert (incident.failure_mode, incident.component) == ("slurm-time-limit", "scheduler")
    assert incident.proposes_restart


def test_a_scheduler_that_comes_later_was_not_it(run: Any) -> None:
    """More than a minute after a person's signal the scheduler's line changes nothing of the phase."""
    begin(run)
    run.host(100, "Received SIGTERM, terminating all processes...")
    run.host(161, "*** JOB 7 ON node-0 CANCELLED AT 2026-08-19T14:00:00 DUE TO PREEMPTION ***", "scheduler")
    assert run.phase == "stopped"


def test_a_signal_of_a_failing_run_is_part_of_the_failure(run: Any) -> None:
    """Whoever ends a run that is down already does not make it a stopped one."""
    begin(run)
    run.log(20, OOM, f"{LOGS}/trainer.log", level="ERROR")
    run.log(25, "Received Signals.SIGTERM death signal, shutting down", f"{LOGS}/trainer.log")
    assert run.phase == "failed"


def test_an_attempt_begins_anew(run: Any) -> None:
    """A new launch starts: alerts resolved, incidents closed, milestones and windows forgotten, the step kept."""
    begin(run)
    run.step(15, 5)
    run.log(20, OOM, f"{LOGS}/trainer.log", level="ERROR")
    run.log(21, "RL trainer finished!", f"{LOGS}/trainer.log")
    run.host(22, "Error: Trainer failed with exit code 1")
    run.attempt(1000, 2)
    assert run.healths[-1] == (1000, "Healthy", "starting")
    assert run.alerts[-1][3] == "resolved"
    assert run.incidents[-1][2] == "closed"
    assert run.summary.step == 5
    run.log(1010, LOOP, "logs/attempt_2/orchestrator.log", attempt=2)
    run.log(1020, "Orchestrator finished.", "logs/attempt_2/orchestrator.log", attempt=2)
    assert run.phase == "finishing"  # the first attempt's trainer does not count


def test_the_old_attempt_says_nothing_of_the_new(run: Any) -> None:
    """Records of the launch before neither begin phases nor alerts."""
    begin(run)
    run.attempt(100, 2)
    run.log(101, OOM, f"{LOGS}/trainer.log", level="ERROR", attempt=1)
    run.log(101, LOOP, f"{LOGS}/orchestrator.log", attempt=1)
    assert run.phase == "starting"
    assert run.summary.incidents == []


def test_the_same_attempt_is_not_a_new_one(run: Any) -> None:
    """An attempt that is told again changes nothing; one of the same number and another directory is new."""
    begin(run)
    run.attempt(100, 1)
    assert run.phase == "running"


def test_a_restart_by_the_run_itself_is_not_down(run: Any) -> None:
    """An env worker that dies degrades the run at most."""
    begin(run)
    run.process(20, "env_worker", exit_code=-9)
    assert run.healths[-1][1] in ("Healthy", "Degraded")


STOPPED = """
[[milestone]]
name = "asked"
pattern = "^asked to stop"

[[phase]]
name = "stopped"
from = ["starting"]
when = [["asked"]]
takes_back = { within = "2s", mode = ["died"] }

[[rule]]
name = "died"
failure_mode = "died"
summary = "died"
health = "Down"
restart = true
clear = { attempt = true }
on = { log = { pattern = "^died" } }
escalate = [{ severity = "critical", immediately = true }]
"""


def test_what_died_in_the_moment_of_a_stop_was_stopped(watch: Any) -> None:
    """Lines of one second have no order: it weighs nothing, proposes nothing, and the run is as it was."""
    run = watch(STOPPED)
    run.log(9, "died")
    run.restart()
    run.log(10, "asked to stop")
    (incident,) = run.summary.incidents
    assert (incident.severity, incident.proposes_restart, incident.closed is None) == ("info", False, False)
    assert run.healths[-1] == (10, "Healthy", "stopped")


def test_what_died_before_a_stop_failed(watch: Any) -> None:
    """Some seconds earlier it is what the stop was for."""
    run = watch(STOPPED)
    run.log(7, "died")
    run.log(10, "asked to stop")
    (incident,) = run.summary.incidents
    assert (incident.severity, incident.proposes_restart, incident.closed) == ("critical", True, None)
    assert run.healths[-1] == (10, "Down", "failed")


def test_what_a_stop_does_not_bring_about_is_not_taken_back(watch: Any) -> None:
    """Beside a failure of another kind, what died is a part of that."""
    run = watch(STOPPED, STOPPED.partition("[[rule]]")[2].replace("died", "burst").join(("[[rule]]", "")))
    run.log(9, "burst")
    run.log(9.5, "died")
    run.log(10, "asked to stop")
    (incident,) = run.summary.incidents
    assert (incident.severity, incident.closed) == ("critical", None)
    assert run.healths[-1] == (10, "Down", "failed")
