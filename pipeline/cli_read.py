"""The commands that read: status, alerts, why, history."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

import click
import msgspec
from rich.console import Console

from pipeline import recording
from pipeline.choice import choose
from pipeline.config import load, load_rules
from pipeline.journal_file import JournalError, read_history
from pipeline.log import set_up_logs
from pipeline.printing import Printer
from pipeline.reading import alerts_of, read_owner, read_snapshot, status
from pipeline.run_directory import NotARunDirectory, RunDirectory
from pipeline.state_directory import StateDirectoryError, state_directory
from rules.explain import Explainer
from rules.load import BadFile
from rules.rulebook import Rulebook
from rules.state import State

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.reading import Snapshot
    from rules.explain import Explained, Subject

FAILED, UNUSABLE = 1, 2
_T = TypeVar("_T")

_PATH = click.Path(path_type=Path, readable=False)
_DIRECTORY = click.argument("directory", type=_PATH, default=Path(), metavar="[RUN_OR_OUTPUT_DIR]")
_CONFIG = click.option("--config", "config_file", type=_PATH, help="Use this config.")
_JSON = click.option("--json", "as_json", is_flag=True, help="For machines.")


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """A run of which something has been written down."""

    run: Path
    directory: Path
    """Its state."""

    @property
    def journal(self) -> Path:
        """The file with what has been written down."""
        return self.directory / "journal.db"

    def snapshot(self) -> Snapshot:
        """Read the journal; one that cannot be read ends the program."""
        return _or_fail(lambda: read_snapshot(self.journal))

    def book(self, config_file: Path | None) -> Rulebook:
        """Load the rules in force; what is wrong with them ends the program."""
        try:
            config = load(config_file, self.run)
            return Rulebook(load_rules(config), config.disable)
        except BadFile as error:
            _refuse(*error.messages)


@click.command("status")
@_DIRECTORY
@_CONFIG
@_JSON
def show_status(directory: Path, config_file: Path | None, *, as_json: bool) -> None:
    """Say how a run stands: health, phase, step, what is wrong, what is not seen."""
    opened = _opened(directory)
    owner, book = read_owner(opened.directory), opened.book(config_file)
    found = status(_text(opened.run), opened.snapshot(), owner, book)
    if as_json:
        _print_json(found)
    else:
        _printer().status(found, datetime.now(UTC))


@click.command("alerts")
@_DIRECTORY
@_CONFIG
@_JSON
def show_alerts(directory: Path, config_file: Path | None, *, as_json: bool) -> None:
    """Say what fires, and what may fire yet: what has come, and what is missing."""
    opened = _opened(directory)
    found = Explainer(State(opened.snapshot().rows), opened.book(config_file)).alerts()
    if as_json:
        _print_json(*found)
    else:
        _printer().alerts(found)


@click.command("why")
@click.argument("id_", metavar="ID")
@_DIRECTORY
@_CONFIG
@_JSON
def show_why(id_: str, directory: Path, config_file: Path | None, *, as_json: bool) -> None:
    """
    Say what is behind an incident or an alert, or what a rule waits for that did not fire.

    ID is the number of an incident, the name of a rule, a failure mode, or the beginning of an alert's id.
    """
    opened = _opened(directory)
    snapshot, book = opened.snapshot(), opened.book(config_file)
    explainer = Explainer(State(snapshot.rows), book)
    if (incident := explainer.incident(id_)) is not None:
        _why_incident(incident, opened, as_json=as_json)
        return
    found = _subjects(id_, explainer, book)
    if as_json:
        _print_json(*found)
    else:
        _printer().subjects(found)


@click.command("history")
@_DIRECTORY
@_JSON
def show_history(directory: Path, *, as_json: bool) -> None:
    """Say everything that was decided and delivered, in order."""
    show = _print_json if as_json else _printer().entry
    opened = _opened(directory)
    try:
        for entry in read_history(opened.journal):
            show(entry)
    except JournalError as error:
        _fail(str(error))


COMMANDS: list[click.Command] = [show_status, show_alerts, show_why, show_history]


def _why_incident(incident: Explained, opened: Opened, *, as_json: bool) -> None:
    """Show an incident; of what has resolved, the history has the evidence."""
    firing = {(part.rule, part.component) for part in incident.parts if part.subject is not None}
    past = [
        alert
        for alert in _or_fail(lambda: alerts_of(opened.journal, incident.id))
        if (alert.rule, alert.component) not in firing
    ]
    if as_json:
        _print_json(incident, *past)
    else:
        _printer().incident(incident, past)


def _subjects(id_: str, explainer: Explainer, book: Rulebook) -> list[Subject]:
    """Return what *id_* names; what names nothing ends the program."""
    if id_ in book.rules:
        return explainer.rule(id_)
    if found := explainer.matching(id_):
        return found
    names = [rule.name for rule in book.rules.values() if rule.failure_mode == id_]
    if not names:
        modes = (rule.failure_mode for rule in book.rules.values())
        near = get_close_matches(id_, dict.fromkeys([*book.rules, *modes]), n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "see: runwatch alerts"
        _refuse(f"{id_!r} is no incident, rule, failure mode or alert; {hint}")
    return [subject for name in names for subject in explainer.rule(name)]


def _opened(directory: Path) -> Opened:
    """Find the run that is meant and its journal; without one the program ends."""
    set_up_logs()
    try:
        choice = choose(directory)
        if choice.ambiguous:
            _refuse(f"{directory}: {choice.reason}; name one of them:", *map(str, choice.runs))
        run = RunDirectory(choice.runs[0]).path
        opened = Opened(run=run, directory=state_directory(run, make=False))
    except NotARunDirectory as error:
        _refuse(str(error))
    except StateDirectoryError as error:
        _fail(str(error))
    if not opened.journal.exists():
        _refuse(f"{run}: nothing is known of this run; watch it with: runwatch run {directory}")
    return opened


def _printer() -> Printer:
    return Printer(Console())


def _print_json(*found: msgspec.Struct) -> None:
    for one in found:
        sys.stdout.buffer.write(recording.to_json(one) + b"\n")


def _text(path: Path) -> str:
    # a file's name need not be UTF-8
    return str(path).encode(errors="replace").decode()


def _or_fail(read: Callable[[], _T]) -> _T:
    try:
        return read()
    except JournalError as error:
        _fail(str(error))


def _fail(message: str) -> NoReturn:
    click.echo(message, err=True)
    sys.exit(FAILED)


def _refuse(*messages: str) -> NoReturn:
    """End the program: what it was given cannot be used."""
    for message in messages:
        click.echo(message, err=True)
    sys.exit(UNUSABLE)
