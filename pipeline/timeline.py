"""What was decided, as a person likes to read it on a terminal."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.padding import Padding

from pipeline.alerts import AlertChanged, CheckIn, HealthChanged, IncidentChanged, Notification, Summary

if TYPE_CHECKING:
    from datetime import datetime
    from zoneinfo import ZoneInfo

    from rich.console import Console

    from pipeline.judge import Said

_COLOURS = {
    "info": "cyan",
    "warning": "yellow",
    "critical": "red",
    "Healthy": "green",
    "Degraded": "yellow",
    "Down": "red",
}
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]+")
_EVIDENCE_CHARS = 160
_INDENT = 20


class Timeline:
    """Prints decisions as they come, one or two lines each."""

    def __init__(self, console: Console, zone: ZoneInfo) -> None:
        self._console, self._zone = console, zone
        self._roots: dict[str, str] = {}
        """Of each incident, as last said."""
        self._told: set[tuple[str, str, str]] = set()
        self._day = ""

    def show(self, said: Said) -> None:
        """Print one decision, or the summary at the end."""
        match said:
            case AlertChanged(state="firing"):
                self._alert(said)
            case AlertChanged():
                self._line(said.time, "resolved", "dim", said.summary)
            case IncidentChanged():
                self._incident(said)
            case HealthChanged():
                self._line(said.time, said.health, _COLOURS[said.health], said.phase)
            case Notification():
                self._line(said.time, "notify", "blue", said.title)
            case CheckIn():
                self._line(said.time, "check-in", "blue", said.text.split("\n", 1)[0].lstrip("# "))
            case Summary():
                self._summary(said)

    def _alert(self, said: AlertChanged) -> None:
        root = self._roots.get(said.incident)
        text = f"{said.failure_mode}: {said.summary}"
        if root is not None and root != _named(said.failure_mode, said.component):
            key = said.incident, said.failure_mode, said.severity
            if key not in self._told:  # one line for what follows from the root, whoever it hits next
                self._told.add(key)
                self._line(said.time, "also", "dim", text)
            return
        self._line(said.time, said.severity, _COLOURS[said.severity], text)
        for evidence in said.evidence[-1:]:
            place = evidence.source if evidence.offset is None else f"{evidence.source}:{evidence.offset}"
            for shown in (place, excerpt(evidence.text)):
                room = 2 * (self._console.width - _INDENT) - 1
                cut = shown if len(shown) <= room else f"{shown[: room - 1]}…"
                indented = Padding(f"[dim]{escape(cut)}[/]", (0, 0, 0, _INDENT), expand=False)
                self._console.print(indented, highlight=False)

    def _incident(self, said: IncidentChanged) -> None:
        before, root = self._roots.get(said.id), _named(said.failure_mode, said.component)
        if said.state == "closed":
            self._line(said.time, "incident", "dim", f"{said.id} closed")
        elif before != root:
            verb = "opened" if before is None else "has another root cause"
            symptoms = f", with {', '.join(said.symptoms)}" if said.symptoms else ""
            self._line(said.time, "incident", f"bold {_COLOURS[said.severity]}", f"{said.id} {verb}: {root}{symptoms}")
        self._roots[said.id] = root

    def _summary(self, said: Summary) -> None:
        of = "∞" if said.max_steps is None else str(said.max_steps)
        colour = _COLOURS[said.health]
        self._console.print()
        self._console.print(f"[bold {colour}]{said.health}[/], {said.phase}, step {said.step} of {of}", highlight=False)
        for one in said.incidents:
            closed = ", still open" if one.closed is None else f" to {self._time(one.closed)}"
            symptoms = f", with {', '.join(one.symptoms)}" if one.symptoms else ""
            restart = "the same command may get further" if one.proposes_restart else "a restart alone does not help"
            self._console.print(
                f"incident {one.id}  [{_COLOURS[one.severity]}]{one.severity}[/]  {one.failure_mode} in {one.component}"
                f"{symptoms}\n  from {self._time(one.opened)}{closed}; {restart}",
                highlight=False,
                soft_wrap=True,
            )
        if not said.incidents:
            self._console.print("no incident", highlight=False)

    def _line(self, time: datetime, word: str, colour: str, text: str) -> None:
        day = f"{time.astimezone(self._zone):%A %Y-%m-%d}"
        if day != self._day:
            self._day = day
            self._console.print(f"[bold]{day}[/]", highlight=False)
        said = escape(plain(text))
        self._console.print(f"{self._time(time)}  [{colour}]{word:<10}[/]{said}", soft_wrap=True, highlight=False)

    def _time(self, time: datetime) -> str:
        return f"{time.astimezone(self._zone):%H:%M:%S}"


def _named(failure_mode: str, component: str) -> str:
    return f"{failure_mode} in {component}"


def state_line(now: Summary, clock: datetime) -> str:
    """Return the state of a run in one line, with rich's markup."""
    of = "∞" if now.max_steps is None else str(now.max_steps)
    incidents = [f"{one.failure_mode} in {one.component}" for one in now.incidents if one.closed is None]
    trouble = f" · [{_COLOURS['critical']}]{escape(', '.join(incidents))}[/]" if incidents else ""
    colour = _COLOURS[now.health]
    return f"[bold {colour}]{now.health}[/] · {now.phase} · step {now.step} of {of} · {clock:%H:%M:%S} UTC{trouble}"


def excerpt(text: str) -> str:
    """Return the first and the last line of a record: of a traceback, what failed and why."""
    lines = [line for line in text.split("\n") if line.strip()]
    shown = lines if len(lines) < 2 else [lines[0], "…", lines[-1]]
    return plain(" ".join(line.strip()[:_EVIDENCE_CHARS] for line in shown))


def plain(text: str) -> str:
    """Return untrusted text without anything that moves a cursor, sets a colour or turns the direction of writing."""
    return _CONTROL.sub(" ", text)
