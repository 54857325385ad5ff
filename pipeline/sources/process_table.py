"""The host's processes as /proc shows them, none of them our child."""

from __future__ import annotations

import os
import re
import time
from itertools import islice
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

SETTLED_S = 300.0
"""Younger processes are looked at in every scan: they set their titles after their imports."""
CMDLINE_BYTES = 16 * 1024
TITLE_CHARS = 100
LOG_FILES = 20_000
"""The most log files of a run whose identity is looked at."""

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
GONE = (FileNotFoundError, ProcessLookupError, PermissionError)
"""What /proc answers about a process that is not there, or hidden; anything else is trouble of ours."""
STAT_FIELDS = 50
"""Those behind the name, since Linux 3.5."""
_SWITCHES = re.compile(rb"^voluntary_ctxt_switches:\s*(\d+)", re.MULTILINE)


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
    switches: int | None = None
    """How often it has waited by now, where it is in a sleep that nothing can end: the same count is the same sleep."""

    @property
    def title(self) -> str:
        """The name of its program without arguments: they may hold secrets."""
        return PurePath(self.cmdline[0]).name[:TITLE_CHARS] if self.cmdline else ""


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
    found = Process(
        pid=pid, stat=stat, cmdline=_read_cmdline(pid), switches=_switches(pid) if stat.state == "D" else None
    )
    try:
        stdin, *outputs = [_link(pid, fd) for fd in range(3)]
        return msgspec.structs.replace(found, outputs=outputs, stdin=stdin)
    except PermissionError:
        return msgspec.structs.replace(found, denied_uid=owner(pid))


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


def _switches(pid: int) -> int | None:
    """Return how often a process has given up the processor to wait; `None` where that cannot be known."""
    try:
        found = _SWITCHES.search(Path(f"/proc/{pid}/status").read_bytes())
    except GONE:
        return None
    return int(found[1]) if found else None


def owner(pid: int) -> int | None:
    """Return the user of *pid*, `None` if it is gone or hidden from us."""
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except GONE:
        return None


class ProcessTable:
    """Every process of the host, read anew only where that can matter: most are old, and none of our business."""

    def __init__(self) -> None:
        self._processes: dict[int, Process] = {}
        self._look_at_s: dict[int, float] = {}

    def read(self, members: Iterable[int]) -> Mapping[int, Process]:
        """
        Return the processes, the *members* as they are now.

        Raises:
            OSError: There is no /proc.

        """
        pids = {int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()}
        for pid in self._processes.keys() - pids:
            del self._processes[pid], self._look_at_s[pid]
        uptime_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        watched = set(members)
        for pid in pids:
            if uptime_s >= self._look_at_s.get(pid, 0.0) or pid in watched:
                self._look(pid, uptime_s)
        return self._processes

    def _look(self, pid: int, uptime_s: float) -> None:
        old = self._processes.pop(pid, None)
        process = read_process(pid)
        if process is None:
            self._look_at_s.pop(pid, None)
            return
        if process.stat.state == "Z" and old is not None and old.stat.start == process.stat.start:
            process = msgspec.structs.replace(old, stat=process.stat)
        self._processes[pid] = process
        is_young = uptime_s < process.stat.start / TICKS_PER_S + SETTLED_S
        self._look_at_s[pid] = 0.0 if is_young else uptime_s + SETTLED_S


def ancestry(pid: int) -> list[int]:
    """
    Return *pid*, its parent and so on, as far as they can be seen.

    Raises:
        OSError: /proc cannot be read.

    """
    found: list[int] = []
    while pid not in found and (stat := read_stat(pid)) is not None:
        found.append(pid)
        pid = stat.ppid
    return found


def age_s(stat: Stat) -> float:
    """Return for how long a process has lived."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - stat.start / TICKS_PER_S


def writers(pids: Iterable[int], logs: Iterable[str]) -> set[int]:
    """
    Return which of *pids* write to a file below *logs*, whatever name they know it by.

    A container, or a second mount, has another path to the same file. It may hang, as the files do.
    """
    files = {identity for root in logs for identity in islice(_identities(root), LOG_FILES)}
    return {pid for pid in pids if files.intersection(_outputs(pid))}


def _identities(root: str) -> Iterator[tuple[int, int]]:
    """Yield device and inode of each file below *root*."""
    for folder, _, names in os.walk(root):
        for name in names:
            try:
                found = Path(folder, name).stat()
            except OSError:
                continue
            yield found.st_dev, found.st_ino


def _outputs(pid: int) -> Iterator[tuple[int, int]]:
    """Yield device and inode of where a process writes to."""
    for fd in (1, 2):
        try:
            found = Path(f"/proc/{pid}/fd/{fd}").stat()
        except OSError:
            continue
        yield found.st_dev, found.st_ino
