"""Real processes for the run's: who plays whom, and that none of them outlives the player."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from threading import Thread
from typing import TYPE_CHECKING, Any, Self

from pipeline.simulator import actor
from pipeline.simulator.timeline import SPAWNED_S

if TYPE_CHECKING:
    from pathlib import Path

    from pipeline.simulator.attempts import Attempt
    from pipeline.simulator.processes import Process

BEFORE_PARENT_S = 0.15
"""Who ends with its parent ends a little earlier, or it would be killed instead."""
AFTER_S = 2.0
PR_SET_CHILD_SUBREAPER = 36
NEVER = 1e18
"""JSON has no infinity."""
WORKER = "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=0, pipe_handle=0)"


class Cast:
    """The processes of a run. On the way out, or when the player dies, all of them are gone."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._launchers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        """Adopt whoever loses its parent, so that nobody stays behind as a zombie."""
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        return self

    def __exit__(self, *_: object) -> None:
        for launcher in self._launchers:
            launcher.kill()
            launcher.wait()
        give_up_at = time.monotonic() + AFTER_S
        while time.monotonic() < give_up_at:
            try:
                pid = os.waitpid(-1, os.WNOHANG)[0]
            except ChildProcessError:
                return
            if not pid:
                time.sleep(0.01)

    def launch(self, attempt: Attempt, run: Path) -> None:
        """Start the launcher of an attempt, which starts the others when their time comes."""
        part = _part(attempt, run, self._torchrun(), attempt.processes[0], NEVER)
        environment = os.environ | {"PRL_RUN_ID": attempt.plan.run_id, "PRL_RUN_NAME": attempt.plan.name}
        launcher = _started(environment)
        self._launchers.append(launcher)
        Thread(target=launcher.wait, name="launcher's shell", daemon=True).start()  # the dead are not to stay zombies
        if launcher.stdin:
            with launcher.stdin as told:
                told.write(json.dumps(part | {"parent": os.getpid()}).encode())

    def _torchrun(self) -> Path:
        """Return a program of that name: an untitled process is known by it alone."""
        program = self._out / ".programs/torchrun"
        if not program.is_symlink():
            program.parent.mkdir(parents=True, exist_ok=True)
            program.symlink_to(actor.__file__)
        return program


def _started(environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start an actor, which ignores Ctrl-C from birth: the player ends it, and no traceback is printed."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return subprocess.Popen([sys.executable, actor.__file__], stdin=subprocess.PIPE, env=environment)  # noqa: S603
    finally:
        signal.signal(signal.SIGINT, before)


def _part(attempt: Attempt, run: Path, torchrun: Path, process: Process, parent_ends: float) -> dict[str, Any]:
    """Return what the actor of *process* has to know, its children's parts included."""
    plan = attempt.plan
    ends = min(plan.epoch_s(process.ends_s), parent_ends - BEFORE_PARENT_S, NEVER)
    logs = run.absolute() / plan.logs
    children = [_part(attempt, run, torchrun, child, ends) for child in attempt.processes if child.ppid == process.pid]
    argv = _argv(process, torchrun)
    if process.role == "launcher":
        children += _tail(attempt, logs / "orchestrator.log", ends)
    return {
        "title": None if argv else process.title,
        "argv": argv,
        "out": str(logs / process.log) if process.log else None,
        "err": str(logs / (process.errors or process.log)) if process.log else None,
        "begins": plan.epoch_s(process.begins_s),
        "ends": ends,
        "code": -15 if process.exit_code is None else process.exit_code,
        "reaped": process.is_reaped,
        "session": process.role == "trainer",
        "children": children,
    }


def _argv(process: Process, torchrun: Path) -> list[str] | None:
    """Return the command line of a process without a title."""
    if process.role == "torchrun":
        return [
            sys.executable,
            str(torchrun),
            "--role=trainer",
            "--nproc-per-node=2",
            "-m",
            "prime_rl.trainer.rl.train",
        ]
    if process.role == "env_worker":
        return [sys.executable, "-c", WORKER, "--multiprocessing-fork"]
    return None


def _tail(attempt: Attempt, log: Path, launcher_ends: float) -> list[dict[str, Any]]:
    """Return the part of what shows a log on the launcher's terminal; ours is shown nowhere."""
    program = shutil.which("tail")
    if not program:
        return []
    return [
        {
            "title": None,
            "argv": [program, "-F", str(log)],
            "out": os.devnull,
            "err": os.devnull,
            "begins": attempt.plan.epoch_s(SPAWNED_S + 1),
            "ends": launcher_ends - BEFORE_PARENT_S,
            "code": -15,
            "reaped": True,
            "session": False,
            "children": [],
        }
    ]
