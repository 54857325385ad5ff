"""The two programs side by side: the simulated run, and the runwatch that watches it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.demo.ending import pause
from pipeline.demo.show import SETTLE_S
from pipeline.demo.sight import Sight

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from pipeline.demo.show import Show
    from pipeline.demo.stage import Stage
    from pipeline.demo.views import View

LOOK_S = 0.25
"""Seconds between two looks."""
LAUNCH_LOOK_S = 0.02
LAST_LINES = 15


class ProgramFailed(Exception):  # noqa: N818 - a fact of another program
    """One of the programs ended before its time; the message has its last lines."""


def play(show: Show, stage: Stage, view: View) -> Sight:
    """
    Let the run happen, have it watched, show both, and return what was seen.

    Raises:
        ProgramFailed: One of the programs ended too early.
        Interrupted: A signal asks for the end.
        OSError: What is shown can no longer be written.

    """
    simulator = stage.start(
        stage.terminal, "-m", "pipeline.simulator", str(stage.output), *show.options, "--hold", "--die-with-parent"
    )
    run = _launched(stage, simulator)
    sight = Sight(show=show, stage=stage)
    while not any(run.glob("logs/latest/*.log")):
        _wait(simulator, stage.terminal, LAUNCH_LOOK_S)
    # as a person would call it; it must be a sibling of the run, for it ignores what descends from itself
    service = stage.start(stage.log, "-c", "from pipeline.cli import main; main()", "run", str(run))
    while sight.after_s < show.lasts_s + SETTLE_S:
        sight.look(run)
        view.show(sight)
        _wait(simulator, stage.terminal, 0.0)
        _wait(service, stage.log, LOOK_S)
    return sight


def _launched(stage: Stage, simulator: subprocess.Popen[bytes]) -> Path:
    """Wait for the run's directory, which is made at its launch."""
    while (run := stage.run) is None:
        _wait(simulator, stage.terminal, LAUNCH_LOOK_S)
    return run


def _wait(program: subprocess.Popen[bytes], output: Path, seconds: float) -> None:
    """Wait, as long as the program runs."""
    pause(seconds)
    if program.poll() is not None:
        last = output.read_text("utf-8", "replace").splitlines()[-LAST_LINES:]
        message = f"{output.stem} ended early, with {program.returncode}; its last lines:"
        raise ProgramFailed("\n".join([message, *last]))
