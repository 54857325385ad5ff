"""What people read of a run, decided from events and from what has been decided: check-ins and messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.alerts import HealthChanged, IncidentChanged
from pipeline.events import Asked, Gap, Metrics, Sample
from rules.checkins import CheckIns
from rules.figures import Figures
from rules.notices import Notices
from rules.rows import Schedule
from rules.unknown import Unknowns

if TYPE_CHECKING:
    from datetime import datetime

    from pipeline.alerts import Decision
    from pipeline.events import Event
    from rules.rows import Run
    from rules.rulebook import Rulebook
    from rules.state import State


class Reports:
    """The check-ins and messages about a run; they go to the end of *decisions*, which they follow from."""

    def __init__(  # noqa: PLR0913, PLR0917 - what people are told, and when
        self,
        state: State,
        book: Rulebook,
        run: Run,
        decisions: list[Decision],
        checkin_every_s: float,
        announce_from: datetime | None,
    ) -> None:
        self._state, self._decisions = state, decisions
        self._figures = Figures(state, book)
        self.unknowns = Unknowns(state, book, run)
        self._checkins = CheckIns(
            state, book, run, self._figures, self.unknowns, decisions.append, checkin_every_s, announce_from
        )
        self._notices = Notices(state, book, run, decisions.append, announce_from)
        self._followed = 0

    def begin(self, at: datetime) -> None:
        """Begin with the first event."""
        self._notices.begin(at)
        self._checkins.begin(at)

    def begin_attempt(self, at: datetime) -> None:
        """Begin an attempt."""
        self._figures.begin()
        self.unknowns.begin()
        self._checkins.begin(at)

    def take(self, event: Event, at: datetime) -> None:
        """Take the figures that an event brings, or the wish of a person."""
        if isinstance(event, Metrics):
            self._figures.metrics(event)
        elif isinstance(event, Sample):
            self._figures.sample(event)
        elif isinstance(event, Asked):
            self._checkins.write(at)
        elif isinstance(event, Gap):
            self._checkins.unwatched(event)

    def fall_due(self, key: str, at: datetime) -> None:
        """Take a timer that is not one of an alert."""
        if self._state.get(Schedule, key) is not None:
            self._checkins.write(at)
        else:
            self._notices.fall_due(key, at)

    def follow(self, at: datetime) -> None:
        """See what follows from the decisions since the last call."""
        for decision in self._decisions[self._followed :]:
            if isinstance(decision, IncidentChanged):
                self._checkins.incident(decision, at)
                self._notices.changed(decision.id, at)
            elif isinstance(decision, HealthChanged):
                self._checkins.phase(at)
        self._followed = len(self._decisions)

    def taken(self) -> list[Decision]:
        """Return the decisions, and forget them."""
        taken = list(self._decisions)
        self._decisions.clear()
        self._followed = 0
        return taken
