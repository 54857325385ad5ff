"""Messages to people about incidents: when one is due, and what it says."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

from pipeline.alerts import Component, Evidence, Notification, Severity, worst_severity
from rules.facts import one_line
from rules.rows import Cell, Incident, Notice, Outgoing, Records
from rules.summaries import summary

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.alerts import Decision
    from rules.rows import Run
    from rules.rulebook import Rulebook
    from rules.state import State

EVIDENCE = 3
HOUR = timedelta(hours=1)
_NAME_CHARS, _TITLE_CHARS, _LINE_CHARS = 80, 200, 300
_HELD_TITLES = 20
_KEY = "outgoing"
_WORDS = {"opened": "", "revised": "now ", "still": "still "}


class Notices:
    """What people are told of the incidents of a run, and what they have been told."""

    def __init__(
        self,
        state: State,
        book: Rulebook,
        run: Run,
        say: Callable[[Decision], None],
        quiet_until: datetime | None = None,
    ) -> None:
        """Do not speak of incidents that are over before *quiet_until*."""
        self._state, self._book, self._run, self._say = state, book, run, say
        self._quiet_until = quiet_until

    def begin(self, at: datetime) -> None:
        """Begin with the first event."""
        if self._quiet_until is not None and self._quiet_until > at:
            self._state.put(_KEY, Outgoing(quiet_until=self._quiet_until, due=self._quiet_until))

    def changed(self, id_: str, at: datetime) -> None:
        """Note that an incident opened, was revised, or closed."""
        incident = self._state.get(Incident, f"incident|{id_}")
        if incident is None or at < self._outgoing().quiet_until:
            return
        notice = self._state.get(Notice, _key(id_)) or Notice()
        if incident.closed is None:
            self._arm(incident, notice, at)
            return
        if notice.messages:
            self._tell(incident, notice, "resolved", at)
        self._state.drop(_key(id_))

    def fall_due(self, key: str, at: datetime) -> None:
        """Say what is due for an incident, or of all that has been held back."""
        notice = self._state.get(Notice, key)
        incident = self._state.get(Incident, f"incident|{key.removeprefix('notice|')}")
        if key == _KEY:
            self._release(at)
        elif notice is not None and incident is not None and incident.closed is None:
            self._say_due(incident, notice, at)

    def _say_due(self, incident: Incident, notice: Notice, at: datetime) -> None:
        if not notice.messages:
            self._tell(incident, notice, "opened", at)
        elif notice.said != _said(incident):
            self._tell(incident, notice, "revised", at)
        elif incident.severity == "critical" or self._run.health == "Down":
            self._tell(incident, notice, "still", at)
        else:
            notice.said_at = at  # it is looked at again as long from now
        self._arm(incident, notice, at)

    def _arm(self, incident: Incident, notice: Notice, at: datetime) -> None:
        """Set the timer of what is to be said next, if nothing changes."""
        notify, severity = self._book.notify, incident.severity
        if not notice.messages:
            if severity != "info":
                wait = at + timedelta(seconds=notify.wait_s(severity))
                notice.due = min(wait, notice.due or wait)
        elif notice.said != _said(incident):
            notice.due = notice.said_at + timedelta(seconds=notify.group_interval)
        else:
            notice.due = notice.said_at + timedelta(seconds=notify.repeat_interval)
        self._state.put(_key(incident.id), notice)

    def _tell(self, incident: Incident, notice: Notice, what: str, at: datetime) -> None:
        """Say one thing of one incident."""
        notice.messages += 1
        notice.said, notice.said_at = _said(incident), at
        case = describe(incident, self._state, self._book, at)
        tag = "resolved" if what == "resolved" else incident.severity
        title = f"[{tag}] {run_name(self._run)}: {_WORDS.get(what, '')}{case.title} ({self._place()})"
        body = "\n".join([*case.lines(), f"The run is {self._standing()} at {at:%Y-%m-%d %H:%M:%S} UTC."])
        self._send(f"{incident.id}-{notice.messages}", incident.id, incident.severity, title, body)

    def _tell_all(self, incidents: list[Incident], at: datetime) -> None:
        """Say in one message what is open when the watch begins."""
        for incident in incidents:
            self._state.put(_key(incident.id), Notice(messages=1, said=_said(incident), said_at=at))
        cases = [describe(incident, self._state, self._book, at) for incident in incidents]
        worst = worst_severity([incident.severity for incident in incidents])
        first = next(incident for incident in incidents if incident.severity == worst)
        title = f"[{worst}] {run_name(self._run)}: {len(cases)} incidents are open ({self._place()})"
        body = "\n\n".join("\n".join(case.lines()) for case in cases)
        body += f"\n\nThe run is {self._standing()} at {at:%Y-%m-%d %H:%M:%S} UTC."
        self._send(f"{first.id}-1", first.id, worst, title, body)
        for incident in incidents:
            self._arm(incident, self._state.get(Notice, _key(incident.id)) or Notice(), at)

    def _send(self, id_: str, incident: str, severity: Severity, title: str, body: str) -> None:
        """Say a message, or hold it back if there have been too many in an hour."""
        at, row = self._run.clock, self._outgoing()
        row.sent = [sent for sent in row.sent if sent > at - HOUR]
        if len(row.sent) < self._book.notify.most_per_hour and not row.held_count:
            row.sent.append(at)
            self._emit(id_, incident, severity, title, body)
        else:
            self._hold(row, severity, one_line(title, _TITLE_CHARS))
        self._state.put(_KEY, row)

    def _hold(self, row: Outgoing, severity: Severity, title: str) -> None:
        """Hold a message back; the first one of a storm is named at once, all of them at its end."""
        row.held_count += 1
        row.held_severity = worst_severity([row.held_severity, severity])
        row.held = [*row.held, title][:_HELD_TITLES]
        if row.held_count == 1:
            row.storms += 1
            row.due = self._run.clock + HOUR
            until = f"{row.due:%H:%M} UTC"
            body = f"{self._limit()} Until {until} they are held back, the first one being:\n{title}"
            headline = f"[{severity}] {run_name(self._run)}: messages are held back until {until}"
            self._emit(f"storm-{row.storms}", "", severity, headline, body)

    def _limit(self) -> str:
        return f"There are more than {self._book.notify.most_per_hour} messages in an hour."

    def _release(self, at: datetime) -> None:
        """Say how much has been held back, or, as the watch begins, what is open."""
        row = self._outgoing()
        if row.held_count:
            self._say_held(row, at)
            return
        found = [i for _, i in self._state.every(Incident) if i.closed is None and i.severity != "info"]
        if len(found) == 1:
            notice = Notice()
            self._tell(found[0], notice, "opened", at)
            self._arm(found[0], notice, at)
        elif found:
            self._tell_all(sorted(found, key=lambda incident: int(incident.id)), at)

    def _say_held(self, row: Outgoing, at: datetime) -> None:
        count, severity, held = row.held_count, row.held_severity, row.held
        row.sent = [at]  # nothing has been said since the hour began
        row.held, row.held_count, row.held_severity = [], 0, "info"
        row.storms += 1
        self._state.put(_KEY, row)
        title = f"[{severity}] {run_name(self._run)}: {count} messages were held back ({self._place()})"
        more = [f"and {count - len(held)} more"] if count > len(held) else []
        body = "\n".join([f"{self._limit()} These were held back:", *held, *more])
        self._emit(f"storm-{row.storms}", "", severity, title, body)

    def _emit(self, id_: str, incident: str, severity: Severity, title: str, body: str) -> None:
        title = one_line(title, _TITLE_CHARS)
        at = self._run.clock
        self._say(Notification(time=at, id=id_, incident=incident, severity=severity, title=title, body=body))

    def _outgoing(self) -> Outgoing:
        return self._state.get(Outgoing, _KEY) or Outgoing()

    def _place(self) -> str:
        run = self._run
        if not run.step:
            return run.phase
        most = run.config.max_steps if run.config else None
        return f"step {run.step}" + (f"/{most}" if most is not None else "")

    def _standing(self) -> str:
        return f"{run_health(self._run)}, {self._run.phase}"


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """An incident in words. Texts of the run in it are one line each, without control characters."""

    title: str
    summary: str
    opened: datetime
    closed: datetime | None
    symptoms: list[str]
    advice: str
    restart: bool
    again: bool
    evidence: list[tuple[str, str]]
    """Where it stands, and what it says."""

    def lines(self) -> list[str]:
        """Return it as the lines of a message."""
        until = f", until {self.closed:%Y-%m-%d %H:%M:%S} UTC" if self.closed else ""
        lines = [] if self.closed else [self.summary]
        lines += [f"Root cause: {self.title}, since {self.opened:%Y-%m-%d %H:%M:%S} UTC{until}"]
        lines += [f"Symptoms: {', '.join(self.symptoms)}"] if self.symptoms else []
        if self.closed is None:
            lines += [f"Evidence: {place}: {text}" for place, text in self.evidence]
            lines += [f"Advice: {self.advice}"] if self.advice else []
            lines.append(f"Restart: {_AGAIN if self.again else _RESTART if self.restart else _NO_RESTART}")
        return lines


_RESTART = "may help: the same command is likely to get further"
_AGAIN = "not proposed: an earlier attempt failed alike, and no step was gained since"
_NO_RESTART = "not proposed: the same command would fail alike, or the run goes on without one"


def describe(incident: Incident, state: State, book: Rulebook, at: datetime) -> Case:
    """Return an incident in words, with the evidence of its root first."""
    of_root = [m for m in incident.members if m.rule == incident.root]
    members = of_root + [m for m in incident.members if m.rule != incident.root]
    rows = [row for m in members if (row := state.get(Records, f"evidence|{m.key}")) is not None]
    records = {(_place(record), _quote(record)): None for row in rows for record in row.records}
    rule = book.rules.get(incident.root)
    cell = next((cell for m in of_root if (cell := state.get(Cell, m.key)) is not None), None)
    modes = dict.fromkeys(m.mode for m in incident.members)
    return Case(
        title=f"{incident.mode} in {incident.component}",
        summary=one_line(summary(rule, cell, at) if rule and cell else incident.mode, _LINE_CHARS),
        opened=incident.opened,
        closed=incident.closed,
        symptoms=[mode for mode in modes if mode != incident.mode],
        advice=one_line(rule.advice, 2 * _LINE_CHARS) if rule else "",
        restart=incident.restart,
        again=incident.again,
        evidence=list(records)[:EVIDENCE],
    )


def run_name(run: Run) -> str:
    """Return the name of the run, to be shown."""
    return (one_line(run.config.name, _NAME_CHARS) if run.config and run.config.name else "") or "run"


def run_health(run: Run) -> str:
    """Return the health, as last said."""
    return run.health or "Healthy"


def _quote(record: Evidence) -> str:
    """Return the first line of a record, and the last one with words, which of a traceback says what was wrong."""
    lines = [line for line in record.text[:4096].splitlines() if any(map(str.isalnum, line))] or ["-"]
    first = one_line(lines[0], _LINE_CHARS // 2 if len(lines) > 1 else _LINE_CHARS)
    return first if len(lines) == 1 else f"{first} … {one_line(lines[-1], _LINE_CHARS // 2)}"


def _place(record: Evidence) -> str:
    source = one_line(record.source, _LINE_CHARS)
    return source if record.offset is None else f"{source}:{record.offset}"


def _said(incident: Incident) -> tuple[str, Component, Severity]:
    return incident.mode, incident.component, incident.severity


def _key(id_: str) -> str:
    return f"notice|{id_}"
