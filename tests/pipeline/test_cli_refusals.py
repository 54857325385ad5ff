"""What a person is told who calls the command line wrongly, or names what is no run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUN = ROOT / "example" / "run"
PROGRAM = [sys.executable, "-c", "from pipeline.cli import main; main(prog_name='runwatch')"]


def runwatch(*arguments: object, out: Path | None = None, state: Path | None = None) -> tuple[int, str]:
    """Run the program; return its exit status and its words on standard error."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | ({"XDG_STATE_HOME": str(state)} if state else {})
    with (out or Path(os.devnull)).open("w") as file:
        done = subprocess.run(
            [*PROGRAM, *map(str, arguments)],
            stdout=file,
            stderr=subprocess.PIPE,
            env=environment,
            text=True,
            check=False,
            timeout=60,
        )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sing"], "No such command 'sing'. See: runwatch --help\n"),
        (["why"], "Missing argument 'ID'. See: runwatch why --help\n"),
        (["replay", RUN, "--fail-on", "bad"], "Invalid value for '--fail-on': 'bad' is not one of"),
    ],
)
def test_a_wrong_call_is_said_in_one_line(arguments: list[object], said: str) -> None:
    """A person reads one line that ends with where to look."""
    status, errors = runwatch(*arguments)
    assert (status, errors.count("\n")) == (2, 1)
    assert errors.startswith(said)


def test_a_replay_of_what_is_no_run_is_not_healthy(tmp_path: Path) -> None:
    """A folder without a file of a run is refused; of a folder of runs, they are named."""
    assert runwatch("replay", tmp_path) == (2, f"{tmp_path}: not a run directory: it holds no file of a run\n")
    run = tmp_path / "run"
    (run / "logs" / "attempt_1").mkdir(parents=True)
    assert runwatch("replay", tmp_path) == (2, f"{tmp_path}: not a run directory; name one of them:\n{run}\n")
    assert runwatch("replay", run) == (0, "")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_replay_says_what_it_may_not_read(tmp_path: Path) -> None:
    """A log that is left out is named, because what it holds is not judged."""
    log = tmp_path / "logs" / "attempt_1" / "trainer.log"
    log.parent.mkdir(parents=True)
    log.touch(mode=0o000)
    assert runwatch("replay", tmp_path) == (0, f"{log}: may not be read, and is left out\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_full_disk_behind_the_output_is_said(form: list[str]) -> None:
    """What cannot be written is no fault of the program, and no traceback."""
    assert runwatch("replay", RUN, *form, out=Path("/dev/full")) == (
        1,
        "the output cannot be written: No space left on device\n",
    )


def test_a_state_directory_that_cannot_be_made_is_said_without_a_traceback(tmp_path: Path) -> None:
    """The last line says which, why, and what to set; early versions of Python 3.11 would wrap the exit in a group."""
    (tmp_path / "file").touch()
    (tmp_path / "run" / "logs" / "attempt_1").mkdir(parents=True)
    status, errors = runwatch("run", "--once", tmp_path / "run", state=tmp_path / "file")
    assert status == 1
    assert "set XDG_STATE_HOME" in errors.splitlines()[-1]
    assert "Traceback" not in errors
