"""What the command line refuses, with which exit status, and the forms of its arguments."""

from __future__ import annotations

import json
import os
from pathlib import Path

import anyio
import pytest
from click.testing import CliRunner, Result

from pipeline import cli_run
from pipeline.cli import main
from pipeline.events import Tick
from pipeline.journal import Batch, JournalError, open_journal
from pipeline.state_directory import state_directory
from pipeline.times import from_epoch
from sinks.base import Rejected

EXAMPLE = Path(__file__).parents[2] / "example" / "run"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a run directory, and a place for its state."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "run" / "logs" / "attempt_1").mkdir(parents=True)
    return tmp_path / "run"


def runwatch(*arguments: object) -> Result:
    """Run a command; a traceback is an error of the test."""
    return CliRunner().invoke(main, [str(one) for one in arguments], catch_exceptions=False)


@pytest.mark.parametrize("until", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59Z", "2026-08-19T12:00:00", "soon"])
def test_a_time_that_cannot_be_meant_is_refused(run: Path, until: str) -> None:
    """A time of no use is one line and exit status 2, not a traceback, nor check-ins for thousands of years."""
    result = runwatch("replay", run, "--until", until)
    assert result.exit_code == 2
    assert result.stderr.startswith("--until: ")
    assert result.stderr.count("\n") == 1


def test_a_row_of_another_era_does_not_stop_time(run: Path) -> None:
    """A row with an absurd time is unreadable; the run is judged without it."""
    rows = [{"step": 1, "time": 1787219038.0, "loss/mean": 1.0}, {"step": 2, "time": 253402300799, "loss/mean": 1.0}]
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in rows))
    result = runwatch("replay", run, "--json")
    assert json.loads(result.stdout.splitlines()[-1])["time"] == "2026-08-20T09:43:58.000Z"


@pytest.mark.parametrize("named", [True, False])
def test_record_takes_the_run_from_where_it_is_called(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, named: bool
) -> None:
    """The run may be named before the file to write, or be the present directory."""
    tick = Tick(time=from_epoch(1787219038))

    async def keep() -> None:
        async with open_journal(state_directory(run) / "journal.db") as journal:
            await journal.commit(Batch(kept=[tick]))

    anyio.run(keep)
    monkeypatch.chdir(run)
    out = tmp_path / "out.jsonl"
    result = runwatch("record", *([run] if named else []), out)
    assert (result.exit_code, out.read_text()) == (0, '{"type":"tick","time":"2026-08-20T09:43:58.000Z"}\n')


def test_record_refuses_what_it_cannot_write(run: Path) -> None:
    """More arguments than two, or a run that was never watched, are refused in one line."""
    assert runwatch("record", run, "a", "b").exit_code == 2
    result = runwatch("record", run, os.devnull)
    assert (result.exit_code, "nothing was recorded" in result.stderr) == (2, True)


@pytest.mark.parametrize(("error", "status"), [(JournalError("the disk is full"), 1), (Rejected("no such service"), 2)])
def test_an_error_deep_within_the_service_is_told_in_its_own_words(
    run: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    """However many task groups it went through; a sink that cannot work as configured is a bad config."""

    def fails(*_: object, **__: object) -> None:
        raise ExceptionGroup(str(error), [ExceptionGroup(str(error), [error])])

    monkeypatch.setattr(cli_run, "run_service", fails)
    monkeypatch.setattr("pipeline.cli.setproctitle", lambda _: None)
    monkeypatch.setattr("pipeline.cli.set_up_logs", lambda: None)
    result = runwatch("run", run)
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (status, str(error))
