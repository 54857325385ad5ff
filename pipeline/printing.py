"""A run, its alerts and its history, as a person likes to read them on a terminal. Times are UTC."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.markup import escape

from pipeline.alerts import AlertChanged, CheckIn, HealthChanged, IncidentChanged, Notification
from pipeline.events import Receipt
from pipeline.timeline import excerpt, plain

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from rich.console import Console

    from pipeline.alerts import Evidence, IncidentSummary
    from pipeline.journal_file import Entry
    from pipeline.reading import Status, UnknownTemplate
    from rules.explain import Explained, Part, Subject

SHOWN = 30
"""Alerts; the rest is counted."""
SHOWN_UNKNOWN = 10
"""Templates that no rule knows; the rest is counted."""
_STATES = {"firing": "red", "pending": "yellow", "quiet": "dim"}
_SEVERITIES = {"info": "cyan", "warning": "yellow", "critical": "red"}
_HEALTHS = {"Healthy": "green", "Degraded": "yellow", "Down": "red"}


class Printer:
    """Prints what was read."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def status(self, now: Status, wall: datetime) -> None:
        """Print how a run stands; *wall* is the time of day."""
        of = "∞" if now.max_steps is None else str(now.max_steps)
        colour = _HEALTHS[now.health]
        self._line(
            f"[bold {colour}]{now.health}[/] · {now.phase} since {_time(now.phase_since)} · step {now.step} of {of}"
        )
        self._watched(now, wall)
        for incident in now.incidents:
            self._open_incident(incident)
        for alert in now.alerts[:SHOWN]:
            self._headline(alert)
        self._more(len(now.alerts) - SHOWN)
        for source in now.sources:
            if source.state != "seeing":
                said = "not seen since" if source.state == "blind" else "not to be seen here since"
                reason = f": {_safe(source.reason)}" if source.reason else ""
                self._line(f"{_safe(source.name)} {said} {_time(source.since)}{reason}")
        for one in now.undelivered:
            self._line(
                f"{one.items} not yet delivered to {_safe(one.sink)}, tried {one.attempts} times {_safe(one.reason)}"
            )
        self.unknown(now.unknown)

    def unknown(self, found: Sequence[UnknownTemplate]) -> None:
        """Print what no rule knows."""
        if not found:
            return
        records = sum(one.count for one in found)
        self._line(f"{records} {'record matches' if records == 1 else 'records match'} no rule:")
        for one in found[:SHOWN_UNKNOWN]:
            what = "of further kinds" if one.is_rest else _safe(excerpt(one.example))
            seen = "new" if one.is_new else "seen before"
            self._line(f"  {one.count:>6}x {one.component} {one.level or '-'} [dim]({seen})[/] {what}")
        if len(found) > SHOWN_UNKNOWN:
            self._line(f"  and {len(found) - SHOWN_UNKNOWN} more kinds, in: runwatch status --json")

    def alerts(self, found: Sequence[Subject]) -> None:
        """Print what fires and what may fire yet."""
        for one in found[:SHOWN]:
            self._headline(one)
            if one.state == "pending":
                self._needs(one)
        self._more(len(found) - SHOWN)
        if not any(one.state == "firing" for one in found):
            self._line("nothing fires")

    def subjects(self, found: Sequence[Subject]) -> None:
        """Print all that is behind alerts."""
        ranked = sorted(found, key=lambda one: list(_STATES).index(one.state))
        for one in ranked[:SHOWN]:
            self._subject(one)
        self._more(len(found) - SHOWN)

    def incident(self, incident: Explained, past: Sequence[AlertChanged]) -> None:
        """Print all that is behind an incident; *past* are its alerts that have resolved."""
        colour = _SEVERITIES[incident.severity]
        until = f" to {_time(incident.closed)}" if incident.closed else ", still open"
        self._line(
            f"incident {incident.id} [{colour}]{incident.severity}[/] {_safe(incident.failure_mode)} in "
            f"{incident.component}, from {_time(incident.opened)}{until}"
        )
        restart = "the same command may get further" if incident.proposes_restart else "a restart alone does not help"
        self._line(f"  {restart}; {_count(incident.messages, 'message')} sent so far")
        if incident.next_message is not None:
            self._line(f"  the next one at {_time(incident.next_message)}, if nothing changes")
        for part in incident.parts:
            self._part(part)
        for alert in past:
            self._line(f"resolved: {_safe(alert.rule)} in {alert.component}: {_safe(alert.summary)}")
            self._evidence(alert.evidence)

    def entry(self, entry: Entry) -> None:
        """Print one entry of the history."""
        word, text = _in_words(entry)
        self._line(f"{_time(entry.time)}  {word:<9} {_safe(text)}")

    def _watched(self, now: Status, wall: datetime) -> None:
        owner = now.watched_by
        who = "nobody watches it"
        if owner is not None:
            who = f"watched by pid {owner.pid} ({owner.user} on {owner.host}) since {_time(owner.since)}"
        age = f"; last written {_span(wall, now.committed)} ago" if now.committed else ""
        self._line(f"{_safe(who)}{age}; as of {_time(now.time)}")

    def _open_incident(self, incident: IncidentSummary) -> None:
        symptoms = f", with {', '.join(incident.symptoms)}" if incident.symptoms else ""
        colour = _SEVERITIES[incident.severity]
        root = f"{incident.failure_mode} in {incident.component}{symptoms}"
        self._line(
            f"incident {incident.id} [{colour}]{incident.severity}[/] {_safe(root)}, since {_time(incident.opened)}"
        )

    def _headline(self, one: Subject) -> None:
        word = f"{one.state} {one.severity or ''}".strip()
        since = f", since {_time(one.since)}" if one.since else ""
        said = f": {_safe(one.summary)}" if one.summary else ""
        self._line(f"[{_STATES[one.state]}]{word}[/] {_safe(one.id)}{since}{said}")

    def _subject(self, one: Subject) -> None:
        self._headline(one)
        labels = [f"{name} {value}" for name, value in one.labels.items()]
        facts = [
            *labels,
            f"incident {one.incident}" if one.incident else "",
            _count(one.hits, "hit") if one.hits else "",
        ]
        facts += [f"the last at {_time(one.last_hit)}"] if one.last_hit else []
        if said := ", ".join(filter(None, facts)):
            self._line(f"  {_safe(said)}")
        self._needs(one)
        if one.state == "firing":
            due = f", looked at next at {_time(one.due)}" if one.due else ""
            self._line(f"  resolves {_safe(one.clears)}{due}")
        self._evidence(one.evidence)

    def _more(self, number: int) -> None:
        if number > 0:
            self._line(f"and {number} more, with --json; or name one by the beginning of its id")

    def _part(self, part: Part) -> None:
        since = f"since {_time(part.since)}" + ("" if part.firing else ", over")
        self._line(f"{part.role}: {_safe(f'{part.rule} in {part.component}, {since}; {part.reason}')}")
        if part.subject is not None:
            self._subject(part.subject)

    def _needs(self, one: Subject) -> None:
        for need in one.conditions:
            has = f"has {need.has}, " if need.has else ""
            self._line(f"  [{_SEVERITIES[need.severity]}]{need.severity}[/] {_safe(f'{has}needs {need.needs}')}")
        for wait in one.waits:
            self._line(f"  {_safe(wait)}")

    def _evidence(self, evidence: Sequence[Evidence]) -> None:
        """Print records whole: they are what a person judges by."""
        for record in evidence:
            place = record.source if record.offset is None else f"{record.source}:{record.offset}"
            self._line(f"  [dim]{_safe(place)}[/]")
            for line in record.text.split("\n"):
                self._line(f"    {_safe(line)}")

    def _line(self, markup: str) -> None:
        self._console.print(markup, soft_wrap=True, highlight=False)


