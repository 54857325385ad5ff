"""What the rules see of an event: its component, its labels, and the evidence it gives."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from pipeline.alerts import Component, Evidence
from pipeline.events import Level
from pipeline.formats import headers
from rules.pattern import Pattern

if TYPE_CHECKING:
    from pipeline.events import AttemptBegun, DiskSpace, HostLine, LogRecord, Metrics, ProcessState, Rollout, Sample
    from rules.rulebook import Rulebook

_EVIDENCE_BYTES = 2048
_CLIPPED_CHARS = 200
_ERROR_CHARS = 160
_ENDING = 100
"""Lines at the end of a record among which its exception is."""
_RAISED = Pattern(r"^\w[\w.]*(Error|Exception|Exit|Interrupt|Timeout|Failure|Failed|Warning|Refused|Dead)(: *\S|$)")
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
    others: int | None = None
    """Of processes: how many like it run."""

    @property
    def by(self) -> int:
        """A number for who says it."""
        return _digest("|".join((self.evidence.source, self.labels.get("rank", ""), self.labels.get("process", ""))))

    def digests(self) -> tuple[int, int]:
        """Return a number that the same record has in every file, and one of the file."""
        said = " ".join(self.text.split())  # a terminal turns tabs into spaces
        return _digest(f"{self.time.timestamp() // 1}|{self.level}|{said}"), _digest(self.evidence.source)


def error_of(text: str) -> str:
    """Return what a record says went wrong: the exception that its traceback ends with, else its first line."""
    lines = text.split("\n")
    raised = next((line for line in reversed(lines[1:][-_ENDING:]) if _RAISED.search(line) is not None), lines[0])
    return one_line(raised, _ERROR_CHARS)


def one_line(text: str, most: int) -> str:
    """Return *text* on one line, what does not print or turns its direction left out, cut to *most* characters."""
    plain = "".join(" " if unicodedata.category(char)[0] in "CZ" else char for char in text[: 4 * most])
    line = " ".join(plain.split())
    return line if len(line) <= most and len(text) <= 4 * most else line[: most - 1] + "…"


def clip(text: str) -> str:
    """Return the beginning of a label or path, as UTF-8 can hold it."""
    return text[:_CLIPPED_CHARS].encode(errors="replace").decode()


def evidence_of(source: str, offset: int | None, text: str) -> Evidence:
    """Return what is kept of a text: if it is long, where it begins and ends, as in a traceback."""
    said = text.encode(errors="replace")
    if len(said) > _EVIDENCE_BYTES:
        begin, end = said[: _EVIDENCE_BYTES // 4], said[-_EVIDENCE_BYTES * 3 // 4 + len("\n…\n".encode()) :]
        text = f"{begin.decode(errors='ignore')}\n…\n{end.decode(errors='ignore')}"
    elif not text.isascii():
        text = said.decode()
    return Evidence(source=clip(source), offset=offset, text=text)


def template(text: str) -> int:
    """Return a number that texts share which differ only in numbers and ids."""
    first = text.split("\n", 1)[0][:300]
    return _digest(_FOLDED.sub("#", first))


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(errors="replace"), digest_size=7).digest())


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
        evidence=evidence_of(event.source, event.offset, event.text),
    )


def of_host(event: HostLine, book: Rulebook) -> Fact | None:
    """Return the fact of a line from outside the run directory."""
    component = book.components.origin.get(event.origin)
    if component is None:
        return None
    first, *more = event.text.split("\n")
    header = headers.parse(first)
    text = "\n".join([header.message if header else first, *more])
    return Fact(
        time=event.time,
        component=component,
        labels={"node": event.node, "source": event.origin},
        text=text,
        level=header.level if header else None,
        copies=book.components.copies.get(event.origin),
        evidence=evidence_of(event.origin, None, text),
    )


def of_rollout(event: Rollout, component: Component) -> Fact:
    """Return the fact of a rollout."""
    said = "ok" if event.ok else f"{event.error}: {event.message}" if event.message else event.error or "failed"
    labels = {"env": event.env, "source": event.source}
    labels |= {"agent": event.agent} if event.agent else {}
    labels |= {"error": event.error} if event.error else {}
    evidence = evidence_of(event.source, event.offset, f"{event.env}: {said}")
    return Fact(time=event.time, component=component, labels=labels, evidence=evidence)


def of_attempt(event: AttemptBegun, component: Component) -> Fact:
    """Return the fact of a launch."""
    labels = {"number": str(event.number), "source": "logs/latest"}
    evidence = evidence_of("logs/latest", None, f"attempt {event.number} began")
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
        evidence=evidence_of("processes", None, said),
    )


def of_memory(event: ProcessState, name: str, component: Component) -> Fact:
    """Return the fact of the memory that a process holds; of one that is gone, none."""
    size = f"{(event.rss_bytes or 0) / 2**30:.1f} GiB"
    who = f"{event.role} {event.pid} on {event.node}"
    labels = {"metric": name, "series": f"{event.node} {event.role} {event.pid}", "source": "processes"}
    labels |= {"node": event.node, "role": event.role, "pid": str(event.pid), "size": size}
    return Fact(
        time=event.time, component=component, labels=labels, evidence=evidence_of("processes", None, f"{who}: {size}")
    )


def of_metric(event: Metrics, name: str, value: float, component: Component) -> Fact:
    """Return the fact of one value of a step."""
    evidence = evidence_of(event.source, event.offset, f"step {event.step}: {name} = {value:.6g}")
    labels = {"metric": name, "series": f"{event.writer} {name}", "step": str(event.step), "source": event.source}
    return Fact(time=event.time, component=component, labels=labels, evidence=evidence)


def of_sample(event: Sample, component: Component) -> Fact:
    """Return the fact of one value of a Prometheus page."""
    engine = f" engine {event.labels['engine']}" if "engine" in event.labels else ""
    evidence = evidence_of(event.endpoint, None, f"{event.name}{engine} = {event.value:.6g}")
    series = " ".join([event.endpoint, event.name, *(f"{k}={v}" for k, v in sorted(event.labels.items()))])
    labels = {"metric": event.name, "series": series, "source": event.endpoint}
    return Fact(time=event.time, component=component, labels=labels, evidence=evidence)


def of_disk(event: DiskSpace, name: str, value: float) -> Fact:
    """Return the fact of the space of a file system."""
    free_gib = event.free_bytes / 2**30
    evidence = evidence_of(event.path, None, f"{free_gib:.1f} GiB of {event.total_bytes / 2**30:.1f} GiB free")
    labels = {"metric": name, "series": f"{event.node} {event.path} {name}", "node": event.node, "path": event.path}
    labels |= {"free": f"{free_gib:.1f} GiB", "value": f"{value:.4g}", "source": "disk"}
    return Fact(time=event.time, component="storage", labels=labels, evidence=evidence)
