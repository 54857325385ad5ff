"""Sources that are started again when they fail: the only place that catches whatever a source raises."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import structlog

from pipeline.events import Event, SourceState
from pipeline.sources.base import SourceError, now

if TYPE_CHECKING:
    from pipeline.sources.base import Emit, Source

log = structlog.get_logger()

LONGEST_WAIT_S = 60.0
STEADY_S = 300.0
"""A source that has run for so long begins with the shortest wait again."""


async def supervise(source: Source, emit: Emit) -> None:
    """Run *source* until cancelled, again and again; say when it fails and when it is back."""
    wait_s, down = 1.0, False

    async def emitted(event: Event) -> None:
        nonlocal down
        if down:
            down = False
            if not (isinstance(event, SourceState) and event.name == source.name):  # else it says so itself
                await emit(SourceState(time=now(), name=source.name, state="seeing"))
        await emit(event)

    while True:
        started = anyio.current_time()
        try:
            await source.run(emitted)
            reason, failed = "it ended by itself", True
        except Exception as error:
            trouble = _trouble(error)
            reason, failed = str(trouble) if trouble else f"{type(error).__name__}", trouble is None
            if failed:
                log.exception("source.failed", source=source.name)
        down = True
        await emit(SourceState(time=now(), name=source.name, state="blind", reason=reason[:200], failed=failed))
        wait_s = 1.0 if anyio.current_time() - started > STEADY_S else wait_s
        log.warning("source.stopped", source=source.name, reason=reason, again_in_s=wait_s)
        await anyio.sleep(wait_s)
        wait_s = min(wait_s * 2, LONGEST_WAIT_S)


def _trouble(error: Exception) -> SourceError | None:
    """Return the one trouble of a source that *error* is, or holds; `None` if there is anything else in it."""
    if isinstance(error, SourceError):
        return error
    if isinstance(error, ExceptionGroup):
        found = [_trouble(inner) for inner in error.exceptions]
        return found[0] if found and all(found) else None
    return None
