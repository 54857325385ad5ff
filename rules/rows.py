"""The rows of the engine's state, small and bounded: the only truth, and what the journal holds."""

from __future__ import annotations

from datetime import datetime
from typing import TypeAlias, TypeVar

import msgspec

from pipeline.alerts import Component, Evidence, Health, Phase, Severity
from pipeline.events import Level, Role, RunConfigured, Seeing
from pipeline.times import EPOCH
from rules.windows import Buckets

RING = 60
"""Numbers in a row's list."""

_T = TypeVar("_T")


class BaseRow(msgspec.Struct, kw_only=True):
    """A row, and when something in it falls due."""

    due: datetime | None = None


class Failure(msgspec.Struct, kw_only=True):
    """What ended an attempt."""

    mode: str
    component: Component
    step: int
    """How far the run had come."""


class Run(BaseRow, kw_only=True, tag="run"):
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
    sleeps: list[tuple[datetime, datetime]] = []
    """Suspensions of the host in this attempt: from when to when."""
    step: int = 0
    config: RunConfigured | None = None
    incidents: int = 0
    """Opened so far."""
    failures: list[Failure] = []
    """What the last attempts ended with, the latest last."""


class Cell(BaseRow, kw_only=True, tag="cell"):
    """One rule for one subject."""

    rule: str
    component: Component
    labels: dict[str, str] = {}
    hits: list[Buckets | None] = []
    """For each escalation."""
    totals: list[Buckets | None] = []
    """What the hits are a fraction of, for each escalation."""
    others: int | None = None
    """What the hits are a fraction of together with themselves, if that is not counted: processes that run."""
    count: int = 0
    """Hits since it was made."""
    last_hit: datetime | None = None
    last_other: datetime | None = None
    """When something came that was no hit."""
    since: datetime | None = None
    """Since when share or values are good enough to clear, or what lasts has lasted."""
    said: list[tuple[int, int, datetime]] = []
    """The records of a moment ago: what was said, by whom, when."""
    severity: Severity | None = None
    """While it fires."""
    fired: datetime | None = None
    incident: str = ""
    fields: dict[str, str] = {}
    """What the last hit gives to the summary."""
    share: tuple[int, int] | None = None
    """At the last hit: hits and all of the first window that measures a fraction."""
    ends: datetime | None = None
    """When it resolves, as what lasted has ended, unless that holds again."""
    steps: int = 0
    """Of what is to blame since the last hit, while it fires and that matters."""


class Records(BaseRow, kw_only=True, tag="evidence"):
    """The evidence of a cell: its first record, and the latest ones."""

    records: list[Evidence] = []


class Series(BaseRow, kw_only=True, tag="series"):
    """The past of one series, as one rule looks at it."""

    name: str = ""
    values: list[float] = []
    trend: list[tuple[float, float]] = []
    """Times, in seconds since the epoch, and values, hits among them."""
    at: datetime = EPOCH
    """Of the last value."""
    seen: int = 0
    recent: list[int] = []
    """For each escalation: which of the latest values were hits, the newest in the lowest bit."""
    held_since: dict[int, datetime] = {}
    """By escalation: since when all values were hits."""
    step: int | None = None
    """What the last value is of."""
    last: tuple[float, float] | None = None
    """Time and value of a counter."""


class Moved(BaseRow, kw_only=True, tag="clock"):
    """A clock of progress."""

    number: int = 0
    at: datetime = EPOCH
    source: str = ""
    """The file that told of it last."""
    ordinary_s: list[float] = []
    """How long its last ordinary steps took."""
    longest_s: float = 0.0
    """The longest of all steps but the first."""
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


class LeftOut(BaseRow, kw_only=True, tag="left-out"):
    """How much the caps have dropped so far, by what it was."""

    counts: dict[str, int] = {}


class Incident(BaseRow, kw_only=True, tag="incident"):
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
    again: bool = False
    """An earlier attempt ended alike, and nothing was gained since."""
    symptoms: list[str] = []
    """The other failure modes, as last said."""
    members: list[Member] = []


class Process(BaseRow, kw_only=True, tag="process"):
    """A process of the run."""

    role: Role
    running: bool
    exit_code: int | None = None
    told: list[str] = []
    """Rules that have counted that it is gone."""


class Source(BaseRow, kw_only=True, tag="source"):
    """A source, as it last said of itself."""

    state: Seeing
    since: datetime
    reason: str = ""
    failed: bool = False


class Copies(BaseRow, kw_only=True, tag="copies"):
    """The last records of a group of files that repeat each other, each with its file."""

    recent: list[tuple[int, int]] = []


class Unknown(BaseRow, kw_only=True, tag="unknown"):
    """A warning or error that matches no rule, by its template; or all that there was no room for."""

    component: Component
    example: str = ""
    """The first one, cut. Untrusted."""
    source: str = ""
    level: Level | None = None
    count: int = 0
    """In this attempt."""
    first: datetime = EPOCH
    last: datetime = EPOCH
    by: int = 0
    """Who said it last."""
    told: int = 0
    """How many of them check-ins have told of."""
    is_new: bool = True
    """Whether no earlier attempt brought it."""
    is_rest: bool = False
    """Whether it stands for all templates that there was no room for."""


class Figure(msgspec.Struct, array_like=True):
    """The last value of a metric or a sample; where spikes are flagged, those before it as well."""

    value: float
    step: int | None = None
    recent: list[float] = []
    spike: tuple[int, float, float] | None = None
    """The greatest since the last check-in: its step, its value, and how many times the median it was."""


class Line(BaseRow, kw_only=True, tag="line"):
    """A line of the check-in: its figures by metric, or by engine."""

    figures: dict[str, Figure] = {}


class Schedule(BaseRow, kw_only=True, tag="schedule"):
    """When check-ins are due, and what the next one has to tell: notes, and which incidents closed."""

    attempt: int = 0
    quiet_until: datetime = EPOCH
    text: str = ""
    """Hash of what the last entry said."""
    last: datetime | None = None
    is_first: bool = True
    ended: Phase | None = None
    """The phase in which the attempt's last entry was made."""
    notes: list[str] = []
    closed: list[str] = []


class Notice(BaseRow, kw_only=True, tag="notice"):
    """What has been said of an incident: how many messages, the last one's mode, component and severity."""

    messages: int = 0
    said: tuple[str, Component, Severity] | None = None
    said_at: datetime = EPOCH


class Outgoing(BaseRow, kw_only=True, tag="outgoing"):
    """The messages of the last hour, and what is held back: titles of the first ones, and how many."""

    quiet_until: datetime = EPOCH
    sent: list[datetime] = []
    held: list[str] = []
    held_count: int = 0
    held_severity: Severity = "info"
    storms: int = 0


Row: TypeAlias = (
    Run
    | Cell
    | Records
    | Moved
    | Series
    | Incident
    | LeftOut
    | Process
    | Source
    | Copies
    | Line
    | Unknown
    | Schedule
    | Notice
    | Outgoing
)


def push(ring: list[_T], item: _T) -> None:
    """Append to a bounded list, the oldest item making room."""
    ring.append(item)
    del ring[:-RING]
