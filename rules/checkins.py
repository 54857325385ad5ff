"""
Check-ins: when an entry of STATUS.md is due, and what it says.

Whatever comes from the run is one line, cut, and escaped: a line of a log
cannot make a heading, a link, or an entry of its own.
"""

from __future__ import annotations

import hashlib
import re
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from pipeline.alerts import CheckIn
from rules.facts import one_line
from rules.figures import SECTIONS
from rules.notices import Case, describe, run_health
from rules.pattern import Duration
from rules.rows import Incident, Moved, Schedule, Source, Unknown, push
from rules.sources import SINK

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pipeline.alerts import Decision, IncidentChanged, Phase
    from pipeline.events import Deployment, Gap, RunConfigured
    from rules.figures import Figures
    from rules.rows import Run
    from rules.rulebook import Rulebook
    from rules.state import State
    from rules.unknown import Unknowns

AT_LATEST = timedelta(minutes=10)
"""After it began, an attempt has its first entry."""
MOST = 10
"""Notes of a kind in an entry."""
UNKNOWN = 3
"""Templates that no rule knows in an entry."""
_KEY = "schedule"
_ENDS: tuple[Phase, ...] = ("finished", "failed", "stopped")
_NAME_CHARS, _TEXT_CHARS = 120, 600
_MARKUP = re.compile(
    r"[\\`*\[\]<>#|~&!$]"  # what begins emphasis, code, links, HTML, headings
    r"|(?<![^\W_])_|_(?![^\W_])"  # not within a word, where it means nothing
    r"|(?<=http|ttps):(?=//)|(?<=ftp):(?=//)|(?<=www)\.|(?<!\w)@|@(?=[\w-]+\.)",  # what becomes a link by itself
    re.ASCII | re.IGNORECASE,
)


