"""The process table: who started whom, who writes into a run's files, and who hangs in the kernel."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.events import HostLine, ProcessState, SourceState
from pipeline.sources.halts import LONG_S, REPEAT_S, Halt, Halts
from pipeline.sources.process_exits import watch_exits
from pipeline.sources.process_table import Process, Stat, age_s, ancestry, read_process, read_stat, writers
from pipeline.sources.processes import ProcessSource, Scan
from tests.pipeline.sources.watch import Watch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

# a parent that has called vfork waits in the kernel, and cannot be interrupted, until its child is gone
SLEEPER = """
import ctypes, os, sys, time
from setproctitle import setproctitle

setproctitle("PRIME-RL::Trainer")
if ctypes.PyDLL(None).vfork() == 0:
    time.sleep(60)
"""
TITLED = "import setproctitle, time; setproctitle.setproctitle('PRIME-RL::Trainer'); time.sleep(60)"


class TableWatch(Watch):
    """What the source has emitted of processes."""

    def pids(self) -> set[int]:
        """Return the processes that were seen running."""
        return {event.pid for event in self.events if isinstance(event, ProcessState) and event.state == "running"}


@asynccontextmanager
async def watching(source: ProcessSource) -> AsyncIterator[TableWatch]:
    """Run *source* until the end of the block."""
    watch = TableWatch()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(source.run, watch.emit)
        yield watch
        tasks.cancel_scope.cancel()


@contextmanager
def outsider(folder: Path, script: str) -> Iterator[None]:
    """Run a shell script that is no descendant of ours: ours are never looked at. It ends with the block."""
    group = folder / "group"
    command = f'echo $$ > "{group}.new"; mv "{group}.new" "{group}"; {script}'
    subprocess.run(["setsid", "--fork", "sh", "-c", command], check=True)
    deadline = time.monotonic() + 10
    while not group.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)  # until it has begun
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(int(group.read_text()), signal.SIGKILL)


@pytest.fixture
def run() -> Iterator[Path]:
    """Make a run's directory with a log."""
    with TemporaryDirectory() as name:
        (Path(name) / "run" / "logs" / "attempt_1").mkdir(parents=True)
        (Path(name) / "run" / "logs" / "attempt_1" / "trainer.log").touch()
        yield Path(name) / "run"


