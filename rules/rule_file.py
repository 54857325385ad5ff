"""A file of rules, and what surrounds them: milestones, phases, stages, clocks, cascades, components."""

from __future__ import annotations

from collections import defaultdict
from typing import Annotated, Literal

import msgspec

from pipeline.alerts import Component, Phase, Severity
from pipeline.events import Level, Role
from rules.bounds import Bounds
from rules.model import Rule
from rules.pattern import Duration, Pattern
from rules.table import Name, Table


class Milestone(Table, frozen=True, kw_only=True):
    """A record that says how far the run has come."""

    name: Name
    component: list[Component] = []
    pattern: Pattern


class TakesBack(Table, frozen=True, kw_only=True):
    """Alerts that fired just before a phase and are part of it: lines of one second have no order."""

    within: Duration
    mode: list[Name]
    """Failure modes that it brings about; where a grave one of another mode fired then as well, nothing is."""


class PhaseStart(Table, frozen=True, kw_only=True):
    """A phase begins when all milestones of one of the lists have been passed in this attempt."""

    name: Phase
    when: list[list[Name]] = []
    from_: list[Phase] = msgspec.field(name="from")
    within: Duration | None = None
    """Only that soon after the phase it comes from began."""
    takes_back: TakesBack | None = None
    last_step: bool = False
    """Or when the last step of the run's config is done."""
    exited: list[list[Role]] = []
    """Or when the last known process of each of these roles has exited."""


class Stage(Table, frozen=True, kw_only=True):
    """A part of a run with a silence of its own, from one milestone to another."""

    name: str
    begins: list[Name]
    ends: list[Name]
    """Milestones or clocks."""
    timeout: Duration
    """Longer than that, it is stuck."""
    pause: bool = False
    """Whether it is part of training, which rests meanwhile, rather than of the start."""


class Clock(Table, frozen=True, kw_only=True):
    """What counts as progress."""

    name: Name
    event: Literal["metrics", "rollout", "marker"]
    of: str = ""
    """The writer of the metrics, or the kind of the marker."""
    is_step: bool = False
    """Whether its number is the step of the run."""


class Match(Table, frozen=True, kw_only=True):
    """Alerts of these failure modes and components; of any where there is no list."""

    mode: list[Name] = []
    component: list[Component] = []


class Cascade(Table, frozen=True, kw_only=True):
    """Alerts that match `cause` bring about those that match `effect`."""

    cause: Match
    effect: Match


class File(Table, frozen=True, kw_only=True):
    """Whose log a file is. Named groups of the pattern are labels of its records."""

    path: Pattern
    component: Component
    copies: Name | None = None
    """A group of files that may repeat each other's records."""


class Components(Table, frozen=True, kw_only=True):
    """Which component an event is of."""

    role: dict[Role, Component] = {}
    origin: dict[str, Component] = {}
    writer: dict[str, Component] = {}
    rollout: Component | None = None
    copies: dict[str, Name] = {}
    """By origin: the group of files that its lines may repeat."""


class CheckInLine(Table, frozen=True, kw_only=True):
    """A figure that check-ins show: the last value of a metric, or of a Prometheus sample over all engines."""

    name: Name
    section: Literal["Progress", "Stability", "Performance"]
    label: str
    """`{1}` is what the first star of the metric's name stands for, and so on."""
    metric: list[str] = []
    """Names; a star stands for anything."""
    not_: list[str] = msgspec.field(default=[], name="not")
    """And none of these."""
    writer: Literal["trainer", "orchestrator", "evaluator"] | None = None
    sample: list[str] = []
    """Names; older ones of the same sample as well."""
    over: Literal["sum", "max"] = "sum"
    """What is shown of the samples of several engines."""
    format: str = "{:.4g}"
    step: bool = False
    """Whether it is said of which step the value is: of one that does not come with each."""
    optional: bool = False
    """Whether it is left out, rather than shown as not yet known, where there is no value."""
    most: Annotated[int, msgspec.Meta(ge=1, le=20)] = 6
    """Values shown where several metrics have the name."""
    spike: Annotated[float, msgspec.Meta(gt=1)] | None = None
    """A value that many times the median of those before it is flagged."""
    share_of: Name | None = None
    """The line of which it is a part, shown as a share."""

    def __post_init__(self) -> None:
        """Refuse a line of two kinds or none, and a format that shows no number."""
        if bool(self.metric) == bool(self.sample):
            message = "a line shows either metric or sample"
            raise ValueError(message)
        try:
            shown = self.format.format(1.5)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            message = f'"format" does not show a number: {error}'
            raise ValueError(message) from error
        if shown == self.format:
            message = '"format" shows no number: write it like "{:.3f} s"'
            raise ValueError(message)


class Compared(Bounds, frozen=True, kw_only=True):
    """The figure of a check-in's line within bounds; one that is not known is in none."""

    line: Name
    share_of: Name | None = None
    """Divided by the figure of this line."""


class CheckInClause(Table, frozen=True, kw_only=True):
    """What the figures of a section mean, in words: of those whose figures are so, the first one is said."""

    name: Name
    section: Literal["Progress", "Stability", "Performance"]
    text: str
    """The figures of lines are filled in where their names stand in braces."""
    when: Annotated[list[Compared], msgspec.Meta(min_length=1)]

    def __post_init__(self) -> None:
        """Refuse a text that cannot be filled in."""
        try:
            self.text.format_map(defaultdict(str))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            message = f'"text" cannot be filled in: {error}'
            raise ValueError(message) from error


class Known(Table, frozen=True, kw_only=True):
    """Warnings and errors that are known to be harmless, in words that say why."""

    why: str
    pattern: Pattern
    quoted: bool = False
    """Whether what it says is only quoted, as in a printed config: then rules do not look at it either."""
    not_level: list[Level] = []
    """Records of these levels are not meant."""


class Notify(Table, frozen=True, kw_only=True):
    """When people are told of an incident."""

    critical_wait: Duration = Duration("5s")
    """Before the first message about a critical one, so that its root is found."""
    group_wait: Duration = Duration("30s")
    """The same for a warning."""
    group_interval: Duration = Duration("5m")
    """Between a message and the next one, when the incident turns out to be another or graver."""
    repeat_interval: Duration = Duration("4h")
    """Between reminders, while it is critical or the run is down."""
    most_per_hour: Annotated[int, msgspec.Meta(ge=1, le=60)] = 10
    """Messages beyond that are held back, and said to be."""

    def wait_s(self, severity: Severity) -> float:
        """Return how long the root of an incident may take to be found."""
        return self.critical_wait if severity == "critical" else self.group_wait


class RuleFile(Table, frozen=True, kw_only=True):
    """One file of rules and what surrounds them."""

    rule: list[Rule] = []
    milestone: list[Milestone] = []
    phase: list[PhaseStart] = []
    stage: list[Stage] = []
    clock: list[Clock] = []
    cascade: list[Cascade] = []
    file: list[File] = []
    components: Components = Components()
    checkin_line: list[CheckInLine] = []
    checkin_clause: list[CheckInClause] = []
    known: list[Known] = []
    notify: Notify | None = None
