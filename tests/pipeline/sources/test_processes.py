"""The process scanner, on real process trees with prime-rl's titles and on the golden ones."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Literal

import anyio
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.events import Event, ProcessState, Role, SourceState
from pipeline.sources.base import SourceError
from pipeline.sources.process_table import Process, Stat, parse_stat
from pipeline.sources.processes import ProcessSource
from pipeline.sources.run_tree import run_roles
from pipeline.times import cut
from tests.pipeline.sources.watch import Watch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT.parent / "shared" / "golden.tar.gz"

# A run's processes with all that tells them apart from another's: titles, descriptors, parents. It leaves the test's
# own tree first, as that is never looked at.
TREE = """
import multiprocessing, os, subprocess, sys, time
from pathlib import Path
from setproctitle import setproctitle

def wait():
    time.sleep(60)

def start(*words, out, **options):
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("ab") as file:
        return subprocess.Popen([sys.executable, *words], stdout=file, stderr=file, **options)

def main(what, run):
    logs = Path(run) / "logs" / "attempt_1"
    if what == "launcher":
        if pid := os.fork():
            (Path(run) / "session").write_text(str(pid))
            return
        os.setsid()
        setproctitle("PRIME-RL::Launcher")
        children = [
            start(__file__, "PRIME-RL::EnvServer", run, out=logs / "envs/train/a.log"),
            start(__file__, "PRIME-RL::Orchestrator", run, out=logs / "orchestrator.log"),
            start(str(Path(__file__).with_name("torchrun")), "torchrun", run, out=logs / "trainer.log"),
            subprocess.Popen(["sh", "-c", f"tail -F '{logs}/orchestrator.log'; true"]),
        ]
        for child in children:
            child.wait()
        wait()
    elif what == "torchrun":
        ranks = [
            start(__file__, "PRIME-RL::Trainer", run, out=logs / f"trainer/torchrun/x/attempt_0/{rank}/stdout.log")
            for rank in range(2)
        ]
        for rank in ranks:
            rank.wait()
        wait()
    else:
        setproctitle(what)
        if what == "PRIME-RL::EnvServer":
            multiprocessing.get_context("spawn").Process(target=wait).start()
        wait()

if __name__ == "__main__":
    main(*sys.argv[1:])
"""
WHOLE: list[Role] = ["env_server", "env_worker", "launcher", "orchestrator", "torchrun", "trainer", "trainer"]


@pytest.fixture
def launch() -> Iterator[Callable[[str], Path]]:
    """Return a function that starts a run's processes and returns its directory; they end with the test."""
    runs: list[Path] = []
    with TemporaryDirectory() as name:  # pytest's own may be entered by nobody but its user
        folder = Path(name)
        folder.chmod(0o755)
        script = folder / "tree.py"
        script.write_text(TREE)
        (folder / "torchrun").symlink_to(script)

        def start(run_name: str) -> Path:
            run = folder / run_name
            run.mkdir()
            with (run / "terminal").open("wb") as out:
                subprocess.run([sys.executable, script, "launcher", run], stdout=out, stderr=out, check=True)
            runs.append(run)
            return run

        yield start
        for run in runs:
            with suppress(ProcessLookupError):
                os.killpg(int((run / "session").read_text()), signal.SIGKILL)


class ProcessWatch(Watch):
    """What the source has emitted of processes."""

    def processes(self, role: Role | None = None) -> dict[int, ProcessState]:
        """Return the last that was said of each process."""
        said = (event for event in self.events if isinstance(event, ProcessState))
        return {event.pid: event for event in said if role in {None, event.role}}

    def of_pid(self, pid: int) -> list[ProcessState]:
        """Return all that was said of one process."""
        return [event for event in self.events if isinstance(event, ProcessState) and event.pid == pid]

    def sights(self) -> list[str]:
        """Return what was said about seeing, without the reasons."""
        return [state for state, _ in self.states()]

    def roles(self) -> list[Role]:
        """Return the roles of the processes that are not gone."""
        return sorted(event.role for event in self.processes().values() if event.state != "exited")


