"""Which run to watch: the one that is named, or, of an output directory, the one that is alive."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from pipeline.run_directory import NotARunDirectory, candidates, is_run_directory


class Choice(msgspec.Struct, frozen=True):
    """The run directories that may be meant, the likeliest first, and why that one."""

    runs: list[Path]
    reason: str

    @property
    def ambiguous(self) -> bool:
        """Whether a person has to choose."""
        return len(self.runs) > 1


def choose(path: Path) -> Choice:
    """
    Return the run that *path* means.

    Raises:
        NotARunDirectory: There is none.

    """
    if is_run_directory(path):
        return Choice([path], "it is a run directory")
    found = candidates(path)
    if not found:
        reason = _unreadable(path) or "there are no logs/ or configs/ of a run in it or below"
        message = f"{path}: neither a run directory nor a directory of runs: {reason}"
        raise NotARunDirectory(message)
    alive = [run for run in found if is_alive(run)]
    if len(alive) == 1:
        return Choice(alive, "its processes are running")
    if alive:
        return Choice(alive, "the processes of several runs are running")
    return Choice(found[:1], "no run is alive here, and it was written to last")


def _unreadable(path: Path) -> str | None:
    """Return why nothing is to be seen at *path*; `None` if what is there can be listed."""
    try:
        with os.scandir(path):
            return None
    except OSError as error:
        return (error.strerror or str(error)).lower()


def is_alive(run: Path) -> bool:
    """Tell whether a process on this host writes into the logs of *run*."""
    logs = os.path.realpath(run) + "/logs/"
    return any(_writes(pid, logs) for pid in os.listdir("/proc") if pid.isdigit())  # noqa: PTH208 - names alone, fast


def _writes(pid: str, logs: str) -> bool:
    for descriptor in ("1", "2"):
        try:
            if os.readlink(f"/proc/{pid}/fd/{descriptor}").startswith(logs):  # noqa: PTH115
                return True
        except OSError:
            continue
    return False
