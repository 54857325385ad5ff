"""
Hints that something has changed in a run directory.

A hint saves the wait for the next sweep and nothing rests on it: of directories that
are made and filled at once some are lost, as is everything beyond the kernel's limits,
without a word (watchfiles issue 348). On network file systems there are none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    try:
        watched = _identity(root)
        # a long time-out would be waited for after a cancel
        async for changes in awatch(
            root,
            watch_filter=None,
            debounce=100,
            step=20,
            rust_timeout=200,
            yield_on_timeout=True,
            force_polling=False,
            ignore_permission_denied=True,
        ):
            if _identity(root) != watched:  # watchfiles says so once at most, and then nothing for ever
                break
            if any(path != str(root / _OURS) for _, path in changes):
                wake()
    except (OSError, RuntimeError) as error:
        message = f"{run_dir.name}: changes are not told: {error}"
        raise SourceError(message) from error
    message = f"{run_dir.name}: the directory is not the one that was watched"
    raise SourceError(message)


def _identity(root: Path) -> tuple[int, int]:
    stat = root.stat()
    return stat.st_dev, stat.st_ino
