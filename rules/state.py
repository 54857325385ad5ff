"""
The engine's state: a flat map from key to a small row.

What is kept beside the rows (timers, what fires) is derived from them, and is
derived anew when they are read back.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, TypeVar

import msgspec

from rules.rows import BaseRow, LeftOut, Row

if TYPE_CHECKING:
    from datetime import datetime

KEYS = 100_000
"""Rows in all; what comes beyond is counted and not kept."""
_FOR_SUBJECTS = 0.9
"""The part of them that subjects may take: whatever a run makes up, there is room for what it means."""

_LEFT_OUT = "left-out"

_R = TypeVar("_R", bound=BaseRow)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Row).decode


class State:
    """The rows, what changed since last asked, and the timers in them."""

    def __init__(self, rows: dict[str, bytes] | None = None) -> None:
        self.rows: dict[str, Row] = {key: _decode(row) for key, row in (rows or {}).items()}
        self._kinds: dict[type[BaseRow], set[str]] = defaultdict(set)
        """The keys of the rows of each kind: few are asked for often, among very many others."""
        for key, row in self.rows.items():
            self._kinds[type(row)].add(key)
        left_out = self.rows.get(_LEFT_OUT)
        self.dropped: Counter[str] = Counter(left_out.counts if isinstance(left_out, LeftOut) else {})
        self._changed: set[str] = set()
        self._armed = {key: row.due for key, row in self.rows.items() if row.due is not None}
        """The last deadline that was set for each row: one set again is not queued again."""
        self._timers: list[tuple[datetime, str]] = [(due, key) for key, due in self._armed.items()]
        heapq.heapify(self._timers)

    def get(self, kind: type[_R], key: str) -> _R | None:
        """Return the row of that kind and key, if there is one."""
        row = self.rows.get(key)
        return row if isinstance(row, kind) else None

    def has_room(self, key: str) -> bool:
        """Tell whether a subject's row is there or may be added; count it if not."""
        if key in self.rows or len(self.rows) < _FOR_SUBJECTS * KEYS:
            return True
        self.leave_out("subjects")
        return False

    def put(self, key: str, row: Row) -> None:
        """Note that the row under *key* is new or has changed."""
        if key not in self.rows and len(self.rows) >= KEYS - 1:  # one is for what is left out
            self.leave_out("keys")
            return
        self.rows[key] = row
        self._kinds[type(row)].add(key)
        self._changed.add(key)
        if row.due is not None and self._armed.get(key) != row.due:
            self._armed[key] = row.due
            heapq.heappush(self._timers, (row.due, key))

    def leave_out(self, what: str) -> None:
        """Count something that there is no room for."""
        self.dropped[what] += 1
        self.rows[_LEFT_OUT] = LeftOut(counts=dict(self.dropped))
        self._changed.add(_LEFT_OUT)

    def drop(self, key: str) -> None:
        """Forget a row."""
        if (row := self.rows.pop(key, None)) is not None:
            self._kinds[type(row)].discard(key)
            self._changed.add(key)

    def every(self, kind: type[_R]) -> list[tuple[str, _R]]:
        """Return all rows of a kind, in the order of their keys."""
        return [(key, row) for key in sorted(self._kinds[kind]) if isinstance(row := self.rows[key], kind)]

    def due(self, until: datetime) -> tuple[datetime, str] | None:
        """Take and return the earliest timer due by *until*: its deadline and the key of its row."""
        while self._timers and self._timers[0][0] <= until:
            deadline, key = heapq.heappop(self._timers)
            if self._armed.get(key) == deadline:
                del self._armed[key]
            row = self.rows.get(key)
            if row is not None and row.due == deadline:
                row.due = None
                self._changed.add(key)
                return deadline, key
        return None

    def changes(self) -> dict[str, bytes | None]:
        """Return the encoded rows that changed since the last call; `None` for one that is gone."""
        changed = {key: _encode(self.rows[key]) if key in self.rows else None for key in sorted(self._changed)}
        self._changed.clear()
        return changed
