"""
The journal: what must survive, and in one transaction.

A batch holds how far the sources got, the events that cannot be read again, the
changed state and what is to be delivered. Either all of it is on disk or none:
split in two, a crash between the halves would lose a decision or make it twice.
"""

from __future__ import annotations

import contextlib
import sqlite3
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio
import msgspec

from pipeline.alerts import CheckIn, Decision, Notification
from pipeline.events import KeptEvent, Mark, Receipt
from pipeline.journal_file import Entry, JournalError, open_file, pack
from pipeline.own_thread import Call, OwnThread, own_thread
from pipeline.retention import Retention
from sinks.base import OutboxItem

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable
    from pathlib import Path

__all__ = ["Batch", "Journal", "JournalError", "Pending", "Restored", "open_journal"]

KEEP_S = 14 * 86400.0
KEEP_BYTES = 512 * 1024 * 1024

_PUT_META = "INSERT OR REPLACE INTO meta VALUES (?, ?)"
_PUT_POSITION = "INSERT OR REPLACE INTO positions VALUES (?, ?)"
_DROP_POSITION = "DELETE FROM positions WHERE path = ?"
_PUT_ROW = "INSERT OR REPLACE INTO rows VALUES (?, ?)"
_DROP_ROW = "DELETE FROM rows WHERE key = ?"
_ADD_EVENT = "INSERT INTO recording (time_ms, body) VALUES (?, ?)"
_ADD_ENTRY = "INSERT INTO history (time_ms, body) VALUES (?, ?)"
# an id that is there already was decided before: it is not delivered twice
_ADD_ITEM = "INSERT OR IGNORE INTO outbox (item, sink, kind, payload, created_ms) VALUES (?, ?, ?, ?, ?)"
_SETTLE = "UPDATE outbox SET state = ?, reason = ? WHERE item = ? AND sink = ? AND state = 'pending'"
_NOTE_ATTEMPT = """
    UPDATE outbox SET attempts = attempts + 1, next_try_ms = ?, reason = ? WHERE item = ? AND sink = ?
"""
_PENDING = """
    SELECT sink, payload, created_ms, attempts, next_try_ms FROM outbox
    WHERE state = 'pending' AND (?1 IS NULL OR sink = ?1) ORDER BY rowid LIMIT ?2
"""

Content: TypeAlias = CheckIn | Notification
_CONTENT: msgspec.msgpack.Decoder[Content] = msgspec.msgpack.Decoder(Content)
_MARK = msgspec.msgpack.Decoder(Mark)


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """What one commit makes durable. `None` for a value removes it."""

    positions: dict[str, bytes | None] = {}
    kept: list[KeptEvent] = []
    """Events that cannot be read again, in the order in which they were applied. A receipt settles its delivery."""
    rows: dict[str, bytes | None] = {}
    decisions: list[Decision] = []
    outbox: list[OutboxItem] = []
    made: datetime | None = None
    """By the wall clock, from which it is kept; without it, what it holds is as old as it says itself."""


