"""What is seen and what is not: could-not-observe is neither failure nor health."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.events import Receipt, Sample, ScrapeFailed, Seeing, SourceState
from rules import conditions
from rules.facts import Fact, clip, evidence_of
from rules.rows import Moved, Source

if TYPE_CHECKING:
    from datetime import datetime

    from rules.alerting import Alerts
    from rules.lasting import Lasting
    from rules.model import Rule
    from rules.rows import Cell
    from rules.rulebook import Rulebook
    from rules.state import State

SINK = "sink:"
"""Begins the names of sinks, which are kept beside the sources: they deliver, or they do not."""
_SEEN: dict[str, Seeing] = {"delivered": "seeing", "rejected": "blind", "failing": "blind"}
_FILES, PROCESSES = "files", "processes"
"""The sources without which all that is read of files, or of processes, is not seen."""


class Sources:
    """The sources of a run, as they say of themselves."""

    def __init__(self, state: State, book: Rulebook, alerts: Alerts, lasting: Lasting) -> None:
        self._state, self._book, self._alerts, self._lasting = state, book, alerts, lasting
        self._blind = {key for key, row in state.every(Source) if row.state == "blind"}

    def blind(self, rule: Rule, cell: Cell) -> bool:
        """Tell whether what would clear or fill a rule's subject is not seen."""
        if not self._blind or rule.on.blind is not None:
            return False
        if f"source|{PROCESSES if rule.on.process else _FILES}" in self._blind:
            return True
        places = {cell.fields.get("source", "")}
        if rule.on.absence is not None:
            rows = [self._state.get(Moved, f"clock|{name}") for name in rule.on.absence.of]
            places = {row.source for row in rows if row is not None}
        return any(_covers(key, place) for key in self._blind for place in places if place)

    def take(self, event: SourceState | ScrapeFailed | Sample | Receipt, at: datetime) -> None:
        """Note what a source says, or what its success or failure shows."""
        match event:
            case SourceState():
                self._note(clip(event.name), event, at)
            case Receipt():
                name, state = clip(f"{SINK}{event.sink}"), _SEEN[event.outcome]
                self._note(name, SourceState(time=event.time, name=name, state=state, reason=event.reason), at)
            case ScrapeFailed():
                name = clip(f"metrics:{event.endpoint}")
                row = self._state.get(Source, f"source|{name}")
                if row is not None and row.state == "seeing":  # one that never answered may only be starting
                    self._note(name, SourceState(time=event.time, name=name, state="blind", reason=event.error), at)
            case Sample():
                name = clip(f"metrics:{event.endpoint}")
                row = self._state.get(Source, f"source|{name}")
                if row is None or row.state != "seeing":
                    self._note(name, SourceState(time=event.time, name=name, state="seeing"), at)

    def lasting(self, rule: Rule, name: str, at: datetime) -> None:
        """Fire a rule about blindness whose time has come."""
        row = self._state.get(Source, f"source|{name}")
        if row is None or row.state != "blind":
            return
        held, due = conditions.lasted(rule, row.since, at)
        held = held if self._alerts.admits(rule, at) else None
        self._lasting.lasts(rule, _fact(rule, name, row.reason, at), at, held, due)

    def begin(self, at: datetime) -> None:
        """Begin an attempt: what is blind is so from now on."""
        for key in sorted(self._blind):
            if (row := self._state.get(Source, key)) is not None:
                row.since = at
                self._state.put(key, row)
        self.expect(at)

    def expect(self, at: datetime) -> None:
        """Look at what is blind anew: a phase began, and with it perhaps rules that had not looked."""
        rows = [(key, row) for key in sorted(self._blind) if (row := self._state.get(Source, key)) is not None]
        for key, row in rows:
            for rule in self._book.by_trigger["blind"]:
                if _concerns(rule, name := key.removeprefix("source|"), row):
                    self.lasting(rule, name, at)

    def _note(self, name: str, event: SourceState, at: datetime) -> None:
        key = f"source|{name}"
        row = self._state.get(Source, key)
        if row is not None and (row.state, row.failed) == (event.state, event.failed):
            return
        if not self._state.has_room(key):
            return
        row = Source(state=event.state, since=at, reason=clip(event.reason), failed=event.failed)
        self._state.put(key, row)
        if event.state == "blind":
            self._blind.add(key)
        else:
            self._blind.discard(key)
        for rule in self._book.by_trigger["blind"]:
            if _concerns(rule, name, row):
                self.lasting(rule, name, at)
            else:
                self._lasting.end(rule, _fact(rule, name, "", at), at)
        if event.state != "blind":
            self._alerts.rearm(at, self.blind)


def _covers(key: str, place: str) -> bool:
    """Tell whether the blind source under *key* is, or is of a kind with, the file or page at *place*."""
    kind, _, name = key.removeprefix("source|").partition(":")
    if kind != _FILES:
        return name == place
    mine, other = name.split("/"), place.split("/")
    return (mine[0], mine[-1]) == (other[0], other[-1]) or other[: len(mine)] == mine


def _concerns(rule: Rule, name: str, row: Source) -> bool:
    """Tell whether it is the rule's kind of blindness."""
    trigger = rule.on.blind
    if row.state != "blind" or trigger is None:
        return False
    return trigger.failed in (None, row.failed) and trigger.sink == name.startswith(SINK)


def _fact(rule: Rule, name: str, reason: str, at: datetime) -> Fact:
    labels = {"source": name, "reason": reason}
    return Fact(time=at, component=rule.component or "host", evidence=evidence_of(name, None, reason), labels=labels)
