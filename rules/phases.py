"""The phases of a run, read from milestones and from the end of its processes."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from pipeline.alerts import worst_health
from rules.rows import Process

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.alerts import Health
    from pipeline.events import Role
    from rules.alerting import Alerts
    from rules.progress import Progress
    from rules.rows import Run
    from rules.rule_file import PhaseStart
    from rules.rulebook import Rulebook
    from rules.sources import Sources
    from rules.state import State


class Phases:
    """How far the run has come."""

    def __init__(  # noqa: PLR0913, PLR0917 - what a phase has a say in
        self, state: State, book: Rulebook, run: Run, alerts: Alerts, progress: Progress, sources: Sources
    ) -> None:
        self._state, self._book, self._run = state, book, run
        self._alerts, self._progress, self._sources = alerts, progress, sources

    def passed(self, name: str, at: datetime) -> None:
        """Note a milestone, or a clock that moved."""
        self._run.milestones[name] = at
        self._state.put("run", self._run)
        self.look(at)

    def look(self, at: datetime) -> None:
        """Enter the phases whose conditions are met, one after the other."""
        for start in self._book.phases:
            if self._run.phase in start.from_ and self._run.phase != start.name and self._begins(start, at):
                self._enter(start, at)

    def _begins(self, start: PhaseStart, at: datetime) -> bool:
        run = self._run
        if start.within is not None and at - run.phase_since > timedelta(seconds=start.within):
            return False
        reached = any(all(name in run.milestones for name in names) for names in start.when)
        trained = any(clock.name in run.milestones for clock in self._book.clocks if clock.is_step)
        last = (
            trained and run.config is not None and run.config.max_steps is not None and run.step >= run.config.max_steps
        )
        return reached or (start.last_step and last) or any(self._gone(roles) for roles in start.exited)

    def _gone(self, roles: list[Role]) -> bool:
        processes = [row for _, row in self._state.every(Process)]
        return all(
            any(p.role == role for p in processes) and not any(p.role == role and p.running for p in processes)
            for role in roles
        )

    def _enter(self, start: PhaseStart, at: datetime) -> None:
        run = self._run
        if start.takes_back is not None:
            self._alerts.take_back(start.takes_back.mode, at - timedelta(seconds=start.takes_back.within), at)
            run.health = worst_health(list(self._alerts.firing.healths()))
        # what asks a failing run to stop is part of the failure
        failing = start.name == "stopped" and "Down" in self._alerts.firing.healths()
        run.phase, run.phase_since = "failed" if failing else start.name, at
        self._state.put("run", run)
        if run.phase == "finished":
            self._alerts.resolve_all(at)
        self._progress.expect(at)
        if run.phase != "failed":  # what is not seen is no evidence of what caused it
            self._sources.expect(at)


def health_of(run: Run, firing: Sequence[Health]) -> Health:
    """Return what the run is, by its phase and by what each alert that fires makes of it."""
    if run.phase == "failed":
        return "Down"
    if run.phase == "stopped":
        return run.health or "Healthy"
    return worst_health(list(firing))
