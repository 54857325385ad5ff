"""The kernel's log: the real one where it may be read, and a pipe or a program that bring its records."""

from __future__ import annotations

import fcntl
import os
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.events import HostLine
from pipeline.sources.base import SourceError
from pipeline.sources.kernel_log import KMSG, RECORD_BYTES, KernelLog, _messages
from tests.pipeline.sources.watch import Watch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

KILLED = "Out of memory: Killed process 4408 (PRIME-RL::Train) total-vm:912331284kB, anon-rss:401222112kB"
WANTED = [
    KILLED,
    "Memory cgroup out of memory: Killed process 71 (python3) total-vm:11892kB, anon-rss:4292kB",
    "python3 invoked oom-killer: gfp_mask=0x140cca(GFP_HIGHUSER_MOVABLE|__GFP_COMP), order=0, oom_score_adj=0",
    "oom_reaper: reaped process 71 (python3), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB",
    "NVRM: Xid (PCI:0000:3b:00): 79, pid=4408, name=python, GPU has fallen off the bus.",
    "NVRM: GPU at PCI:0000:3b:00: GPU-5a1e",
    "mlx5_core 0000:0c:00.0: mlx5_cmd_out_err:838: ACCESS_REG(0x805) op_mod(0x0) failed",
    "ib0: link down",
    "bond0: (slave eth1): link status definitely down, disabling slave",
    "nfs: server filer not responding, still trying",
    "LustreError: 11-0: scratch-OST0001: operation ost_read failed with -107",
    "python3: page allocation stalls for 10032ms, order:0, mode:0x14200ca(GFP_HIGHUSER_MOVABLE)",
    "python[4408]: segfault at 7f0000000010 ip 00007f5d3a error 4 in libtorch_cuda.so[7f5d00000000+3a000000]",
    "traps: python[4408] general protection fault ip:7f5d3a sp:7ffc12 error:0",
    "INFO: task python:4408 blocked for more than 120 seconds.",
    "mce: [Hardware Error]: Machine check events logged",
]
UNWANTED = [
    "usb 1-1: new high-speed USB device number 4",
    "audit: type=1400 audit(1.1:2): apparmor",
    "thermal: room temperature",
    " oom_kill_process.cold+0x8/0x8a",
    "[  pid  ]   uid  tgid total_vm      rss rss_anon rss_file rss_shmem pgtables_bytes swapents oom_score_adj name",
]


@asynccontextmanager
async def watching(device: Path, is_here: Callable[[], bool] = lambda: True) -> AsyncIterator[Watch]:
    """Run a source until the end of the block."""
    watch = Watch()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(KernelLog("node-0", device, is_here).run, watch.emit)
        await watch.until(lambda: bool(watch.states()))
        yield watch
        tasks.cancel_scope.cancel()


@contextmanager
def device() -> Iterator[tuple[Path, int]]:
    """Open a pipe: its path, and the end that is written to; as of the device, a read brings what one write put in."""
    reading, writing = os.pipe2(os.O_DIRECT)
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 2**20)
    try:
        yield Path(f"/proc/self/fd/{reading}"), writing
    finally:
        os.close(reading)
        os.close(writing)


def record(text: str, priority: int = 4) -> bytes:
    """Return a record as the device brings it."""
    return f"{priority},1234,9120412002,-;{text}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n".encode()


@pytest.mark.skipif(not os.access(KMSG, os.R_OK), reason="the kernel's log may not be read here")
async def test_the_real_log_is_read_from_now_on() -> None:
    """Where the device may be opened it is followed, and of what it already holds nothing is emitted."""
    try:
        os.close(os.open(KMSG, os.O_RDONLY | os.O_NONBLOCK))
    except OSError:
        pytest.skip("the kernel's log may not be read here")
    async with watching(KMSG) as watch:
        await anyio.sleep(0.2)  # for what is in it already
        assert watch.states() == [("seeing", "")]
        assert watch.texts() == []


@pytest.mark.skipif(not os.access(KMSG, os.R_OK), reason="the kernel's log may not be read here")
def test_the_real_records_are_understood() -> None:
    """Each record of the real device that the kernel itself wrote has one message."""
    try:
        fd = os.open(KMSG, os.O_RDONLY | os.O_NONBLOCK)
        found = os.read(fd, RECORD_BYTES)
        os.close(fd)
    except OSError:
        pytest.skip("the kernel's log may not be read here")
    priority, _, rest = found.partition(b",")
    assert len(list(_messages(found))) == (int(priority) < 8)
    assert rest


async def test_only_what_concerns_a_run_comes_through() -> None:
    """Memory, GPUs, links, file servers and crashes are emitted as the kernel words them, the rest is not."""
    with device() as (path, fd):
        async with watching(path) as watch:
            for text in [*UNWANTED, *WANTED]:
                os.write(fd, record(text))
            await watch.until(lambda: len(watch.texts()) >= len(WANTED))
        assert watch.texts() == WANTED
        (event,) = (event for event in watch.events if isinstance(event, HostLine) and event.text == KILLED)
        assert (event.node, event.origin) == ("node-0", "kernel")