async def test_a_long_sleep_in_the_kernel_is_reported_once(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that nothing can wake is named, with the time it has hung, and only once."""
    monkeypatch.setattr("pipeline.sources.halts.LONG_S", 0.5)
    script = run.parent / "sleeper.py"
    script.write_text(SLEEPER)
    with outsider(run.parent, f'exec "{sys.executable}" "{script}" > "{run}/logs/attempt_1/trainer.log" 2>&1'):
        async with watching(ProcessSource(run, "node-0", 0.1)) as watch:
            await watch.until(lambda: bool(watch.texts()))
            await anyio.sleep(0.7)  # it still hangs
        (text,) = watch.texts()
        (event,) = (event for event in watch.events if isinstance(event, HostLine))
    (pid,) = (pid for pid in watch.pids() if f" {pid} " in text)
    assert text in {f"process trainer {pid} has been in uninterruptible sleep for {seconds} s" for seconds in (0, 1)}
    assert (event.node, event.origin) == ("node-0", "kernel")


async def test_a_fork_is_told_of_once_it_stays(run: Path) -> None:
    """For a moment a child has its parent's title: if it becomes another program, it never was what that says."""
    source, watch = ProcessSource(run, "node-0"), TableWatch()

    def scan(*children: tuple[int, str]) -> Scan:
        of = {pid: Stat(state="S", ppid=10, start=pid, rss_bytes=0, status=0) for pid, _ in children}
        parent = Process(pid=10, stat=Stat(state="S", ppid=1, start=1, rss_bytes=0, status=0), cmdline=["server"])
        found = {10: parent} | {pid: Process(pid=pid, stat=of[pid], cmdline=[title]) for pid, title in children}
        return Scan(
            processes=found, roles=dict.fromkeys(found, "env_server"), strangers=set(), state="seeing", reason=""
        )

    with watch_exits() as exits:
        await source._compare(scan((11, "server"), (12, "server"), (13, "other")), exits, watch.emit)
        assert watch.pids() == {10, 13}
        await source._compare(scan((11, "server"), (14, "server")), exits, watch.emit)
        assert watch.pids() == {10, 11, 13}


async def test_a_process_that_somebody_stopped_is_reported(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is stopped, as by Ctrl-Z, is alive for the scan and does nothing: it is said."""
    monkeypatch.setattr("pipeline.sources.halts.LONG_S", 0.3)
    with outsider(run.parent, f'exec "{sys.executable}" -c "{TITLED}" > "{run}/logs/attempt_1/trainer.log"'):
        async with watching(ProcessSource(run, "node-0", 0.1)) as watch:
            await watch.until(lambda: bool(watch.pids()))
            (pid,) = watch.pids()
            os.kill(pid, signal.SIGSTOP)
            await watch.until(lambda: bool(watch.texts()))
            os.kill(pid, signal.SIGCONT)
    assert watch.texts() == [f"process trainer {pid} has been stopped by a signal for 0 s"]


async def test_a_run_in_a_container_is_found_by_its_files(run: Path) -> None:
    """A process that knows the log by another path, behind another mount, is of the run; a stranger's is not."""
    if subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode:
        pytest.skip("no mounts may be made here")
    inside = run.parent / "inside"
    inside.mkdir()
    other = run.parent / "other"
    (other / "logs").mkdir(parents=True)
    program = f'"{sys.executable}" -c "{TITLED}"'
    mounted = f'mount --bind "{run}" "{inside}"; exec {program} > "{inside}/logs/attempt_1/trainer.log"'
    script = f"unshare --mount sh -c '{mounted.replace(chr(39), chr(39) + chr(92) + chr(39) + chr(39))}' & "
    with outsider(run.parent, script + f'{program} > "{other}/logs/trainer.log" & wait'):
        async with (
            watching(ProcessSource(run, "node-0", 0.2)) as watch,
            watching(ProcessSource(other, "node-0", 0.2)) as stranger,
        ):
            await watch.until(lambda: bool(watch.pids()))
            await stranger.until(lambda: bool(stranger.pids()))
            await anyio.sleep(0.5)  # for a few scans
    assert len(watch.pids()) == len(stranger.pids()) == 1
    assert not watch.pids() & stranger.pids()
    assert [event.state for event in watch.events if isinstance(event, SourceState)][-1] == "seeing"


async def test_who_is_alive_can_be_asked(run: Path) -> None:
    """A source tells others which processes it has seen running, by role, and forgets the dead."""
    source = ProcessSource(run, "node-0", 0.1)
    assert source.alive() == []
    with outsider(run.parent, f'exec "{sys.executable}" -c "{TITLED}" > "{run}/logs/attempt_1/trainer.log"'):
        async with watching(source) as watch:
            await watch.until(lambda: bool(watch.pids()))
            (pid,) = watch.pids()
            assert source.alive() == source.alive("trainer", "launcher") == [pid]
            assert source.alive("launcher") == []
            os.kill(pid, signal.SIGKILL)
            await watch.until(lambda: isinstance(last := watch.events[-1], ProcessState) and last.state != "running")
            assert source.alive() == []


def test_who_started_whom() -> None:
    """The line of parents begins with the process itself and ends where nothing more is to be seen."""
    line = ancestry(os.getpid())
    assert line[:2] == [os.getpid(), os.getppid()]
    assert len(set(line)) == len(line)
    assert ancestry(2**30) == []


def test_how_old_a_process_is() -> None:
    """A process that was just started is seconds old."""
    with subprocess.Popen(["sleep", "60"]) as process:
        stat = read_stat(process.pid)
        process.kill()
    assert stat
    assert -0.1 < age_s(stat) < 30


def test_who_writes_into_the_files(run: Path) -> None:
    """A link is another path to the same file; other files, and who is gone, do not count."""
    log = run / "logs" / "attempt_1" / "trainer.log"
    (run / "link").hardlink_to(log)
    with (run / "link").open("ab") as linked, (run / "elsewhere").open("ab") as elsewhere:
        inside = subprocess.Popen(["sleep", "60"], stderr=linked)
        outside = subprocess.Popen(["sleep", "60"], stdout=elsewhere)
    try:
        assert writers([inside.pid, outside.pid, 2**30], [f"{run}/logs/"]) == {inside.pid}
        assert writers([inside.pid], [f"{run}/none/"]) == set()
    finally:
        for process in (inside, outside):
            process.kill()
            process.wait()


def test_only_a_sleep_in_the_kernel_is_counted() -> None:
    """Of a process that can be woken it is not asked how often it waits."""
    ours = read_process(os.getpid())
    assert ours
    assert ours.switches is None


def asleep(pid: int, switches: int | None, state: str = "D", start: int = 1) -> Process:
    """Return a process that waits."""
    return Process(pid=pid, stat=Stat(state=state, ppid=1, start=start, rss_bytes=0, status=0), switches=switches)


def test_many_short_sleeps_are_not_a_long_one() -> None:
    """A process that reads files is often asleep when looked at, but has been awake in between."""
    halts = Halts()
    assert not [found for number in range(20) if (found := halts.look([asleep(7, number)], number * 15.0))]


def test_a_sleep_that_ended_is_forgotten() -> None:
    """After it has run, or where the pid is another process, a process has to hang for long anew."""
    halts = Halts()
    assert halts.look([asleep(7, 3)], 0) == []
    assert halts.look([asleep(7, None, state="S")], LONG_S / 2) == []
    assert halts.look([asleep(7, 3)], LONG_S) == []
    assert halts.look([asleep(7, 3, start=2)], LONG_S * 1.9) == []
    assert halts.look([asleep(7, 3, start=2)], LONG_S * 3) == [
        (7, "in uninterruptible sleep", pytest.approx(LONG_S * 1.1))
    ]


@given(st.lists(st.tuples(st.integers(1, 2), st.integers(0, 1) | st.none(), st.integers(1, 14)), max_size=10))
def test_a_sleep_is_said_and_said_again(spells: list[tuple[int, int | None, int]]) -> None:
    """Each unbroken sleep is named at the first look at which it is long, then every five minutes, and at no other."""
    halts = Halts()
    looks = [(pid, switches) for pid, switches, number in spells for _ in range(number)]
    found = [halts.look([asleep(pid, switches)], number * LONG_S / 2) for number, (pid, switches) in enumerate(looks)]
    expected: list[list[Halt]] = []
    for (pid, _), same in groupby(looks):
        for number, _ in enumerate(same):
            is_said = number >= 2 and (number - 2) % (2 * REPEAT_S / LONG_S) == 0
            expected.append([Halt(pid, "in uninterruptible sleep", number * LONG_S / 2)] if is_said else [])
    assert found == expected
