"""The processes of a run: how each was last seen, and the rules about their states."""

from __future__ import annotations

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

    from rules.alerting import Alerts
    from rules.facts import Fact
    from rules.model import Rule
    from rules.rulebook import Rulebook
    from rules.state import State


class Processes:
    """The processes of a run."""

    def __init__(self, state: State, book: Rulebook, alerts: Alerts) -> None:
        self._state, self._book, self._alerts = state, book, alerts

    def begin(self) -> None:
        """Begin an attempt: what is gone was of the last one."""
        for key, row in self._state.every(Process):
            if not row.running:
                self._state.drop(key)

    def take(self, event: ProcessState, at: datetime) -> None:
        """Note the state of a process, and judge it."""
        key = f"process|{clip(event.node)}|{event.pid}"
        before = self._state.get(Process, key)
        row = Process(
            role=event.role,
            running=event.state == "running",
            zombie=event.state == "zombie",
            exit_code=event.exit_code,
        )
        if self._state.has_room(key):
            self._state.put(key, row)
        component = self._book.components.role.get(event.role)
        if component is None:
            return
        fact = facts.of_process(event, component)
        for rule in self._book.by_trigger["process"]:
            hit = matches_process(rule, event)
            if rule.has_fraction and hit is not None:
                self._count(rule, event, fact, at, before, hit=hit)
            elif hit:
                self._alerts.hit(rule, fact, at)

    def running(self, at: datetime) -> Iterator[ProcessState]:
        """Yield those that were last seen running, as of *at*."""
        for key, row in self._state.every(Process):
            if row.running:
                _, node, pid = key.split("|")
                yield ProcessState(time=at, node=node, role=row.role, pid=int(pid), state="running")

    def _count(  # noqa: PLR0913 - all that is known of a process
        self, rule: Rule, event: ProcessState, fact: Fact, at: datetime, before: Process | None, *, hit: bool
    ) -> None:
        """Count it as one of those that are so or still run: once, though a zombie goes as well in the end."""
        fact = msgspec.structs.replace(fact, others=self._others(rule, event))
        told = before is not None and rule.on.process is not None and _stood(before) in rule.on.process.state
        if hit and not told:
            self._alerts.hit(rule, fact, at)
        else:
            self._alerts.other(rule, fact, at)

    def _others(self, rule: Rule, event: ProcessState) -> int:
        """Return how many run that the rule counts for the same subject."""
        roles = [event.role] if "role" in rule.on.per else rule.on.process.role if rule.on.process else []
        node = f"process|{clip(event.node)}|" if "node" in rule.on.per else "process|"
        rows = [row for key, row in self._state.every(Process) if row.running and key.startswith(node)]
        return sum(not roles or row.role in roles for row in rows)


def _stood(row: Process) -> str:
    return "running" if row.running else "zombie" if row.zombie else "exited"
