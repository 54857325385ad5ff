"""The processes of a run: how each was last seen, and the rules about their states."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from pipeline.events import ProcessState
from rules import facts
from rules.facts import clip
from rules.rows import Process
from rules.triggers import matches_process

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from pipeline.alerts import Component
    from pipeline.events import Role
    from rules.alerting import Alerts
    from rules.facts import Fact
    from rules.model import Rule
    from rules.rulebook import Rulebook
    from rules.state import State


class Processes:
    """The processes of a run."""

    def __init__(self, state: State, book: Rulebook, alerts: Alerts) -> None:
        self._state, self._book, self._alerts = state, book, alerts
        self._running: Counter[tuple[str, Role]] = Counter()
        """By node and role, derived from the rows."""
        self._running.update((_node_of(key), row.role) for key, row in state.every(Process) if row.running)

    def begin(self) -> None:
        """Begin an attempt: what is gone was of the last one."""
        for key, row in self._state.every(Process):
            if not row.running:
                self._state.drop(key)

    def take(self, event: ProcessState, at: datetime) -> None:
        """Note the state of a process, and judge it."""
        row = self._note(event)
        component = self._book.components.role.get(event.role)
        if component is None:
            return
        fact = facts.of_process(event, component)
        for rule in self._book.by_trigger["process"]:
            hit = matches_process(rule, event)
            if hit is not None:
                self._judge(rule, event, fact, at, row, hit=hit)

    def running(self, at: datetime) -> Iterator[ProcessState]:
        """Yield those that were last seen running, as of *at*."""
        for key, row in self._state.every(Process):
            if row.running:
                pid = int(key.rpartition("|")[2])
                yield ProcessState(time=at, node=_node_of(key), role=row.role, pid=pid, state="running")

    def _note(self, event: ProcessState) -> Process:
        key = f"process|{clip(event.node)}|{event.pid}"
        before, running = self._state.get(Process, key), event.state == "running"
        row = Process(role=event.role, running=running, exit_code=event.exit_code)
        if before is not None and before.role == event.role and not running:
            row.told = before.told
        if self._state.has_room(key):
            self._state.put(key, row)
            for one, count in ((before, -1), (row, 1)):
                if one is not None and one.running:
                    self._running[_node_of(key), one.role] += count
        return row

    def _judge(  # noqa: PLR0913 - all that is known of a process
        self, rule: Rule, event: ProcessState, fact: Fact, at: datetime, row: Process, *, hit: bool
    ) -> None:
        """Count it. Who is gone is so once, though a zombie goes as well in the end."""
        if hit and not row.running:
            hit = rule.name not in row.told
            row.told = [*row.told, rule.name] if hit else row.told
        if rule.has_fraction:
            fact = msgspec.structs.replace(fact, others=self._others(rule, event, fact.component))
        if hit:
            self._alerts.hit(rule, fact, at)
        elif rule.has_fraction:
            self._alerts.other(rule, fact, at)

    def _others(self, rule: Rule, event: ProcessState, component: Component) -> int:
        """Return how many run that the rule counts for the same subject."""
        roles = [event.role] if "role" in rule.on.per else rule.on.process.role if rule.on.process else []
        node = clip(event.node) if "node" in rule.on.per else None
        return sum(
            count
            for (place, role), count in self._running.items()
            if place == (node or place)
            and (not roles or role in roles)
            and (rule.component is not None or self._book.components.role.get(role) == component)
        )


def _node_of(key: str) -> str:
    """Return the node in the key of a process's row."""
    return key.removeprefix("process|").rpartition("|")[0]
