"""Rules as written in TOML; `docs/rules.md` explains them with examples."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec

from pipeline.alerts import Component, Health, Phase, Severity
from pipeline.events import Level, Role
from rules.pattern import Duration, Pattern

Name: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9-]*$", max_length=80)]
Label: TypeAlias = Literal[
    "env", "agent", "rank", "node", "role", "pid", "source", "error", "metric", "series", "process", "id"
]
"""What a rule can be held per: an alert for each value."""


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of a rule file; an unknown key in it is an error."""


# ── triggers: which events a rule looks at ───────────────────────────────────────────────────────


class LogTrigger(Table, frozen=True, kw_only=True):
    """Records of logs, and lines from outside the run directory."""

    pattern: Pattern
    """Is found in the text; a list means any of these."""
    not_: Pattern | None = msgspec.field(default=None, name="not")
    """And this is not."""
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


class MetricTrigger(Table, frozen=True, kw_only=True):
    """
    Numbers that change over time, each series on its own.

    Keys of `metrics.jsonl` (and of a step's console line), series of Prometheus pages, and `disk/free_ratio`,
    `disk/free_bytes`. Stars stand for anything.
    """

    name: list[str]
    writer: Literal["trainer", "orchestrator", "evaluator"] | None = None
    """Only what this one reports: some keys are written by several."""
    over: str | None = None
    """Divided by this key of the same row."""
    rate: bool = False
    """A counter: what it grows by in a minute."""


class ProcessTrigger(Table, frozen=True, kw_only=True):
    """States of the run's processes."""

    state: list[Literal["exited", "zombie", "running"]] = msgspec.field(default_factory=lambda: ["exited"])
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

    of: list[Name]
    blame: list[Blame] = []
    """The first that is met says who is stuck; else the rule's component."""


class BlindTrigger(Table, frozen=True, kw_only=True):
    """A source that should see does not, or a sink does not deliver."""

    failed: bool | None = None
    """Whether it is our own reader that fails."""
    sink: bool = False
    """Sinks instead of sources."""


class Trigger(Table, frozen=True, kw_only=True):
    """Exactly one kind of event, and what there is an alert per."""

    log: LogTrigger | None = None
    rollout: RolloutTrigger | None = None
    metric: MetricTrigger | None = None
    process: ProcessTrigger | None = None
    absence: AbsenceTrigger | None = None
    blind: BlindTrigger | None = None
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


TRIGGERS = ("log", "rollout", "metric", "process", "absence", "blind")


# ── escalation and clearing ──────────────────────────────────────────────────────────────────────


class OwnPace(Table, frozen=True, kw_only=True):
    """A duration taken from the run's own history: *times* the percentile of its last ordinary steps."""

    at_least: Duration
    times: Annotated[float, msgspec.Meta(gt=0)]
    percentile: Annotated[float, msgspec.Meta(gt=0, le=100)] = 95.0
    last: Annotated[int, msgspec.Meta(ge=3, le=60)] = 20
    warm_up: Annotated[int, msgspec.Meta(ge=1)] = 5
    """Ordinary steps before there is a history; until then the time-out of a stage that goes on holds."""
    early_times: Annotated[float, msgspec.Meta(gt=0)] = 8.0
    early_at_least: Duration = Duration("8m")
    """With no such stage: that many times the longest step so far, whatever was in it."""
    otherwise: Duration
    """Before the second step."""


