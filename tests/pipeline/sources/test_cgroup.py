"""Kills for memory: real control groups and a real kill where that is allowed, and the files of both versions."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.events import HostLine
from pipeline.sources.cgroup import Cgroup, _count, _files
from tests.pipeline.sources.watch import Watch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

LIMIT_BYTES = 64 * 2**20
EATER = "import sys; sys.stdin.readline(); print(len(bytearray(b'x') * 2**30))"


@asynccontextmanager
async def watching(pids: Callable[[], Sequence[int]]) -> AsyncIterator[Watch]:
    """Run a source until the end of the block."""
    watch = Watch()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Cgroup("node-0", pids, interval_s=0.05).run, watch.emit)
        await watch.until(lambda: bool(watch.states()))
        yield watch
        tasks.cancel_scope.cancel()


@contextmanager
def small_group() -> Iterator[Path]:
    """Make a control group in our own that holds little memory; skip the test where we may not."""
    (counter, *_) = [*(file for file in _own_files() if file.exists()), None]
    if counter is None:
        pytest.skip("no memory control group here")
    group = counter.parent / f"test-{uuid4().hex}"
    limit = "memory.max" if counter.name == "memory.events" else "memory.limit_in_bytes"
    try:
        group.mkdir()
    except OSError:
        pytest.skip("no control group may be made here")
    try:
        try:
            (group / limit).write_text(str(LIMIT_BYTES))
        except OSError:
            pytest.skip("no control group may be limited here")
        yield group
    finally:
        group.rmdir()


def _own_files() -> Iterator[Path]:
    from pipeline.sources.cgroup import _mounts  # noqa: PLC0415 - of no use but here

    yield from _files(os.getpid(), _mounts())


@contextmanager
def eater(group: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process in *group* that takes more memory than that holds once it gets a line."""
    with subprocess.Popen([sys.executable, "-c", EATER], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        (group / "cgroup.procs").write_text(str(process.pid))
        try:
            yield process
        finally:
            process.kill()


def feed(process: subprocess.Popen[bytes]) -> None:
    """Let it take its memory, and wait for its end."""
    assert process.stdin
    with suppress(BrokenPipeError):
        process.stdin.write(b"\n")
        process.stdin.flush()
    assert process.wait(20) == -9


async def test_a_real_kill_for_memory_is_reported() -> None:
    """When the kernel kills a process for memory, the rise of its group's counter is emitted, once each time."""
    with small_group() as group:
        pids: list[int] = []
        with eater(group) as first:
            pids.append(first.pid)
            async with watching(lambda: pids) as watch:
                assert watch.states() == [("seeing", "")]
                assert watch.texts() == []
                await anyio.to_thread.run_sync(feed, first)
                pids.clear()  # the dead are in no group: the group is still watched
                await watch.until(lambda: len(watch.texts()) == 1)
                with eater(group) as second:
                    await anyio.to_thread.run_sync(feed, second)
                await watch.until(lambda: len(watch.texts()) == 2)
                await anyio.sleep(0.2)  # for a few looks
        assert watch.texts() == [
            f"oom_kill counter rose from 0 to 1 in {group} (oom_kill 1)",
            f"oom_kill counter rose from 1 to 2 in {group} (oom_kill 2)",
        ]
        assert {(event.node, event.origin) for event in watch.events if isinstance(event, HostLine)} == {
            ("node-0", "cgroup")
        }


async def test_without_a_group_that_can_be_read_it_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing counts, or no process is to be seen, the source is absent and lives on."""
    monkeypatch.setattr("pipeline.sources.cgroup._mounts", dict)
    async with watching(lambda: [os.getpid()]) as watch:
        await anyio.sleep(0.2)  # for a few looks
        assert watch.states() == [("absent", "no memory control group of this run can be read here")]
    monkeypatch.setattr("pipeline.sources.cgroup.GRACE_S", 0.1)
    async with watching(list) as watch:
        assert [state for state, _ in watch.states()] == ["absent"]


V2 = "low 0\nhigh 12\nmax 7\noom 3\noom_kill 2\noom_group_kill 1\n"
V1 = "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"


@pytest.mark.parametrize(
    ("text", "count"),
    [(V2, 2), (V1, 2), ("oom_kill_disable 0\nunder_oom 0\n", None), ("", None), ("oom_kill\n", None)],
)
def test_both_versions_count(tmp_path: Path, text: str, count: int | None) -> None:
    """The counter is found among the others; before Linux 4.13 there was none."""
    (tmp_path / "counts").write_text(text)
    assert _count(tmp_path / "counts") == count
    assert _count(tmp_path / "none") is None


def test_the_group_of_a_process_is_found_below_the_mount() -> None:
    """A process's group is looked for where its version is mounted, and a mount may show but a part of the tree."""
    own = dict(line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
    mounts = {"2": ("/", Path("/two")), "1": ("/", Path("/one"))}
    files = list(_files(os.getpid(), mounts))
    if "" in own:
        assert Path("/two", own[""].lstrip("/"), "memory.events") in files
    if "memory" in own:
        assert Path("/one", own["memory"].lstrip("/"), "memory.oom_control") in files
        inside = {"1": (own["memory"], Path("/one"))}
        assert list(_files(os.getpid(), inside)) == [Path("/one/memory.oom_control")]
    assert not list(_files(2**30, mounts))


@given(st.binary(max_size=100))
def test_no_file_breaks_the_reader(tmp_path_factory: pytest.TempPathFactory, text: bytes) -> None:
    """Whatever stands in a file, it is a count or none."""
    file = tmp_path_factory.getbasetemp() / "counts"
    file.write_bytes(text)
    assert (_count(file) or 0) >= 0
