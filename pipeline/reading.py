"""
A run as its journal tells of it, for whoever asks: beside the live service, or after it.

Only read, in one short transaction: the one that writes is never held up.
"""

from __future__ import annotations

import contextlib
import sqlite3
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pipeline.alerts import AlertChanged, Component, Health, IncidentSummary, Phase
from pipeline.events import Level, Seeing
from pipeline.journal_file import SCHEMA, JournalError, read_history
from pipeline.state_directory import Owner
from rules.engine import Engine
from rules.explain import Explainer, Subject
from rules.rows import Run, Source
from rules.sources import SINK
from rules.state import State

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rules.rows import Unknown
    from rules.rulebook import Rulebook

LOCKS = Path("/proc/locks")

_ROWS = "SELECT key, value FROM rows"
_SCHEMA = "SELECT value FROM meta WHERE key = 'schema'"
_COMMITTED = "SELECT time_ms FROM recording ORDER BY seq DESC LIMIT 1"
_PENDING = """
    SELECT sink, count(*), max(attempts), max(reason) FROM outbox WHERE state = 'pending' GROUP BY sink ORDER BY sink
"""


class Undelivered(msgspec.Struct, frozen=True, kw_only=True):
    """What waits to be delivered to a sink."""

    sink: str
    items: int
    attempts: int
    """Of the one that has been tried most often."""
    reason: str


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A journal at one moment."""

    rows: dict[str, bytes]
    committed: datetime | None
    """When it was last written, by the wall clock."""
    undelivered: list[Undelivered]


class SeenSource(msgspec.Struct, frozen=True, kw_only=True):
    """A source, as it last said of itself."""

    name: str
    state: Seeing
    since: datetime
    reason: str


class UnknownTemplate(msgspec.Struct, frozen=True, kw_only=True):
    """Warnings and errors of the attempt that match no rule. The example is untrusted."""

    component: Component
    level: Level | None
    count: int
    first: datetime
    last: datetime
    source: str
    example: str
    is_new: bool
    """Whether no earlier attempt brought it."""
    is_rest: bool
    """Whether it stands for all that there was no room for."""


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """How a run stands."""

    run: str
    time: datetime
    """The engine's clock."""
    committed: datetime | None
    watched_by: Owner | None
    health: Health
    phase: Phase
    phase_since: datetime
    step: int
    max_steps: int | None
    incidents: list[IncidentSummary]
    """Those that are open."""
    alerts: list[Subject]
    """Those that fire."""
    sources: list[SeenSource]
    unknown: list[UnknownTemplate]
    undelivered: list[Undelivered]


def read_snapshot(path: Path) -> Snapshot:
    """
    Return what the journal at *path* holds.

    Raises:
        JournalError: It cannot be read, or a newer runwatch wrote it.

    """
    try:
        with contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=5)) as journal:
            journal.execute("BEGIN")  # all of it is of one moment
            schema = journal.execute(_SCHEMA).fetchone()
            if schema != (SCHEMA,):
                message = f"journal {path} cannot be read: its schema is {schema and schema[0]}, not {SCHEMA}"
                raise JournalError(message)
            rows = {key.decode("utf-8", "surrogatepass"): value for key, value in journal.execute(_ROWS)}
            last = journal.execute(_COMMITTED).fetchone()
            pending = [
                Undelivered(sink=sink, items=items, attempts=attempts, reason=reason)
                for sink, items, attempts, reason in journal.execute(_PENDING)
            ]
    except sqlite3.Error as error:
        message = f"journal {path} cannot be read: {error}"
        raise JournalError(message) from error
    committed = datetime.fromtimestamp(last[0] / 1000, UTC) if last else None
    return Snapshot(rows=rows, committed=committed, undelivered=pending)


def read_owner(directory: Path) -> Owner | None:
    """
    Return who watches the run whose state lies in *directory*; `None` if nobody does.

    The lock is not tried: for that moment, a service that starts would be refused.
    """
    try:
        lock = directory / "lock"
        owner = msgspec.json.decode(lock.read_bytes(), type=Owner)
        inode = lock.stat().st_ino
        held = [line.split() for line in LOCKS.read_text().splitlines()]
    except (OSError, msgspec.DecodeError):
        return None
    holds = any(
        part[1] == "FLOCK" and part[4] == str(owner.pid) and part[5].rpartition(":")[2] == str(inode)
        for part in held
        if len(part) > 5 and part[1] != "->"
    )
    return owner if holds else None


def status(run: str, snapshot: Snapshot, owner: Owner | None, book: Rulebook) -> Status:
    """Return how the run stands that *snapshot* tells of."""
    engine, state = Engine(book, snapshot.rows), State(snapshot.rows)
    now, row = engine.summary(), state.get(Run, "run") or Run()
    return Status(
        run=run,
        time=now.time,
        committed=snapshot.committed,
        watched_by=owner,
        health=now.health,
        phase=now.phase,
        phase_since=row.phase_since,
        step=now.step,
        max_steps=now.max_steps,
        incidents=[one for one in now.incidents if one.closed is None],
        alerts=[one for one in Explainer(state, book).alerts() if one.state == "firing"],
        sources=[
            SeenSource(name=key.removeprefix("source|"), state=one.state, since=one.since, reason=one.reason)
            for key, one in state.every(Source)
            if not key.startswith(f"source|{SINK}")  # what is undelivered tells of sinks
        ],
        unknown=templates(engine.unknown()),
        undelivered=snapshot.undelivered,
    )


def templates(rows: Iterable[Unknown]) -> list[UnknownTemplate]:
    """Return what no rule knows, as it is shown."""
    return [
        UnknownTemplate(
            component=row.component,
            level=row.level,
            count=row.count,
            first=row.first,
            last=row.last,
            source=row.source,
            example=row.example,
            is_new=row.is_new,
            is_rest=row.is_rest,
        )
        for row in rows
    ]


def alerts_of(path: Path, incident: str) -> list[AlertChanged]:
    """
    Return the last word on each alert of an incident while it fired: the evidence of those that have resolved.

    Raises:
        JournalError: The journal at *path* cannot be read.

    """
    last: dict[tuple[str, str], AlertChanged] = {}
    for entry in read_history(path):
        if isinstance(entry, AlertChanged) and entry.incident == incident and entry.state == "firing":
            last[entry.rule, entry.component] = entry
    return list(last.values())