class Baseline(Table, frozen=True, kw_only=True):
    """What is usual for a series: the median of its past values, those left out that were hits."""

    values: Annotated[int, msgspec.Meta(ge=3, le=60)] = 20
    frozen: bool = False
    """The first ones, for good; else the last ones, which follow what drifts slowly."""
    skip: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Values at the beginning that say nothing yet."""
    warm_up: Annotated[int, msgspec.Meta(ge=2, le=60)] = 8
    """Values before there is a past to compare with."""


class Escalation(Table, frozen=True, kw_only=True):
    """When a rule holds, and how severe that is. Exactly one of the words of `WORDS`."""

    severity: Severity
    immediately: Literal[True] | None = None
    """At the first hit."""
    persistent: Annotated[int, msgspec.Meta(ge=2, le=100_000)] | None = None
    """That many hits `within` a time."""
    growing: Annotated[int, msgspec.Meta(ge=2, le=30)] | None = None
    """More hits in each of that many spans of `within` than in the one before it."""
    fraction: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    """That share of what the trigger's kind brings are hits, `over` a time, of `at_least` so many."""
    for_: Duration | None = msgspec.field(default=None, name="for")
    """Of absence, blindness, and what has begun and not ended: that long."""
    pace: OwnPace | None = None
    """Of absence: longer than the run's own pace lets expect."""
    within: Duration | None = None
    over: Duration | None = None
    at_least: Annotated[int, msgspec.Meta(ge=1)] | None = None
    of: Literal["rollouts"] = "rollouts"
    nan: Literal[True] | None = None
    """Of metrics: a hit is a value that is not a number."""
    above: float | None = None
    """Of metrics: a hit is a value above this."""
    below: float | None = None
    """Of metrics: a hit is a value below this."""
    spike: Annotated[float, msgspec.Meta(gt=1)] | None = None
    """Of metrics: a hit is a value more than that many times the usual one, and out of its spread."""
    drop: Annotated[float, msgspec.Meta(gt=0, lt=1)] | None = None
    """Of metrics: a hit is a value that has lost more than this share of the usual one, and is out of its spread."""
    deviation: Annotated[float, msgspec.Meta(gt=0)] | None = None
    """Of metrics: a hit is a value more than that many (robust) standard deviations from the usual one."""
    reaches: float | None = None
    """Of metrics: a hit is a value on its way to this one, which it reaches within the time of `ahead`."""
    ahead: Duration | None = None
    of_last: Annotated[int, msgspec.Meta(ge=1, le=60)] | None = None
    """Of metrics: `persistent` counts hits among that many values, instead of `within` a time."""

    def __post_init__(self) -> None:
        """Refuse none or several of the words, and a word without what it needs."""
        given = [key for key, name in WORDS.items() if getattr(self, name) is not None]
        if len(given) != 1:
            message = f"give exactly one of {', '.join(WORDS)}; here: {' and '.join(given) or 'none'}"
            raise ValueError(message)
        needs = {
            "persistent": [] if self.of_last else ["within"],
            "growing": ["within"],
            "fraction": ["over", "at_least"],
        }.get(given[0], [])
        if (self.reaches is None) != (self.ahead is None):
            needs = [*needs, "reaches", "ahead"]
        if missing := [key for key in needs if getattr(self, key) is None]:
            message = f'"{given[0]}" needs {" and ".join(missing)}'
            raise ValueError(message)


WORDS = {
    "immediately": "immediately",
    "persistent": "persistent",
    "growing": "growing",
    "fraction": "fraction",
    "for": "for_",
    "pace": "pace",
}


class Clear(Table, frozen=True, kw_only=True):
    """When an alert resolves. Without it: logs and metrics after a quiet quarter of an hour, the rest as it ends."""

    quiet: Duration | None = None
    """No hit for that long, while the source sees."""
    fraction: Annotated[float, msgspec.Meta(ge=0, lt=1)] | None = None
    """The share is below this `for` that long."""
    for_: Duration | None = msgspec.field(default=None, name="for")
    attempt: Literal[True] | None = None
    """Only with the next launch."""

    def __post_init__(self) -> None:
        """Refuse none, or more than one."""
        given = [key for key in ("quiet", "fraction", "attempt") if getattr(self, key) is not None]
        if len(given) != 1:
            message = f"give exactly one of quiet, fraction, attempt; here: {' and '.join(given) or 'none'}"
            raise ValueError(message)
        if self.fraction is not None and self.for_ is None:
            message = '"fraction" needs for'
            raise ValueError(message)


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
    baseline: Baseline | None = None
    """Of metrics: what is usual, for `spike`, `drop` and `deviation`."""
    during: list[Phase] = msgspec.field(default_factory=lambda: ["starting", "running", "finishing"])
    specificity: Annotated[int, msgspec.Meta(ge=0, le=100)] = 50
    """Of alerts that could be the root of one incident, the most specific names it."""
    health: Health = "Degraded"
    """While it fires with `warning` or more."""
    restart: bool = False
    """Whether the same command is likely to get further."""
