"""Disk space, of real directories, a path that is not there and a mount that hangs."""

from __future__ import annotations

import math
import os
import threading
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

from pipeline.events import DiskSpace, Event, SourceState
from pipeline.sources.disk import DiskSource

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import pytest
    from anyio.streams.memory import MemoryObjectReceiveStream


@asynccontextmanager
async def watching(source: DiskSource) -> AsyncIterator[MemoryObjectReceiveStream[Event]]:
    """Run *source* for as long as the block lasts; its events come out of the stream."""
    send, receive = anyio.create_memory_object_stream[Event](math.inf)
    async with send, receive, anyio.create_task_group() as tasks:
        tasks.start_soon(source.run, send.send)
        with anyio.fail_after(10):
            yield receive
        tasks.cancel_scope.cancel()


async def test_reports_the_space_of_each_path(tmp_path: Path) -> None:
    """A file system's size and what a user may still write are reported at each interval, sight once."""
    async with watching(DiskSource([tmp_path], "node-0", interval_s=0.05)) as events:
        first = await events.receive()
        sight = await events.receive()
        second = await events.receive()
    assert isinstance(first, DiskSpace)
    assert isinstance(second, DiskSpace)
    assert (first.node, first.path) == ("node-0", str(tmp_path))
    assert 0 < first.free_bytes <= first.total_bytes
    assert sight == SourceState(time=sight.time, name=f"disk:{tmp_path}", state="seeing")


async def test_a_path_that_was_never_there_is_absent(tmp_path: Path) -> None:
    """A path that does not exist yet is absent; one that is there no more is not seen."""
    later = tmp_path / "later"
    async with watching(DiskSource([later], "node-0", interval_s=0.05)) as events:
        assert await next_state(events) == "absent"
        later.mkdir()
        assert await next_state(events) == "seeing"
        later.rmdir()
        assert await next_state(events) == "blind"


async def next_state(events: MemoryObjectReceiveStream[Event]) -> str:
    """Return what is next said about seeing."""
    while not isinstance(event := await events.receive(), SourceState):
        pass
    return event.state


async def test_a_mount_that_hangs_is_blindness_and_delays_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hanging call costs one thread, whatever the number of tries; the other path is reported on time."""
    hung, fine = tmp_path / "hung", tmp_path / "fine"
    fine.mkdir()
    release = threading.Event()
    threads = threading.active_count()
    statvfs = os.statvfs

    def hang(path: Path) -> os.statvfs_result:
        if path == hung:
            release.wait(30)
        return statvfs(path)

    monkeypatch.setattr(os, "statvfs", hang)
    source = DiskSource([hung, fine], "node-0", interval_s=0.05, deadline_s=0.1)
    seen: list[Event] = []
    began_at = time.monotonic()
    async with watching(source) as events:
        while time.monotonic() < began_at + 0.5:  # several deadlines
            seen.append(await events.receive())
        assert threading.active_count() <= threads + 2
    assert time.monotonic() - began_at < 2
    release.set()
    assert len([event for event in seen if isinstance(event, DiskSpace)]) >= 3
    states = {event.name: (event.state, event.reason) for event in seen if isinstance(event, SourceState)}
    assert states == {f"disk:{hung}": ("blind", "no answer in 0.1 s"), f"disk:{fine}": ("seeing", "")}
