"""The commands that read: from a real journal, beside the one that writes it and after it."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import anyio
import click
import pytest
import structlog
from click.testing import CliRunner

from pipeline.alerts import CheckIn, Notification
from pipeline.cli_read import COMMANDS
from pipeline.config import Config, load_rules
from pipeline.events import AttemptBegun, Event, LogRecord, Metrics, Receipt, RunConfigured, SourceState
from pipeline.journal import open_journal
from pipeline.reading import read_owner, read_snapshot
from pipeline.state_directory import lock, state_directory
from pipeline.watcher import Watcher
from rules.engine import Engine
from rules.rulebook import Rulebook

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from click.testing import Result

    from pipeline.alerts import Decision

NOON = datetime(2026, 8, 19, 12, tzinfo=UTC)
LOGS = "logs/attempt_1"
OOM = "Fatal error in train\ntorch.OutOfMemoryError: CUDA out of memory. \x1b[31m[red]tried[/red]"
LOOP = "Starting orchestrator loop (max_steps=8)"


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def log(seconds: float, text: str, file: str = "trainer.log", level: Any = "INFO") -> LogRecord:
    return LogRecord(
        time=at(seconds), source=f"{LOGS}/{file}", offset=int(seconds * 100), attempt=1, text=text, level=level
    )


def step(seconds: float, number: int) -> Metrics:
    return Metrics(
        time=at(seconds), source="metrics.jsonl", offset=number, writer="trainer", step=number, completes=True
    )


BEGINNING: list[Event] = [
    AttemptBegun(time=at(0), number=1),
    RunConfigured(time=at(0), name="math", max_steps=8),
    SourceState(time=at(0), name="processes", state="absent", reason="on another host"),
    log(1, LOOP, "orchestrator.log"),
    step(60, 1),
    step(120, 2),
    log(130, "the flux is odd [bold]today[/]", level="WARNING"),
    log(140, "the flux is odd [bold]today[/]", level="WARNING"),
]
FAILURE: list[Event] = [
    log(200, OOM, level="ERROR"),
    log(230, LOOP, "orchestrator.log"),
    Receipt(time=at(235), item="1-1", sink="phone", outcome="failing", reason="hooks.example.com answered 503"),
    Receipt(time=at(236), item="1-1", sink="phone", outcome="delivered"),
]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep state and config of the machine out of it; logs go where they did before."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    yield
    structlog.reset_defaults()


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    run = tmp_path / "outputs" / "run"
    (run / LOGS).mkdir(parents=True)
    (run / "configs").mkdir()
    return run


def routed(decision: Decision) -> list[str]:
    return ["phone"] if isinstance(decision, Notification) else ["status"] if isinstance(decision, CheckIn) else []


def watched(run: Path, *batches: list[Event]) -> Path:
    """Watch the run, going on from where it was left; return its journal."""
    path = state_directory(run) / "journal.db"

    async def watch() -> None:
        async with open_journal(path) as journal:
            restored = await journal.load()
            engine = Engine(Rulebook(load_rules(Config())), restored.rows)
            watcher = Watcher(engine, journal, routed, lambda: datetime.now(UTC))
            for batch in batches:
                await watcher.apply([(event, None) for event in batch])

    anyio.run(watch)
    return path


def call(*args: str | Path) -> Result:
    group = click.Group(commands={command.name: command for command in COMMANDS if command.name})
    result = CliRunner().invoke(group, [str(arg) for arg in args])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def told(*args: str | Path) -> str:
    result = call(*args)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def objects(*args: str | Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in told(*args, "--json").splitlines()]


def test_status_says_how_the_run_stands(run_dir: Path) -> None:
    """Health, phase and step, since when, and how old that is; what is not seen; what no rule knows."""
    watched(run_dir, BEGINNING)
    lines = told("status", run_dir).splitlines()
    assert lines[0] == "Healthy · running since 2026-08-19 12:00:01 UTC · step 2 of 8"
    assert lines[1].startswith("nobody watches it; last written ")
    assert lines[1].endswith("s ago; as of 2026-08-19 12:02:20 UTC")
    assert "processes not to be seen here since 2026-08-19 12:00:00 UTC: on another host" in lines
    assert lines[-2] == "2 records match no rule:"
    assert lines[-1].split(maxsplit=1) == ["2x", "trainer WARNING (new) the flux is odd [bold]today[/]"]


def test_status_names_what_is_wrong(run_dir: Path) -> None:
    """Open incidents, alerts that fire, and deliveries that wait."""
    watched(run_dir, BEGINNING, FAILURE[:2])
    lines = told("status", run_dir).splitlines()
    assert lines[0].startswith("Down · ")
    assert any(line.startswith("incident 1 critical cuda-oom in trainer") for line in lines)
    assert any(
        line.startswith("firing critical cuda-out-of-memory|trainer, since 2026-08-19 12:03:20") for line in lines
    )
    assert any(line.startswith("1 not yet delivered to phone, tried 0 times") for line in lines)


def test_status_for_machines(run_dir: Path) -> None:
    """One object with all of it, times as in every output."""
    watched(run_dir, BEGINNING, FAILURE)
    [found] = objects("status", run_dir)
    assert (found["health"], found["step"], found["max_steps"], found["watched_by"]) == ("Down", 2, 8, None)
    assert (found["time"], found["phase_since"][:11]) == ("2026-08-19T12:03:56.000Z", "2026-08-19T")
    assert [one["failure_mode"] for one in found["incidents"]] == ["cuda-oom"]
    assert [(one["count"], one["is_new"]) for one in found["unknown"]] == [(2, True)]
    assert [(one["name"], one["state"]) for one in found["sources"]] == [("processes", "absent")]
    assert {one["sink"] for one in found["undelivered"]} == {"status"}
    assert "evidence" in found["alerts"][0]


def test_alerts_are_what_fires_and_what_may(run_dir: Path) -> None:
    """A run without trouble says so; for machines each alert is an object."""
    watched(run_dir, BEGINNING)
    assert told("alerts", run_dir) == "nothing fires\n"
    assert objects("alerts", run_dir) == []
    watched(run_dir, FAILURE)
    assert "firing critical cuda-out-of-memory|trainer" in told("alerts", run_dir)
    assert objects("alerts", run_dir)[0]["state"] == "firing"


def test_why_an_incident_quotes_the_record(run_dir: Path) -> None:
    """The evidence is whole, with its place; what the run wrote moves no cursor and is no markup of ours."""
    watched(run_dir, BEGINNING, FAILURE)
    said = told("why", "1", run_dir)
    assert said.startswith("incident 1 critical cuda-oom in trainer, from 2026-08-19 12:03:20 UTC, still open\n")
    assert f"{LOGS}/trainer.log:20000" in said
    assert "CUDA out of memory.  [31m[red]tried[/red]" in said
    assert "\x1b" not in said
    assert "1 message sent so far" in said
    [incident, *_] = objects("why", "1", run_dir)
    assert incident["parts"][0]["subject"]["evidence"][0]["text"] == OOM


def test_why_a_closed_incident_has_its_evidence_from_the_history(run_dir: Path) -> None:
    """What has resolved is forgotten by the engine, and still can be looked up."""
    watched(run_dir, BEGINNING, FAILURE, [AttemptBegun(time=at(300), number=2)])
    said = told("why", "1", run_dir)
    assert "to 2026-08-19 12:05:00 UTC" in said
    assert "resolved: cuda-out-of-memory in trainer" in said
    assert "torch.OutOfMemoryError: CUDA out of memory." in said
    past = [one for one in objects("why", "1", run_dir) if one.get("type") == "alert"]
    assert past[0]["evidence"][0]["text"] == OOM


@pytest.mark.parametrize("name", ["cuda-out-of-memory", "cuda-out-of", "cuda-oom"])
def test_why_takes_a_rule_a_mode_or_the_beginning_of_an_id(run_dir: Path, name: str) -> None:
    """An alert is found by whatever of its names is at hand."""
    watched(run_dir, BEGINNING, FAILURE)
    assert "cuda-out-of-memory|trainer" in told("why", name, run_dir)


def test_why_a_rule_did_not_fire(run_dir: Path) -> None:
    """It says what it looks at, what it needs, and when it would fire."""
    watched(run_dir, BEGINNING)
    said = told("why", "stall", run_dir)
    assert said.startswith("quiet stall|")
    assert "last moved: trained 2 at 12:02:00 UTC" in said
    assert "unless one of them moves before" in said
    assert "has no hit, needs one hit" in told("why", "cuda-out-of-memory", run_dir)


def test_why_nothing_says_what_may_be_meant(run_dir: Path) -> None:
    """What names nothing is refused, in one line."""
    watched(run_dir, BEGINNING)
    result = call("why", "cuda-omo", run_dir)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("'cuda-omo' is no incident, rule, failure mode or alert; did you mean cuda-oom")


def test_history_is_all_that_was_decided_and_delivered(run_dir: Path) -> None:
    """Transitions, messages and receipts, in order, with times in UTC."""
    watched(run_dir, BEGINNING, FAILURE)
    lines = told("history", run_dir).splitlines()
    words = [line.split()[3] for line in lines]
    assert {"health", "firing", "incident", "notify", "receipt", "check-in"} <= set(words)
    assert lines[-1] == "2026-08-19 12:03:56 UTC  receipt   1-1 delivered by phone"
    assert lines[-2].endswith("1-1 failing by phone: hooks.example.com answered 503")
    kinds = [one["type"] for one in objects("history", run_dir)]
    assert len(kinds) == len(lines)
    assert kinds[-1] == "receipt"


@pytest.mark.parametrize("args", [["status"], ["alerts"], ["why", "stall"], ["history"]])
def test_without_a_journal_it_is_said_what_to_do(run_dir: Path, tmp_path: Path, args: list[str]) -> None:
    """A run that was never watched, and a folder that is no run, are refused in one line."""
    result = call(*args, run_dir)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"{run_dir}: nothing is known of this run; watch it with: runwatch run {run_dir}\n"
    assert not state_directory(run_dir, make=False).exists()
    (tmp_path / "empty").mkdir()
    result = call(*args, tmp_path / "empty")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)


def test_the_run_is_found_from_its_output_directory(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default that is the working directory."""
    watched(run_dir, BEGINNING)
    monkeypatch.chdir(run_dir.parent)
    assert told("status").startswith("Healthy")