class Pending(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery not yet made."""

    item: OutboxItem
    attempts: int
    next_try: datetime


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """What the last commit left."""

    positions: dict[str, bytes]
    rows: dict[str, bytes]
    mark: Mark | None
    """The last one committed."""
    pending: list[Pending]


class Journal:
    """The journal of one run, written by its own thread. All its methods raise `JournalError`."""

    def __init__(self, writer: _Writer, thread: OwnThread) -> None:
        self._writer = writer
        self._thread = thread
        self.committed = anyio.Event()
        """Set, and replaced, when there is more to deliver. Take it, then look, then wait for it."""

    @property
    def moved_aside(self) -> Path | None:
        """Where a corrupt journal lies that was found on opening; its state is lost."""
        return self._writer.moved_aside

    async def commit(self, batch: Batch) -> None:
        """
        Return once *batch* is durable, whole.

        Batches are committed in the order of the calls; several may share one
        transaction. A caller that is cancelled does not know whether it was committed.
        """
        prepared = _Prepared(batch)
        call = self._thread.put(lambda: self._writer.write(prepared))
        if batch.outbox:
            # whoever looks now is queued behind the batch, and so finds it
            self.committed.set()
            self.committed = anyio.Event()
        await call.outcome()

    async def load(self) -> Restored:
        """Return what the last commit left."""
        return await self._thread.run(lambda: _load(self._writer.connection))

    async def pending(self, sink: str | None = None, limit: int = -1) -> list[Pending]:
        """Return the deliveries not yet made to *sink*, or to any, oldest first; all of them without *limit*."""
        return await self._thread.run(lambda: _pending(self._writer.connection, sink, limit))

    async def note_attempt(self, item: OutboxItem, next_try: datetime, reason: str) -> None:
        """Count an attempt to deliver *item* that failed for *reason*."""
        values = (_ms(next_try), reason, item.id, item.sink)
        await self._thread.run(lambda: self._writer.connection.execute(_NOTE_ATTEMPT, values))


@asynccontextmanager
async def open_journal(
    path: Path, *, run: str = "", keep_s: float = KEEP_S, keep_bytes: int = KEEP_BYTES
) -> AsyncGenerator[Journal]:
    """
    Open the journal at *path* for its one writer; close it on the way out.

    Entries older than *keep_s* go, and the oldest beyond *keep_bytes* (of the
    recording; an eighth of it for the history).

    Raises:
        JournalError: It cannot be opened, or a newer runwatch wrote it.

    """
    writer = _Writer(path, run, keep_s, keep_bytes)
    async with own_thread("runwatch journal", writer.perform, writer.close) as thread:
        await thread.run(lambda: None)
        yield Journal(writer, thread)


class _Writer:
    """The part of the journal that lives in its thread."""

    connection: sqlite3.Connection
    _retention: Retention

    def __init__(self, path: Path, run: str, keep_s: float, keep_bytes: int) -> None:
        self.moved_aside: Path | None = None
        self._path = path
        self._run = run
        self._keep = keep_s, keep_bytes
        self._is_open = False
        self._error: JournalError | None = None

    def perform(self, calls: list[Call[Any]]) -> None:
        """Perform *calls* in one transaction; after an error, no more of them."""
        try:
            results = self._transact(calls)
        except Exception as error:  # noqa: BLE001 - raised in every task that waits; the program ends by it
            self._error = error if isinstance(error, JournalError) else self._unwritable(error)
            for call in calls:
                call.fail(self._error)
        else:
            for call, result in zip(calls, results, strict=True):
                call.settle(result)

    def write(self, prepared: _Prepared) -> None:
        """Write all of a batch, within the transaction that is open."""
        for statement, values in prepared.statements:
            self.connection.executemany(statement, values)
        for time_ms, body in prepared.events:
            self._retention.count("recording", time_ms, len(body))
        for time_ms, body in prepared.entries:
            self._retention.count("history", time_ms, len(body))

    def close(self) -> None:
        """Close the file."""
        if self._is_open:
            self.connection.close()

    def _transact(self, calls: list[Call[Any]]) -> list[Any]:
        if self._error is not None:
            raise self._error
        if not self._is_open:
            self.connection, self.moved_aside = open_file(self._path, self._run)
            self._is_open = True
            self._retention = Retention(self.connection, *self._keep)
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            results = [call.work() for call in calls]
            self._retention.prune()
            self.connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self.connection.execute("ROLLBACK")
            raise
        return results

    def _unwritable(self, error: Exception) -> JournalError:
        wrapped = JournalError(f"journal {self._path} cannot be written: {error}")
        wrapped.__cause__ = error
        return wrapped


class _Prepared:
    """A batch as the rows that it becomes, so that encoding it does not hold up others in the thread."""

    def __init__(self, batch: Batch) -> None:
        self.events = [(_ms(batch.made or event.time), pack(event)) for event in batch.kept]
        receipts = [event for event in batch.kept if isinstance(event, Receipt)]
        entries: list[Entry] = [*batch.decisions, *receipts]
        self.entries = [(_ms(batch.made or entry.time), pack(entry)) for entry in entries]
        marks = [event for event in batch.kept if isinstance(event, Mark)]
        self.statements: list[tuple[str, list[tuple[Any, ...]]]] = [
            (_PUT_POSITION, [(_key(path), value) for path, value in batch.positions.items() if value is not None]),
            (_DROP_POSITION, [(_key(path),) for path, value in batch.positions.items() if value is None]),
            (_ADD_EVENT, self.events),
            (_PUT_META, [("mark", pack(mark)) for mark in marks[-1:]]),
            (_PUT_ROW, [(_key(key), value) for key, value in batch.rows.items() if value is not None]),
            (_DROP_ROW, [(_key(key),) for key, value in batch.rows.items() if value is None]),
            (_ADD_ENTRY, self.entries),
            (_ADD_ITEM, [_item_values(item) for item in batch.outbox]),
            (_SETTLE, [(r.outcome, r.reason, r.item, r.sink) for r in receipts if r.outcome != "failing"]),
        ]


def _load(connection: sqlite3.Connection) -> Restored:
    mark = connection.execute("SELECT value FROM meta WHERE key = 'mark'").fetchone()
    return Restored(
        positions=_named(connection.execute("SELECT path, value FROM positions")),
        rows=_named(connection.execute("SELECT key, value FROM rows")),
        mark=_MARK.decode(mark[0]) if mark else None,
        pending=_pending(connection, None, -1),
    )


def _pending(connection: sqlite3.Connection, sink: str | None, limit: int) -> list[Pending]:
    return [
        Pending(
            item=OutboxItem(sink=name, created=_time(created_ms), content=_CONTENT.decode(payload)),
            attempts=attempts,
            next_try=_time(next_try_ms),
        )
        for name, payload, created_ms, attempts, next_try_ms in connection.execute(_PENDING, (sink, limit))
    ]


def _item_values(item: OutboxItem) -> tuple[str, str, str, bytes, int]:
    kind = "checkin" if isinstance(item.content, CheckIn) else "notification"
    return item.id, item.sink, kind, pack(item.content), _ms(item.created)


def _named(pairs: Iterable[tuple[bytes, bytes]]) -> dict[str, bytes]:
    return {key.decode("utf-8", "surrogatepass"): value for key, value in pairs}


def _key(text: str) -> bytes:
    # a file's name need not be UTF-8
    return text.encode("utf-8", "surrogatepass")


def _ms(time: datetime) -> int:
    return round(time.timestamp() * 1000)


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