class CheckIns:
    """The entries of a run."""

    def __init__(  # noqa: PLR0913, PLR0917 - what an entry tells of
        self,
        state: State,
        book: Rulebook,
        run: Run,
        figures: Figures,
        unknowns: Unknowns,
        say: Callable[[Decision], None],
        every_s: float,
        quiet_until: datetime | None = None,
    ) -> None:
        """Make entries every *every_s* seconds; none before *quiet_until*."""
        self._state, self._book, self._run, self._say = state, book, run, say
        self._figures, self._unknowns = figures, unknowns
        self._every, self._quiet_until = timedelta(seconds=every_s), quiet_until

    def begin(self, at: datetime) -> None:
        """Begin an attempt: its first entry is due when it runs, or soon anyhow."""
        row, number = self._row(), self._run.attempt
        if row.attempt:
            push(row.notes, f"Attempt {number} began {at:%Y-%m-%d %H:%M} UTC")
        row.quiet_until = self._quiet_until or row.quiet_until
        row.attempt, row.is_first, row.ended = number, True, None
        row.due = max(at + AT_LATEST, row.quiet_until)
        self._state.put(_KEY, row)

    def incident(self, incident: IncidentChanged, at: datetime) -> None:
        """Note that an incident opened, was revised, or closed."""
        row = self._row()
        if incident.state == "closed":
            push(row.closed, incident.id)
        elif row.is_first and row.due is not None:
            wait = timedelta(seconds=self._book.notify.wait_s(incident.severity))
            row.due = min(row.due, max(at + wait, row.quiet_until))
        self._state.put(_KEY, row)

    def phase(self, at: datetime) -> None:
        """Look at the phase: what runs has a first entry, what ends has a last one."""
        row, phase = self._row(), self._run.phase
        ends = phase in _ENDS and phase != row.ended
        if not ends and not (row.is_first and phase in ("running", "finishing")):
            return
        if at < row.quiet_until:
            row.due = row.quiet_until
            self._state.put(_KEY, row)
        else:
            self.write(at)

    def unwatched(self, event: Gap) -> None:
        """Note that nobody watched: of the entries that were due meanwhile only the last one is made."""
        row = self._row()
        if row.due is not None and row.due < event.until:
            missed = (event.until - row.due) // self._every * self._every
            row.due = event.until if row.is_first else row.due + missed
        if event.cause == "visit":  # the visitor asks for an entry
            row.due = row.due and event.until + self._every
        else:
            push(row.notes, f"Not watched from {_span(event.time, event.until)} ({event.cause})")
        self._state.put(_KEY, row)

    def write(self, at: datetime) -> None:
        """Make an entry, and set the timer of the next one."""
        row, phase = self._row(), self._run.phase
        due = at if row.last is None else max(at, row.last + timedelta(milliseconds=1))
        text = self._text(row, at)
        digest = hashlib.blake2b(text.encode(errors="replace"), digest_size=8).hexdigest()
        if digest != row.text:  # an entry that says the same in the same minute is one
            id_ = f"checkin-{row.attempt}-{due:%Y-%m-%dT%H:%M:%S}.{due:%f}"[:-3] + "Z"
            self._say(CheckIn(time=at, id=id_, text=text))
        row.text = digest
        row.last, row.is_first, row.ended = due, False, phase if phase in _ENDS else None
        row.due = None if row.ended else at + self._every
        row.notes, row.closed = [], []
        self._state.put(_KEY, row)
        self._figures.forget_spikes()
        self._unknowns.tell()

    def _row(self) -> Schedule:
        return self._state.get(Schedule, _KEY) or Schedule()

    def _text(self, row: Schedule, at: datetime) -> str:
        sections = [
            f"**{section}**: {', '.join(map(markdown, self._figures.shown(section))) or 'not yet'}"
            for section in SECTIONS
        ]
        notes = self._notes(row, at)
        head = [f"## {at:%Y-%m-%d %H:%M} UTC", "", f"**Step**: {self._step()}", f"**Health**: {self._health()}", ""]
        tail = ["", "**Notes**:", "", *(f"- {note}" for note in notes)] if notes else []
        return "\n".join([*head, *sections, *tail, ""])

    def _step(self) -> str:
        run = self._run
        began = run.step or any(self._state.get(Moved, f"clock|{c.name}") for c in self._book.clocks if c.is_step)
        most = "not yet" if run.config is None else "∞" if run.config.max_steps is None else run.config.max_steps
        return f"{run.step if began else 'not yet'} / {most}"

    def _health(self) -> str:
        blind = [_source(key) for key, _ in self._sources("blind")]
        return run_health(self._run) + (f" (not seen: {_listed(blind)})" if blind else "")

    def _sources(self, state: str) -> list[tuple[str, Source]]:
        found = self._state.every(Source)
        return [(key, row) for key, row in found if row.state == state and not key.startswith(f"source|{SINK}")]

    def _notes(self, row: Schedule, at: datetime) -> list[str]:
        """Return what is worth a note, each on one line."""
        incidents = sorted((i for _, i in self._state.every(Incident)), key=lambda i: int(i.id))
        still = [i for i in incidents if i.closed is None]
        closed = [i for i in incidents if i.id in row.closed]
        notes = [*self._standing(), *(self._summary() if row.is_first else ())]
        notes += row.notes[-MOST:]
        notes += [_unseen(key, source) for key, source in self._sources("blind")[:MOST]]
        notes += [_open(i, describe(i, self._state, self._book, at)) for i in still[-MOST:]]
        notes += [f"{len(still) - MOST} older incidents are open too"] if len(still) > MOST else []
        notes += [_closed(i) for i in closed[-MOST:]]
        notes += [f"{len(closed) - MOST} more incidents closed"] if len(closed) > MOST else []
        left_out = [f"{count} {what}" for what, count in sorted(self._state.dropped.items())]
        notes += [f"Not kept, as there is no room for more, so far: {', '.join(left_out)}"] if left_out else []
        return notes + _unmatched(self._unknowns.untold())

    def _standing(self) -> list[str]:
        run = self._run
        if run.phase == "running":
            return []
        since = f"{run.phase_since:%Y-%m-%d %H:%M} UTC"
        if run.phase in _ENDS:
            said = "was stopped" if run.phase == "stopped" else run.phase
            return [f"The run {said} at {since}"]
        stages = [f"{name} since {begun:%H:%M} UTC" for name, begun in sorted(run.stages.items())]
        return [f"The run is {run.phase}" + (f": {', '.join(map(markdown, stages))}" if stages else f", since {since}")]

    def _summary(self) -> list[str]:
        """Return what the run is, what can be seen of it, and how it is watched."""
        config, notify = self._run.config, self._book.notify
        seen, absent = ([_source(key) for key, _ in self._sources(state)] for state in ("seeing", "absent"))
        notes = _described(config) if config else ["The configs of the run are not known yet"]
        notes.append("Resolved configs: `configs/` in the run directory")
        notes += [f"Seen, beside the files of the run: {_listed(seen)}"] if seen else []
        notes += [f"Not to be seen here: {_listed(absent)}"] if absent else []
        notes.append(
            f"Watched by runwatch: an entry every {Duration(self._every.total_seconds())}; people are told of what is"
            f" critical after {notify.critical_wait}, of a warning after {notify.group_wait}"
        )
        return notes


