"""
Every event: a typed, immutable fact with a time.

The tags are the format on disk (`contracts`: *Recording*), so renaming a class
does not change them. Readers ignore fields they do not know.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal, TypeAlias

import msgspec

Level: TypeAlias = Literal["DEBUG", "INFO", "SUCCESS", "WARNING", "ERROR", "CRITICAL"]
Role: TypeAlias = Literal[
    "launcher", "trainer", "orchestrator", "inference", "env_server", "env_worker", "evaluator", "torchrun"
]
MarkerKind: TypeAlias = Literal[
    "policy-published", "policy-joined", "checkpoint-trainer", "checkpoint-orchestrator", "batch-sent"
]
Seeing: TypeAlias = Literal["seeing", "blind", "absent"]
"""A source sees; could or should see and does not; or was never there."""


class _Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """What all events have: when it happened, UTC, in whole milliseconds."""

    time: datetime


# ── read from the run directory: can be read again ───────────────────────────────────────────────


class AttemptBegun(_Event, frozen=True, kw_only=True, tag="attempt"):
    """A launch of the run began: `logs/attempt_<number>`."""

    number: int
    identity: str = ""
    """Device, inode and birth of the attempt's directory: after `--clean` the same number comes again."""


class Deployment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """On how much the run runs; `None` where the config does not say."""

    kind: str
    """`single_node`, `multi_node`, or what a later prime-rl calls it."""
    train_nodes: int | None = None
    infer_nodes: int | None = None
    train_gpus: int | None = None
    """Of the one node."""
    infer_gpus: int | None = None
    gpus_per_node: int | None = None


class RunConfigured(_Event, frozen=True, kw_only=True, tag="config"):
    """What the run's resolved configs say; `None` where they do not."""

    name: str | None = None
    model: str | None = None
    max_steps: int | None = None
    """Steps until the run ends; `None` is endless or unknown."""
    batch_size: int | None = None
    """Rollouts of a batch."""
    group_size: int | None = None
    seq_len: int | None = None
    train_envs: list[str] = []
    eval_envs: list[str] = []
    checkpoint_interval: int | None = None
    """Steps between checkpoints; `None` if there are none."""
    eval_interval: int | None = None
    resume_step: int | None = None
    engine_urls: list[str] = []
    """Prometheus pages of the inference engines."""
    trainer_metrics_url: str | None = None
    max_off_policy_steps: int | None = None
    """Policy versions that a rollout may be behind before it is dropped."""
    deployment: Deployment | None = None
    ports: dict[str, int] = {}
    """Those that its processes listen on, by what listens; of several env servers the first."""


class LogRecord(_Event, frozen=True, kw_only=True, tag="log"):
    """A record of a log file: one header line with the lines that belong to it."""

    source: str
    """Path of the file, relative to the run directory."""
    offset: int
    """Bytes from the start of the file to the record."""
    attempt: int | None
    """The launch it belongs to; `None` for a file that is not of one attempt."""
    text: str
    """The message without time and level, colours and prefixes removed; further lines after newlines."""
    level: Level | None = None
    dated: bool = True
    """Whether the record carries a time of its own."""
    process: str | None = None
    """The writer within a shared file (`EngineCore_DP0`), where the line names it."""
    rank: int | None = None


class Metrics(_Event, frozen=True, kw_only=True, tag="metrics"):
    """Figures of one step, from `metrics.jsonl` or from a line of the console."""

    source: str
    offset: int
    writer: Literal["trainer", "orchestrator", "evaluator"]
    """Who reports: the trainer's step is trained, the orchestrator's batch shipped, an evaluation done."""
    step: int
    values: dict[str, float] = {}
    """By the key of `metrics.jsonl`. Not a number where the run says so on the console."""
    console: bool = False
    """From a line of the console, rounded: the row of `metrics.jsonl` with the same step replaces it."""
    completes: bool = False
    """Whether this says that the step is done; a trainer writes several rows a step, and only some do."""


class Rollout(_Event, frozen=True, kw_only=True, tag="rollout"):
    """A trace that ended, or an episode without a trace. The text of the model is not kept."""

    source: str
    offset: int
    index: int = 0
    """Its place among the traces of one line."""
    kind: Literal["train", "eval"]
    step: int
    """The step it was collected for."""
    env: str
    agent: str | None = None
    ok: bool
    cancelled: bool = False
    """Withdrawn by the run itself: neither a success nor a failure."""
    error: str | None = None
    """The type of the last error of a rollout that failed."""
    message: str = ""
    """What that error says, cut to 300 characters. Untrusted; never scanned as a log."""
    reward: float | None = None
    truncated: bool = False
    turns: int = 0
    tokens: int = 0
    policy_version: int | None = None
    group: str | None = None


