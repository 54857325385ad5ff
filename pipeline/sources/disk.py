"""How full the run's file systems are."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import anyio

from pipeline.events import DiskSpace, SourceState
from pipeline.sources.base import Emit, SideThread, Sight, now

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

DEADLINE_S = 10.0
"""A `statvfs` of a network mount whose server is gone does not return."""


class DiskSource:
    """Reports the space of file systems, each in a task of its own: a mount that hangs delays no other."""

    def __init__(
        self, paths: Sequence[Path], node: str, interval_s: float = 60.0, deadline_s: float = DEADLINE_S
    ) -> None:
        self.name = "disk"
        self._node = node
        self._interval_s = interval_s
        self._threads = {path: SideThread(deadline_s) for path in paths}

    async def run(self, emit: Emit) -> None:
        """Emit the space of each path at once and then at each interval; raises nothing of its own."""
        async with anyio.create_task_group() as tasks:
            for path, thread in self._threads.items():
                tasks.start_soon(self._watch, path, thread, emit)

    async def _watch(self, path: Path, thread: SideThread, emit: Emit) -> None:
        sight = Sight(f"disk:{path}")
        seen = False
        while True:
            try:
                space = await thread.call(lambda: os.statvfs(path))
            except OSError as error:
                changes = _not_seen(sight, error, seen=seen)
            else:
                seen = True
                changes = sight.change("seeing")
                await emit(_disk_space(space, self._node, path))
            for change in changes:
                await emit(change)
            await anyio.sleep(self._interval_s)


def _disk_space(space: os.statvfs_result, node: str, path: Path) -> DiskSpace:
    return DiskSpace(
        time=now(),
        node=node,
        path=str(path),
        total_bytes=space.f_blocks * space.f_frsize,
        free_bytes=space.f_bavail * space.f_frsize,  # what a user may still write: root's reserve is not free
    )


def _not_seen(sight: Sight, error: OSError, *, seen: bool) -> list[SourceState]:
    """Say why there is no answer; a path that has never been there is absent, everything else is blindness."""
    if not seen and error.errno == errno.ENOENT:
        return sight.change("absent", "no such directory")
    return sight.change("blind", error.strerror or str(error))
