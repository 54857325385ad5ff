"""What every source is, and what sources share: their clock, their state, and a thread for calls that may hang."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from datetime import UTC, datetime
from threading import Thread
from typing import Any, Protocol, TypeAlias, TypeVar

import anyio

from pipeline.events import Event, Seeing, SourceState
from pipeline.times import cut

Emit: TypeAlias = Callable[[Event], Awaitable[None]]
"""Takes an event, and makes the source wait while the stream is full."""

Answer = TypeVar("Answer")


class SourceError(Exception):
    """A source is in trouble and has to be started again; the message names the thing and what is wrong with it."""


class Source(Protocol):
    """Produces events."""

    @property
    def name(self) -> str:
        """What the source is called in messages."""
        ...

    async def run(self, emit: Emit) -> None:
        """
        Emit events until cancelled. May be called again after it has raised.

        Raises:
            SourceError: The source cannot go on.

        """
        ...


def now() -> datetime:
    """Return the current time as an event's time."""
    return cut(datetime.now(UTC))


class Sight:
    """What a source has said about what it sees, so that it says only what has changed."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._state: Seeing | None = None

    def change(self, state: Seeing, reason: str = "") -> list[SourceState]:
        """Return the event to emit: none while *state* is what it was."""
        if state == self._state:
            return []
        self._state = state
        return [SourceState(time=now(), name=self._name, state=state, reason=reason)]


class SideThread:
    """
    Makes calls that may hang, as on a dead network mount, beside the event loop.

    A call that misses its deadline is left behind, and until it has returned every further one fails at once: what
    hangs costs one thread. That thread is a daemon; anyio's workers are not, and would keep the program from ending.
    """

    def __init__(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self._pending: Future[Any] | None = None

    async def call(self, function: Callable[[], Answer]) -> Answer:
        """
        Return what *function* returns, or raise what it raises.

        Raises:
            TimeoutError: It did not return in time, or an earlier one still has not.

        """
        if self._pending is not None and not self._pending.done():
            msg = "an earlier call still hangs"
            raise TimeoutError(msg)
        answer: Future[Answer] = Future()
        answer.set_running_or_notify_cancel()  # from here on a cancelled wait leaves it alone
        Thread(target=_settle, args=(answer, function), name="runwatch side call", daemon=True).start()
        self._pending = answer
        with anyio.move_on_after(self._deadline_s):
            return await asyncio.wrap_future(answer)
        msg = f"no answer in {self._deadline_s:g} s"
        raise TimeoutError(msg)


def _settle(answer: Future[Answer], function: Callable[[], Answer]) -> None:
    """Put what *function* returns or raises into *answer*."""
    try:
        answer.set_result(function())
    except BaseException as error:  # noqa: BLE001  # it is raised again where the answer is awaited
        answer.set_exception(error)
