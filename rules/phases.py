"""The phases of a run, read from milestones and from the end of its processes."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from rules.state import Process

if TYPE_CHECKING:
    from pipeline.events import ProcessState, Role
    from rules.alerting import Alerts
    from rules.progress import Progress
    from rules.rule_file import PhaseStart
    from rules.rulebook import Rulebook
    from rules.state import Run, State


class Phases:
    """How far the run has come."""

    def __init__(self, state: State, book: Rulebook, run: Run, alerts: Alerts, progress: Progress) -> None:
        self._state, self._book, self._run = state, book, run
        self._alerts, self._progress = alerts, progress

    def passed(self, name: str, at: datetime) -> None:
        """Note a milestone, or a clock that moved."""
        self._run.milestones[name] = at
        self._state.put("run", self._run)
        self._look(at)

    def process(self, event: ProcessState, at: datetime) -> None:
        """Note the state of a process."""
        running = event.state == "running"
        row = Process(role=event.role, running=running, exit_code=event.exit_code)
        self._state.put(f"process|{event.node}|{event.pid}", row)
        if not running:
            self._look(at)

    def _look(self, at: datetime) -> None:
        """Enter the phases whose conditions are met, one after the other."""
        for start in self._book.phases:
            if self._run.phase in start.from_ and self._run.phase != start.name and self._begins(start, at):
                self._enter(start, at)

    def _begins(self, start: PhaseStart, at: datetime) -> bool:
        run = self._run
        if start.within is not None and at - run.phase_since > timedelta(seconds=start.within):
            return False
        reached = any(all(name in run.milestones for name in names) for names in start.when)
        last = run.config is not None and run.config.max_steps is not None and run.step >= run.config.max_steps
        return reached or (start.last_step and last) or any(self._gone(roles) for roles in start.exited)

    def _gone(self, roles: list[Role]) -> bool:
        processes = [row for _, row in self._state.every(Process)]
        return all(
            any(p.role == role for p in processes) and not any(p.role == role and p.running for p in processes)
            for role in roles
        )

    def _enter(self, start: PhaseStart, at: datetime) -> None:
        run = self._run
        # what asks a failing run to stop is part of the failure
        failing = start.name == "stopped" and "Down" in self._alerts.healths()
        run.phase, run.phase_since = "failed" if failing else start.name, at
        self._state.put("run", run)
        if run.phase == "finished":
            self._alerts.resolve_all(at)
        self._progress.expect(at)
