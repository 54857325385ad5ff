"""What can be seen of the run and of runwatch, read again and again while both go on."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import ceil, inf, isfinite
from typing import TYPE_CHECKING, TypeVar

from pipeline.alerts import AlertChanged, CheckIn, HealthChanged, IncidentChanged, Notification
from pipeline.events import RunConfigured, Sample
from pipeline.journal_file import JournalError, read_history, read_recording

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pipeline.alerts import Decision
    from pipeline.demo.show import Show
    from pipeline.demo.stage import Stage

LINES = 200
RECORDING_S = 2.0
"""Seconds between two looks at the recording, which is read as a whole."""
SLACK_S = 0.2
"""The launch is seen a little after it, so the fault strikes a little earlier than it seems to."""
KV_USAGE = "vllm:kv_cache_usage_perc"
_OF_ROW = {
    "reward": "train/agg/effective/agent/reward/mean",
    "entropy": "entropy/all/mean",
    "step time": "time/step",
}
_BATCH = "time/wait_for_batch"
"""Only the trainer's row has it; the orchestrator's has a step time of its own."""
_DATED = re.compile(r"^(\x1b\[[0-9;]*m)*\d\d:\d\d:\d\d")
_D = TypeVar("_D")


@dataclass(frozen=True)
class Said:
    """Something that runwatch decided, and how long after the launch it was in the journal."""

    after_s: float
    decision: Decision


@dataclass(frozen=True)
class Line:
    """A line of the launcher's terminal."""

    after_s: float
    text: str
    is_launchers: bool
    """Its own, rather than the orchestrator's log that it shows from then on."""


class Tail:
    """A file that grows, or another that takes its place."""

    def __init__(self) -> None:
        self._inode, self._offset, self._rest = 0, 0, b""

    def lines(self, path: Path) -> list[str]:
        """Return the lines that have been ended since the last look."""
        try:
            with path.open("rb") as file:
                self._same(path)
                file.seek(self._offset)
                read = file.read()
        except OSError:
            return []
        self._offset += len(read)
        *ended, self._rest = (self._rest + read).split(b"\n")
        return [line.decode(errors="replace") for line in ended]

    def _same(self, path: Path) -> None:
        inode = path.stat().st_ino
        if inode != self._inode:
            self._inode, self._offset, self._rest = inode, 0, b""


@dataclass
class Sight:
    """What has been seen so far."""

    show: Show
    stage: Stage
    began: datetime = field(default_factory=lambda: datetime.now(UTC))
    lines: deque[Line] = field(default_factory=lambda: deque(maxlen=LINES))
    new_lines: list[Line] = field(default_factory=list)
    """Those of the last look."""
    said: list[Said] = field(default_factory=list)
    step: int = 0
    max_steps: int | None = None
    figures: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in (*_OF_ROW, "KV cache")})
    _from: float = field(default_factory=time.monotonic)
    _tails: dict[str, Tail] = field(default_factory=lambda: {name: Tail() for name in ("terminal", "log", "metrics")})
    _recording_at: float = -inf

    @property
    def after_s(self) -> float:
        """How long ago the run was launched."""
        return time.monotonic() - self._from

    @property
    def health(self) -> HealthChanged | None:
        """The health, as runwatch said last."""
        return self._last(HealthChanged)

    @property
    def check_in(self) -> CheckIn | None:
        """The last entry of STATUS.md."""
        return self._last(CheckIn)

    @property
    def messages(self) -> list[tuple[float, Notification]]:
        """What a person was told, and when."""
        return [(said.after_s, said.decision) for said in self.said if isinstance(said.decision, Notification)]

    @property
    def incidents(self) -> list[IncidentChanged]:
        """The incidents as they stand, in the order in which they opened."""
        return list({said.id: said for one in self.said if isinstance(said := one.decision, IncidentChanged)}.values())

    def late_s(self, at_s: float) -> float | None:
        """Return how long after the fault that was, rounded up; `None` before it, and where there is none."""
        late_s = at_s - self.show.strikes_s
        return max(0.1, ceil(late_s * 10) / 10) if late_s > -SLACK_S else None

    def root_said_s(self, incident: IncidentChanged) -> float:
        """Return when the root cause was first said to be the one that it is."""
        root = (incident.id, incident.failure_mode, incident.component)
        return next(
            one.after_s
            for one in self.said
            if isinstance(was := one.decision, IncidentChanged) and (was.id, was.failure_mode, was.component) == root
        )

    def root_summary(self, incident: IncidentChanged) -> str:
        """Return what the alert that is the root cause said."""
        alerts = [one.decision for one in self.said if isinstance(one.decision, AlertChanged)]
        of_root = [alert for alert in alerts if alert.failure_mode == incident.failure_mode]
        return next((alert.summary for alert in of_root if alert.incident == incident.id), "")

    def alerts(self, incident: IncidentChanged) -> list[tuple[float, str]]:
        """Return what the alerts of an incident said, each rule once, and when."""
        first: dict[str, tuple[float, str]] = {}
        for one in self.said:
            if isinstance(alert := one.decision, AlertChanged) and alert.incident == incident.id:
                first.setdefault(alert.rule, (one.after_s, alert.summary))
        return list(first.values())

    def look(self, run: Path) -> None:
        """See what is new."""
        now = self.after_s
        launchers = self._tails["terminal"].lines(self.stage.terminal)
        log = self._tails["log"].lines(run / "logs/latest/orchestrator.log")
        self.new_lines = [Line(now, text, is_launchers=True) for text in launchers]
        self.new_lines += [Line(now, text, is_launchers=False) for text in log]
        self.lines.extend(self.new_lines)
        for row in self._tails["metrics"].lines(run / "metrics.jsonl"):
            with contextlib.suppress(ValueError, AttributeError):
                self._take_row(json.loads(row))
        with contextlib.suppress(JournalError):  # the service has not made it yet
            self._read_journal(self.stage.journal(run), now)

    def _take_row(self, row: dict[str, object]) -> None:
        for name, key in _OF_ROW.items():
            value = row.get(key)
            if isinstance(value, float) and isfinite(value) and (name != "step time" or _BATCH in row):
                self.figures[name].append(value)
        step = row.get("step")
        if _BATCH in row and isinstance(step, int):
            self.step = step

    def _read_journal(self, journal: Path, now: float) -> None:
        decisions = (AlertChanged, IncidentChanged, HealthChanged, CheckIn, Notification)
        history = [entry for entry in read_history(journal) if isinstance(entry, decisions)]
        self.said += [Said(now, decision) for decision in history[len(self.said) :]]
        if now - self._recording_at >= RECORDING_S:
            self._recording_at = now
            self._read_recording(journal)

    def _read_recording(self, journal: Path) -> None:
        usage = []
        for event in read_recording(journal):
            if isinstance(event, RunConfigured):
                self.max_steps = event.max_steps
            elif isinstance(event, Sample) and event.name == KV_USAGE:
                usage.append(event.value)
        self.figures["KV cache"] = usage

    def _last(self, kind: type[_D]) -> _D | None:
        found: Iterator[_D] = (one.decision for one in reversed(self.said) if isinstance(one.decision, kind))
        return next(found, None)


def begins_record(line: Line) -> bool:
    """Tell whether a line begins a record; the others are tracebacks and tables."""
    return _DATED.match(line.text) is not None
