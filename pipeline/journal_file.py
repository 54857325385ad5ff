"""The journal's SQLite file: how it is opened, checked, moved aside, and read by other processes."""

from __future__ import annotations

import contextlib
import sqlite3
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from pipeline.alerts import Decision
from pipeline.events import KeptEvent, Receipt

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEMA = 1
PAGE_ROWS = 1000
"""Rows read in one go: a reader that stayed in one long transaction would keep the log from being emptied."""
LOG_PAGES = 2048
"""Pages of 4 KiB in the write-ahead log before it is emptied: reopening reads the whole log."""

_SETTINGS = (
    "PRAGMA synchronous = FULL",
    f"PRAGMA wal_autocheckpoint = {LOG_PAGES}",
    "PRAGMA journal_size_limit = 16777216",
)
_TABLES = (
    "CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS positions (path BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS rows (key BLOB PRIMARY KEY, value BLOB NOT NULL)",
    "CREATE TABLE IF NOT EXISTS recording (seq INTEGER PRIMARY KEY, time_ms INTEGER NOT NULL, body BLOB NOT NULL)",
    "CREATE TABLE IF NOT EXISTS history (seq INTEGER PRIMARY KEY, time_ms INTEGER NOT NULL, body BLOB NOT NULL)",
    """
    CREATE TABLE IF NOT EXISTS outbox (
        item TEXT NOT NULL, sink TEXT NOT NULL, kind TEXT NOT NULL, payload BLOB NOT NULL,
        created_ms INTEGER NOT NULL, attempts INTEGER NOT NULL DEFAULT 0, next_try_ms INTEGER NOT NULL DEFAULT 0,
        state TEXT NOT NULL DEFAULT 'pending', reason TEXT NOT NULL DEFAULT '', PRIMARY KEY (item, sink)
    )
    """,
    "CREATE INDEX IF NOT EXISTS outbox_pending ON outbox (sink) WHERE state = 'pending'",
    "CREATE INDEX IF NOT EXISTS outbox_settled ON outbox (created_ms) WHERE state <> 'pending'",
)
_RECORDING = "SELECT seq, body FROM recording WHERE seq > ? ORDER BY seq LIMIT ?"
_HISTORY = "SELECT seq, body FROM history WHERE seq > ? ORDER BY seq LIMIT ?"

Entry: TypeAlias = Decision | Receipt
"""What the history holds."""

_EVENT: msgspec.msgpack.Decoder[KeptEvent] = msgspec.msgpack.Decoder(KeptEvent)
_ENTRY: msgspec.msgpack.Decoder[Entry] = msgspec.msgpack.Decoder(Entry)


class JournalError(Exception):
    """The journal cannot be read or written. Going on would lose what is decided."""


class _CorruptError(Exception):
    """The file is not a sound database."""


class _RefusedError(Exception):
    """The file is sound but not for us."""


def open_file(path: Path, run: str) -> tuple[sqlite3.Connection, Path | None]:
    """
    Open the journal of *run* for its one writer; make it if need be.

    A corrupt file is moved aside, and its new path returned beside the connection
    to an empty one. The connection is in autocommit mode, and for the calling thread only.

    Raises:
        JournalError: The file cannot be opened, or a newer runwatch wrote it.

    """
    aside = None
    try:
        try:
            return _opened(path, run), None
        except _CorruptError:
            aside = _move_aside(path)
            return _opened(path, run), aside
    except (sqlite3.Error, OSError, _CorruptError, _RefusedError) as error:
        message = f"journal {path} cannot be opened: {error}"
        raise JournalError(message) from error


def read_recording(path: Path) -> Iterator[KeptEvent]:
    """
    Yield the events kept in the journal at *path*, in the order of their commits.

    It may be written meanwhile. Events of a type that this version does not know are left out.

    Raises:
        JournalError: The file cannot be read.

    """
    for body in _bodies(path, _RECORDING):
        with contextlib.suppress(msgspec.DecodeError):
            yield _EVENT.decode(body)


def read_history(path: Path) -> Iterator[Entry]:
    """
    Yield the decisions and receipts in the journal at *path*, as `read_recording` does.

    Raises:
        JournalError: The file cannot be read.

    """
    for body in _bodies(path, _HISTORY):
        with contextlib.suppress(msgspec.DecodeError):
            yield _ENTRY.decode(body)


def pack(value: msgspec.Struct) -> bytes:
    """Encode *value*; a lone surrogate in its text, which UTF-8 cannot hold, becomes a question mark."""
    try:
        return msgspec.msgpack.encode(value)
    except UnicodeEncodeError:
        return msgspec.msgpack.encode(_replaced(msgspec.to_builtins(value, builtin_types=(datetime,))))


def _replaced(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-8", "replace").decode()
        case list():
            return [_replaced(item) for item in value]
        case dict():
            return {_replaced(key): _replaced(item) for key, item in value.items()}
        case _:
            return value


def _opened(path: Path, run: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, timeout=5)
    try:
        _prepare(connection, run)
    except BaseException as error:
        connection.close()
        if isinstance(error, sqlite3.DatabaseError) and _says_corrupt(error):
            raise _CorruptError(str(error)) from error
        raise
    return connection


def _prepare(connection: sqlite3.Connection, run: str) -> None:
    if connection.execute("PRAGMA journal_mode = WAL").fetchone() != ("wal",):
        message = "its file system does not allow a write-ahead log"
        raise _RefusedError(message)
    for setting in _SETTINGS:
        connection.execute(setting)
    if (verdict := connection.execute("PRAGMA quick_check(1)").fetchone()) != ("ok",):
        raise _CorruptError(str(verdict))
    connection.execute("BEGIN IMMEDIATE")
    for table in _TABLES:
        connection.execute(table)
    connection.execute("INSERT OR IGNORE INTO meta VALUES ('schema', ?), ('run', ?)", (SCHEMA, run))
    (schema,) = connection.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()
    if schema != SCHEMA:
        message = f"a newer runwatch wrote it: its schema is {schema}, this one knows {SCHEMA}"
        raise _RefusedError(message)
    connection.execute("COMMIT")


def _says_corrupt(error: sqlite3.DatabaseError) -> bool:
    # the lowest byte is the primary code
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


def _move_aside(path: Path) -> Path:
    aside = path.with_name(f"{path.name}.corrupt-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}")
    # the log first: beside the new file it would be taken for that one's
    for suffix in ("-wal", "-shm", ""):
        with contextlib.suppress(FileNotFoundError):
            Path(f"{path}{suffix}").rename(f"{aside}{suffix}")
    return aside


def _bodies(path: Path, select: str) -> Iterator[bytes]:
    seq = -1
    try:
        with contextlib.closing(
            sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=5)
        ) as connection:
            while page := connection.execute(select, (seq, PAGE_ROWS)).fetchall():
                yield from (body for _, body in page)
                seq = page[-1][0]
    except sqlite3.Error as error:
        message = f"journal {path} cannot be read: {error}"
        raise JournalError(message) from error
