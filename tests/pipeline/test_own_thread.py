"""A thread of one's own: order, abandoned calls, an end that nothing holds up."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import anyio
import pytest

from pipeline.own_thread import Call, own_thread

ROOT = Path(__file__).parents[2]


async def test_results_and_errors_come_back() -> None:
    """A call's result is returned, its error raised, and the thread goes on."""
    async with own_thread("t") as thread:
        with pytest.raises(ZeroDivisionError):
            await thread.run(lambda: 1 // 0)
        assert await thread.run(lambda: threading.current_thread().name) == "t"


async def test_an_abandoned_call_is_not_made() -> None:
    """A call that nobody waits for any more is left out when its turn comes."""
    made: list[str] = []
    hung = threading.Event()
    async with own_thread("t") as thread:
        with anyio.move_on_after(0.05):
            await thread.run(hung.wait)
        with anyio.move_on_after(0.05):
            await thread.run(lambda: made.append("abandoned"))
        hung.set()
        await thread.run(lambda: made.append("wanted"))
    assert made == ["wanted"]


async def test_a_closed_thread_takes_no_calls() -> None:
    """A call after the end is refused; it would wait for ever."""
    async with own_thread("t") as thread:
        pass
    with pytest.raises(RuntimeError, match="closed"):
        await thread.run(int)


async def test_calls_at_hand_come_as_a_group() -> None:
    """Calls that wait together are performed together, in order, and the last one after them all."""
    groups: list[int] = []
    gate = threading.Event()

    def perform(calls: list[Call[None]]) -> None:
        gate.wait()
        groups.append(len(calls))
        for call in calls:
            call.settle(call.work())

    seen: list[int | str] = []
    async with own_thread("t", perform, lambda: seen.append("last")) as thread, anyio.create_task_group() as tasks:
        for number in range(100):
            tasks.start_soon(thread.run, lambda number=number: seen.append(number))
        await anyio.wait_all_tasks_blocked()
        gate.set()
    assert seen == [*range(100), "last"]
    assert max(groups) == 64


def test_a_hung_call_does_not_keep_the_program() -> None:
    """A program ends although a call in its thread never returns."""
    program = """
import anyio, threading
from pipeline.own_thread import own_thread
async def main():
    async with own_thread("t") as thread:
        with anyio.move_on_after(0.1):
            await thread.run(threading.Event().wait)
anyio.run(main)
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=10)
