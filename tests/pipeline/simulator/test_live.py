"""The simulated run live: its processes, its metrics page, its files, and that nothing of it outlives the player."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.formats.titles import role
from pipeline.simulator import actor
from pipeline.simulator.disk import write_run
from pipeline.simulator.files import apply, halved
from pipeline.simulator.page import EnginePage
from pipeline.simulator.plan import Fault, Plan
from pipeline.simulator.player import Stage, paced, play
from pipeline.simulator.script import Link, Write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CHECKOUT = Path(__file__).parents[3]
PLAYER = [sys.executable, "-m", "pipeline.simulator"]
STARTED_S = 15.0
GONE_S = 5.0

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked at in /proc")


class Seen:
    """A process as /proc shows it."""

    def __init__(self, pid: int) -> None:
        folder = Path(f"/proc/{pid}")
        state, ppid, *_, code = folder.joinpath("stat").read_text("utf-8").rpartition(") ")[2].split()
        self.pid, self.ppid, self.state, self.status = pid, int(ppid), state, int(code)
        self.cmdline = [word.decode() for word in folder.joinpath("cmdline").read_bytes().split(b"\0") if word]
        self.outputs = [] if state == "Z" else [str((folder / f"fd/{number}").readlink()) for number in (1, 2)]

    @property
    def environment(self) -> list[str]:
        """What it was started with."""
        return Path(f"/proc/{self.pid}/environ").read_bytes().decode().split("\0")


def descendants(root: int) -> dict[int, Seen]:
    """Return what lives below a process, zombies included."""
    table: dict[int, Seen] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            try:
                table[int(path.name)] = Seen(int(path.name))
            except OSError:  # it has ended, or is not ours
                continue
    found = {root}
    while new := {pid for pid, seen in table.items() if seen.ppid in found} - found:
        found |= new
    return {pid: table[pid] for pid in found - {root} if pid in table}


def wait_for(condition: Callable[[], object], within_s: float) -> None:
    """Return once *condition* holds."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)  # the processes of others tell nobody what they do


def alive(pids: set[int]) -> set[int]:
    """Return which processes still exist; a zombie that waits for its parent does not."""
    found = set()
    for pid in pids:
        try:
            if Seen(pid).state != "Z":
                found.add(pid)
        except OSError:
            continue
    return found