class Marker(_Event, frozen=True, kw_only=True, tag="marker"):
    """A marker file appeared; its time is the file's modification time."""

    source: str
    kind: MarkerKind
    number: int
    """The policy version, or the step of the checkpoint or batch."""


# ── cannot be read again: kept in the recording ──────────────────────────────────────────────────


class ProcessState(_Event, frozen=True, kw_only=True, tag="process"):
    """A process of the run was seen, or is gone."""

    node: str
    role: Role
    pid: int
    state: Literal["running", "exited", "zombie"]
    title: str = ""
    ppid: int | None = None
    rss_bytes: int | None = None
    exit_code: int | None = None
    """Negative for a signal; `None` where it cannot be known."""


class Sample(_Event, frozen=True, kw_only=True, tag="sample"):
    """One value of a Prometheus page."""

    endpoint: str
    name: str
    labels: dict[str, str] = {}
    value: float


class ScrapeFailed(_Event, frozen=True, kw_only=True, tag="scrape_failed"):
    """A Prometheus page could not be read."""

    endpoint: str
    error: str


class HostLine(_Event, frozen=True, kw_only=True, tag="host"):
    """A line from outside the run directory."""

    node: str
    origin: Literal["kernel", "scheduler", "cgroup", "launcher"]
    text: str


class DiskSpace(_Event, frozen=True, kw_only=True, tag="disk"):
    """The space of a file system."""

    node: str
    path: str
    total_bytes: int
    free_bytes: int


class SourceState(_Event, frozen=True, kw_only=True, tag="source"):
    """A source sees, turned blind, or is absent."""

    name: str
    state: Seeing
    reason: str = ""
    failed: bool = False
    """Whether it is our own reader that keeps failing, rather than what it reads."""


class Gap(_Event, frozen=True, kw_only=True, tag="gap"):
    """
    Nobody watches from the event's time on, `until` then.

    It comes before what is read of that time later.
    """

    until: datetime
    cause: Literal["downtime", "suspension", "visit"]
    """`visit`: the run is only looked at now and then, as it was meant to be."""


class Asked(_Event, frozen=True, kw_only=True, tag="asked"):
    """A person wants something now."""

    what: Literal["checkin"]


class Receipt(_Event, frozen=True, kw_only=True, tag="receipt"):
    """What became of a delivery."""

    item: str
    """The stable id of what was delivered."""
    sink: str
    outcome: Literal["delivered", "rejected", "failing"]
    """`failing`: not yet, it is tried again."""
    reason: str = ""


class Tick(_Event, frozen=True, kw_only=True, tag="tick"):
    """Time has passed: no source that sees will bring anything earlier."""


class Mark(_Event, frozen=True, kw_only=True, tag="mark"):
    """A batch was committed: how far the files that moved had been read by then."""

    positions: dict[str, int] = {}
    """Bytes read, by the path relative to the run directory."""
    floor: datetime | None = None
    """Records without a time of their own in this batch are not earlier than this."""


ReadAgain: TypeAlias = LogRecord | Metrics
"""What stays in the run directory as long as that does."""
OutsideEvent: TypeAlias = (
    ProcessState | Sample | ScrapeFailed | HostLine | DiskSpace | SourceState | Gap | Asked | Receipt | Tick | Mark
)
"""What no run directory holds."""
KeptEvent: TypeAlias = OutsideEvent | AttemptBegun | RunConfigured | Rollout | Marker
"""What a recording holds: also what a run deletes or overwrites."""
Event: TypeAlias = ReadAgain | KeptEvent


def order(event: Event) -> tuple[datetime, str, str, int, int]:
    """Return the key that sorts events: time, source, path, offset, index."""
    match event:
        case LogRecord(source=path) | Metrics(source=path) | Marker(source=path) | Rollout(source=path):
            # the launcher's terminal comes last: what it repeats is then known as a repetition
            kind = "terminal" if path.startswith("job_") else "file"
            offset = -1 if isinstance(event, Marker) else event.offset
            return event.time, kind, path, offset, event.index if isinstance(event, Rollout) else 0
        case HostLine():
            return event.time, "terminal", event.origin, 0, 0
        case AttemptBegun() | RunConfigured():
            return event.time, "", "", 0, 0
        case Tick() | Mark():
            return event.time, "~", "", 0, 0
        case _:
            return event.time, "live", "", 0, 0
