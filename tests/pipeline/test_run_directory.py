"""What is where in a run directory."""

from __future__ import annotations

import os
import shutil
import tarfile
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pipeline.run_directory import CONFIG_BYTES, NotARunDirectory, RunDirectory, candidates, is_run_directory

ARCHIVE = Path(__file__).parents[2].parent / "shared" / "golden.tar.gz"


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack what the real programs wrote."""
    if not ARCHIVE.exists():
        pytest.skip("the golden data is not beside the project")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(path := tmp_path_factory.mktemp("golden"), filter="data")
    return path / "golden"


def make(root: Path, *names: str, mtime_s: float | None = None) -> Path:
    """Make files below *root*, with all that leads to them."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"{}")
        if mtime_s is not None:
            os.utime(path, (mtime_s, mtime_s))
    return root


def link(path: Path, target: str) -> None:
    """Make a link, with all that leads to it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


@pytest.mark.parametrize("name", ["missing", "file", "file/below", "nul\0"])
def test_what_is_no_directory_is_refused(tmp_path: Path, name: str) -> None:
    """A path that leads nowhere or to a file is refused, by name."""
    make(tmp_path, "file")
    with pytest.raises(NotARunDirectory, match="not a run directory: "):
        RunDirectory(tmp_path / name)


def test_an_empty_directory_has_nothing(tmp_path: Path) -> None:
    """A run that has written nothing yet is no error."""
    run = RunDirectory(tmp_path)
    assert not any((run.attempts(), run.shared_logs(), run.rollout_files(), run.markers()))
    assert (run.latest(), run.config_files()) == (None, {})
    assert run.metrics_file() == tmp_path / "metrics.jsonl"
    assert run.name == tmp_path.name


def test_attempts_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    """Attempts are numbers, not names; only directories are attempts."""
    make(
        tmp_path, "logs/attempt_10/trainer.log", "logs/attempt_2/trainer.log", "logs/attempt_3", "logs/attempt_x/a.log"
    )
    assert [attempt.number for attempt in RunDirectory(tmp_path).attempts()] == [2, 10]


def test_latest_follows_the_link(tmp_path: Path) -> None:
    """The latest attempt is the one that the link names, and the highest while there is no such link."""
    make(tmp_path, "logs/attempt_1/trainer.log", "logs/attempt_2/trainer.log")
    run = RunDirectory(tmp_path)
    for target, number in (("attempt_1", 1), ("attempt_2", 2), ("attempt_9", 2), ("../..", 2)):
        (tmp_path / "logs" / "latest").unlink(missing_ok=True)
        link(tmp_path / "logs" / "latest", target)
        latest = run.latest()
        assert latest is not None
        assert latest.number == number
    (tmp_path / "logs" / "latest").unlink()
    latest = run.latest()
    assert latest is not None
    assert latest.number == 2


def test_an_attempt_that_comes_again_is_another(tmp_path: Path) -> None:
    """An attempt's identity stays while files are added, and changes when it is made anew."""
    run = RunDirectory(make(tmp_path, "logs/attempt_1/trainer.log"))
    (first,) = run.attempts()
    make(tmp_path, "logs/attempt_1/orchestrator.log")
    assert run.attempts() == [first]
    shutil.rmtree(tmp_path / "logs")
    make(tmp_path, "logs/attempt_1/trainer.log")
    if first.begun is None:
        pytest.skip("the file system does not tell when a directory was made")
    assert run.attempts()[0].identity != first.identity


def test_an_old_run_is_one_attempt(tmp_path: Path) -> None:
    """Logs of the old layout are those of one attempt, and of no other."""
    run = RunDirectory(make(tmp_path, "logs/trainer.log", "logs/envs/train/math.log", "job_7.log"))
    (attempt,) = run.attempts()
    assert attempt == run.latest()
    assert [(log.relative, log.attempt) for log in run.log_files(attempt)] == [
        ("logs/envs/train/math.log", 1),
        ("logs/trainer.log", 1),
    ]
    assert [(log.relative, log.attempt) for log in run.shared_logs()] == [("job_7.log", None)]


