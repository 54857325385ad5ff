"""What a replay says of simulated runs: the fault that was put in, and nothing of a run without one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pipeline.cli import main
from pipeline.simulator.disk import write_run
from pipeline.simulator.plan import Fault, Plan

EXAMPLE = Path(__file__).parents[3] / "example"


def replayed(folder: Path) -> dict[str, Any]:
    """Replay a run and return the summary."""
    arguments = ["replay", str(folder / "run"), "--recording", str(folder / "recording.jsonl"), "--timezone", "UTC"]
    result = CliRunner().invoke(main, [*arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    summary: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    assert summary["type"] == "summary"
    return summary


@pytest.mark.parametrize("seed", [1, 2])
def test_a_run_without_a_fault_is_healthy(tmp_path: Path, seed: int) -> None:
    """A run that finishes has no incident."""
    write_run(Plan(fault=Fault.NONE, seed=seed), tmp_path)
    summary = replayed(tmp_path)
    assert summary["incidents"] == []
    assert (summary["health"], summary["phase"], summary["step"]) == ("Healthy", "finished", 12)


def test_a_killed_env_worker_is_noticed(tmp_path: Path) -> None:
    """The only trace of the silent death is its process, and that is enough."""
    write_run(Plan(fault=Fault.ENV_WORKER_KILLED), tmp_path)
    (incident,) = replayed(tmp_path)["incidents"]
    assert (incident["failure_mode"], incident["severity"]) == ("env-worker-died", "warning")


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    ("fault", "modes", "health", "restart"),
    [
        (Fault.CUDA_OOM, {"cuda-oom"}, "Down", False),
        (Fault.HANG, {"stall", "nccl-hang"}, "Down", True),
        (Fault.ENV_ERRORS, {"rollout-error-spike", "env-sandbox-failed"}, "Degraded", False),
        (Fault.ENGINE_DEATH, {"engine-dead"}, "Down", True),
        (Fault.ONE_ENV_OF_THREE, {"env-exception"}, "Degraded", False),
        (Fault.ENTROPY_COLLAPSE, {"entropy-collapse"}, "Degraded", False),
        (Fault.DISK_FILLING, {"disk-full"}, "Degraded", False),
        (Fault.SECOND_ATTEMPT, {"cuda-oom"}, "Healthy", False),
    ],
)
def test_a_fault_is_one_incident(
    tmp_path: Path, *, fault: Fault, modes: set[str], health: str, restart: bool, seed: int
) -> None:
    """A fault is found, named, and not mixed up with what it takes along."""
    write_run(Plan(fault=fault, seed=seed), tmp_path)
    summary = replayed(tmp_path)
    (incident,) = summary["incidents"]
    assert incident["failure_mode"] in modes
    assert incident["severity"] == "critical"
    assert incident["proposes_restart"] is restart
    assert summary["health"] == health


def test_the_example_tells_its_date_in_a_checkout(tmp_path: Path) -> None:
    """The example's undated lines are dated although a checkout has lost when its files were modified."""
    folder = tmp_path / "example"
    shutil.copytree(EXAMPLE, folder, copy_function=shutil.copyfile, symlinks=True)
    (incident,) = replayed(folder)["incidents"]
    assert (incident["failure_mode"], incident["component"]) == ("cuda-oom", "trainer")
    assert incident["opened"].startswith("2026-08-19T12:08")
