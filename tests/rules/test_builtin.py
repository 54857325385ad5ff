"""The rules that ship: they hang together, know the lines of failures, and are quiet about harmless ones."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from rules.rulebook import Rulebook

CONTRACTS = Path(__file__).parents[2].parent / "shared" / "contracts.md"
LOGS = "logs/attempt_1"
LOOP = "Starting orchestrator loop (max_steps=8)"
RANK = "trainer/torchrun/none_0/attempt_0/1/stderr.log"


def begin(run: Any) -> None:
    """Let the run train."""
    run.attempt(0, 1)
    run.log(1, LOOP, f"{LOGS}/orchestrator.log", level="INFO")


def modes(run: Any) -> list[str]:
    """Return the failure modes of what is wrong with the run."""
    return [incident.failure_mode for incident in run.summary.incidents]


def test_failure_modes_are_those_of_the_contract(builtin: Rulebook) -> None:
    """Each rule that tells, and each side of a cascade, names a failure mode that the contract knows."""
    if not CONTRACTS.is_file():
        pytest.skip("the contract is not beside the project")
    section = CONTRACTS.read_text("utf-8").split("## Failure modes")[1].split("\n## ")[0]
    known = set(re.findall(r"`([a-z0-9-]+)`", section))
    named = {rule.failure_mode for rule in builtin.rules.values() if not rule.silent}  # that nobody is told of
    named |= {mode for one in builtin.cascades for side in (one.cause, one.effect) for mode in side.mode}
    assert named - known == set()


def test_what_is_named_is_there(builtin: Rulebook) -> None:
    """Phases, stages and rules name milestones and clocks that exist; no two of them share a name."""
    names = [milestone.name for milestone in builtin.milestones] + [clock.name for clock in builtin.clocks]
    assert len(names) == len(set(names))
    asked = {name for phase in builtin.phases for names in phase.when for name in names}
    asked |= {name for stage in builtin.stages for name in [*stage.begins, *stage.ends]}
    asked |= {name for rule in builtin.by_trigger["absence"] if rule.on.absence for name in rule.on.absence.of}
    assert asked - set(names) == set()


def test_every_rule_says_what_to_do(builtin: Rulebook) -> None:
    """Summary and advice are there, each a line."""
    bad = [r.name for r in builtin.rules.values() if not r.summary or not r.advice or "\n" in r.summary + r.advice]
    assert bad == []


def test_no_cascade_explains_itself(builtin: Rulebook) -> None:
    """Two failure modes do not explain each other: neither would be the root of the other."""
    rules = builtin.rules.values()
    pairs = {(rule.failure_mode, rule.component) for rule in rules if rule.component}
    circles = [
        (one, other)
        for one in pairs
        for other in pairs
        if one < other and builtin.causes(one, other) and builtin.causes(other, one)  # type: ignore[arg-type]
    ]
    assert circles == []


@pytest.mark.parametrize(
    ("mode", "component", "restart", "file", "text"),
    [
        ("cuda-oom", "trainer", False, "trainer.log", "torch.OutOfMemoryError: CUDA out of memory."),
        ("cuda-oom", "inference", False, "inference.log", "torch.cuda.OutOfMemoryError: CUDA out of memory."),
        ("cuda-illegal-memory-access", "trainer", True, RANK, "CUDA error: an illegal memory access was encountered"),
        ("cuda-error", "trainer", True, RANK, "CUDA error: unspecified launch failure"),
        ("gpu-hardware", "trainer", False, RANK, "CUDA error: uncorrectable ECC error encountered"),
        ("nccl-timeout", "trainer", True, RANK, "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL"),
        ("engine-dead", "inference", True, "inference.log", "vllm.v1.engine.exceptions.EngineDeadError: an issue."),
        ("kv-cache-no-memory", "inference", False, "inference.log", "No available memory for the cache blocks."),
        ("disk-full", "storage", False, "trainer.log", "OSError: [Errno 28] No space left on device"),
        (
            "weight-broadcast-failed",
            "trainer",
            True,
            "trainer.log",
            "Broadcast of step 3: timed out after 60 seconds waiting for clients.",
        ),
        ("env-server-died", "env", False, "envs/train/math.log", "Env server failed"),
        ("process-exited", "orchestrator", False, "orchestrator.log", "Fatal error in run_orchestrator\nValueError: x"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else "",
)
def test_a_line_of_a_failure(run: Any, *, file: str, text: str, mode: str, component: str, restart: bool) -> None:
    """The line that a failure leaves names it, and says whose it is and whether the same command may get further."""
    begin(run)
    run.log(20, text, f"{LOGS}/{file}", level="ERROR")
    (incident,) = run.summary.incidents
    assert (incident.failure_mode, incident.component, incident.proposes_restart) == (mode, component, restart)


@pytest.mark.parametrize(
    ("file", "text", "level"),
    [
        ("orchestrator.log", "Rollout failed in group 7: RuntimeError: the model said CUDA out of memory", "WARNING"),
        ("envs/train/math.log", "program said: EngineDeadError, Xid 79, NCCL error", "INFO"),
        ("trainer.log", "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation", "INFO"),
        ("orchestrator.log", "Decreased concurrency 64 -> 48 (preemptions) - turnover=0.2 signal=hard", "INFO"),
        ("inference.log", "WARNING: destroy_process_group() was not called before program exit", None),
        ("orchestrator.log", "Cancelled 3 train episodes past max_off_policy_steps=8.", "WARNING"),
    ],
)
def test_a_harmless_line(run: Any, file: str, text: str, level: Any) -> None:
    """What only looks like a failure, or is what the model or its program says, is none."""
    begin(run)
    run.log(20, text, f"{LOGS}/{file}", level=level)
    assert modes(run) == []


@pytest.mark.parametrize("code", [1, 2, None, -4])
def test_a_trainer_that_is_gone(run: Any, code: int | None) -> None:
    """A required process that ends while the run goes on takes it down."""
    begin(run)
    run.process(20, "trainer", exit_code=code)
    assert modes(run) == ["process-exited"]
    assert run.healths[-1][1] == "Down"


@pytest.mark.parametrize(("code", "mode"), [(-6, "process-abort"), (-11, "segfault"), (-9, "process-exited")])
def test_a_trainer_that_died_of_a_signal(run: Any, code: int, mode: str) -> None:
    """The signal says more than that it is gone."""
    begin(run)
    run.process(20, "trainer", exit_code=code)
    assert modes(run) == [mode]


def test_the_cause_is_not_what_it_takes_along(run: Any) -> None:
    """One fault that kills rank, engine and launcher is one incident with the cause as its root."""
    begin(run)
    run.process(20, "trainer", exit_code=1)
    run.log(20.5, "RuntimeError: NCCL error: remote process exited", f"{LOGS}/trainer.log", level="ERROR")
    run.log(20, "torch.OutOfMemoryError: CUDA out of memory.", f"{LOGS}/{RANK}", level="ERROR")
    run.log(22, "Fatal error in train", f"{LOGS}/trainer.log", level="ERROR")
    run.host(30, "Error: Trainer failed with exit code 1")
    (incident,) = run.summary.incidents
    assert (incident.failure_mode, incident.component) == ("cuda-oom", "trainer")


def test_failing_rollouts(run: Any) -> None:
    """Half of the rollouts of one environment failing is critical; those of the other are its own."""
    begin(run)
    for minute in range(15):
        run.rollouts(60 + minute * 60, good=5, bad=5, env="math")
        run.rollouts(60 + minute * 60, good=10, env="code")
    (incident,) = run.summary.incidents
    assert (incident.failure_mode, incident.severity) == ("rollout-error-spike", "critical")
    assert "math" in run.last_alert.summary


def test_a_few_failing_rollouts_are_usual(run: Any) -> None:
    """One of ten fails in healthy runs as well."""
    begin(run)
    for minute in range(60):
        run.rollouts(60 + minute * 60, good=18, bad=2)
    assert modes(run) == []


@pytest.mark.parametrize(("metric", "mode"), [("loss/mean", "nan-loss"), ("optim/grad_norm", "nan-grad")])
def test_numbers_that_are_none(run: Any, metric: str, mode: str) -> None:
    """One step without a number is noted at most, told by console and file alike; two in a row are critical."""
    begin(run)
    for at_s in (10, 11):
        run.metric(at_s, 3, **{metric: float("nan")})
    assert {incident.severity for incident in run.summary.incidents} <= {"info"}
    run.metric(20, 4, **{metric: float("nan")})
    assert [(one.failure_mode, one.severity) for one in run.summary.incidents] == [(mode, "critical")]


def test_hostile_records_are_judged_in_time(run: Any) -> None:
    """A record of a megabyte of anything is looked at in no time, and raises nothing."""
    begin(run)
    for i, text in enumerate(["\x00" * 2**20, "(" * 2**20, "CUDA " * 200_000, "a" * 2**20, "\ud800" * 1000]):
        run.log(20 + i, text, f"{LOGS}/trainer.log", level="ERROR")
    assert modes(run) == []
