"""How long the journal keeps what it need not keep for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    import sqlite3

SLICE_ROWS: Final = 200
"""Rows removed in one commit beyond twice what it added: no commit takes long, and removing outpaces adding."""

_OLDEST = {
    "recording": "SELECT seq, time_ms, length(body) FROM recording ORDER BY seq LIMIT ?",
    "history": "SELECT seq, time_ms, length(body) FROM history ORDER BY seq LIMIT ?",
}
_DROP = {
    "recording": "DELETE FROM recording WHERE seq <= ?",
    "history": "DELETE FROM history WHERE seq <= ?",
}
_SIZE = {
    "recording": "SELECT coalesce(sum(length(body)), 0) FROM recording",
    "history": "SELECT coalesce(sum(length(body)), 0) FROM history",
}
_DROP_SETTLED = """
    DELETE FROM outbox WHERE rowid IN (SELECT rowid FROM outbox WHERE state <> 'pending' AND created_ms < ? LIMIT ?)
"""


class Retention:
    """
    Bounds recording and history by age and size, and settled deliveries by age.

    Age is counted back from the newest entry, not from now: what was kept before
    a long pause is not lost at its end.
    """

    def __init__(self, connection: sqlite3.Connection, keep_s: float, keep_bytes: int) -> None:
        self._connection = connection
        self._keep_ms = int(keep_s * 1000)
        self._room = {"recording": keep_bytes, "history": keep_bytes // 8}
        self._bytes = {table: connection.execute(size).fetchone()[0] for table, size in _SIZE.items()}
        self._added = dict.fromkeys(_SIZE, 0)
        self._newest_ms = 0

    def count(self, table: Literal["recording", "history"], time_ms: int, size: int) -> None:
        """Take account of an entry that is being added."""
        self._newest_ms = max(self._newest_ms, time_ms)
        self._bytes[table] += size
        self._added[table] += 1

    def prune(self) -> None:
        """Remove a slice of what is too old or too much, within the transaction that is open."""
        horizon_ms = self._newest_ms - self._keep_ms
        for table in _SIZE:
            self._prune(table, horizon_ms)
        self._connection.execute(_DROP_SETTLED, (horizon_ms, SLICE_ROWS))

    def _prune(self, table: str, horizon_ms: int) -> None:
        limit = SLICE_ROWS + 2 * self._added[table]
        self._added[table] = 0
        dropped = -1
        for seq, time_ms, size in self._connection.execute(_OLDEST[table], (limit,)):
            if time_ms >= horizon_ms and self._bytes[table] <= self._room[table]:
                break
            dropped = seq
            self._bytes[table] -= size
        if dropped >= 0:
            self._connection.execute(_DROP[table], (dropped,))
