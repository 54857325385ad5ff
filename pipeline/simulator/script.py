"""What happens in a run, collected by topic and read in order of time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias, TypeVar

if TYPE_CHECKING:
    from pipeline.simulator.plan import Plan

Json: TypeAlias = str | float | bool | Mapping[str, "Json"] | list["Json"] | None

COLOURS = {"INFO": "", "SUCCESS": "\x1b[32m", "WARNING": "\x1b[33m", "ERROR": "\x1b[31m"}


@dataclass(frozen=True)
class Write:
    """Bytes added to a file; none: the file is created."""

    at_s: float
    path: str
    data: bytes
    replaces: bool = False
    """What was in the file before is gone."""


@dataclass(frozen=True)
class Link:
    """A symbolic link that is made, or put in the place of another."""

    at_s: float
    path: str
    target: str


@dataclass(frozen=True)
class Removal:
    """A folder that is removed with all that is in it."""

    at_s: float
    path: str


@dataclass(frozen=True)
class Said:
    """A line on the launcher's terminal, which no file keeps."""

    at_s: float
    line: str


@dataclass(frozen=True)
class Event:
    """An event of the recording: what cannot be read from the run directory."""

    at_s: float
    fields: dict[str, Json]


Change: TypeAlias = Write | Link | Removal
"""What happens to the run directory."""
_Moment = TypeVar("_Moment", Change, Said, Event)


@dataclass(frozen=True)
class Script:
    """Everything that an attempt does. Parts of the run add to it in any order."""

    plan: Plan
    ends_s: float
    """Nothing happens after this."""
    _changes: list[Change] = field(default_factory=list)
    _said: list[Said] = field(default_factory=list)
    _events: list[Event] = field(default_factory=list)

    def write(self, at_s: float, path: str, text: str = "", *, replaces: bool = False) -> None:
        """Add *text* to a file of the run directory, unless the run is over by then."""
        self._change(Write(at_s, path, text.encode(), replaces))

    def link(self, at_s: float, path: str, target: str) -> None:
        """Let a link point at *target* from now on."""
        self._change(Link(at_s, path, target))

    def remove(self, at_s: float, path: str) -> None:
        """Remove a folder."""
        self._change(Removal(at_s, path))

    def say(self, at_s: float, level: str, message: str, node: str) -> None:
        """Write a line to the launcher's terminal; it has lost its colours when it is recorded."""
        if at_s <= self.ends_s:
            self._said.append(Said(at_s, loguru(self.plan, at_s, level, message)))
        text = f"{self.plan.clock(at_s):%H:%M:%S} {level:>7} {message}"
        self.event(at_s, "host", node=node, origin="launcher", text=text)

    def event(self, at_s: float, type_: str, **fields: Json) -> None:
        """Add an event of the recording, unless the run is over by then."""
        if at_s <= self.ends_s:
            time = self.plan.clock(at_s).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            self._events.append(Event(at_s, {"type": type_, "time": time, **fields}))

    def changes(self) -> list[Change]:
        """Return what happens to the run directory, in order of time since the plan's start."""
        return sorted(self._shifted(self._changes), key=lambda change: change.at_s)

    def said(self) -> list[Said]:
        """Return the lines of the terminal, in order of time since the plan's start."""
        return sorted(self._shifted(self._said), key=lambda said: said.at_s)

    def events(self) -> list[Event]:
        """Return the events of the recording, in order of time since the plan's start."""
        return sorted(self._shifted(self._events), key=lambda event: event.at_s)

    def _change(self, change: Change) -> None:
        if change.at_s <= self.ends_s:
            self._changes.append(change)

    def _shifted(self, moments: list[_Moment]) -> Iterator[_Moment]:
        return (replace(moment, at_s=self.plan.begins_s + moment.at_s) for moment in moments)


@dataclass(frozen=True)
class Log:
    """A file that one process writes, until it stops to."""

    script: Script
    path: str
    until_s: float
    prefix: str = ""
    """What torchrun puts before each line."""

    def open(self, at_s: float) -> None:
        """Create the file: the launcher does that before the process runs."""
        self.script.write(at_s, self.path)

    def record(self, at_s: float, level: str, message: str) -> None:
        """Log a message as the run's own logger does, unless that never happens."""
        if at_s <= self.until_s and at_s <= self.script.ends_s:
            self.raw(at_s, loguru(self.script.plan, at_s, level, message))

    def raw(self, at_s: float, text: str) -> None:
        """Write lines as they are."""
        if at_s <= self.until_s:
            self.script.write(at_s, self.path, "".join(f"{self.prefix}{line}\n" for line in text.split("\n")))


def loguru(plan: Plan, at_s: float, level: str, message: str) -> str:
    """Return a record as loguru writes it here: in colour, even into a file, and without a date."""
    colour = COLOURS[level]
    return (
        f"\x1b[2m{plan.clock(at_s):%H:%M:%S}\x1b[0m {colour}\x1b[1m{level:>7}\x1b[0m "
        f"{colour}\x1b[1m\x1b[22m{message}\x1b[0m\x1b[0m"
    )


def duration(seconds: float) -> str:
    """Return a duration as the step lines show it, seven characters wide."""
    if seconds < 60:
        return f"{seconds:.1f}s".rjust(7)
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}m {rest}s".rjust(7)


def compact(value: Mapping[str, Json]) -> str:
    """Return a line of JSON as orjson writes it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