@contextmanager
def playing(out: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Play a run in a process and a session of its own."""
    command = [*PLAYER, str(out), "--live", *arguments]
    output = subprocess.PIPE
    player = subprocess.Popen(command, cwd=CHECKOUT, start_new_session=True, stdout=output, stderr=output, text=True)
    try:
        yield player
    finally:
        player.kill()
        player.communicate()


def with_trainers(player: subprocess.Popen[str]) -> dict[int, Seen]:
    """Wait until the run of *player* is complete, and return its processes."""

    def is_complete() -> bool:
        titles = [seen.cmdline[:1] for seen in descendants(player.pid).values()]
        workers = sum("--multiprocessing-fork" in seen.cmdline for seen in descendants(player.pid).values())
        return titles.count(["PRIME-RL::Trainer"]) == 2 and workers == 2 and ["VLLM::EngineCore"] in titles

    wait_for(is_complete, STARTED_S)
    return descendants(player.pid)


def roles(processes: dict[int, Seen]) -> dict[int, str]:
    """Return the roles that the watcher would see."""
    found: dict[int, str] = {}
    for pid in sorted(processes):
        if kind := role(processes[pid].cmdline, found.get(processes[pid].ppid)):  # type: ignore[arg-type]
            found[pid] = kind
    return found


def run_below(out: Path) -> Path:
    """Return the run that is played in *out*."""
    (logs,) = out.glob("*/logs")
    return logs.parent


def test_processes_are_those_of_a_run(tmp_path: Path) -> None:
    """Titles, parents and outputs are as in a run of prime-rl, and untitled ones tell its id."""
    with playing(tmp_path, "--fault", "hang", "--speed", "40") as player:
        processes = with_trainers(player)
        kinds = roles(processes)
        logs = run_below(tmp_path) / "logs/attempt_1"
        parents = sorted((kinds[pid], kinds.get(processes[pid].ppid)) for pid in kinds if kinds[pid] != "launcher")
        assert parents == [
            ("env_server", "launcher"),
            ("env_server", "launcher"),
            ("env_worker", "env_server"),
            ("env_worker", "env_server"),
            ("inference", "inference"),
            ("inference", "launcher"),
            ("orchestrator", "launcher"),
            ("torchrun", "launcher"),
            ("trainer", "torchrun"),
            ("trainer", "torchrun"),
        ]
        outputs = {kind: processes[pid].outputs for pid, kind in kinds.items()}
        assert outputs["orchestrator"] == [str(logs / "orchestrator.log")] * 2
        assert outputs["torchrun"] == [str(logs / "trainer.log")] * 2
        assert outputs["env_worker"][0] in {
            str(logs / f"envs/train/{env}.log") for env in ("reverse-text", "word-sort")
        }
        assert [Path(path).name for path in outputs["trainer"]] == ["stdout.log", "stderr.log"]
        for pid in (pid for pid, kind in kinds.items() if kind in {"torchrun", "env_worker"}):
            assert f"PRL_RUN_NAME={run_below(tmp_path).name}" in processes[pid].environment
        (tail,) = (seen for seen in processes.values() if seen.cmdline[0].endswith("tail"))
        assert tail.cmdline[-1] == str(logs / "orchestrator.log")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nobody_outlives_the_player(tmp_path: Path, number: signal.Signals) -> None:
    """However the player ends, its processes end too, and none of them complains."""
    with playing(tmp_path, "--fault", "hang", "--speed", "40") as player:
        processes = set(with_trainers(player))
        os.killpg(player.pid, number) if number == signal.SIGINT else player.send_signal(number)
        _, complaints = player.communicate(timeout=GONE_S)
        wait_for(lambda: not alive(processes), GONE_S)
    assert player.returncode == (-9 if number == signal.SIGKILL else 128 + number)
    assert complaints == ""
    assert not [path for path in tmp_path.rglob("*.log") if b"Traceback" in path.read_bytes()]


def test_player_can_die_with_its_parent(tmp_path: Path) -> None:
    """With `--die-with-parent`, killing who started the player is enough."""
    command = [*PLAYER, str(tmp_path), "--live", "--speed", "40", "--die-with-parent"]
    program = "import subprocess, sys, time; subprocess.Popen(sys.argv[1:]); time.sleep(60)"
    parent = subprocess.Popen([sys.executable, "-c", program, *command], cwd=CHECKOUT, stdout=subprocess.DEVNULL)
    try:
        wait_for(lambda: len(descendants(parent.pid)) > 8, STARTED_S)
        processes = set(descendants(parent.pid))
    finally:
        parent.kill()
        parent.wait()
    wait_for(lambda: not alive(processes), GONE_S)


def test_player_holds_on_when_asked(tmp_path: Path) -> None:
    """With `--hold` the processes of a run that goes on are there after the play, until the player is told to stop."""
    with playing(tmp_path, "--fault", "hang", "--speed", "100", "--duration", "1.5", "--hold") as player:
        processes = set(with_trainers(player))
        time.sleep(1.0)  # the play is over by then
        assert alive(processes) == processes
        player.terminate()
        assert player.wait(timeout=GONE_S) == 128 + signal.SIGTERM


def test_metrics_page_is_the_engines(tmp_path: Path) -> None:
    """The page that the configs name answers in vLLM's format while the engine lives, and figures move."""
    with playing(tmp_path, "--fault", "engine-death", "--duration", "5", "--no-processes") as player:
        wait_for(lambda: list(tmp_path.glob("*/configs/orchestrator.json")), STARTED_S)
        wait_for(lambda: list(tmp_path.glob("*/rollouts/step_1/train/all/traces.jsonl")), STARTED_S)
        config = json.loads((run_below(tmp_path) / "configs/orchestrator.json").read_text("utf-8"))
        (base,) = config["model"]["client"]["admin_base_url"]
        url = base.removesuffix("/v1") + "/metrics"
        first = scraped(url)
        assert first.keys() >= {"num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"}
        assert 0 <= first["kv_cache_usage_perc"] <= 1
        wait_for(lambda: scraped(url)["generation_tokens_total"] > first["generation_tokens_total"], 3.0)
        wait_for(lambda: refused(url), 8.0)
        assert player.wait(timeout=15) == 0
    assert "EngineDeadError" in (run_below(tmp_path) / "logs/latest/inference.log").read_text("utf-8")


def scraped(url: str) -> dict[str, float]:
    """Return the samples of a page by name."""
    with urlopen(url, timeout=2) as answer:
        lines = answer.read().decode().splitlines()
    samples = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
    assert all('engine="0"' in name and 'model_name="' in name for name, _ in samples)
    return {name.partition("{")[0].removeprefix("vllm:"): float(value) for name, value in samples}


def refused(url: str) -> bool:
    """Say whether nobody answers any more."""
    try:
        scraped(url)
    except (URLError, OSError):
        return True
    return False


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[Fault, tuple[int, str, Path]]:
    """Play every fault to its end, all of them at once, with their processes."""
    outs = {fault: tmp_path_factory.mktemp(fault) for fault in Fault}
    players = {
        fault: subprocess.Popen(
            [*PLAYER, str(out), "--live", "--fault", fault, "--duration", "4", "--steps", "3", "--batch-size", "8"],
            cwd=CHECKOUT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for fault, out in outs.items()
    }
    said = {fault: player.communicate(timeout=50)[0] for fault, player in players.items()}
    return {fault: (players[fault].returncode, said[fault], outs[fault]) for fault in Fault}


@pytest.mark.parametrize("fault", Fault)
def test_every_fault_plays_to_its_end(played: dict[Fault, tuple[int, str, Path]], fault: Fault) -> None:
    """The play ends well, the launcher says so, and every line is whole."""
    status, said, out = played[fault]
    ends = {
        Fault.NONE: "Training finished!",
        Fault.SECOND_ATTEMPT: "Training finished!",
        Fault.CUDA_OOM: "Terminating all processes...",
        Fault.ENGINE_DEATH: "Terminating all processes...",
    }
    assert status == 0
    assert ends.get(fault, "Showing orchestrator logs...") in said.splitlines()[-1]
    for path in out.glob("*/rollouts/*/train/*/traces.jsonl"):
        assert all(json.loads(line) for line in path.read_text("utf-8").splitlines())


@pytest.mark.parametrize("fault", Fault)
def test_live_files_are_those_written_at_once(tmp_path: Path, fault: Fault) -> None:
    """A play leaves the very bytes that the same plan has when it is written to disk at once."""
    with EnginePage() as page:
        plan = Plan(fault=fault, steps=5, batch_size=8, patience_s=200.0, home=str(tmp_path), engine_port=page.port)
        plan = replace(paced(plan, 0.5), start=datetime.now(UTC))
        terminal = io.StringIO()
        play(plan, Stage(run=Path(plan.directory), terminal=terminal, page=page, cast=None))
    write_run(plan, tmp_path / "at once")
    assert contents(Path(plan.directory)) == contents(tmp_path / "at once/run")
    recording = (tmp_path / "at once/recording.jsonl").read_text("utf-8").splitlines()
    lines = [row["text"] for row in map(json.loads, recording) if row.get("origin") == "launcher"]
    assert terminal.getvalue().splitlines() == lines


def contents(run: Path) -> dict[str, bytes]:
    """Return every file and link of a run."""
    paths = [path for path in run.rglob("*") if "latest" not in path.relative_to(run).parts[:-1]]
    links = {path.name: bytes(path.readlink()) for path in paths if path.is_symlink()}
    return links | {str(path.relative_to(run)): path.read_bytes() for path in paths if path.is_file()}


def test_a_killed_worker_stays_a_zombie(tmp_path: Path) -> None:
    """The env server never asks how its worker died, and so it can be seen that it was SIGKILL."""
    arguments = ["--fault", "env-worker-killed", "--duration", "7", "--steps", "2", "--batch-size", "8"]
    with playing(tmp_path, *arguments) as player:
        servers = {pid for pid, kind in roles(with_trainers(player)).items() if kind == "env_server"}

        def dead() -> list[Seen]:
            return [seen for seen in descendants(player.pid).values() if seen.state == "Z" and seen.ppid in servers]

        wait_for(dead, 10.0)
        time.sleep(1.2)  # its parent would have asked by now
        (worker,) = dead()
    assert worker.status == signal.SIGKILL


def part(*children: dict[str, object], **fields: object) -> dict[str, object]:
    """Return an actor's part."""
    now = time.time()
    usual = {"title": "PRIME-RL::Test", "argv": None, "out": None, "err": None, "begins": now, "ends": now + 0.3}
    return usual | {"code": 0, "reaped": True, "session": False, "children": list(children)} | fields


@pytest.mark.parametrize(("code", "status"), [(0, 0), (1, 1 << 8), (-6, 6), (-9, 9), (-15, 15)])
def test_actors_end_as_planned(code: int, status: int) -> None:
    """An exit code is one, and a signal is one: the kernel tells who asks."""
    told = part(part(code=code, reaped=False), ends=time.time() + 60, parent=os.getpid())
    parent = subprocess.Popen([sys.executable, actor.__file__], stdin=subprocess.PIPE, text=True)
    try:
        parent.stdin.write(json.dumps(told))
        parent.stdin.close()
        wait_for(lambda: [seen for seen in descendants(parent.pid).values() if seen.state == "Z"], STARTED_S)
        (child,) = descendants(parent.pid).values()
    finally:
        parent.kill()
        parent.wait()
    assert child.status == status


@given(
    lines=st.lists(st.tuples(st.sampled_from(["a", "b"]), st.binary(min_size=1, max_size=80)), max_size=60),
    seed=st.integers(),
    speed=st.floats(0.1, 1000),
)
def test_halves_make_whole_files(lines: list[tuple[str, bytes]], seed: int, speed: float) -> None:
    """However lines are cut, each file has the same bytes in the same order."""
    writes = [Write(at_s / 10, path, data) for at_s, (path, data) in enumerate(lines)]
    cut = sorted(halved(writes, Random(seed), speed), key=lambda change: change.at_s)
    for path in ("a", "b"):
        whole = b"".join(data for name, data in lines if name == path)
        assert b"".join(change.data for change in cut if change.path == path) == whole


def test_some_lines_are_cut() -> None:
    """A reader meets half a line now and then."""
    writes = [Write(float(at_s), "log", b"x" * 99 + b"\n") for at_s in range(400)]
    assert 5 < sum(not change.data.endswith(b"\n") for change in halved(writes, Random(1), 8.0)) < 40


def test_a_link_is_swapped(tmp_path: Path) -> None:
    """The link to the latest attempt points at the newer one, and nothing else is left behind."""
    for attempt in ("attempt_1", "attempt_2"):
        apply(Link(0.0, "logs/latest", attempt), tmp_path)
    assert (tmp_path / "logs/latest").readlink() == Path("attempt_2")
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["attempt_1", "attempt_2", "latest"]
