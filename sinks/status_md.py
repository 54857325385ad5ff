"""
STATUS.md: check-ins appended to the file that a run's people and agents read.

It is the only file that runwatch writes into a run directory. It belongs to
people: nothing that stands in it is ever changed or removed.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from pipeline.alerts import CheckIn
from pipeline.own_thread import OwnThread, own_thread
from sinks.base import OutboxItem, Rejected, TryAgain

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

_NOTES = b"\n**Notes**:"
TAIL_BYTES = 256 * 1024
"""How far back an entry is looked for."""


class StatusFile:
    """Appends each check-in once to STATUS.md, in order."""

    timeout_s = 20.0
    ordered = True

    def __init__(self, run_dir: Path, thread: OwnThread) -> None:
        self._run_dir = run_dir
        self._thread = thread

    async def deliver(self, item: OutboxItem) -> None:
        """
        Return once the entry is on disk; do nothing if it is there already.

        Raises:
            TryAgain: The run directory is not there yet, or cannot be written.
            Rejected: STATUS.md is not a plain file, or *item* is not a check-in.

        """
        if not isinstance(item.content, CheckIn):
            reason = "STATUS.md takes check-ins only"
            raise Rejected(reason)
        text = item.content.text
        await self._thread.run(lambda: write_entry(self._run_dir, text))


@asynccontextmanager
async def status_file(run_dir: Path) -> AsyncGenerator[StatusFile]:
    """Open STATUS.md of *run_dir*, with the thread that waits for its file system."""
    async with own_thread("runwatch STATUS.md") as thread:
        yield StatusFile(run_dir, thread)


def write_entry(run_dir: Path, text: str) -> None:
    """
    Append *text* to STATUS.md of *run_dir*, unless it is there already, and make it durable.

    Raises:
        TryAgain: The run directory is not there yet, or cannot be written.
        Rejected: STATUS.md is not a plain file.

    """
    try:
        # a launcher refuses to start in a directory that already holds a foreign file
        if not (run_dir / "logs").is_dir():
            reason = "the run directory has no logs/ yet"
            raise TryAgain(reason)
        _append_once(run_dir / "STATUS.md", text.encode("utf-8", "replace"))
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.EISDIR}:
            reason = "STATUS.md is a link or a directory: not written"
            raise Rejected(reason) from error
        reason = f"STATUS.md cannot be written: {error.strerror}"
        raise TryAgain(reason) from error


def missing_part(tail: bytes, entry: bytes) -> bytes:
    """
    Return what is to be appended to a file that ends with *tail* so that it holds *entry*.

    Nothing if the entry is there; only its rest if the file ends with a torn
    beginning of it; else the entry after a blank line.
    """
    if _holds(tail, entry):
        return b""
    if torn := _torn_bytes(tail, entry):
        return entry[torn:]
    if not tail or tail.endswith(b"\n\n"):
        return entry
    return (b"\n" if tail.endswith(b"\n") else b"\n\n") + entry


def _holds(tail: bytes, entry: bytes) -> bool:
    """Tell whether *entry* is there, and not only as the beginning of one of the same minute that has notes."""
    at = tail.find(entry)
    while at >= 0:
        if (at == 0 or tail[at - 1] == ord("\n")) and not tail.startswith(_NOTES, at + len(entry)):
            return True
        at = tail.find(entry, at + 1)
    return False


def _torn_bytes(tail: bytes, entry: bytes) -> int:
    for length in range(min(len(entry) - 1, len(tail)), 0, -1):
        before = len(tail) - length
        if (before == 0 or tail[before - 1] == ord("\n")) and tail.endswith(entry[:length]):
            return length
    return 0


def _append_once(path: Path, entry: bytes) -> None:
    # O_NONBLOCK: opening a named pipe would hang
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o644)
    try:
        before = os.fstat(descriptor)
        if not stat.S_ISREG(before.st_mode):
            reason = "STATUS.md is not a plain file: not written"
            raise Rejected(reason)
        start = max(0, before.st_size - max(TAIL_BYTES, 2 * len(entry)))
        rest = missing_part(_read(descriptor, start), entry)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
        if before.st_size == 0:
            _sync_directory(path.parent)
        # an editor saves by putting a new file in place: what went into the old one is lost
        if not os.path.samestat(before, path.lstat()):
            reason = "STATUS.md was replaced while it was written"
            raise TryAgain(reason)
    finally:
        os.close(descriptor)


def _read(descriptor: int, start: int) -> bytes:
    parts = []
    while part := os.pread(descriptor, TAIL_BYTES, start):
        parts.append(part)
        start += len(part)
    return b"".join(parts)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
