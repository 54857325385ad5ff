"""What the kernel says of memory, GPUs, links and file servers, from now on; read-only, where it may be read."""

from __future__ import annotations

import os
import re
import subprocess
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
from anyio import BrokenResourceError, EndOfStream

from pipeline.events import HostLine
from pipeline.formats.lines import visible
from pipeline.sources.base import SideThread, Sight, SourceError, now

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator
    from typing import Protocol

    from pipeline.sources.base import Emit

    class Lines(Protocol):
        """Something that the kernel's lines can be read from."""

        async def more(self) -> list[str]:
            """Return the next lines, once there are any."""
            ...


KMSG = Path("/dev/kmsg")
RECORD_BYTES = 8192
"""The kernel's own limit of a record."""
RECORDS_AT_ONCE = 1000
LINE_CHARS = 1000
LINES = 200
"""Emitted in a period; further ones are counted."""
PERIOD_S = 60.0
ANSWER_S = 5.0
JOURNAL = ("journalctl", "--dmesg", "--output=short-unix", "--no-pager", "--quiet")

_WANTED = re.compile(
    r"\boom\b|oom[-_]|out of memory|page allocation|cannot allocate|"
    r"\bNVRM\b|\bS?Xid\b|nvidia-nvswitch|fallen off the bus|AER:|hardware error|\bmce:|uncorrect|"
    r"\bmlx[45]|infiniband|\bib\w*\d+ |async event|link (?:is |status )?(?:definitely )?down|lost carrier|"
    r"\bnfs|lustre|beegfs|\bgpfs|\bceph|libceph|\bweka|stale file handle|I/O error|"
    r"NETDEV WATCHDOG|blocked for more than|segfault|general protection|\btrap \w|kernel panic|soft lockup|hard lockup",
    re.IGNORECASE,
)
_ESCAPED = re.compile(rb"\\x([0-9a-fA-F]{2})")
_STAMPED = re.compile(r"\d+\.\d+ \S+ [^\s:]+: (.*)")


class KernelLog:
    """Follows the kernel's log, or, where only root may read that, the journal's copy of it."""

    name = "kernel-log"

    def __init__(self, node: str, device: Path = KMSG, is_here: Callable[[], bool] = lambda: True) -> None:
        """Lines count while *is_here* says that the run has processes on this host: others' are nothing to it."""
        self._node, self._device, self._is_here = node, device, is_here
        self._thread = SideThread(2 * ANSWER_S)
        self._sight = Sight(self.name)

    async def run(self, emit: Emit) -> None:
        """
        Emit each new line that concerns a run.

        Raises:
            SourceError: The log cannot be read on.

        """
        self._sight = Sight(
            self.name
        )  # after a failure it has to be said anew: there may be nothing else to say for days
        async with _open(self._device, self._thread) as lines:
            for change in self._sight.change("seeing") if lines else self._sight.change("absent", "it may not be read"):
                await emit(change)
            if lines is None:
                await anyio.sleep_forever()
            else:
                await self._follow(lines, emit)

    async def _follow(self, lines: Lines, emit: Emit) -> None:
        while True:
            period_ends_s, emitted, left_out = anyio.current_time() + PERIOD_S, 0, 0
            while (left_s := period_ends_s - anyio.current_time()) > 0:
                found: list[str] = []
                with anyio.move_on_after(left_s):
                    found = [line for line in await lines.more() if _concerns(line) and self._is_here()]
                for line in found[: LINES - emitted]:
                    await emit(self._line(line))
                left_out += len(found) - len(found[: LINES - emitted])
                emitted = min(emitted + len(found), LINES)
            if left_out:
                await emit(self._line(f"{left_out} more lines of the kernel in this minute"))

    def _line(self, text: str) -> HostLine:
        return HostLine(time=now(), node=self._node, origin="kernel", text=visible(text)[:LINE_CHARS])


def _concerns(line: str) -> bool:
    # indented is what belongs to a line before: the stack and the processes that the OOM killer chose from
    return not line.startswith((" ", "[ ")) and _WANTED.search(line) is not None


@asynccontextmanager
async def _open(device: Path, thread: SideThread) -> AsyncGenerator[Lines | None]:
    """Open the log at its end; `None` if neither it nor the journal's copy may be read."""
    try:
        fd = os.open(device, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        async with _open_journal(thread) as lines:
            yield lines
        return
    try:
        with suppress(OSError):  # a pipe in its place has no past
            os.lseek(fd, 0, os.SEEK_END)
        yield _Device(fd)
    finally:
        os.close(fd)


@asynccontextmanager
async def _open_journal(thread: SideThread) -> AsyncGenerator[Lines | None]:
    is_readable = False
    with suppress(OSError, subprocess.SubprocessError):
        is_readable = await thread.call(_has_journal)
    if not is_readable:
        yield None
        return
    async with await anyio.open_process([*JOURNAL, "--follow", "--lines=0"], stderr=subprocess.DEVNULL) as tail:
        yield _Journal(tail)


def _has_journal() -> bool:
    """Tell whether the journal shows us the kernel's lines: without the right to, it shows none, and says nothing."""
    command = [*JOURNAL, "--lines=1"]
    last = subprocess.run(  # noqa: S603 - fixed words
        command, stdin=subprocess.DEVNULL, capture_output=True, timeout=ANSWER_S, check=False
    )
    return last.returncode == 0 and _STAMPED.match(last.stdout.decode("utf-8", "replace")) is not None


class _Device:
    """The kernel's log itself."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    async def more(self) -> list[str]:
        """
        Return the next lines.

        Raises:
            SourceError: It cannot be read.

        """
        await anyio.wait_readable(self._fd)
        try:
            return [line for record in self._records() for line in _messages(record)]
        except OSError as error:
            msg = f"the kernel's log cannot be read: {error.strerror}"
            raise SourceError(msg) from error

    def _records(self) -> Iterator[bytes]:
        for _ in range(RECORDS_AT_ONCE):
            try:
                record = os.read(self._fd, RECORD_BYTES)
            except BlockingIOError:
                return
            except BrokenPipeError:  # records were overwritten before they were read
                continue
            if not record:
                msg = "the kernel's log has ended"
                raise SourceError(msg)
            yield record


def _messages(record: bytes) -> Iterator[str]:
    """Yield what the kernel itself says in a *record*; programs may write into its log too, under another facility."""
    for line in record.split(b"\n"):
        head, _, message = line.partition(b";")
        priority = head.partition(b",")[0]
        if priority.isdigit() and len(priority) < 5 and int(priority) >> 3 == 0:
            yield _ESCAPED.sub(lambda code: bytes([int(code[1], 16)]), message).decode("utf-8", "replace")


class _Journal:
    """The journal's copy of the kernel's log."""

    def __init__(self, tail: anyio.abc.Process) -> None:
        self._tail = tail
        self._half = b""

    async def more(self) -> list[str]:
        """
        Return the next lines.

        Raises:
            SourceError: It cannot be read.

        """
        assert self._tail.stdout is not None
        try:
            data = self._half + await self._tail.stdout.receive()
        except (EndOfStream, BrokenResourceError) as error:
            msg = "journalctl has ended"
            raise SourceError(msg) from error
        *lines, half = data.split(b"\n")
        self._half = half[:RECORD_BYTES]
        matches = (_STAMPED.match(line.decode("utf-8", "replace")) for line in lines)
        return [match[1] for match in matches if match]
