"""Which run is meant."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.choice import choose
from pipeline.run_directory import NotARunDirectory


def make_run(path: Path, written: float) -> Path:
    logs = path / "logs" / "attempt_1"
    logs.mkdir(parents=True)
    (logs / "trainer.log").touch()
    os.utime(logs / "trainer.log", (written, written))
    return path


def test_a_run_directory_is_itself(tmp_path: Path) -> None:
    """No guess is needed where a run is named."""
    run = make_run(tmp_path / "a", 1)
    assert choose(run).runs == [run]


def test_of_dead_runs_the_newest_is_taken(tmp_path: Path) -> None:
    """What was written to last is the likeliest."""
    make_run(tmp_path / "a", 2_000_000_000)
    make_run(tmp_path / "b", 1_000_000_000)
    assert [run.name for run in choose(tmp_path).runs] == ["a"]


def test_a_run_that_is_alive_comes_before_a_newer_one(tmp_path: Path) -> None:
    """A process that writes into its logs decides; two such runs are for a person to choose from."""
    make_run(tmp_path / "newer", 2_000_000_000)
    old = make_run(tmp_path / "old", 1_000_000_000)
    other = make_run(tmp_path / "other", 1_000_000_000)
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    with (old / "logs/attempt_1/trainer.log").open("ab") as log, subprocess.Popen(sleep, stdout=log) as process:
        assert choose(tmp_path).runs == [old]
        with (
            (other / "logs/attempt_1/trainer.log").open("ab") as second,
            subprocess.Popen(sleep, stdout=second) as both,
        ):
            choice = choose(tmp_path)
            both.kill()
        process.kill()
    assert choice.ambiguous
    assert set(choice.runs) == {old, other}


@pytest.mark.parametrize(("name", "reason"), [("none", "no such file"), ("file", "not a directory")])
def test_what_is_not_a_directory_is_refused(tmp_path: Path, name: str, reason: str) -> None:
    """The message says why nothing is to be seen, rather than what was not found in it."""
    (tmp_path / "file").touch()
    with pytest.raises(NotARunDirectory, match=f"neither a run directory nor a directory of runs: .*{reason}"):
        choose(tmp_path / name)


def test_a_directory_without_runs_is_refused(tmp_path: Path) -> None:
    """The message says what was looked for."""
    with pytest.raises(NotARunDirectory, match="neither a run directory nor a directory of runs"):
        choose(tmp_path)