@asynccontextmanager
async def watching(source: ProcessSource) -> AsyncIterator[ProcessWatch]:
    """Run *source* for as long as the block lasts."""
    watch = ProcessWatch()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(source.run, watch.emit)
        yield watch
        tasks.cancel_scope.cancel()


async def test_finds_the_processes_of_its_own_run_and_no_other(launch: Callable[[str], Path]) -> None:
    """Of two runs with the same titles on one host, each is seen whole, and alone."""
    runs = [launch("a"), launch("b")]
    async with (
        watching(ProcessSource(runs[0], "node-0", 0.2)) as first,
        watching(ProcessSource(runs[1], "node-0", 0.2)) as second,
    ):
        await first.until(lambda: first.roles() == WHOLE)
        await second.until(lambda: second.roles() == WHOLE)
        assert not first.processes().keys() & second.processes().keys()
        (launcher,) = first.processes("launcher")
        assert launcher == int((runs[0] / "session").read_text())
        assert first.sights()[-1] == "seeing"


async def test_anothers_processes_do_not_make_a_run_present(launch: Callable[[str], Path], tmp_path: Path) -> None:
    """A run without a process is absent also where another's, with the right titles, can be read."""
    run = launch("a")
    (tmp_path / "with" / "logs").mkdir(parents=True)
    async with (
        watching(ProcessSource(run, "node-0", 0.1)) as watch,
        watching(ProcessSource(tmp_path / "with", "node-0", 0.1)) as with_logs,
        watching(ProcessSource(tmp_path / "without", "node-0", 0.1)) as without_logs,
    ):
        await watch.until(lambda: watch.roles() == WHOLE)
        await anyio.sleep(0.3)  # for a few scans
        assert with_logs.sights() == without_logs.sights() == ["absent"]


async def test_says_who_a_process_is(launch: Callable[[str], Path]) -> None:
    """A process comes with its title, its parent, its memory and the present time."""
    run = launch("a")
    async with watching(ProcessSource(run, "node-0", 0.2)) as watch:
        await watch.until(lambda: watch.roles() == WHOLE)
        (server,) = watch.processes("env_server").values()
        (launcher,) = watch.processes("launcher").values()
        assert (server.node, server.title, server.ppid) == ("node-0", "PRIME-RL::EnvServer", launcher.pid)
        assert server.state == "running"
        assert server.rss_bytes is not None
        assert server.rss_bytes > 1_000_000
        assert server.time == cut(server.time)
        assert abs(server.time.timestamp() - time.time()) < 30


async def test_an_exit_is_seen_at_once_and_a_zombie_is_said_to_be_one(launch: Callable[[str], Path]) -> None:
    """Long before the next scan, a rank's exit is known, and a worker whose death nobody noticed."""
    run = launch("a")
    async with watching(ProcessSource(run, "node-0", 0.2)) as watch:
        await watch.until(lambda: watch.roles() == WHOLE)
    async with watching(ProcessSource(run, "node-0", 3600)) as watch:
        await watch.until(lambda: watch.roles() == WHOLE)
        rank = next(iter(watch.processes("trainer")))
        (worker,) = watch.processes("env_worker")
        os.kill(rank, signal.SIGKILL)
        os.kill(worker, signal.SIGSEGV)
        await watch.until(lambda: watch.processes()[rank].state == "exited", within_s=5)
        assert watch.processes()[rank].exit_code in {-signal.SIGKILL, None}
        await watch.until(lambda: watch.processes()[worker].state == "zombie", within_s=5)
        assert watch.processes()[worker].exit_code == -signal.SIGSEGV
        assert watch.processes()[worker].rss_bytes is None


