"""Roles of a run's processes."""

from __future__ import annotations

import json
import tarfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pipeline.formats.titles import role

if TYPE_CHECKING:
    from pipeline.events import Role

ARCHIVE = Path(__file__).parents[3].parent / "shared" / "golden.tar.gz"
SPAWNED = ["/venv/bin/python", "-B", "-c", "from multiprocessing.spawn import spawn_main; spawn_main(pipe_handle=18)",
           "--multiprocessing-fork"]  # fmt: skip
TREES = [
    "proc/trace-era-live_launching",
    "proc/trace-era-live2",
    "proc/episode-era-live1",
    "proc/episode-era-live2",
    "scenarios/env-worker-sigkill/capture/proc_before",
    "scenarios/env-worker-sigkill/capture/proc_after",
]


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack what the real programs showed."""
    if not ARCHIVE.exists():
        pytest.skip("the golden data is not beside the project")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(path := tmp_path_factory.mktemp("golden"), filter="data")
    return path / "golden"


@pytest.mark.parametrize(
    ("title", "expected"),
    [
        ("PRIME-RL::Launcher", "launcher"),
        ("PRIME-RL::SFT", "launcher"),
        ("PRIME-RL::Trainer", "trainer"),
        ("PRIME-RL::SFTTrainer", "trainer"),
        ("PRIME-RL::Orchestrator", "orchestrator"),
        ("PRIME-RL::Inference", "inference"),
        ("PRIME-RL::EnvServer", "env_server"),
        ("PRIME-RL::Evaluator", "evaluator"),
        ("PRIME-RL::Evals", "evaluator"),
        ("Verifiers::EnvServer", "env_server"),
        ("Verifiers::EnvWorker0", "env_worker"),
        ("Verifiers::EnvWorker12", "env_worker"),
        ("VLLM::EngineCore", "inference"),
        ("VLLM::EngineCore_DP3", "inference"),
        ("VLLM::APIServer_1", "inference"),
        ("VLLM::DPCoordinator", "inference"),
        ("VLLM::Worker_TP0", "inference"),
        ("vllm::router", "inference"),
        ("runwatch my-run", None),
        ("PRIME-RL::Trainer of mine", None),
        ("PRIME-RL::Train", None),
    ],
)
def test_titles(title: str, expected: Role | None) -> None:
    """A title is a role, whole and with the NULs that setproctitle leaves behind it."""
    assert role([title], None) == expected
    assert role([title, "", "", ""], None) == expected


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("/venv/bin/python /venv/bin/orchestrator @ /runs/a/configs/orchestrator.json", "orchestrator"),
        ("python3.12 -u -m prime_rl.trainer.rl.train @ /runs/a/configs/trainer.json", "trainer"),
        ("python -u -m prime_rl.trainer.sft.train @ /runs/a/configs/sft.json", "trainer"),
        ("/venv/bin/python /venv/bin/torchrun --role=trainer -m prime_rl.trainer.rl.train @ t.json", "torchrun"),
        ("python -m torch.distributed.run -m prime_rl.trainer.rl.train", "torchrun"),
        ("/venv/bin/python -X dev /venv/bin/rl @ rl.toml", "launcher"),
        ("/venv/bin/inference @ /runs/a/configs/inference.json", "inference"),
        ("/venv/bin/python /venv/bin/env-server @ /runs/a/configs/envs/train/math.json", "env_server"),
        ("/venv/bin/python /venv/bin/vllm-router --port 8000", "inference"),
        ("uv run rl @ rl.toml", None),
        ("tail -F /runs/a/logs/attempt_1/orchestrator.log", None),
        ("/bin/sh -c tail_-F_orchestrator", None),
        ("vim PRIME-RL::Trainer", None),
        ("grep PRIME-RL::Trainer", None),
        ("python -c import_orchestrator orchestrator", None),
        ("python", None),
        ("python -u", None),
        ("bash", None),
    ],
)
def test_programs_before_they_have_a_title(command: str, expected: Role | None) -> None:
    """A process that has no title yet is known by the program it runs, never by its arguments."""
    assert role(command.split(), None) == expected


@pytest.mark.parametrize(
    ("parent", "expected"),
    [("env_server", "env_worker"), ("inference", "inference"), ("trainer", None), ("env_worker", None), (None, None)],
)
def test_spawned_children(parent: Role | None, expected: Role | None) -> None:
    """What multiprocessing spawns has no title: its parent says what it is."""
    assert role(SPAWNED, parent) == expected


def test_children_that_are_no_part_of_the_run() -> None:
    """Resource trackers, forked children and an environment's own programs have no role."""
    tracker = ["python", "-B", "-c", "from multiprocessing.resource_tracker import main;main(15)"]
    assert role(tracker, "env_server") is None
    assert role(["PRIME-RL::Trainer"], "trainer") is None
    assert role(["PRIME-RL::Trainer"], "torchrun") == "trainer"
    assert role(["/venv/bin/python", "/scripts/inference"], "env_worker") is None


@pytest.mark.parametrize("cmdline", [[], [""], ["", ""], ["\udcff"], ["\0"], ["-"], ["python", "-"], ["/"]])
def test_odd_command_lines(cmdline: list[str]) -> None:
    """A zombie has no command line, and no command line raises."""
    assert role(cmdline, "env_server") is None


@pytest.mark.parametrize("tree", TREES)
def test_golden_trees(golden: Path, tree: str) -> None:
    """In every real process tree each process has its role."""
    roles: dict[int, Role | None] = {}
    names: dict[int, str] = {}
    for line in (golden / tree / "proc.jsonl").read_text().splitlines():
        process = json.loads(line)
        fields = process["stat"].rpartition(")")[2].split()
        parent = int(fields[1]) if fields else 0
        roles[process["pid"]] = role(process["cmdline"].split("\0"), roles.get(parent))
        names[process["pid"]] = process["cmdline"].rstrip("\0")
    for pid, name in names.items():
        if name.startswith("PRIME-RL::") or "spawn_main(" in name or name == "vllm::router":
            assert roles[pid] is not None, name
    counts = Counter(found for found in roles.values() if found)
    shutting_down = tree == "proc/episode-era-live2"
    assert counts["launcher"] == 1
    assert counts["inference"] == 2
    assert counts["trainer"] == (0 if shutting_down else 2)
    assert counts["torchrun"] == counts["orchestrator"] == (0 if shutting_down else 1)
    assert counts["env_server"] == sum(name == "PRIME-RL::EnvServer" for name in names.values())
    assert counts["env_worker"] == sum("spawn_main(" in name for name in names.values())


def test_golden_titles(golden: Path) -> None:
    """Every title that the real libraries set is known."""
    found: Counter[Role | None] = Counter()
    for process in sorted((golden / "proc" / "titles").glob("[0-9]*")):
        cmdline = (process / "cmdline").read_bytes().decode().split("\0")
        zombie = (process / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
        assert (role(cmdline, None) is None) == zombie
        found[role(cmdline, None)] += 1
    assert (found["env_worker"], found["trainer"], found["evaluator"], found[None]) == (2, 2, 1, 1)