def test_a_bad_config_and_a_bad_journal_end_the_program(run_dir: Path) -> None:
    """The first is unusable, the second is a failure; each has a line that says which file."""
    path = watched(run_dir, BEGINNING)
    (run_dir.parent / "runwatch.toml").write_text("nonsense = 1")
    result = call("status", run_dir)
    assert (result.exit_code, "runwatch.toml:1" in result.stderr) == (2, True)
    (run_dir.parent / "runwatch.toml").unlink()
    path.write_bytes(b"this is not a database" * 1000)
    for verb in ("status", "history"):
        result = call(verb, run_dir)
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr.startswith(f"journal {path} cannot be read: ")


def test_who_watches_is_known_without_touching_the_lock(run_dir: Path) -> None:
    """While it is held, its owner is named; a lock left behind names nobody; asking does not keep others out."""
    directory = state_directory(run_dir)
    with lock(directory):
        owner = read_owner(directory)
        assert owner is not None
        assert owner.pid == os.getpid()
    assert read_owner(directory) is None
    (directory / "lock").write_text(
        json.dumps({"pid": os.getpid(), "user": "u", "host": "h", "since": "2026-08-19T12:00:00Z"})
    )
    assert read_owner(directory) is None
    with (directory / "lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.anyio
async def test_the_writer_is_not_held_up(run_dir: Path) -> None:
    """Beside a live service what is read is what was last committed, and the next commit goes through."""
    path = state_directory(run_dir) / "journal.db"
    with lock(path.parent):
        async with open_journal(path) as journal:
            watcher = Watcher(Engine(Rulebook(load_rules(Config()))), journal, routed, lambda: datetime.now(UTC))
            await watcher.apply([(event, None) for event in BEGINNING])
            said = await anyio.to_thread.run_sync(told, "status", run_dir)
            assert f"watched by pid {os.getpid()} " in said
            assert "step 2 of 8" in said
            await watcher.apply([(step(180, 3), None)])
            assert "step 3 of 8" in await anyio.to_thread.run_sync(told, "status", run_dir)
    assert read_snapshot(path).committed is not None


def test_it_runs_as_a_program(run_dir: Path) -> None:
    """In a process of its own, and what it prints for machines is JSON and nothing else."""
    watched(run_dir, BEGINNING, FAILURE)
    script = "import sys; from pipeline.cli_read import COMMANDS; COMMANDS[0](sys.argv[1:])"
    args = [sys.executable, "-c", script, str(run_dir), "--json"]
    done = subprocess.run(args, capture_output=True, check=True, timeout=30)
    assert json.loads(done.stdout)["health"] == "Down"
    assert done.stderr == b""
