"""Rules as written in TOML; `docs/rules.md` explains them with examples."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec

from pipeline.alerts import Component, Health, Phase
from pipeline.events import Level, Role
from rules.bounds import Bounds
from rules.escalation import Baseline, Clear, Escalation
from rules.pattern import Duration, Pattern
from rules.table import Name, Table

Label: TypeAlias = Literal[
    "env", "agent", "rank", "node", "role", "pid", "source", "error", "metric", "series", "process", "id"
]
"""What a rule can be held per: an alert for each value."""


# ── triggers: which events a rule looks at ───────────────────────────────────────────────────────


class LogTrigger(Table, frozen=True, kw_only=True):
    """Records of logs, and lines from outside the run directory."""

    pattern: Pattern
    """Is found in the text; a list means any of these."""
    not_: Pattern | None = msgspec.field(default=None, name="not")
    """And this is not."""
    among: Pattern | None = None
    """Is found in all records that a `fraction` is of, hits and others."""
    until: Pattern | None = None
    """It has begun, and ends with a record in which this is found; what it takes meanwhile is judged by `for`."""
    component: list[Component] = []
    level: list[Level] = []
    """Of the records in which the pattern is found."""


class RolloutTrigger(Table, frozen=True, kw_only=True):
    """Rollouts, cancelled ones left out."""

    scope: Literal["train", "eval", "any"] = "any"
    ok: bool | None = None
    error: Pattern | None = None
    """Is found in the type of its error."""
    message: Pattern | None = None
    """Is found in what its error says: it may quote the model, so name the type as well."""

    def __post_init__(self) -> None:
        """Refuse one that looks for what there is not."""
        if self.ok and (self.error is not None or self.message is not None):
            message = "a rollout that is ok has no error"
            raise ValueError(message)


class Where(Bounds, frozen=True, kw_only=True):
    """Another number of the same row within bounds; one that is not there is in none."""

    name: str


class MetricTrigger(Table, frozen=True, kw_only=True):
    """
    Numbers that change over time, each series on its own.

    Keys of `metrics.jsonl` (and of a step's console line), series of Prometheus pages, `disk/free_ratio` and
    `disk/free_bytes`, `process/ROLE/rss_bytes`. Stars stand for anything.
    """

    name: Annotated[list[Annotated[str, msgspec.Meta(min_length=1)]], msgspec.Meta(min_length=1)]
    writer: Literal["trainer", "orchestrator", "evaluator"] | None = None
    """Only what this one reports: some keys are written by several."""
    over: str | None = None
    """Divided by this key of the same row."""
    where: list[Where] = []
    """And these of the same row are so, or the value is neither a hit nor usual."""
    rate: bool = False
    """A counter: what it grows by in a minute."""
    labels: dict[str, Pattern] = {}
    """Of Prometheus pages: only series in whose label of that name the pattern is found."""

    def __post_init__(self) -> None:
        """Refuse what does not go together."""
        if self.rate and self.over is not None:
            message = "give rate or over, not both"
            raise ValueError(message)
        if self.labels and (self.over is not None or self.where or self.writer is not None):
            message = "labels are of Prometheus pages; over, where and writer of rows of metrics.jsonl"
            raise ValueError(message)


class ProcessTrigger(Table, frozen=True, kw_only=True):
    """States of the run's processes."""

    state: Annotated[list[Literal["exited", "zombie", "running"]], msgspec.Meta(min_length=1)] = msgspec.field(
        default_factory=lambda: ["exited"]
    )
    role: list[Role] = []
    title: Pattern | None = None
    """Is found in its title."""
    orphan: Literal[True] | None = None
    """Its parent is gone, and init has adopted it."""
    exit_code: list[int] = []
    """Any of these; negative for a signal. An unknown code is none of them."""
    not_exit_code: list[int] = []


class Blame(Table, frozen=True, kw_only=True):
    """One clock is ahead of another one: whoever should have moved that is stuck."""

    component: Component
    ahead: Name
    behind: Name
    """Must have moved at all: there are runs in which it never does."""


class AbsenceTrigger(Table, frozen=True, kw_only=True):
    """None of these clocks has moved for a time."""

    of: Annotated[list[Name], msgspec.Meta(min_length=1)]
    blame: list[Blame] = []
    """The first that is met says who is stuck; else the rule's component."""


class BlindTrigger(Table, frozen=True, kw_only=True):
    """A source that should see does not, or a sink does not deliver."""

    failed: bool | None = None
    """Whether it is our own reader that fails."""
    sink: bool = False
    """Sinks instead of sources."""


class AttemptTrigger(Table, frozen=True, kw_only=True):
    """Launches of the run. What counts them outlasts them."""


class TogetherTrigger(Table, frozen=True, kw_only=True):
    """Alerts of each of these failure modes fire, whatever they are about."""

    modes: Annotated[list[Name], msgspec.Meta(min_length=2)]

    def __post_init__(self) -> None:
        """Refuse a failure mode that stands twice."""
        if len(set(self.modes)) < len(self.modes):
            message = '"modes" names a failure mode twice'
            raise ValueError(message)


class Trigger(Table, frozen=True, kw_only=True):
    """Exactly one kind of event, and what there is an alert per."""

    log: LogTrigger | None = None
    rollout: RolloutTrigger | None = None
    metric: MetricTrigger | None = None
    process: ProcessTrigger | None = None
    absence: AbsenceTrigger | None = None
    blind: BlindTrigger | None = None
    attempt: AttemptTrigger | None = None
    together: TogetherTrigger | None = None
    per: list[Label] = []

    @property
    def kind(self) -> str:
        """The name of the one trigger that is given."""
        return next(name for name in TRIGGERS if getattr(self, name) is not None)

    @property
    def ends(self) -> Pattern | None:
        """What ends that which a record has begun; `None` if the rule does not wait for an end."""
        return self.log.until if self.log is not None else None

    @property
    def lasts(self) -> bool:
        """Whether it is about a state, which ends by itself, rather than about hits."""
        return self.kind in {"absence", "blind", "together"} or self.ends is not None

    @property
    def subject(self) -> list[Label]:
        """The labels that tell one alert from another; of blindness always the source, of metrics the series."""
        more: list[Label] = ["source"] if self.blind is not None else ["series"] if self.metric is not None else []
        return [*self.per, *(label for label in more if label not in self.per)]

    def __post_init__(self) -> None:
        """Refuse none, or more than one."""
        given = [name for name in TRIGGERS if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            message = f"a rule looks at exactly one of {', '.join(TRIGGERS)}; here: {found}"
            raise ValueError(message)


TRIGGERS = ("log", "rollout", "metric", "process", "absence", "blind", "attempt", "together")


class Rule(Table, frozen=True, kw_only=True):
    """A declaration: which events it looks at, when it escalates, how severe that is."""

    name: Name
    failure_mode: Name
    component: Component | None = None
    """Who is to blame; without it the component of the event."""
    summary: str
    """One line; `{name}` is filled in from labels, named groups of the pattern, and figures."""
    advice: str = ""
    on: Trigger
    escalate: Annotated[list[Escalation], msgspec.Meta(min_length=1, max_length=3)]
    clear: Clear | None = None
    keep_firing_for: Duration | None = None
    """How long its alerts go on firing after the last hit, or after what lasted has ended."""
    baseline: Baseline | None = None
    """Of metrics: what is usual, for `spike`, `drop` and `deviation`."""
    during: Annotated[list[Phase], msgspec.Meta(min_length=1)] = msgspec.field(
        default_factory=lambda: ["starting", "running", "finishing"]
    )
    specificity: Annotated[int, msgspec.Meta(ge=0, le=100)] = 50
    """Of alerts that could be the root of one incident, the most specific names it."""
    health: Health = "Degraded"
    """While it fires with `warning` or more."""
    restart: bool = False
    """Whether the same command is likely to get further."""
    silent: bool = False
    """Nobody is told of its alerts: they are parts of what a rule about several looks at."""

    @property
    def has_fraction(self) -> bool:
        """Whether it measures a share, and so has to know of what is no hit."""
        return any(escalation.fraction is not None for escalation in self.escalate)

    def __post_init__(self) -> None:
        """Refuse two words about the same."""
        if self.clear is not None and self.keep_firing_for is not None:
            message = "give clear or keep_firing_for, not both"
            raise ValueError(message)
        if self.has_fraction and self.on.process is not None and "running" in self.on.process.state:
            message = "a fraction of processes is of those that are gone, beside those that run"
            raise ValueError(message)
