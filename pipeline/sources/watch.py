"""
Hints that something has changed in a run directory.

A hint saves the wait for the next sweep and nothing rests on it: of directories that
are made and filled at once some are lost, as is everything beyond the kernel's limits,
without a word (watchfiles issue 348). On network file systems there are none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
from watchfiles import awatch

from pipeline.sources.base import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_OURS = "STATUS.md"


async def hints(run_dir: Path, wake: Callable[[], None]) -> None:
    """
    Call *wake* when something has changed, but for our own check-ins; runs until cancelled.

    Raises:
        SourceError: The directory is gone or another one, or the kernel allows no more watches.

    """
    root = run_dir.resolve()  # noqa: ASYNC240 (on a local disk only)
    wrong = "the directory is not the one that was watched"
    stop = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_on_cancel, stop.set)
        try:
            await _watch(root, stop, wake)
        except (OSError, RuntimeError) as error:
            wrong = f"changes are not told: {error}"
        tasks.cancel_scope.cancel()
    await anyio.lowlevel.checkpoint()  # once cancelled we go no further
    message = f"{run_dir.name}: {wrong}"
    raise SourceError(message)


async def _watch(root: Path, stop: anyio.Event, wake: Callable[[], None]) -> None:
    """Call *wake* at changes for as long as *root* is the same directory."""
    watched = _identity(root)
    async for changes in awatch(
        root,
        watch_filter=None,
        debounce=100,
        step=40,
        stop_event=stop,
        rust_timeout=2000,
        yield_on_timeout=True,
        force_polling=False,
        ignore_permission_denied=True,
    ):
        if _identity(root) != watched:  # watchfiles says so once at most, and then nothing for ever
            return
        if any(path != str(root / _OURS) for _, path in changes):
            wake()


async def _on_cancel(stop: Callable[[], None]) -> None:
    """Call *stop* when cancelled: the thread that waits for changes looks for that alone, and is waited for."""
    try:
        await anyio.sleep_forever()
    finally:
        stop()


def _identity(root: Path) -> tuple[int, int]:
    stat = root.stat()
    return stat.st_dev, stat.st_ino
