"""What is seen and what is not: could-not-observe is neither failure nor health."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.alerts import Evidence
from pipeline.events import Sample, ScrapeFailed, SourceState
from rules import conditions
from rules.facts import Fact
from rules.state import Source

if TYPE_CHECKING:
    from datetime import datetime

    from rules.alerting import Alerts
    from rules.model import Rule
    from rules.rulebook import Rulebook
    from rules.state import State

_BRINGS = {"log": "files", "rollout": "files", "metric": "files", "absence": "files", "process": "processes"}
"""The source that brings what a trigger looks at."""


class Sources:
    """The sources of a run, as they say of themselves."""

    def __init__(self, state: State, book: Rulebook, alerts: Alerts) -> None:
        self._state, self._book, self._alerts = state, book, alerts
        self._blind = {key for key, row in state.every(Source) if row.state == "blind"}

    def blind(self, trigger: str) -> bool:
        """Tell whether a source that brings what such a trigger looks at does not see."""
        brought = _BRINGS.get(trigger)
        return brought is not None and any(key.removeprefix("source|").startswith(brought) for key in self._blind)

    def take(self, event: SourceState | ScrapeFailed | Sample, at: datetime) -> None:
        """Note what a source says, or what its success or failure shows."""
        match event:
            case SourceState():
                self._note(event.name, event, at)
            case ScrapeFailed():
                name = f"metrics:{event.endpoint}"
                row = self._state.get(Source, f"source|{name}")
                if row is not None and row.state == "seeing":  # one that never answered may only be starting
                    self._note(name, SourceState(time=event.time, name=name, state="blind", reason=event.error), at)
            case Sample():
                name = f"metrics:{event.endpoint}"
                row = self._state.get(Source, f"source|{name}")
                if row is None or row.state != "seeing":
                    self._note(name, SourceState(time=event.time, name=name, state="seeing"), at)

    def lasting(self, rule: Rule, name: str, at: datetime) -> None:
        """Fire a rule about blindness whose time has come."""
        row = self._state.get(Source, f"source|{name}")
        if row is None or row.state != "blind" or (rule.on.blind and rule.on.blind.failed not in (None, row.failed)):
            return
        held, due = conditions.lasted(rule, row.since, at)
        held = held if self._alerts.admits(rule, at) else None
        self._alerts.lasts(rule, _fact(rule, name, row.reason, at), at, held, due)

    def _note(self, name: str, event: SourceState, at: datetime) -> None:
        key = f"source|{name}"
        row = self._state.get(Source, key)
        if row is not None and (row.state, row.failed) == (event.state, event.failed):
            return
        self._state.put(key, Source(state=event.state, since=at, reason=event.reason, failed=event.failed))
        if event.state == "blind":
            self._blind.add(key)
        else:
            self._blind.discard(key)
        for rule in self._book.by_trigger["blind"]:
            if event.state == "blind":
                self.lasting(rule, name, at)
            else:
                self._alerts.resolve(self._alerts.key(rule, _fact(rule, name, "", at)), at)
        if event.state == "seeing":
            self._alerts.rearm(at)


def _fact(rule: Rule, name: str, reason: str, at: datetime) -> Fact:
    evidence = Evidence(source=name, offset=None, text=reason[:2048])
    return Fact(
        time=at, component=rule.component or "host", evidence=evidence, labels={"source": name, "reason": reason[:200]}
    )
