"""
What the engine decides: alerts, incidents, health, check-ins, notifications.

The shapes of the first four are fixed (`contracts`: *Replay*).
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal, TypeAlias, TypeGuard

import msgspec

Severity: TypeAlias = Literal["info", "warning", "critical"]
Health: TypeAlias = Literal["Healthy", "Degraded", "Down"]
Phase: TypeAlias = Literal["starting", "running", "finishing", "finished", "failed", "stopped"]
Component: TypeAlias = Literal[
    "trainer", "orchestrator", "inference", "env", "launcher", "host", "storage", "network", "scheduler"
]

SEVERITIES: tuple[Severity, ...] = ("info", "warning", "critical")
HEALTHS: tuple[Health, ...] = ("Healthy", "Degraded", "Down")


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """A record that an alert rests on. Its text is untrusted."""

    source: str
    offset: int | None
    """Bytes into the file; `None` where there is no file."""
    text: str


class AlertChanged(msgspec.Struct, frozen=True, kw_only=True, tag="alert"):
    """A rule began or ceased to hold for one subject, or holds more severely."""

    time: datetime
    rule: str
    failure_mode: str
    component: Component
    severity: Severity
    state: Literal["firing", "resolved"]
    incident: str
    summary: str
    evidence: list[Evidence]


class IncidentChanged(msgspec.Struct, frozen=True, kw_only=True, tag="incident"):
    """An incident opened, was revised, or closed."""

    time: datetime
    id: str
    state: Literal["open", "closed"]
    failure_mode: str
    component: Component
    severity: Severity
    symptoms: list[str]
    proposes_restart: bool


class HealthChanged(msgspec.Struct, frozen=True, kw_only=True, tag="health"):
    """Health or phase changed."""

    time: datetime
    health: Health
    phase: Phase


class IncidentSummary(msgspec.Struct, frozen=True, kw_only=True):
    """An incident as it stands at the end."""

    id: str
    failure_mode: str
    component: Component
    severity: Severity
    opened: datetime
    closed: datetime | None
    symptoms: list[str]
    proposes_restart: bool


class Summary(msgspec.Struct, frozen=True, kw_only=True, tag="summary"):
    """The run as it stands at the end."""

    time: datetime
    health: Health
    phase: Phase
    step: int
    """The last trained step."""
    max_steps: int | None
    incidents: list[IncidentSummary]


class CheckIn(msgspec.Struct, frozen=True, kw_only=True, tag="checkin"):
    """An entry for STATUS.md, in the runbook's form."""

    time: datetime
    id: str
    """Stable: one due time, one entry."""
    text: str
    """Markdown, from its heading to its last newline."""


class Notification(msgspec.Struct, frozen=True, kw_only=True, tag="notification"):
    """A message to a person about one incident."""

    time: datetime
    id: str
    """Stable, so that a receiver can drop a repeat."""
    incident: str
    severity: Severity
    title: str
    body: str
    """Plain text; it quotes untrusted text of the run, stripped and cut."""


Decision: TypeAlias = AlertChanged | IncidentChanged | HealthChanged | CheckIn | Notification


def is_graver(severity: Severity | None, than: Severity | None) -> TypeGuard[Severity]:
    """Tell whether a severity is graver than another one; any is graver than none."""
    return severity is not None and (than is None or SEVERITIES.index(severity) > SEVERITIES.index(than))


def worst_severity(severities: list[Severity]) -> Severity:
    """Return the gravest of *severities*, `info` of none."""
    return max(severities, key=SEVERITIES.index, default="info")


def worst_health(healths: list[Health]) -> Health:
    """Return the worst of *healths*, `Healthy` of none."""
    return max(healths, key=HEALTHS.index, default="Healthy")
