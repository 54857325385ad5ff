"""
The engine's state: a flat map from key to a small row.

The rows are the only truth. What is kept beside them (timers, what fires) is
derived, and is derived anew when the rows are read back.
"""

from __future__ import annotations

import heapq
from collections import Counter
from datetime import datetime
from typing import TypeAlias, TypeVar

import msgspec

from pipeline.alerts import Component, Evidence, Health, Phase, Severity
from pipeline.events import EPOCH, Role, RunConfigured, Seeing
from rules.windows import Buckets

KEYS = 100_000
"""Rows in all; what comes beyond is counted and not kept."""
RING = 60
"""Numbers in a row's list."""

_R = TypeVar("_R", bound="_Row")
_T = TypeVar("_T")


class _Row(msgspec.Struct, kw_only=True):
    """A row, and when something in it falls due."""

    due: datetime | None = None


class Run(_Row, kw_only=True, tag="run"):
    """The run as a whole. Its step, config and numbering outlive an attempt."""

    clock: datetime = EPOCH
    """The greatest time of any event applied."""
    attempt: int = 0
    identity: str = ""
    began: datetime = EPOCH
    """The attempt's first event."""
    phase: Phase = "starting"
    phase_since: datetime = EPOCH
    health: Health | None = None
    """As last said; `None` before the first event."""
    said: Phase | None = None
    """The phase, as last said."""
    milestones: dict[str, datetime] = {}
    """When each was last passed."""
    stages: dict[str, datetime] = {}
    """When each that goes on began."""
    step: int = 0
    config: RunConfigured | None = None
    incidents: int = 0
    """Opened so far."""


class Cell(_Row, kw_only=True, tag="cell"):
    """One rule for one subject."""

    rule: str
    component: Component
    labels: dict[str, str] = {}
    hits: list[Buckets | None] = []
    """For each escalation."""
    totals: list[Buckets | None] = []
    """What the hits are a fraction of, for each escalation."""
    count: int = 0
    """Hits since it was made."""
    last_hit: datetime | None = None
    last_other: datetime | None = None
    """When something came that was no hit."""
    since: datetime | None = None
    """Since when the share is low enough to clear, or the source is blind."""
    number: int | None = None
    """The step of the last value that was counted."""
    template: int = 0
    template_at: datetime = EPOCH
    template_by: str = ""
    severity: Severity | None = None
    """While it fires."""
    fired: datetime | None = None
    incident: str = ""
    fields: dict[str, str] = {}
    """What the last hit gives to the summary."""


class Records(_Row, kw_only=True, tag="evidence"):
    """The evidence of a cell: its first record, and the latest ones."""

    records: list[Evidence] = []


class Moved(_Row, kw_only=True, tag="clock"):
    """A clock of progress."""

    number: int = 0
    at: datetime = EPOCH
    ordinary_s: list[float] = []
    """How long its last ordinary steps took."""
    rested: bool = True
    """Whether the step that goes on is not an ordinary one."""


class Member(msgspec.Struct, kw_only=True):
    """An alert's part in an incident."""

    key: str
    rule: str
    mode: str
    component: Component
    severity: Severity
    at: datetime
    firing: bool = True


class Incident(_Row, kw_only=True, tag="incident"):
    """The alerts of one attempt that belong together."""

    id: str
    opened: datetime
    last: datetime
    """When the last alert joined."""
    closed: datetime | None = None
    root: str = ""
    """The rule of its root cause."""
    mode: str = ""
    component: Component = "host"
    severity: Severity = "info"
    restart: bool = False
    members: list[Member] = []


class Process(_Row, kw_only=True, tag="process"):
    """A process of the run."""

    role: Role
    running: bool
    exit_code: int | None = None


class Source(_Row, kw_only=True, tag="source"):
    """A source, as it last said of itself."""

    state: Seeing
    since: datetime
    reason: str = ""
    failed: bool = False