async def test_of_a_run_that_is_not_here_nothing_is_said() -> None:
    """On a login node others' processes are killed and others' GPUs fail: that concerns no run elsewhere."""
    here: list[bool] = []
    with device() as (path, fd):
        async with watching(path, lambda: bool(here)) as watch:
            os.write(fd, record("Out of memory: Killed process 7 (other)"))
            await anyio.sleep(0.3)
            here.append(True)
            os.write(fd, record(KILLED))
            await watch.until(lambda: bool(watch.texts()))
        assert watch.texts() == [KILLED]


async def test_what_programs_write_into_the_log_is_not_the_kernels() -> None:
    """A message under another facility than the kernel's is no evidence, whatever it says."""
    with device() as (path, fd):
        async with watching(path) as watch:
            os.write(fd, record(KILLED, priority=12))
            os.write(fd, record("NVRM: Xid (PCI:0000:3b:00): 31, pid=1"))
            await watch.until(lambda: bool(watch.texts()))
        assert watch.texts() == ["NVRM: Xid (PCI:0000:3b:00): 31, pid=1"]


async def test_a_flood_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more lines than a period allows the number is emitted at its end, and the next period is open again."""
    monkeypatch.setattr("pipeline.sources.kernel_log.PERIOD_S", 0.5)
    with device() as (path, fd):
        async with watching(path) as watch:
            for number in range(250):
                os.write(fd, record(f"nfs: server filer{number} not responding"))
            await watch.until(lambda: len(watch.texts()) == 201)
            os.write(fd, record(KILLED))
            await watch.until(lambda: len(watch.texts()) == 202)
        assert watch.texts()[200:] == ["50 more lines of the kernel in this minute", KILLED]


async def test_bytes_that_are_no_text_do_no_harm() -> None:
    """Escapes are undone, control characters dropped, and a long line is cut."""
    with device() as (path, fd):
        async with watching(path) as watch:
            os.write(
                fd, b"4,1,1,-;segfault \\x1b[31m\\xc3\\xa9\\xff\n\0\xff;\n,;;\n4,1,1,-;segfault " + b"x" * 2000 + b"\n"
            )
            await watch.until(lambda: len(watch.texts()) == 2)
        assert watch.texts()[0] == "segfault é\ufffd"
        assert len(watch.texts()[1]) == 1000


async def test_a_log_that_ends_is_trouble() -> None:
    """A device that brings an end instead of records has to be opened again."""
    ended = anyio.Event()

    async def fail(source: KernelLog, watch: Watch) -> None:
        with pytest.raises(SourceError, match="has ended"):
            await source.run(watch.emit)
        ended.set()

    async with anyio.create_task_group() as tasks:
        watch = Watch()
        with device() as (path, _):
            tasks.start_soon(fail, KernelLog("node-0", path), watch)
            await watch.until(lambda: bool(watch.states()))
        with anyio.fail_after(5):
            await ended.wait()


async def test_it_says_anew_that_it_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Started again after a failure it says that it sees: the next line of the kernel may be days away."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    journal(tmp_path, LAST, "exit 1")
    source, watch = KernelLog("node-0", tmp_path / "kmsg"), Watch()
    for _ in range(2):
        with anyio.fail_after(10), pytest.raises(SourceError):
            await source.run(watch.emit)
    assert watch.states() == [("seeing", ""), ("seeing", "")]


JOURNALCTL = """#!/bin/sh
case "$*" in
*--follow*) {follow} ;;
*) {last} ;;
esac
"""
LAST = "echo '1777777777.000001 node-0 kernel: Linux version 6.8.0'"


def journal(folder: Path, last: str, follow: str) -> None:
    """Put a stand-in for journalctl into *folder*, which answers in its format."""
    program = folder / "journalctl"
    program.write_text(JOURNALCTL.format(last=last, follow=follow))
    program.chmod(0o755)


async def test_the_journal_stands_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where only root may open the device, the journal's copy is followed if it shows us the kernel's lines."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    follow = f"echo '1777777778.000001 node-0 kernel: {KILLED}'; printf '1777777778.1 node-0 kernel: seg'; sleep 0.1;"
    journal(tmp_path, LAST, follow + "echo 'fault at 7f'; echo '-- hint'; exec sleep 60")
    async with watching(tmp_path / "kmsg") as watch:
        await watch.until(lambda: len(watch.texts()) == 2)
    assert watch.texts() == [KILLED, "segfault at 7f"]
    assert watch.states() == [("seeing", "")]


async def test_a_journal_that_ends_is_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When journalctl dies the source has to be started again."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    journal(tmp_path, LAST, "exit 1")
    with anyio.fail_after(10), pytest.raises(SourceError, match="journalctl has ended"):
        await KernelLog("node-0", tmp_path / "kmsg").run(Watch().emit)


@pytest.mark.parametrize("last", ["exit 0", "echo 'No journal files were found.'; exit 1", "sleep 60"])
async def test_a_log_that_may_not_be_read_is_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: str) -> None:
    """Without the right to read either, the source is absent, and stays so."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("pipeline.sources.kernel_log.ANSWER_S", 0.3)
    journal(tmp_path, f"exec {last}" if last.startswith("sleep") else last, "exec sleep 60")
    async with watching(tmp_path / "kmsg") as watch:
        await anyio.sleep(0.1)  # it does not end
        assert watch.states() == [("absent", "it may not be read")]


@given(st.binary(max_size=200))
def test_whatever_a_record_is_its_messages_are_text(record: bytes) -> None:
    """No record breaks the reader."""
    assert all(isinstance(text, str) for text in _messages(record))
