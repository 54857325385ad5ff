"""Single processes and their exits, with real processes that are not waited for by the watch."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.sources.process_exits import Exit, ExitWatch, exit_code, watch_exits
from pipeline.sources.process_table import PAGE_BYTES, parse_stat, read_process, read_stat


def sleeper() -> subprocess.Popen[bytes]:
    """Start a process that lasts longer than the test."""
    return subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def birth(pid: int) -> int:
    """Return when *pid* was born."""
    stat = read_stat(pid)
    assert stat
    return stat.start


async def first_exit(watch: ExitWatch) -> Exit:
    """Return the next exit that *watch* brings."""
    with anyio.fail_after(5):
        while True:
            for death in await watch.wait(3600):
                return death


def open_descriptors() -> int:
    """Count this process's descriptors."""
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_an_exit_comes_at_once() -> None:
    """A process that is killed and then reaped has exited, with its signal where the kernel keeps it."""
    with watch_exits() as watch, sleeper() as process:
        start = birth(process.pid)
        watch.add(process.pid, start)
        assert watch.holds(process.pid, start)
        process.kill()
        process.wait()
        killed_at = time.monotonic()
        death = await first_exit(watch)
        assert time.monotonic() - killed_at < 0.5
        assert (death.pid, death.start, death.state) == (process.pid, start, "exited")
        assert death.code in {-signal.SIGKILL, None}
        assert not watch.holds(process.pid, start)


@pytest.mark.parametrize(("end", "code"), [("exit 7", 7), ("exit 0", 0), ("kill -SEGV $$", -signal.SIGSEGV)])
async def test_who_is_not_reaped_is_a_zombie_with_its_exit_code(end: str, code: int) -> None:
    """A parent that does not care leaves a zombie, and its status can be read."""
    with watch_exits() as watch, subprocess.Popen(["sh", "-c", f"read _; {end}"], stdin=subprocess.PIPE) as process:
        assert process.stdin
        start = birth(process.pid)
        watch.add(process.pid, start)
        process.stdin.close()
        assert await first_exit(watch) == Exit(pid=process.pid, start=start, state="zombie", code=code)


async def test_several_die_together() -> None:
    """One wait brings every exit, and the living stay watched."""
    with watch_exits() as watch:
        processes = [sleeper() for _ in range(5)]
        for process in processes:
            watch.add(process.pid, birth(process.pid))
        for process in processes[:4]:
            process.kill()
            process.wait()
        found: set[int] = set()
        with anyio.fail_after(5):
            while len(found) < 4:
                found |= {death.pid for death in await watch.wait(1)}
        assert found == {process.pid for process in processes[:4]}
        assert await watch.wait(0.1) == []
        processes[4].kill()
        processes[4].wait()


async def test_waits_no_longer_than_asked() -> None:
    """Without an exit a wait ends when it should, and with nothing to watch as well."""
    with watch_exits() as watch:
        began_at = time.monotonic()
        assert await watch.wait(0.1) == []
        assert 0.09 < time.monotonic() - began_at < 1


async def test_a_pid_used_again_is_another_process() -> None:
    """A process with the right pid and another birth is not watched, and no descriptor of it kept."""
    with watch_exits() as watch:
        before = open_descriptors()
        watch.add(os.getpid(), birth(os.getpid()) + 1)
        assert not watch.holds(os.getpid(), birth(os.getpid()) + 1)
        assert open_descriptors() == before


async def test_who_is_gone_cannot_be_watched() -> None:
    """A pid that nobody has is left to the scan."""
    with sleeper() as process:
        start = birth(process.pid)
        process.kill()
    with watch_exits() as watch:
        watch.add(process.pid, start)
        assert not watch.holds(process.pid, start)


async def test_descriptors_are_bounded_and_given_back() -> None:
    """No more processes are watched than allowed, each once, and the end closes what is open."""
    before = open_descriptors()
    with watch_exits(limit=2) as watch:
        processes = [sleeper() for _ in range(3)]
        for process in [*processes, *processes]:
            watch.add(process.pid, birth(process.pid))
        assert [watch.holds(process.pid, birth(process.pid)) for process in processes] == [True, True, False]
        assert open_descriptors() <= before + 3
    assert open_descriptors() == before
    for process in processes:
        process.kill()
        process.wait()


async def test_no_descriptor_left_is_no_error() -> None:
    """At the limit of open files a process is left to the scan."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with watch_exits() as watch, sleeper() as process:
        start = birth(process.pid)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
        try:
            watch.add(process.pid, start)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert not watch.holds(process.pid, start)
        process.kill()


async def test_a_thread_that_ends_is_no_exit() -> None:
    """A process lives as long as one of its threads, also when the first has ended."""
    code = (
        "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(1.5,)).start();"
        "ctypes.CDLL(None).pthread_exit(None)"
    )
    with watch_exits() as watch, subprocess.Popen([sys.executable, "-c", code]) as process:
        watch.add(process.pid, birth(process.pid))
        assert await watch.wait(0.7) == []
        process.kill()


def test_reads_a_process() -> None:
    """A process is its arguments, its descriptors and what the kernel counts of it."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        process.stdin.write(b"?")
        process.stdin.flush()
        process.stdout.read(1)  # it runs
        found = read_process(process.pid)
        process.kill()
    assert found
    assert (found.title, found.cmdline, found.stat.ppid) == ("cat", ["cat"], os.getpid())
    assert [found.stdin[:6], found.outputs[0][:6], found.denied_uid] == ["pipe:[", "pipe:[", None]
    ours = read_stat(os.getpid())
    assert ours
    assert ours.rss_bytes > PAGE_BYTES


def test_the_padding_of_a_title_is_no_argument() -> None:
    """What setproctitle leaves behind a title are NULs, and not arguments."""
    code = "import setproctitle; setproctitle.setproctitle('PRIME-RL::Trainer'); print(flush=True); input()"
    words = [sys.executable, "-c", code]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        process.stdout.readline()
        found = read_process(process.pid)
        process.kill()
    assert found
    assert (found.title, found.cmdline) == ("PRIME-RL::Trainer", ["PRIME-RL::Trainer"])


def test_the_living_have_no_exit_code() -> None:
    """A status is read of the dead alone."""
    stat = read_stat(os.getpid())
    assert stat
    assert exit_code(os.getpid(), stat) is None


def test_nobody_is_not_read() -> None:
    """A pid beyond the kernel's range is nobody."""
    assert read_stat(2**30) is None
    assert read_process(2**30) is None


@given(st.binary(max_size=64).filter(lambda name: b"\0" not in name), st.integers(0, 2**40), st.integers(0, 65535))
def test_a_name_may_hold_anything(name: bytes, start: int, status: int) -> None:
    """Spaces and parentheses in a process's name do not shift the fields behind it."""
    fields = ["Z", "7", *["0"] * 17, str(start), "0", "3", *["0"] * 27, str(status)]
    stat = parse_stat(b"42 (" + name + b") " + " ".join(fields).encode() + b"\n")
    assert (stat.state, stat.ppid, stat.start, stat.rss_bytes, stat.status) == ("Z", 7, start, 3 * PAGE_BYTES, status)


@given(st.binary(max_size=400))
def test_what_is_no_stat_file_is_refused(text: bytes) -> None:
    """Anything else is a `ValueError` and nothing but that."""
    with pytest.raises(ValueError, match=r".*"):
        parse_stat(text)