class Copies(_Row, kw_only=True, tag="copies"):
    """The last records of a group of files that repeat each other."""

    recent: list[int] = []


class Figure(msgspec.Struct, array_like=True):
    """The last value of a metric or a sample."""

    value: float
    step: int | None = None
    recent: list[float] = []
    """Those before it, where spikes are flagged."""
    spike: tuple[int, float, float] | None = None
    """The greatest since the last check-in: its step, its value, and how many times the median it was."""


class Line(_Row, kw_only=True, tag="line"):
    """A line of the check-in: its figures by metric, or by engine."""

    figures: dict[str, Figure] = {}


class Schedule(_Row, kw_only=True, tag="schedule"):
    """When check-ins are due, and what has happened since the last one."""

    attempt: int = 0
    quiet_until: datetime = EPOCH
    """No entry before that: nobody was watching yet."""
    last: datetime | None = None
    """For when the last entry was made."""
    is_first: bool = True
    """Whether the next entry is the attempt's first one."""
    ended: Phase | None = None
    """The phase in which the attempt's last entry was made."""
    closed: list[str] = []
    """Incidents."""
    attempts: list[tuple[int, datetime]] = []
    gaps: list[tuple[datetime, datetime, str]] = []


class Notice(_Row, kw_only=True, tag="notice"):
    """What has been said of an incident."""

    messages: int = 0
    said: tuple[str, Component, Severity] | None = None
    """Failure mode, component and severity, as last said."""
    said_at: datetime = EPOCH


class Outgoing(_Row, kw_only=True, tag="outgoing"):
    """The messages of the last hour, and what is held back."""

    quiet_until: datetime = EPOCH
    """Incidents that close before that are not spoken of."""
    sent: list[datetime] = []
    held: list[str] = []
    """Titles, the first ones."""
    held_count: int = 0
    held_severity: Severity = "info"
    storms: int = 0


Row: TypeAlias = (
    Run
    | Cell
    | Records
    | Moved
    | Incident
    | Process
    | Source
    | Copies
    | Line
    | Schedule
    | Notice
    | Outgoing
)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Row).decode


class State:
    """The rows, what changed since last asked, and the timers in them."""

    def __init__(self, rows: dict[str, bytes] | None = None) -> None:
        self.rows: dict[str, Row] = {key: _decode(row) for key, row in (rows or {}).items()}
        self.dropped: Counter[str] = Counter()
        self._changed: set[str] = set()
        self._timers: list[tuple[datetime, str]] = [(row.due, key) for key, row in self.rows.items() if row.due]
        heapq.heapify(self._timers)

    def get(self, kind: type[_R], key: str) -> _R | None:
        """Return the row of that kind and key, if there is one."""
        row = self.rows.get(key)
        return row if isinstance(row, kind) else None

    def put(self, key: str, row: Row) -> None:
        """Note that the row under *key* is new or has changed."""
        if key not in self.rows and len(self.rows) >= KEYS:
            self.dropped["keys"] += 1
            return
        self.rows[key] = row
        self._changed.add(key)
        if row.due is not None:
            heapq.heappush(self._timers, (row.due, key))

    def drop(self, key: str) -> None:
        """Forget a row."""
        if self.rows.pop(key, None) is not None:
            self._changed.add(key)

    def every(self, kind: type[_R]) -> list[tuple[str, _R]]:
        """Return all rows of a kind, in the order of their keys."""
        return sorted((key, row) for key, row in self.rows.items() if isinstance(row, kind))

    def due(self, until: datetime) -> tuple[datetime, str] | None:
        """Take and return the earliest timer due by *until*: its deadline and the key of its row."""
        while self._timers and self._timers[0][0] <= until:
            deadline, key = heapq.heappop(self._timers)
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


def push(ring: list[_T], item: _T) -> None:
    """Append to a bounded list, the oldest item making room."""
    ring.append(item)
    del ring[:-RING]