def test_links_are_not_followed(tmp_path: Path) -> None:
    """A log that is a link to another one is not listed twice, and nothing outside of the run is read."""
    make(
        tmp_path, "outside/secret.log", "run/logs/attempt_1/trainer/node_0.log", "run/logs/attempt_1/trainer/node_1.log"
    )
    logs = tmp_path / "run" / "logs" / "attempt_1"
    link(logs / "trainer.log", "trainer/node_0.log")
    link(logs / "other.log", str(tmp_path / "outside" / "secret.log"))
    link(logs / "elsewhere", str(tmp_path / "outside"))
    link(logs / "round", ".")
    link(logs / "broken.log", "nowhere.log")
    os.mkfifo(logs / "pipe.log")
    run = RunDirectory(tmp_path / "run")
    assert [log.relative for log in run.log_files(run.attempts()[0])] == [
        "logs/attempt_1/trainer/node_0.log",
        "logs/attempt_1/trainer/node_1.log",
    ]


def test_however_deep(tmp_path: Path) -> None:
    """Directories within each other, as many as a path has room for, are gone through."""
    make(tmp_path, "logs/attempt_1/trainer.log")
    folders = [tmp_path / f"logs/attempt_1{'/d' * depth}" for depth in range(1, 1501)]
    for folder in folders:
        folder.mkdir()
    deepest = folders[-1] / "env.log"
    deepest.touch()
    run = RunDirectory(tmp_path)
    logs = run.log_files(run.attempts()[0])
    deepest.unlink()
    for folder in reversed(folders):  # what tidies up after tests does so by recursion
        folder.rmdir()
    assert [log.path for log in logs] == [deepest, tmp_path / "logs/attempt_1/trainer.log"]


def test_logs_of_no_attempt(tmp_path: Path) -> None:
    """Logs of scheduler jobs and of a separate evaluation job belong to no attempt."""
    names = ["eval_job_8.log", "job_7.log", "logs/envs/eval/aime.log", "logs/evals.log", "logs/inference/node_0.log"]
    make(
        tmp_path,
        *names,
        "logs/attempt_1/trainer.log",
        "logs/inference_prev_17/node_0.log",
        "other.log",
        "wandb/debug.log",
    )
    link(tmp_path / "logs" / "inference.log", "inference/node_0.log")
    assert [(log.relative, log.attempt) for log in RunDirectory(tmp_path).shared_logs()] == [
        (name, None) for name in names
    ]


def test_rollout_files(tmp_path: Path) -> None:
    """Rollouts are listed by step, training before evaluation, each subset for itself."""
    make(
        tmp_path / "rollouts",
        "step_10/train/all/traces.jsonl",
        "step_9/train/all/traces.jsonl",
        "step_9/train/effective/traces.jsonl",
        "step_9/eval/all/traces.jsonl",
        "step_9/rank_0.bin",
        "step_x/train/all/traces.jsonl",
    )
    run = RunDirectory(tmp_path)
    assert [(file.step, file.kind) for file in run.rollout_files()] == [(9, "train"), (9, "eval"), (10, "train")]
    assert [file.step for file in run.rollout_files(since=10)] == [10]
    assert [file.relative for file in run.rollout_files("effective")] == [
        "rollouts/step_9/train/effective/traces.jsonl"
    ]


def test_markers(tmp_path: Path) -> None:
    """A marker says what appeared and when, in whole milliseconds."""
    at = 1787140000.0
    make(tmp_path, "broadcasts/step_3/STABLE", mtime_s=at + 0.1239)
    make(tmp_path, "broadcasts/step_3/NCCL_READY", mtime_s=at + 2)
    make(tmp_path, "checkpoints/step_2/orchestrator/progress.pt", mtime_s=at - 5)
    make(tmp_path, "checkpoints/step_2/trainer/.metadata", mtime_s=at + 1)
    make(tmp_path, "rollouts/step_4/rank_0.bin", "rollouts/step_4/rank_1.bin", mtime_s=at + 3)
    make(tmp_path, "rollouts/step_5/rank_0.bin.tmp", mtime_s=at + 4)
    make(tmp_path, "checkpoints/step_2/STABLE", "broadcasts/step_3/model.safetensors", "broadcasts/STABLE")
    markers = RunDirectory(tmp_path).markers()
    assert [(marker.kind, marker.number, marker.source) for marker in markers] == [
        ("checkpoint-orchestrator", 2, "checkpoints/step_2/orchestrator/progress.pt"),
        ("policy-published", 3, "broadcasts/step_3/STABLE"),
        ("checkpoint-trainer", 2, "checkpoints/step_2/trainer/.metadata"),
        ("policy-joined", 3, "broadcasts/step_3/NCCL_READY"),
        ("batch-sent", 4, "rollouts/step_4/rank_0.bin"),
    ]
    assert [marker.number for marker in RunDirectory(tmp_path).markers(since=3)] == [3, 3, 4]
    assert markers[1].time == datetime(2026, 8, 19, 11, 46, 40, 123000, UTC)
    for step in range(100, 150):
        make(tmp_path, f"rollouts/step_{step}/rank_0.bin")
    newest = [marker.number for marker in RunDirectory(tmp_path).markers() if marker.kind == "batch-sent"]
    assert newest == list(range(142, 150))