async def test_a_worker_that_was_dead_before_is_found(launch: Callable[[str], Path]) -> None:
    """A zombie without a command line is a worker if it is an env server's."""
    run = launch("a")
    async with watching(ProcessSource(run, "node-0", 0.2)) as watch:
        await watch.until(lambda: watch.roles() == WHOLE)
        (worker,) = watch.processes("env_worker")
    os.kill(worker, signal.SIGKILL)
    async with watching(ProcessSource(run, "node-0", 0.2)) as watch:
        await watch.until(lambda: worker in watch.processes() and watch.processes()[worker].state == "zombie")
        assert watch.processes()[worker].role == "env_worker"
        told = [event.pid for event in watch.events if isinstance(event, ProcessState)]
        assert told.index(worker) == len(WHOLE) - 1, "of how many it is one is known before"


async def test_without_pidfds_the_scan_notices_exits(
    launch: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a kernel without pidfds, or with no descriptor left, an exit is seen by the next scan."""
    run = launch("a")

    def refuse(_pid: int, _flags: int = 0) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    async with watching(ProcessSource(run, "node-0", 0.2)) as watch:
        await watch.until(lambda: watch.roles() == WHOLE)
        rank = next(iter(watch.processes("trainer")))
        os.kill(rank, signal.SIGTERM)
        await watch.until(lambda: watch.processes()[rank].state == "exited")


async def test_orphans_stay_the_runs(launch: Callable[[str], Path]) -> None:
    """When the launcher is killed, what it leaves behind is still seen; once all is gone, that is seen too."""
    run = launch("a")
    async with watching(ProcessSource(run, "node-0", 0.2)) as watch:
        await watch.until(lambda: watch.roles() == WHOLE)
        (launcher,) = watch.processes("launcher")
        os.kill(launcher, signal.SIGKILL)
        await watch.until(lambda: watch.processes()[launcher].state != "running")
        rest = [role for role in WHOLE if role != "launcher"]
        await anyio.sleep(0.5)  # for a few scans
        assert sorted(event.role for event in watch.processes().values() if event.state == "running") == rest
        os.killpg(launcher, signal.SIGKILL)
        await watch.until(lambda: all(event.state != "running" for event in watch.processes().values()))
        await anyio.sleep(0.5)  # for a few scans
        assert watch.sights() in (["seeing"], ["absent", "seeing"])


async def test_the_living_are_reported_again(launch: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory grows: it is reported again and again, once an interval of its own."""
    monkeypatch.setattr("pipeline.sources.processes.REPEAT_S", 0.5)
    run = launch("a")
    async with watching(ProcessSource(run, "node-0", 0.1)) as watch:
        await watch.until(lambda: len(watch.of_pid(next(iter(watch.processes("launcher")), 0))) == 3)
        times = [event.time for event in watch.of_pid(next(iter(watch.processes("launcher"))))]
        assert (times[2] - times[0]).total_seconds() >= 0.9


async def test_a_proc_that_does_not_answer_is_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan that hangs ends the source within its deadline, and a new start does not add a second one that hangs."""
    release = threading.Event()
    monkeypatch.setattr("pipeline.sources.processes.SCAN_DEADLINE_S", 0.1)
    source = ProcessSource(tmp_path, "node-0")

    async def emit(_event: Event) -> None:
        raise AssertionError

    def hang(_path: Path) -> Iterator[Path]:
        release.wait(10)
        return iter(())

    monkeypatch.setattr(Path, "iterdir", hang)
    with pytest.raises(SourceError, match=r"cannot scan the processes: no answer in 0\.1 s"):
        await source.run(emit)
    threads = threading.active_count()
    with pytest.raises(SourceError, match="cannot scan the processes: an earlier call still hangs"):
        await source.run(emit)
    assert threading.active_count() == threads
    release.set()


async def test_without_proc_there_is_trouble_and_not_death(
    launch: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When /proc cannot be read, the source fails and says of no process that it is gone."""
    run = launch("a")
    source = ProcessSource(run, "node-0", 0.2)
    async with watching(source) as watch:
        await watch.until(lambda: watch.roles() == WHOLE)
    watch = ProcessWatch()

    def refuse(_path: Path) -> bytes:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", refuse)
        with pytest.raises(SourceError, match="Too many open files"):
            await source.run(watch.emit)
    assert watch.events == []
    async with watching(source) as watch:
        await anyio.sleep(0.5)  # for a few scans
        assert not [event for event in watch.processes().values() if event.state != "running"]


async def test_our_own_tree_is_never_seen(tmp_path: Path) -> None:
    """A child of ours is not of the run, though its title says so and it writes into the run's logs."""
    logs = tmp_path / "logs"
    logs.mkdir()
    code = "import os, setproctitle, time; setproctitle.setproctitle('PRIME-RL::Trainer'); os.close(0); time.sleep(60)"
    with (logs / "trainer.log").open("wb") as out:
        async with await anyio.open_process([sys.executable, "-c", code], stdout=out, stderr=out) as child:
            assert child.stdin
            with anyio.move_on_after(10), suppress(anyio.BrokenResourceError):
                while True:  # until it has its title, and nobody reads any more
                    await child.stdin.send(b"?")
                    await anyio.sleep(0.05)
            async with watching(ProcessSource(tmp_path, "node-0", 0.2)) as watch:
                await anyio.sleep(0.5)  # for a few scans
                assert watch.sights() == ["absent"]
                assert not watch.processes()
            child.kill()


async def test_a_run_that_is_elsewhere_is_absent(tmp_path: Path) -> None:
    """A run without a process on this host is absent, and the reason says so."""
    async with watching(ProcessSource(tmp_path, "node-0", 0.2)) as watch:
        await watch.until(lambda: bool(watch.events))
        assert watch.events == [
            SourceState(
                time=watch.events[0].time,
                name="processes",
                state="absent",
                reason="no process of this run on this host",
            )
        ]


async def test_who_died_unwatched_is_reported(launch: Callable[[str], Path]) -> None:
    """After a restart of ours, a process that was known and is gone has exited; one that lives is not new."""
    run = launch("a")
    async with watching(ProcessSource(run, "node-0", 0.2)) as watch:
        await watch.until(lambda: watch.roles() == WHOLE)
        known = list(watch.processes().values())
        rank = next(iter(watch.processes("trainer")))
    os.kill(rank, signal.SIGKILL)
    async with watching(ProcessSource(run, "node-0", 0.2, known)) as watch:
        await watch.until(lambda: rank in watch.processes() and watch.processes()[rank].state == "exited")
        await watch.until(lambda: len(watch.roles()) == len(WHOLE) - 1)
        assert all(event.state == "running" for pid, event in watch.processes().items() if pid != rank)


async def test_a_pid_used_again_is_another_process(launch: Callable[[str], Path]) -> None:
    """Where the same pid comes with another birth, the one before has exited and the one now is new."""
    run = launch("a")
    source = ProcessSource(run, "node-0", 0.2)
    async with watching(source) as watch:
        await watch.until(lambda: watch.roles() == WHOLE)
        rank = next(iter(watch.processes("trainer")))
    report = source._reports[rank]
    assert report.start
    source._reports[rank] = msgspec.structs.replace(report, start=report.start - 1)
    async with watching(source) as watch:
        await watch.until(lambda: len(watch.of_pid(rank)) == 2)
        assert [event.state for event in watch.of_pid(rank)] == ["exited", "running"]


AS_NOBODY = """
import asyncio, sys
from pathlib import Path
from pipeline.events import SourceState
from pipeline.sources.processes import ProcessSource

async def emit(event):
    print(event.state, getattr(event, "reason", ""), getattr(event, "role", ""), flush=True)

asyncio.run(ProcessSource(Path(sys.argv[1]), "node-0", 0.2).run(emit))
"""


async def said_to_nobody(run: Path, wanted: str, *within: str) -> str:
    """Return what an unprivileged user's source says until *wanted* is in it, at most for ten seconds."""
    words = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable, "-c", AS_NOBODY, str(run)]
    said = ""
    async with await anyio.open_process([*within, *words], cwd=ROOT, stderr=None) as source:
        assert source.stdout
        with anyio.move_on_after(10), suppress(anyio.EndOfStream):
            while wanted not in said:
                said += (await source.stdout.receive()).decode()
        source.kill()
    return said


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@needs_root
async def test_another_users_processes_that_cannot_be_told_apart_are_blindness(launch: Callable[[str], Path]) -> None:
    """Where descriptors may not be read and nothing else ties them to the run, titles alone prove nothing."""
    run = launch("a")
    for pid in session_of(run, "tail"):
        os.kill(pid, signal.SIGKILL)
    said = await said_to_nobody(run, "belongs to user 0")
    assert "blind cannot tell whose run process" in said
    assert "belongs to user 0" in said


