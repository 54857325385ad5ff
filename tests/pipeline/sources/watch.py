"""What the tests of sources have in common: they wait for what a source emits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from pipeline.events import Event, HostLine, SourceState

if TYPE_CHECKING:
    from collections.abc import Callable


class Watch:
    """What a source has emitted."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._news = anyio.Event()

    async def emit(self, event: Event) -> None:
        """Keep *event*."""
        self.events.append(event)
        self._news.set()
        self._news = anyio.Event()

    async def until(self, is_reached: Callable[[], bool], within_s: float = 20) -> None:
        """Return once *is_reached* holds."""
        with anyio.move_on_after(within_s):
            while not is_reached():
                await self._news.wait()
            return
        pytest.fail(f"not within {within_s:g} s; the last that was emitted: {self.events[-30:]}")

    def texts(self) -> list[str]:
        """Return the texts of the lines."""
        return [event.text for event in self.events if isinstance(event, HostLine)]

    def states(self) -> list[tuple[str, str]]:
        """Return what was said about seeing, and why."""
        return [(event.state, event.reason) for event in self.events if isinstance(event, SourceState)]
