"""
A process of a simulated run: it looks like one of prime-rl, starts its children, sleeps, and dies when it is told to.

Run as a script of its own, which needs nothing but the standard library and
setproctitle. Its part comes as JSON on standard input; times are those of the
clock. It dies with its parent, whatever ends that.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from typing import Any, NoReturn

from setproctitle import setproctitle

REAP_S = 1.0
"""A parent looks after its children this often, as prime-rl's launcher does; until then the dead are zombies."""
PR_SET_PDEATHSIG = 1

Part = dict[str, Any]


def die_with(parent: int) -> None:
    """Ask the kernel to kill this process when its parent dies; end it if that is so already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def perform(part: Part) -> NoReturn:
    """Be the process of *part* until its end."""
    _dress(part)
    parent = os.getppid()
    waiting = sorted(part["children"], key=lambda child: float(child["begins"]))
    alive: dict[int, Part] = {}
    reaps_at = time.time() + REAP_S
    while True:
        while waiting and waiting[0]["begins"] <= time.time():
            child = waiting.pop(0)
            alive[_start(child)] = child
        _end(alive)
        if time.time() >= reaps_at:
            _reap(alive)
            reaps_at = time.time() + REAP_S
        if (part["code"] >= 0 and part["ends"] <= time.time()) or os.getppid() != parent:
            os._exit(max(0, part["code"]))
        moments = [child["begins"] for child in waiting[:1]] + [child["ends"] for child in alive.values()]
        due = min([*moments, part["ends"] if part["code"] >= 0 else reaps_at, reaps_at])
        time.sleep(max(0.001, due - time.time()))


def _dress(part: Part) -> None:
    """Put on the title, and the files that output goes to."""
    if part["session"]:
        os.setsid()
    if part["title"]:
        setproctitle(part["title"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for descriptor, path in ((1, part["out"]), (2, part["err"])):
        if path:
            os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120 - pathlib is not worth its memory here
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), descriptor)


def _start(part: Part) -> int:
    """Fork a child, which becomes another program if it has no title to be known by; return its pid."""
    parent = os.getpid()
    told, tells = os.pipe()
    pid = os.fork()
    if pid == 0:
        die_with(parent)
        if not part["argv"]:
            perform(part)
        _dress({**part, "session": False})
        os.dup2(told, 0)
        # a spawned worker waits for what never comes: it holds both ends, or its parent's death would end the file
        os.set_inheritable(tells, not part["children"])
        os.execv(part["argv"][0], part["argv"])  # noqa: S606 - the program is ours
    os.close(told)
    if part["argv"] and part["children"]:
        os.write(tells, json.dumps({**part, "argv": None, "parent": parent}).encode())
    os.close(tells)
    return pid


def _end(alive: dict[int, Part]) -> None:
    """Send their signal to the children whose time has come; those with an exit code end by themselves."""
    for pid, child in alive.items():
        if child["ends"] <= time.time():
            child["ends"] = float("inf")
            if child["code"] < 0:
                os.kill(pid, -child["code"])


def _reap(alive: dict[int, Part]) -> None:
    for pid in [pid for pid, child in alive.items() if child["reaped"]]:
        if os.waitpid(pid, os.WNOHANG)[0]:
            del alive[pid]


def main() -> NoReturn:
    """Read the part and be it."""
    part = json.load(sys.stdin)
    die_with(part["parent"])
    perform(part)


if __name__ == "__main__":
    main()
