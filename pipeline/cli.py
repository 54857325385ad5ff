"""The command line: arguments, exit codes, what is printed where."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn

import click
from rich.console import Console
from rich.progress import Progress
from setproctitle import setproctitle

from pipeline import cli_demo, cli_read, cli_test, recording
from pipeline.alerts import SEVERITIES, CheckIn, Notification, Severity, Summary
from pipeline.choice import choose
from pipeline.config import Config, find_zone, load, load_rules
from pipeline.journal_file import JournalError, read_recording
from pipeline.judge import judge
from pipeline.log import set_up_logs
from pipeline.printing import Printer
from pipeline.reading import templates
from pipeline.run_directory import NotARunDirectory, RunDirectory, candidates, is_run_directory
from pipeline.sources.replay import replay as replayed
from pipeline.sources.replay import total_bytes
from pipeline.state_directory import AlreadyWatched, StateDirectoryError, run_id, state_directory
from pipeline.timeline import Timeline
from pipeline.times import in_era
from rules.engine import Engine
from rules.load import BadFile
from rules.rulebook import Rulebook
from sinks.base import Rejected

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from zoneinfo import ZoneInfo

    from pipeline.judge import Said

FAILED, UNUSABLE = 1, 2
_PATH = click.Path(path_type=Path, readable=False)
_LONG_BYTES = 20_000_000
"""A replay of more shows how far it is."""


class _Commands(click.Group):
    """Says in one line what is wrong with how a command was called, or with where its output goes."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except click.UsageError as error:
            command = error.ctx.command_path if error.ctx else ctx.command_path
            _refuse(f"{error.format_message()} See: {command} --help")
        except OSError as error:
            if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still buffered would fail again
            click.echo(f"the output cannot be written: {error.strerror}", err=True)
            sys.exit(FAILED)
        return result


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="runwatch")
def main() -> None:
    """Look after a reinforcement-learning run of prime-rl."""


