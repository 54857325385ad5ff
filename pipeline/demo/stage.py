"""Where the demo happens: a directory and two programs, of which nothing is left afterwards."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from pipeline.demo.ending import let_through
from pipeline.simulator.actor import die_with
from pipeline.simulator.cast import PR_SET_CHILD_SUBREAPER
from pipeline.state_directory import LOCAL_BASE, network_filesystem, run_id

if TYPE_CHECKING:
    from collections.abc import Iterator

PREFIX = "runwatch-demo-"
KEPT_PREFIX = "runwatch-demo-kept-"
ENDS_S = 6.0
"""A program that was asked to end, and has not by then, is killed."""
ROUNDS = 20
"""Looks at what the programs have left behind."""

CONFIG = """\
# What the demo does otherwise than a real run: everything is told sooner, because a minute stands for hours.
rule_files = ["sooner.toml"]

[run]
timezone = "UTC"

[checkin]
every = "20s"
"""
SOONER = """\
[notify]
critical_wait = "3s"
group_wait = "5s"
group_interval = "10s"
repeat_interval = "4h"
most_per_hour = 10

# The built-in rule, with 15 seconds for its 5 minutes.
[[rule]]
name = "stall"
failure_mode = "stall"
component = "orchestrator"
summary = "nothing advances, and nothing says why: the {component} is stuck"
advice = "See which side waits: py-spy dump on the orchestrator and on trainer rank 0. A hang does not end by itself."
specificity = 5
health = "Down"
restart = true

[[rule.escalate]]
severity = "critical"
pace = { at_least = "15s", times = 3.0, percentile = 95, last = 20, warm_up = 3, otherwise = "1h" }

[rule.on.absence]
of = ["trained", "shipped", "rollout", "policy"]
blame = [
  { component = "inference", ahead = "policy", behind = "joined" },
  { component = "trainer", ahead = "shipped", behind = "trained" },
]
"""


class Stage:
    """The directory, and the programs started in it."""

    def __init__(self, root: Path) -> None:
        self.root, self.output = root, root / "outputs"
        self.output.mkdir()
        (self.output / "runwatch.toml").write_text(CONFIG, "utf-8")
        (self.output / "sooner.toml").write_text(SOONER, "utf-8")
        self._started: list[subprocess.Popen[bytes]] = []

    @property
    def run(self) -> Path | None:
        """The run directory, once there is one."""
        return next((path for path in self.output.iterdir() if path.is_dir() and path.name[0] != "."), None)

    @property
    def terminal(self) -> Path:
        """What the run's launcher prints."""
        return self.root / "launcher.txt"

    @property
    def log(self) -> Path:
        """What runwatch logs."""
        return self.root / "runwatch.log"

    def journal(self, run: Path) -> Path:
        """Return the journal of *run*, which need not be there yet."""
        return self.root / "state" / "runwatch" / run_id(run) / "journal.db"

    def start(self, out: Path, *arguments: str) -> subprocess.Popen[bytes]:
        """Start Python with *arguments*, in a process group of its own: a Ctrl-C is for the demo alone."""
        home = {"XDG_STATE_HOME": str(self.root / "state"), "XDG_CONFIG_HOME": str(self.root / "config")}
        # -P: a folder `rules` where the demo is called must not be taken for ours
        with out.open("wb") as file:
            program = subprocess.Popen(  # noqa: S603 - the program is ours
                [sys.executable, "-P", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=os.environ | home,
                process_group=0,
                preexec_fn=partial(_begin, os.getpid()),  # noqa: PLW1509 - there are no threads
            )
        self._started.append(program)
        return program

    def close(self) -> None:
        """End the programs, the last one first, and whatever they have started."""
        for program in reversed(self._started):
            program.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                program.wait(ENDS_S)
        own = psutil.Process()
        for _ in range(ROUNDS):
            left = own.children(recursive=True)
            if not left:
                return
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(left, timeout=0.5)


@contextmanager
def set_up(*, keep: bool) -> Iterator[Stage]:
    """
    Give a stage, and take everything away on the way out, or, with *keep*, everything but the files.

    Whatever loses its parent is adopted, so that it can be found and ended.

    Raises:
        OSError: There is no place for files.

    """
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    place = Path(tempfile.gettempdir())
    if network_filesystem(place):  # the state of a run does not lie on one, so it would be elsewhere
        place = LOCAL_BASE
    _remove_left_over(place)
    root = Path(tempfile.mkdtemp(prefix=KEPT_PREFIX if keep else f"{PREFIX}{os.getpid()}-", dir=place)).resolve()
    with _locked(root):
        try:
            stage = Stage(root)
            try:
                yield stage
            finally:
                stage.close()
        finally:
            if not keep:
                shutil.rmtree(root)


def _begin(parent: int) -> None:
    """Be a program of the demo, which dies with it, whatever ends that."""
    let_through()
    die_with(parent)


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    """Hold the directory, until the process ends: its id alone tells nothing to another container on the same disk."""
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _remove_left_over(place: Path) -> None:
    """Remove what demos have left that were killed."""
    for path in place.glob(f"{PREFIX}[0-9]*-*"):
        with contextlib.suppress(OSError):
            if _is_left_over(path):
                shutil.rmtree(path)


def _is_left_over(path: Path) -> bool:
    pid = path.name.removeprefix(PREFIX).partition("-")[0]
    if path.is_symlink() or path.stat().st_uid != os.geteuid() or not pid.isdecimal() or psutil.pid_exists(int(pid)):
        return False
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True
