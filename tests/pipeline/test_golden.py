"""Run directories that the real programs wrote: each can be judged, and none is judged wrongly."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from pipeline.alerts import AlertChanged, Summary
from pipeline.config import Config, load_rules
from pipeline.events import AttemptBegun, Event, Metrics
from pipeline.judge import judge
from pipeline.run_directory import RunDirectory
from pipeline.sources.replay import replay
from rules.engine import Engine
from rules.rulebook import Rulebook

ARCHIVE = Path(__file__).parents[2].parent / "shared" / "golden.tar.gz"
MAIN_RUNS = ["episode-era/run", "trace-era/run"]
HEALTHY = ["scenarios/json-logging/run", "scenarios/debug-level/run"]
UTC = ZoneInfo("UTC")


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack the runs, with the times at which their files were written."""
    if not ARCHIVE.is_file():
        pytest.skip(f"{ARCHIVE.name} is not beside the project")
    folder = tmp_path_factory.mktemp("golden")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder / "golden" if (folder / "golden").is_dir() else folder


@pytest.fixture(scope="module")
def book() -> Rulebook:
    """Give the rules that ship."""
    return Rulebook(load_rules(Config()))


def events_of(run: Path) -> list[Event]:
    """Return what a run directory holds."""
    return list(replay(RunDirectory(run), UTC))


def judged(book: Rulebook, events: list[Event]) -> Summary:
    """Return how a run stands at its end."""
    *said, summary = judge(Engine(book), events)
    assert isinstance(summary, Summary)
    times = [one.time for one in said]
    assert times == sorted(times)
    return summary


def before_attempt(events: list[Event], number: int) -> list[Event]:
    """Return what came before a launch."""
    begun = [event.time for event in events if isinstance(event, AttemptBegun) and event.number == number]
    return [event for event in events if event.time < begun[0]]


def test_every_run_can_be_judged(book: Rulebook, golden: Path) -> None:
    """Each directory with logs replays to its end, with the steps that its files tell of."""
    runs = sorted({path.parent for path in golden.rglob("logs") if path.is_dir()})
    assert len(runs) > 20
    for run in runs:
        events = events_of(run)
        summary = judged(book, events)
        trained = [e.step for e in events if isinstance(e, Metrics) and e.completes and e.writer == "trainer"]
        assert summary.step == (trained[-1] if trained else 0), run
        config = run / "configs" / "trainer.json"
        wanted = json.loads(config.read_text())["max_steps"] if config.is_file() else None
        assert summary.max_steps == wanted, run


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_run_has_no_incident(book: Rulebook, golden: Path, name: str) -> None:
    """A run that finished cleanly is healthy and finished, whatever the form of its logs."""
    summary = judged(book, events_of(golden / name))
    assert (summary.incidents, summary.health, summary.phase) == ([], "Healthy", "finished")


@pytest.mark.parametrize("name", MAIN_RUNS)
def test_a_crash_is_one_incident_of_the_trainer(book: Rulebook, golden: Path, name: str) -> None:
    """The first launch of both main runs crashes in a rank of the trainer: one incident, and the run is down."""
    summary = judged(book, before_attempt(events_of(golden / name), 2))
    (incident,) = summary.incidents
    assert (incident.component, incident.severity, summary.health) == ("trainer", "critical", "Down")


@pytest.mark.parametrize("name", MAIN_RUNS)
def test_the_launch_after_a_crash_is_healthy(book: Rulebook, golden: Path, name: str) -> None:
    """The second launch resumes and finishes: the incident of the first is closed, and there is no other."""
    summary = judged(book, events_of(golden / name))
    assert [incident.closed is not None for incident in summary.incidents] == [True]
    assert (summary.health, summary.phase, summary.step, summary.max_steps) == ("Healthy", "finished", 8, 8)


@pytest.mark.parametrize(
    ("name", "mode", "said"),
    [
        ("rank-exception", "process-exited", "ValueError: Advantage tensor has 2047 entries but loss mask has 2048"),
        ("rank-sigkill", "process-exited", "rank 1 of the trainer was killed (SIGKILL)"),
        ("gloo-timeout", "nccl-timeout", "Timed out waiting 8000ms for recv operation to complete"),
        ("uncaught", "process-exited", "ImportError: libcudart.so.12: cannot open shared object file"),
        ("config-error", "process-exited", "the trainer refuses its config"),
        ("nan", "nan-loss", "the loss is not a number"),
    ],
)
def test_each_crash_under_torchrun_is_blamed_on_what_it_was(
    book: Rulebook, golden: Path, name: str, mode: str, said: str
) -> None:
    """The rank and the exception that began it are named, not what other ranks said of it, nor torchrun's verdict."""
    engine = Engine(book)
    decisions = engine.apply(events_of(golden / "torchrun" / name)).decisions
    (incident,) = engine.summary().incidents
    assert (incident.failure_mode, incident.component, incident.severity) == (mode, "trainer", "critical")
    assert any(said in one.summary for one in decisions if isinstance(one, AlertChanged))


@pytest.mark.parametrize("name", ["ok", "debug-level-ok", "default-role-ok", "json-ok", "warnings", "sigterm"])
def test_what_ends_well_under_torchrun_is_no_failure(book: Rulebook, golden: Path, name: str) -> None:
    """A normal end, warnings, and an end that somebody asked for are not."""
    summary = judged(book, events_of(golden / "torchrun" / name))
    assert (summary.incidents, summary.health) == ([], "Healthy")


def test_an_injected_fault_is_found(book: Rulebook, golden: Path) -> None:
    """A weight update that the engine refused is named, though only an access line tells of it."""
    summary = judged(book, events_of(golden / "scenarios" / "weight-update-500" / "run"))
    assert [incident.failure_mode for incident in summary.incidents] == ["weight-update-failed"]


def test_one_step_without_a_number_is_noted_at_most(book: Rulebook, golden: Path) -> None:
    """The stub's loss is not a number at one step, and the run goes on: console and file tell of one fact."""
    summary = judged(book, events_of(golden / "scenarios" / "trainer-nan" / "run"))
    assert {incident.severity for incident in summary.incidents} <= {"info"}
    assert (summary.health, summary.phase) == ("Healthy", "finished")


def test_nothing_is_written(book: Rulebook, golden: Path) -> None:
    """A run directory is as it was after it was replayed."""
    run = golden / MAIN_RUNS[0]

    def state() -> list[tuple[str, int, int]]:
        found = ((str(path), path.lstat()) for path in run.rglob("*"))
        return sorted((path, stat.st_size, stat.st_mtime_ns) for path, stat in found)

    before = state()
    judged(book, events_of(run))
    assert state() == before