def markdown(text: str) -> str:
    """Return *text* as plain words of Markdown, on one line, cut."""
    return _MARKUP.sub(r"\\\g<0>", one_line(text, _TEXT_CHARS))


def code(text: str, most: int = _TEXT_CHARS) -> str:
    """Return *text* as code of Markdown, on one line, cut."""
    return f"`{one_line(text, most).replace('`', chr(39)) or '-'}`"


def _described(config: RunConfigured) -> list[str]:
    """Return what is trained, on what, and for how long."""
    envs = f"on {_names(config.train_envs)}" if config.train_envs else ""
    words = [
        f"Run {code(config.name, _NAME_CHARS)}" if config.name else "Run",
        f"trains {code(config.model, _NAME_CHARS)}" if config.model else "trains a model",
        envs,
    ]
    amounts = {
        "until step": config.max_steps if config.max_steps is not None else "∞",
        "batch size": config.batch_size,
        "group size": config.group_size,
        "seq_len": config.seq_len,
        "steps between checkpoints": config.checkpoint_interval,
        "resumes from step": config.resume_step,
    }
    where = _deployed(config.deployment) if config.deployment else ""
    numbers = [f"{name} {amount}" for name, amount in amounts.items() if amount is not None]
    evals = f"Evaluated on {_names(config.eval_envs)}" if config.eval_envs else "Without evaluation"
    every = f", every {config.eval_interval} steps" if config.eval_envs and config.eval_interval else ""
    return [f"{' '.join(filter(None, words))}: {', '.join([*numbers, where] if where else numbers)}", evals + every]


def _deployed(deployment: Deployment) -> str:
    """Return on how much the run runs."""
    if deployment.train_nodes is not None:
        per = f" of {deployment.gpus_per_node} GPUs" if deployment.gpus_per_node else ""
        return f"{deployment.train_nodes} nodes{per} to train, {deployment.infer_nodes or 0} to sample"
    if deployment.train_gpus is not None:
        return f"{deployment.train_gpus} GPUs to train, {deployment.infer_gpus or 0} to sample"
    return ""


def _open(incident: Incident, case: Case) -> str:
    words = [f"Open ({incident.severity}): {markdown(case.title)} since {case.opened:%Y-%m-%d %H:%M} UTC"]
    words += [markdown(case.summary)] if case.summary != incident.mode else []
    words += [f"symptoms: {', '.join(map(markdown, case.symptoms[:MOST]))}"] if case.symptoms else []
    words += [f"advice: {markdown(case.advice)}"] if case.advice else []
    words += [f"evidence: {code(place)} {code(text)}" for place, text in case.evidence[:1]]
    return "; ".join(words)


def _unmatched(untold: list[tuple[int, Unknown]]) -> list[str]:
    """Return what no rule knows and came since the last entry, on one line."""
    if not untold:
        return []
    templates = [
        f"{count}x in {row.component} {code(row.example, _NAME_CHARS)}" + ("" if row.is_new else " (seen before)")
        for count, row in untold
        if not row.is_rest
    ]
    more = len(untold) - len(templates[:UNKNOWN])
    notes = [*templates[:UNKNOWN], *([f"and {more} more kinds"] if more else [])]
    total = sum(count for count, _ in untold)
    said = "1 record matches" if total == 1 else f"{total} records match"
    return [f"{said} no rule: {'; '.join(notes)}"]


def _unseen(key: str, source: Source) -> str:
    reason = f" ({markdown(source.reason)})" if source.reason else ""
    return f"Not seen since {source.since:%Y-%m-%d %H:%M} UTC: {_source(key)}{reason}"


def _closed(incident: Incident) -> str:
    span = _span(incident.opened, incident.closed or incident.opened)
    return f"Over ({incident.severity}): {markdown(incident.mode)} in {incident.component} from {span}"


def _span(since: datetime, until: datetime) -> str:
    day = "%Y-%m-%d %H:%M" if since.date() != until.date() else "%H:%M"
    return f"{since:%Y-%m-%d %H:%M} to {until.strftime(day)} UTC"


def _names(names: Sequence[str]) -> str:
    return _listed([code(name, _NAME_CHARS) for name in names])


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
    return ", ".join(names[:MOST]) + more


def _source(key: str) -> str:
    """Return the name of a source: a path, or the address of a page, which stays one."""
    name = one_line(key.removeprefix("source|").removeprefix("metrics:"), _NAME_CHARS)
    return _MARKUP.sub(lambda found: found[0] if found[0] in ":." else f"\\{found[0]}", name)