@needs_root
async def test_a_launchers_tail_gives_another_users_run_away(launch: Callable[[str], Path]) -> None:
    """Command lines are public: the launcher's `tail` names the run, and with it come all its descendants."""
    run = launch("a")
    said = await said_to_nobody(run, "trainer")
    assert "running  trainer" in said
    assert "blind" not in said


@needs_root
async def test_a_restricted_proc_is_blindness() -> None:
    """Where other users' processes are hidden, none to be seen does not mean that there is none."""
    # a pid namespace of its own, as older kernels know no other bounds of the option
    namespace = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
    if subprocess.run([*namespace, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no namespaces here")
    mount = 'mount -t proc -o hidepid=2 proc /proc && "$@"; true'
    with TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        (Path(name) / "logs").mkdir()
        said = await said_to_nobody(Path(name), "with hidepid", *namespace, "sh", "-c", mount, "sh")
    assert "blind the processes of other users are hidden" in said


def session_of(run: Path, program: str) -> list[int]:
    """Return the pids of *program* in the session of a run's launcher."""
    session = int((run / "session").read_text())
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if os.getsid(int(folder.name)) == session and (folder / "comm").read_text().strip() == program:
                    found.append(int(folder.name))
            except OSError:
                continue
        if found:
            return found
        time.sleep(0.05)  # until the launcher has come so far
    return []


def process(
    pid: int,
    ppid: int,
    *cmdline: str,
    out: str = "",
    stdin: str = "",
    state: Literal["S", "Z"] = "S",
) -> Process:
    """Return a process that was born after all of lower pid."""
    stat = Stat(state=state, ppid=ppid, start=pid, rss_bytes=0, status=0)
    return Process(pid=pid, stat=stat, cmdline=list(cmdline), outputs=[out], stdin=stdin)


def table(*processes: Process) -> dict[int, Process]:
    """Return *processes* by pid."""
    return {process.pid: process for process in processes}


LOGS = ("/runs/a/logs/",)
LOG = "/runs/a/logs/attempt_1/trainer.log"


def test_a_pipeline_into_the_logs_is_the_runs() -> None:
    """Where output goes through `sed` and `tee`, as on a multi-node run, the program before them is found."""
    found = run_roles(
        table(
            process(10, 1, "bash"),
            process(11, 10, "PRIME-RL::Orchestrator", out="pipe:[1]"),
            process(12, 10, "sed", "s/x//", out="pipe:[2]", stdin="pipe:[1]"),
            process(13, 10, "tee", LOG, out=LOG, stdin="pipe:[2]"),
            process(14, 10, "PRIME-RL::Orchestrator", out="pipe:[3]"),
        ),
        LOGS,
        999,
        {},
    )
    assert found == {11: "orchestrator"}


def test_a_run_below_the_run_is_another() -> None:
    """What another launcher has started is not the run's, wherever that launcher was started."""
    found = run_roles(
        table(
            process(10, 1, "PRIME-RL::Launcher"),
            process(11, 10, "PRIME-RL::Orchestrator", out=LOG),
            process(12, 10, "PRIME-RL::Launcher"),
            process(13, 12, "PRIME-RL::Orchestrator", out="/runs/b/logs/attempt_1/orchestrator.log"),
        ),
        LOGS,
        999,
        {},
    )
    assert found == {10: "launcher", 11: "orchestrator"}


def test_a_directory_that_begins_alike_is_another_run() -> None:
    """`/runs/a` does not own what writes to `/runs/ab`."""
    other = process(10, 1, "PRIME-RL::Trainer", out="/runs/ab/logs/attempt_1/trainer.log")
    assert not run_roles(table(other), LOGS, 999, {})


def test_a_person_who_reads_the_logs_is_not_the_run() -> None:
    """A `tail` in somebody's shell leads to no launcher, an editor on a log to nothing at all."""
    people = table(
        process(10, 1, "bash"),
        process(11, 10, "tail", "-F", LOG),
        process(12, 10, "vim", LOG, out="/dev/pts/1"),
        process(13, 10, "PRIME-RL::Launcher"),
    )
    assert not run_roles(people, LOGS, 999, {})


def test_a_known_process_keeps_its_role() -> None:
    """A worker whose server has died has no parent that says what it is, and is still a worker."""
    orphan = process(10, 1, "python", "-c", "spawn_main()", "--multiprocessing-fork")
    assert run_roles(table(orphan), LOGS, 999, {10: "env_worker"}) == {10: "env_worker"}


@given(
    st.dictionaries(st.integers(1, 30), st.integers(0, 30), max_size=30),
    st.sets(st.integers(1, 30)),
    st.integers(1, 30),
)
def test_whatever_the_tree_we_never_watch_ourselves(parents: dict[int, int], writers: set[int], own: int) -> None:
    """In any table, circles included, neither our process nor its parents or children belong to a run."""
    titles = ["PRIME-RL::Launcher", "PRIME-RL::Trainer", "PRIME-RL::EnvServer"]
    rows = table(
        *(process(pid, ppid, titles[pid % 3], out=LOG if pid in writers else "") for pid, ppid in parents.items())
    )
    found = run_roles(rows, LOGS, own, {})
    assert found.keys() <= rows.keys()
    assert own not in found
    assert parents.get(own) not in found
    assert not [pid for pid in found if parents[pid] == own]


def golden(name: str, tmp_path: Path) -> dict[int, Process]:
    """Return the golden process table *name*."""
    if not GOLDEN.is_file():
        pytest.skip("the golden data is not here")
    subprocess.run(
        ["tar", "-xf", GOLDEN, "-C", tmp_path, "--wildcards", f"*/proc/{name}/proc.jsonl"], check=True, timeout=60
    )
    (rows,) = tmp_path.rglob("proc.jsonl")
    found = {}
    for row in map(json.loads, rows.read_text().splitlines()):
        if not row["stat"]:  # gone while it was looked at
            continue
        cmdline = row["cmdline"].rstrip("\0").split("\0")
        outputs = [row["fd1"].strip(), row["fd2"].strip()]
        stat = parse_stat(row["stat"].encode())
        found[row["pid"]] = Process(pid=row["pid"], stat=stat, cmdline=cmdline, outputs=outputs)
    return found


@pytest.mark.parametrize(
    "name", ["episode-era-live1", "episode-era-live2", "trace-era-live_launching", "trace-era-live2"]
)
def test_golden_trees_are_found_whole(name: str, tmp_path: Path) -> None:
    """In a real tree every process with a title is found, and each spawned child of an env server is a worker."""
    rows = golden(name, tmp_path)
    logs = next(path for row in rows.values() for path in row.outputs if "/logs/attempt_" in path)
    found = run_roles(rows, (logs.partition("/logs/")[0] + "/logs/",), 10**9, {})
    titled = {pid for pid, row in rows.items() if row.cmdline[0].startswith(("PRIME-RL::", "vllm::"))}
    spawned = {pid for pid, row in rows.items() if "--multiprocessing-fork" in row.cmdline}
    assert titled | spawned <= found.keys()
    assert {found[pid] for pid in spawned} <= {"env_worker"}
    assert not run_roles(rows, ("/runs/another/logs/",), 10**9, {})
