"""What the rules see of an event: its component, its labels, and the evidence it gives."""

from __future__ import annotations

import hashlib
import re
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from pipeline.alerts import Component, Evidence
from pipeline.events import Level
from pipeline.formats import headers

if TYPE_CHECKING:
    from pipeline.events import HostLine, LogRecord, Metrics, ProcessState, Rollout
    from rules.rulebook import Rulebook

_EVIDENCE_CHARS = 2048
_FOLDED = re.compile(r"[0-9a-f]{8,}|\d+", re.ASCII)


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """An event as rules see it."""

    time: datetime
    component: Component
    evidence: Evidence
    labels: dict[str, str] = {}
    text: str = ""
    level: Level | None = None
    copies: str | None = None
    """The group of files that may repeat it."""

    @property
    def by(self) -> str:
        """Who says it."""
        return "|".join((self.evidence.source, self.labels.get("rank", ""), self.labels.get("process", "")))

    def digest(self) -> int:
        """Return a number that the same record has in every file."""
        said = f"{self.time.timestamp() // 1}|{self.level}|{self.text}"
        return int.from_bytes(hashlib.blake2b(said.encode(errors="replace"), digest_size=7).digest())


def _cut(text: str) -> str:
    """Return the beginning and the end of a long text: of a traceback, what failed and why."""
    if len(text) <= _EVIDENCE_CHARS:
        return text
    return f"{text[: _EVIDENCE_CHARS // 4]}\n…\n{text[-_EVIDENCE_CHARS * 3 // 4 + 3 :]}"


def template(text: str) -> int:
    """Return a number that texts share which differ only in numbers and ids."""
    first = text.split("\n", 1)[0][:300]
    folded = _FOLDED.sub("#", first)
    return int.from_bytes(hashlib.blake2b(folded.encode(errors="replace"), digest_size=7).digest())


def of_log(event: LogRecord, book: Rulebook) -> Fact | None:
    """Return the fact of a record; `None` of a file that is nobody's."""
    origin = book.origin(event.source)
    if origin is None:
        return None
    labels = origin.labels | {"source": event.source}
    if event.rank is not None:
        labels["rank"] = str(event.rank)
    if event.process is not None:
        labels["process"] = event.process
    return Fact(
        time=event.time,
        component=origin.component,
        labels=labels,
        text=event.text,
        level=event.level,
        copies=origin.copies,
        evidence=Evidence(source=event.source, offset=event.offset, text=_cut(event.text)),
    )


def of_host(event: HostLine, book: Rulebook) -> Fact | None:
    """Return the fact of a line from outside the run directory."""
    component = book.components.origin.get(event.origin)
    if component is None:
        return None
    header = headers.parse(event.text)
    text = header.message if header else event.text
    return Fact(
        time=event.time,
        component=component,
        labels={"node": event.node, "source": event.origin},
        text=text,
        level=header.level if header else None,
        copies=book.components.copies.get(event.origin),
        evidence=Evidence(source=event.origin, offset=None, text=_cut(text)),
    )


def of_rollout(event: Rollout, component: Component) -> Fact:
    """Return the fact of a rollout."""
    said = "ok" if event.ok else f"{event.error}: {event.message}" if event.message else event.error or "failed"
    labels = {"env": event.env, "source": event.source}
    labels |= {"agent": event.agent} if event.agent else {}
    labels |= {"error": event.error} if event.error else {}
    evidence = Evidence(source=event.source, offset=event.offset, text=f"{event.env}: {said}")
    return Fact(time=event.time, component=component, labels=labels, evidence=evidence)


def of_process(event: ProcessState, component: Component) -> Fact:
    """Return the fact of a process's state."""
    code = "" if event.exit_code is None else f" with {event.exit_code}"
    said = f"{event.role} {event.pid} on {event.node}: {event.state}{code}"
    labels = {"node": event.node, "role": event.role, "pid": str(event.pid), "source": "processes"}
    labels["exit_code"] = "unknown" if event.exit_code is None else str(event.exit_code)
    return Fact(
        time=event.time,
        component=component,
        labels=labels,
        evidence=Evidence(source="processes", offset=None, text=said),
    )


def of_metric(event: Metrics, name: str, value: float, component: Component) -> Fact:
    """Return the fact of one value of a step."""
    evidence = Evidence(source=event.source, offset=event.offset, text=f"step {event.step}: {name} = {value:.6g}")
    labels = {"metric": name, "step": str(event.step), "value": f"{value:.6g}", "source": event.source}
    return Fact(time=event.time, component=component, labels=labels, evidence=evidence)
