"""Generated failures: what is printed of them is well formed, and does not depend on what comes later."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, get_args

import pytest
from click.testing import CliRunner

from pipeline.alerts import HEALTHS, SEVERITIES, Component, Phase
from pipeline.cli import main

SCENARIOS = Path(__file__).parents[2].parent / "shared" / "scenarios"
SPREAD = [
    "004-trainer-nccl-ready-master-only",
    "013-trainer-childfailed-minus9",
    "017-trainer-ckpt-enospc-torch-save",
    "024-trainer-grad-norm-nan-all-steps",
    "030-inference-enginedead-cascade",
    "036-inference-cuda-oom-serving",
    "057-orch-step-zero-samples-abort",
    "069-env-server-dead-at-load",
    "081-host-cgroup-oom-kill",
    "083-slurm-time-limit",
    "084-slurm-preempt-requeue",
    "110-benign-router-exited-code-0-ctrl-c",
    "127-benign-model-text-contains-cuda-oom",
    "s04-launcher-killed",
    "s30-copied-run-loses-its-engines",
    "u07-second-attempt-crashes-identically",
]
STOPPED = ["030-inference-enginedead-cascade", "084-slurm-preempt-requeue", "u07-second-attempt-crashes-identically"]
FIELDS = {
    "alert": {
        "type", "time", "rule", "failure_mode", "component", "severity", "state", "incident", "summary", "evidence",
    },
    "incident": {
        "type", "time", "id", "state", "failure_mode", "component", "severity", "symptoms", "proposes_restart",
    },
    "health": {"type", "time", "health", "phase"},
    "summary": {"type", "time", "health", "phase", "step", "max_steps", "incidents"},
}  # fmt: skip
Line = dict[str, Any]
Made = Callable[[str], tuple[Path, str]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Generate the runs of scenarios, each once, and say their time zone."""
    folder, known = tmp_path_factory.mktemp("scenarios"), dict[str, tuple[Path, str]]()

    def make(name: str) -> tuple[Path, str]:
        scenario = SCENARIOS / "dev" / f"{name}.toml"
        if not scenario.is_file():
            pytest.skip(f"scenario {name} is not beside the project")
        if name not in known:
            program = [sys.executable, str(SCENARIOS / "make_run.py"), str(scenario), str(folder / name)]
            subprocess.run(program, check=True, capture_output=True)
            zone = tomllib.loads(scenario.read_text("utf-8")).get("run", {}).get("tz", "UTC")
            known[name] = folder / name, zone
        return known[name]

    return make


def replayed(run: Path, zone: str, recording: Path, until: str | None = None) -> list[Line]:
    """Return the lines that a replay prints."""
    arguments = ["replay", str(run), "--recording", str(recording), "--timezone", zone, "--json"]
    result = CliRunner().invoke(main, arguments + (["--until", until] if until else []), catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def time_of(line: Line) -> datetime:
    """Return the time of a line, which has to be in UTC and in milliseconds."""
    assert line["time"].endswith("Z")
    assert len(line["time"]) == len("2026-08-19T12:34:56.123Z")
    return datetime.fromisoformat(line["time"])


def assert_as_in_the_contract(lines: list[Line]) -> None:
    """Check each line's fields and words, and that incidents and summary agree."""
    assert [line["type"] for line in lines].index("summary") == len(lines) - 1
    assert [time_of(line) for line in lines] == sorted(time_of(line) for line in lines)
    assert lines[0]["type"] == "health"
    for line in lines:
        assert set(line) == FIELDS[line["type"]]
        assert line.get("severity", "info") in SEVERITIES
        assert line.get("component", "env") in get_args(Component)
        assert line.get("health", "Down") in HEALTHS
        assert line.get("phase", "failed") in get_args(Phase)
    for line in (one for one in lines if one["type"] == "alert"):
        assert line["state"] in ("firing", "resolved")
        assert 1 <= len(line["evidence"]) <= 5
        assert all(set(evidence) == {"source", "offset", "text"} for evidence in line["evidence"])
    last = {line["id"]: line for line in lines if line["type"] == "incident"}
    said = {one["id"]: one for one in lines[-1]["incidents"]}
    assert said.keys() == last.keys()
    for id_, incident in said.items():
        same = ("failure_mode", "component", "severity", "symptoms", "proposes_restart")
        assert [incident[key] for key in same] == [last[id_][key] for key in same]
        assert (incident["closed"] is None) == (last[id_]["state"] == "open")


@pytest.mark.parametrize("name", SPREAD)
def test_lines_are_as_in_the_contract(made: Made, name: str) -> None:
    """What a replay prints of any scenario has the form that other programs rely on."""
    folder, zone = made(name)
    assert_as_in_the_contract(replayed(folder / "run", zone, folder / "recording.jsonl"))


@pytest.mark.parametrize("share", [0.3, 0.7, 0.95])
@pytest.mark.parametrize("name", STOPPED)
def test_a_replay_up_to_a_time_is_the_beginning_of_the_whole(made: Made, name: str, share: float) -> None:
    """Stopped at a time, with a recording that ends there, a replay prints the beginning of the whole one."""
    folder, zone = made(name)
    whole = replayed(folder / "run", zone, folder / "recording.jsonl")
    begin, end = time_of(whole[0]), time_of(whole[-1])
    until = begin + timedelta(milliseconds=int((end - begin).total_seconds() * 1000 * share))
    recorded = (folder / "recording.jsonl").read_text("utf-8").splitlines(keepends=True)
    cut = folder / "recording-until.jsonl"
    cut.write_text("".join(line for line in recorded if time_of(json.loads(line)) <= until), "utf-8")
    part = replayed(folder / "run", zone, cut, until.isoformat())
    assert part[:-1] == [line for line in whole[:-1] if time_of(line) <= until]
    assert time_of(part[-1]) <= until
    assert_as_in_the_contract(part)
