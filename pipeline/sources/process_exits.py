"""The exits of processes, none of them our child: known at once, with their code where the kernel tells it."""

from __future__ import annotations

import fcntl
import os
import select
import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import anyio
import msgspec

from pipeline.sources.process_table import owner, read_stat

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pipeline.sources.process_table import Stat

PIDFDS = 256
"""The most descriptors held; beyond it, and on kernels without pidfds, the scan notices an exit."""
REAPED_WITHIN_S = 1.0
"""A process is a zombie until its parent has asked for its status: one that stays so longer is worth saying."""
RECHECK_S = 0.05

# struct pidfd_info of linux/pidfd.h, first version: mask, cgroup, eleven ids, exit status (kept since Linux 6.15)
INFO = struct.Struct("QQ11Ii")
INFO_EXIT = 1 << 3
PIDFD_GET_INFO = 3 << 30 | INFO.size << 16 | 0xFF << 8 | 11


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """A watched process died."""

    pid: int
    start: int | None
    """Its birth as in `Stat`, `None` where it is not known."""
    state: Literal["exited", "zombie"]
    """A zombie is dead too, and its parent does not care."""
    code: int | None
    """Negative for a signal; `None` where it cannot be known."""


def exit_code(pid: int, stat: Stat) -> int | None:
    """Return the exit code of a zombie; a status of 0 counts only where we may see others."""
    if stat.state != "Z":
        return None
    try:
        may_inspect = os.geteuid() in {0, owner(pid)}
        return os.waitstatus_to_exitcode(stat.status) if stat.status or may_inspect else None
    except ValueError:
        return None


class _Watched:
    """A process and its pidfd."""

    def __init__(self, pid: int, start: int, fd: int) -> None:
        self.pid = pid
        self.start = start
        self.fd = fd
        self.dead_since_s: float | None = None
        self._code: int | None = None

    def fate(self) -> Exit | None:
        """Return what became of it, `None` while its parent may still take notice."""
        assert self.dead_since_s is not None
        stat = read_stat(self.pid)
        if stat is None or stat.start != self.start or stat.state == "X":
            code = _kept_code(self.fd) if self._code is None else self._code
            return Exit(pid=self.pid, start=self.start, state="exited", code=code)
        self._code = exit_code(self.pid, stat)
        if anyio.current_time() < self.dead_since_s + REAPED_WITHIN_S:
            return None
        return Exit(pid=self.pid, start=self.start, state="zombie", code=self._code)


class ExitWatch:
    """Watches processes through an epoll object that holds a pidfd of each."""

    def __init__(self, epoll: select.epoll, limit: int = PIDFDS) -> None:
        self._epoll = epoll
        self._limit = limit
        self._watched: dict[tuple[int, int], _Watched] = {}

    def holds(self, pid: int, start: int) -> bool:
        """Say whether the exit of the process born at *start* will be noticed here."""
        return (pid, start) in self._watched

    def add(self, pid: int, start: int) -> None:
        """Watch the process born at *start*, if a descriptor is to be had."""
        if self.holds(pid, start) or len(self._watched) >= self._limit:
            return
        try:
            fd = os.pidfd_open(pid)
        except OSError:
            return
        if _is_born(pid, start):
            self._epoll.register(fd, select.EPOLLIN)
            self._watched[pid, start] = _Watched(pid, start, fd)
        else:  # the pid was used again before we held it
            os.close(fd)

    async def wait(self, timeout_s: float) -> list[Exit]:
        """
        Return the exits that are certain by now; at the latest after *timeout_s*, and then perhaps none.

        Raises:
            OSError: /proc cannot be read.

        """
        is_any_dying = any(watched.dead_since_s is not None for watched in self._watched.values())
        with anyio.move_on_after(min(timeout_s, RECHECK_S) if is_any_dying else timeout_s):
            await anyio.wait_readable(self._epoll)
        fired = {fd for fd, _ in self._epoll.poll(0)}
        for watched in self._watched.values():
            if watched.fd in fired:
                self._epoll.unregister(watched.fd)  # it would stay readable
                watched.dead_since_s = anyio.current_time()
        dying = [watched for watched in self._watched.values() if watched.dead_since_s is not None]
        exits = [(watched, fate) for watched in dying if (fate := watched.fate())]
        for watched, _ in exits:
            os.close(self._watched.pop((watched.pid, watched.start)).fd)
        return [fate for _, fate in exits]

    def close(self) -> None:
        """Let go of every process."""
        for watched in self._watched.values():
            os.close(watched.fd)
        self._watched.clear()


@contextmanager
def watch_exits(limit: int = PIDFDS) -> Iterator[ExitWatch]:
    """Open a watch over at most *limit* processes; close its descriptors on the way out."""
    with select.epoll() as epoll:
        watch = ExitWatch(epoll, limit)
        try:
            yield watch
        finally:
            watch.close()


def _is_born(pid: int, start: int) -> bool:
    try:
        stat = read_stat(pid)
    except OSError:
        return False
    return stat is not None and stat.start == start


def _kept_code(fd: int) -> int | None:
    """Return the exit code that new kernels keep for a pidfd after the process is gone."""
    answer = bytearray(INFO.pack(INFO_EXIT, *[0] * 13))
    try:
        fcntl.ioctl(fd, PIDFD_GET_INFO, answer)
        mask, *_, status = INFO.unpack(answer)
        return os.waitstatus_to_exitcode(status) if mask & INFO_EXIT else None
    except (OSError, ValueError):
        return None