def test_configs(tmp_path: Path) -> None:
    """Configs are read whole, by their name below the folder; what is too large or no config is left out."""
    make(tmp_path, "configs/rl.json", "configs/envs/train/a.json", "configs/old.toml", "configs/notes.txt")
    (tmp_path / "configs" / "large.json").write_bytes(b" " * (CONFIG_BYTES + 1))
    link(tmp_path / "configs" / "link.json", "rl.json")
    assert sorted(RunDirectory(tmp_path).config_files()) == ["envs/train/a.json", "old.toml", "rl.json"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read_is_left_out(tmp_path: Path) -> None:
    """An entry that may not be looked into hides no other."""
    make(tmp_path, "configs/rl.json", "configs/secret.json", "rollouts/step_1/train/all/traces.jsonl")
    make(tmp_path, "rollouts/step_2/train/all/traces.jsonl")
    (tmp_path / "configs" / "secret.json").chmod(0)
    (tmp_path / "rollouts" / "step_1").chmod(0)
    run = RunDirectory(tmp_path)
    assert sorted(run.config_files()) == ["rl.json"]
    assert [file.step for file in run.rollout_files()] == [2]
    (tmp_path / "rollouts" / "step_1").chmod(0o700)


@pytest.mark.parametrize(
    "name",
    ["configs/rl.json", "configs/trainer.toml", "configs/sft.json", "logs/attempt_1/a.log", "logs/orchestrator.log"],
)
def test_what_looks_like_a_run(tmp_path: Path, name: str) -> None:
    """Configs, attempts or the logs of an old run make a directory a run."""
    assert not is_run_directory(tmp_path)
    assert not is_run_directory(tmp_path / name)
    assert is_run_directory(make(tmp_path, name))


def test_candidates(tmp_path: Path) -> None:
    """Of an output directory's runs the one that wrote last comes first, whatever was touched since."""
    make(tmp_path, "old/configs/rl.json", "old/metrics.jsonl", mtime_s=1000)
    make(tmp_path, "new/configs/rl.json", mtime_s=900)
    make(tmp_path, "new/logs/attempt_1/trainer.log", mtime_s=3000)
    make(tmp_path, "middle/configs/rl.json", mtime_s=2000)
    make(tmp_path, "none/file", "file", mtime_s=9000)
    make(tmp_path, "old/STATUS.md", mtime_s=9000)
    assert [path.name for path in candidates(tmp_path)] == ["new", "middle", "old"]
    assert candidates(tmp_path / "missing") == []


def test_nothing_is_written(tmp_path: Path) -> None:
    """Looking at a run leaves it as it was."""
    make(tmp_path, "logs/attempt_1/trainer.log", "configs/rl.json", "broadcasts/step_1/STABLE", mtime_s=1000)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    run = RunDirectory(tmp_path)
    run.log_files(run.attempts()[0])
    run.config_files()
    run.markers()
    candidates(tmp_path.parent)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.parametrize("era", ["trace-era", "episode-era"])
def test_golden_run(golden: Path, era: str) -> None:
    """In a real run everything is found."""
    path = golden / era / "run"
    run = RunDirectory(path)
    latest = run.latest()
    assert latest is not None
    assert (latest.number, [attempt.number for attempt in run.attempts()]) == (2, [1, 2])
    for attempt in run.attempts():
        logs = {log.relative for log in run.log_files(attempt)}
        assert logs == {str(log.relative_to(path)) for log in attempt.path.rglob("*.log")}
        assert f"logs/attempt_{attempt.number}/trainer.log" in logs
    markers = {(marker.kind, marker.number) for marker in run.markers()}
    assert {number for kind, number in markers if kind == "policy-published"} >= {0, 1, 2, 3, 4}
    assert {number for kind, number in markers if kind == "checkpoint-trainer"} == {2, 4, 6, 8}
    assert {file.step for file in run.rollout_files() if file.kind == "eval"} == {1, 4, 8}
    assert {"trainer.json", "orchestrator.json", "inference.json", "envs/train/reverse-text.json"} <= set(
        run.config_files()
    )
    assert path in candidates(golden / era)
