"""What the kernel says of single processes, none of them our child: what they are, and at once when they exit."""

from __future__ import annotations

import fcntl
import os
import select
import struct
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Literal

import anyio
import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

PIDFDS = 256
"""The most descriptors held; beyond it, and on kernels without pidfds, the scan notices an exit."""
REAPED_WITHIN_S = 1.0
"""A process is a zombie until its parent has asked for its status: one that stays so longer is worth saying."""
RECHECK_S = 0.05
CMDLINE_BYTES = 16 * 1024
TITLE_CHARS = 100

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
GONE = (FileNotFoundError, ProcessLookupError, PermissionError)
"""What /proc answers about a process that is not there, or hidden; anything else is trouble of ours."""
STAT_FIELDS = 50
"""Those behind the name, since Linux 3.5."""

# struct pidfd_info of linux/pidfd.h, first version: mask, cgroup, eleven ids, exit status (kept since Linux 6.15)
INFO = struct.Struct("QQ11Ii")
INFO_EXIT = 1 << 3
PIDFD_GET_INFO = 3 << 30 | INFO.size << 16 | 0xFF << 8 | 11


class Stat(msgspec.Struct, frozen=True, kw_only=True):
    """What `/proc/<pid>/stat` says."""

    state: str
    """`Z` is a zombie."""
    ppid: int
    start: int
    """Clock ticks from boot to its birth: with the pid it names one process, whatever pids are used again."""
    rss_bytes: int
    status: int
    """As from `wait`; 0 unless it is dead and may be inspected by us."""


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """What /proc says of one process."""

    pid: int
    stat: Stat
    cmdline: list[str] = []
    outputs: list[str] = []
    """Where its standard output and standard error go."""
    stdin: str = ""
    denied_uid: int | None = None
    """Its user, where its descriptors may not be seen."""

    @property
    def title(self) -> str:
        """The name of its program without arguments: they may hold secrets."""
        return PurePath(self.cmdline[0]).name[:TITLE_CHARS] if self.cmdline else ""


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """A watched process died."""

    pid: int
    start: int | None
    """Its birth as in `Stat`, `None` where it is not known."""
    state: Literal["exited", "zombie"]
    """A zombie is dead too, and its parent does not care."""
    code: int | None
    """Negative for a signal; `None` where it cannot be known."""


def parse_stat(text: bytes) -> Stat:
    """
    Read the text of a stat file.

    Raises:
        ValueError: It is not one.

    """
    # the name stands in parentheses and may hold any character, parentheses too
    fields = text.rpartition(b")")[2].split()
    if len(fields) < STAT_FIELDS:
        msg = "not a stat file"
        raise ValueError(msg)
    return Stat(
        state=fields[0].decode("ascii", "replace"),
        ppid=int(fields[1]),
        start=int(fields[19]),
        rss_bytes=int(fields[21]) * PAGE_BYTES,
        status=int(fields[49]),
    )


def read_stat(pid: int) -> Stat | None:
    """
    Return what the kernel says of *pid*, `None` if it is gone or hidden from us.

    Raises:
        OSError: It cannot be read, as when no descriptor is left.

    """
    try:
        return parse_stat(Path(f"/proc/{pid}/stat").read_bytes())
    except (*GONE, ValueError):
        return None


def read_process(pid: int) -> Process | None:
    """
    Return what /proc says of *pid*, `None` if it is gone or hidden from us.

    Raises:
        OSError: It cannot be read, as when no descriptor is left.

    """
    stat = read_stat(pid)
    if stat is None:
        return None
    cmdline = _read_cmdline(pid)
    try:
        stdin, *outputs = [_link(pid, fd) for fd in range(3)]
        return Process(pid=pid, stat=stat, cmdline=cmdline, outputs=outputs, stdin=stdin)
    except PermissionError:
        return Process(pid=pid, stat=stat, cmdline=cmdline, denied_uid=_user(pid))


def _read_cmdline(pid: int) -> list[str]:
    """Return the arguments without the NULs that a title leaves behind it; none of a zombie or a kernel thread."""
    try:
        with Path(f"/proc/{pid}/cmdline").open("rb", buffering=0) as file:
            text = file.read(CMDLINE_BYTES)
    except GONE:
        return []
    stripped = text.rstrip(b"\0").decode("utf-8", "replace")
    return stripped.split("\0") if stripped else []


def _link(pid: int, fd: int) -> str:
    """
    Return what a descriptor points to, nothing if it is closed.

    Raises:
        PermissionError: We may not know.

    """
    try:
        return str(Path(f"/proc/{pid}/fd/{fd}").readlink())
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _user(pid: int) -> int | None:
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except GONE:
        return None


def exit_code(pid: int, stat: Stat) -> int | None:
    """Return the exit code of a zombie; a status of 0 counts only where we may see others."""
    if stat.state != "Z":
        return None
    try:
        may_inspect = os.geteuid() in {0, _user(pid)}
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