def _in_words(entry: Entry) -> tuple[str, str]:
    match entry:
        case AlertChanged():
            return entry.state, f"{entry.severity} {entry.rule}, incident {entry.incident}: {entry.summary}"
        case IncidentChanged():
            symptoms = f", with {', '.join(entry.symptoms)}" if entry.symptoms else ""
            root = f"{entry.severity} {entry.failure_mode} in {entry.component}"
            return "incident", f"{entry.id} {entry.state}: {root}{symptoms}"
        case HealthChanged():
            return "health", f"{entry.health}, {entry.phase}"
        case CheckIn():
            return "check-in", entry.id
        case Notification():
            return "notify", f"{entry.id}: {entry.title}"
        case Receipt():
            reason = f": {entry.reason}" if entry.reason else ""
            return "receipt", f"{entry.item} {entry.outcome} by {entry.sink}{reason}"


def _safe(text: str) -> str:
    """Return untrusted text as markup that says just that."""
    return escape(plain(text))


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + "s" * (number != 1)


def _time(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S} UTC"


def _span(now: datetime, then: datetime) -> str:
    seconds = max(0, round((now - then).total_seconds()))
    minutes, hours = seconds // 60, seconds // 3600
    if hours >= 48:
        return f"{hours // 24} days"
    return f"{hours}h {minutes % 60}m" if hours else f"{minutes}m {seconds % 60}s" if minutes else f"{seconds}s"