@main.command()
@click.argument("run_dir", type=_PATH)
@click.option("--recording", "recorded", type=_PATH, help="What a run directory does not hold: processes, samples.")
@click.option("--config", "config_file", type=_PATH, help="Use this config.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@click.option("--until", metavar="TIME", help='Stop there, e.g. "2026-08-19T14:00:00Z".')
@click.option("--timezone", metavar="TZ", help="Of the clocks in the logs; the machine's by default.")
@click.option("--status-md", type=_PATH, metavar="OUT", help="Write the check-ins there.")
@click.option("--fail-on", type=click.Choice(SEVERITIES), help="Exit with 1 if an incident reached this severity.")
def replay(  # noqa: PLR0913, PLR0917 - one for each option
    run_dir: Path,
    recorded: Path | None,
    config_file: Path | None,
    until: str | None,
    timezone: str | None,
    status_md: Path | None,
    fail_on: Severity | None,
    *,
    as_json: bool,
) -> None:
    """Read a run directory and say what was wrong with the run, when, and why."""
    run, config, book = _opened(run_dir, config_file)
    zone = _zone(timezone) if timezone else config.run.zone
    stop = _time(until) if until else None
    reader = recording.read(recorded) if recorded else None
    if recorded and not (recorded.is_file() and os.access(recorded, os.R_OK)):
        _refuse(f"{recorded}: there is no such recording, or it may not be read")
    engine = Engine(book, checkin_every_s=config.checkin.every)
    show = _print_json if as_json else Timeline(Console(), zone).show
    total = _bytes_to_read(run, run_dir, alone=recorded is None)
    with Progress(console=Console(stderr=True), transient=True, disable=total < _LONG_BYTES or as_json) as progress:
        task = progress.add_task("reading", total=total)
        events = replayed(run, zone, reader or (), read=lambda read: progress.advance(task, read))
        with _output(status_md) as status:
            worst = _show_all(judge(engine, events, stop), show, status)
    if not as_json:
        Printer(Console()).unknown(templates(engine.unknown()))
    for kind, count in (reader.skipped if reader else {}).items():
        click.echo(f"{recorded}: skipped {count} events: {kind}", err=True)
    if fail_on is not None and worst is not None and SEVERITIES.index(worst) >= SEVERITIES.index(fail_on):
        sys.exit(FAILED)


@main.command()
@click.argument("directory", type=_PATH, default=Path(), metavar="[RUN_OR_OUTPUT_DIR]")
@click.option("--config", "config_file", type=_PATH, help="Use this config.")
@click.option("--once", is_flag=True, help="Look at everything once, write one check-in, and exit.")
def run(directory: Path, config_file: Path | None, *, once: bool) -> None:
    """Watch a run, in the foreground, until told to stop."""
    setproctitle("runwatch")  # a person may be asked first, and take their time
    chosen = _chosen(directory)
    setproctitle(f"runwatch {run_id(chosen)}")
    set_up_logs()
    opened, config, book = _opened(chosen, config_file)
    from pipeline.cli_run import run_service  # noqa: PLC0415 - the other commands start sooner without it

    errors: list[BaseException] = []
    try:
        run_service(opened, config, book, once=once)
    except* (AlreadyWatched, StateDirectoryError, JournalError, Rejected) as group:
        errors += _each(group)  # not left from here: before 3.11.4 Python wraps what is raised here into a group
    for error in errors:
        click.echo(str(error), err=True)
    if errors:
        sys.exit(UNUSABLE if all(isinstance(error, Rejected) for error in errors) else FAILED)


@main.command()
@click.argument("paths", type=_PATH, nargs=-1, required=True, metavar="[RUN_OR_OUTPUT_DIR] OUT")
def record(paths: tuple[Path, ...]) -> None:
    """Write what was recorded of a run that is or was watched, as JSON Lines; - writes to standard output."""
    if len(paths) > 2:
        _refuse("record takes a run directory, which may be left out, and where to write")
    directory = paths[0] if len(paths) > 1 else Path()
    journal = state_directory(_chosen(directory), make=False) / "journal.db"
    if not journal.exists():
        _refuse(f"{directory}: nothing was recorded here; it is watched with: runwatch run {directory}")
    try:
        with click.open_file(str(paths[-1]), "wb") as out:
            for event in read_recording(journal):
                out.write(recording.write([event]))
    except BrokenPipeError:  # whoever reads our output has read enough
        raise
    except OSError as error:
        _refuse(f"{paths[-1]}: cannot be written: {error.strerror}")
    except JournalError as error:
        click.echo(str(error), err=True)
        sys.exit(FAILED)


def _chosen(directory: Path) -> Path:
    """Return the run that is meant; a person is asked where that is not clear."""
    try:
        choice = choose(directory)
    except NotARunDirectory as error:
        _refuse(str(error))
    if not choice.ambiguous:
        click.echo(f"{choice.runs[0]}: {choice.reason}", err=True)
        return choice.runs[0]
    names = [str(run) for run in choice.runs]
    if not sys.stdin.isatty():
        _refuse(f"{directory}: {choice.reason}; name one of them:", *names)
    for number, name in enumerate(names, start=1):
        click.echo(f"{number}  {name}", err=True)
    return choice.runs[click.prompt("which one", type=click.IntRange(1, len(names)), err=True) - 1]


def _opened(run_dir: Path, config_file: Path | None) -> tuple[RunDirectory, Config, Rulebook]:
    """Open the run directory and load config and rules; what is wrong with them ends the program."""
    try:
        run = RunDirectory(run_dir)
        config = load(config_file, run.path)
        return run, config, Rulebook(load_rules(config), config.disable)
    except NotARunDirectory as error:
        _refuse(str(error))
    except BadFile as error:
        _refuse(*error.messages)


def _bytes_to_read(run: RunDirectory, named: Path, *, alone: bool) -> int:
    """Return how much a replay reads, and say what it cannot read; no run at all ends the program."""
    if not os.access(run.path, os.R_OK | os.X_OK):
        _refuse(f"{named}: not a run directory: permission denied")
    total = total_bytes(run)
    if alone and not total and not is_run_directory(run.path):
        runs = candidates(run.path)
        _refuse(
            f"{named}: not a run directory" + ("; name one of them:" if runs else ": it holds no file of a run"),
            *map(str, runs),
        )
    attempts = run.attempts()
    logs = [file for attempt in attempts for file in run.log_files(attempt)] + run.shared_logs()
    for path in [run.metrics_file(), *(attempt.path for attempt in attempts), *(file.path for file in logs)]:
        if path.exists() and not os.access(path, os.R_OK | (os.X_OK if path.is_dir() else 0)):
            click.echo(f"{path}: may not be read, and is left out", err=True)
    return total


def _show_all(said: Iterable[Said], show: Callable[[Said], None], status: IO[str] | None) -> Severity | None:
    """Show everything, check-ins into *status*; return the worst severity of an incident."""
    worst: Severity | None = None
    for one in said:
        if isinstance(one, CheckIn) and status is not None:
            status.write(f"{one.text}\n")
        elif not isinstance(one, CheckIn | Notification):  # nothing is delivered, so it is not said that it was
            show(one)
        if isinstance(one, Summary) and one.incidents:
            worst = max((incident.severity for incident in one.incidents), key=SEVERITIES.index)
    return worst


def _print_json(said: Said) -> None:
    sys.stdout.buffer.write(recording.to_json(said) + b"\n")


@contextmanager
def _output(path: Path | None) -> Iterator[IO[str] | None]:
    """Open a file to write, if one is wanted; one that cannot be written ends the program."""
    if path is None:
        yield None
        return
    try:
        file = path.open("w", encoding="utf-8")
    except OSError as error:
        _refuse(f"{path}: cannot be written: {error.strerror}")
    with file:
        yield file


def _zone(name: str) -> ZoneInfo:
    try:
        return find_zone(name)
    except ValueError as error:
        _refuse(f"--timezone: {error}")


def _time(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        _refuse(f'--until: "{text}" is not a time: write it like "2026-08-19T14:00:00Z"')
    if time.tzinfo is None:
        _refuse(f'--until: "{text}" has no zone: add "Z" for UTC')
    try:
        return in_era(time.astimezone(UTC))
    except (ValueError, OverflowError):
        _refuse(f'--until: "{text}" is not a time of this era')


def _each(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors that a group holds, however deep."""
    for inner in error.exceptions if isinstance(error, BaseExceptionGroup) else ():
        yield from _each(inner)
    if not isinstance(error, BaseExceptionGroup):
        yield error


def _refuse(*messages: str) -> NoReturn:
    """End the program: what it was given cannot be used."""
    for message in messages:
        click.echo(message, err=True)
    sys.exit(UNUSABLE)


for command in (*cli_read.COMMANDS, *cli_test.COMMANDS, *cli_demo.COMMANDS):
    main.add_command(command)
