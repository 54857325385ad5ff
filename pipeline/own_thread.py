"""
A thread of one's own for calls that block: SQLite, files on a network, apprise.

`anyio.to_thread` and `ThreadPoolExecutor` share their threads and join them when
the process ends, so one hung call would delay its neighbours, or the end. These
threads are daemons: they delay nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from contextlib import asynccontextmanager
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import anyio

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator

T = TypeVar("T")

GROUP = 64
"""Calls performed together, at most."""
CLOSE_S = 2.0
"""How long closing waits for calls under way."""


class Call(Generic[T]):
    """One call for the thread, and the task that waits for its end."""

    def __init__(self, work: Callable[[], T]) -> None:
        self.work = work
        self.abandoned = False
        """Whether nobody waits any more."""
        self._loop = asyncio.get_running_loop()
        self._ended = anyio.Event()
        self._result: T
        self._error: Exception | None = None

    def settle(self, result: T) -> None:
        """Hand *result* to whoever waits. Called in the thread."""
        self._result = result
        self._wake()

    def fail(self, error: Exception) -> None:
        """Raise *error* in whoever waits. Called in the thread."""
        self._error = error
        self._wake()

    async def outcome(self) -> T:
        """Return the result, or raise what the call raised."""
        try:
            await self._ended.wait()
        finally:
            self.abandoned = not self._ended.is_set()
        if self._error is not None:
            raise self._error
        return self._result

    def _wake(self) -> None:
        # the loop may be closed by the time a hung call returns
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._ended.set)


def perform_each(calls: list[Call[Any]]) -> None:
    """Perform *calls* one by one, save those that nobody waits for any more."""
    for call in calls:
        if call.abandoned:
            continue
        try:
            result = call.work()
        except Exception as error:  # noqa: BLE001 - raised again where the call was made
            call.fail(error)
        else:
            call.settle(result)


class OwnThread:
    """A daemon thread that performs calls in the order in which they come."""

    def __init__(self, name: str, perform: Callable[[list[Call[Any]]], None], last: Callable[[], None] | None) -> None:
        self._perform = perform
        self._last = Call(last) if last else None
        self._waiting: SimpleQueue[Call[Any] | None] = SimpleQueue()
        self._closed = False
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def put(self, work: Callable[[], T]) -> Call[T]:
        """
        Take *work* into the queue; it stays there even if the caller is cancelled.

        Raises:
            RuntimeError: The thread has been closed.

        """
        if self._closed:
            message = "the thread is closed"
            raise RuntimeError(message)
        call = Call(work)
        self._waiting.put(call)
        return call

    async def run(self, work: Callable[[], T]) -> T:
        """Return what *work* returns, or raise what it raises. Cancelled, it no longer waits."""
        return await self.put(work).outcome()

    async def aclose(self) -> None:
        """Let the thread end; wait for the calls in the queue and the last one, briefly, if there is a last one."""
        self._closed = True
        self._waiting.put(None)
        if self._last:
            with anyio.move_on_after(CLOSE_S, shield=True):
                await self._last.outcome()

    def _run(self) -> None:
        while (first := self._waiting.get()) is not None:
            group = [first, *self._at_hand()]
            self._perform(group)
            # a call kept here would keep what it holds until the next one comes
            del first, group
        if self._last:
            perform_each([self._last])

    def _at_hand(self) -> Iterator[Call[Any]]:
        for _ in range(GROUP - 1):
            try:
                call = self._waiting.get_nowait()
            except Empty:
                return
            if call is None:
                self._waiting.put(None)
                return
            yield call


@asynccontextmanager
async def own_thread(
    name: str,
    perform: Callable[[list[Call[Any]]], None] = perform_each,
    last: Callable[[], None] | None = None,
) -> AsyncGenerator[OwnThread]:
    """
    Give a thread that performs calls in groups; end it on the way out.

    With a *last* call the way out waits for it, and for all before it; without one, for nothing.

    *perform* settles or fails every call of its group that is not abandoned, and raises nothing.
    """
    thread = OwnThread(name, perform, last)
    try:
        yield thread
    finally:
        await thread.aclose()
