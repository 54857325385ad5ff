"""When a rule holds, how severe that is, and when its alerts resolve, as written in TOML."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from pipeline.alerts import Severity
from rules.bounds import is_within, refuse_empty
from rules.pattern import Duration
from rules.table import Table


class OwnPace(Table, frozen=True, kw_only=True):
    """A duration taken from the run's own history: *times* the percentile of its last ordinary steps."""

    at_least: Duration
    times: Annotated[float, msgspec.Meta(gt=0, le=1000)]
    percentile: Annotated[float, msgspec.Meta(gt=0, le=100)] = 95.0
    last: Annotated[int, msgspec.Meta(ge=3, le=60)] = 20
    warm_up: Annotated[int, msgspec.Meta(ge=1)] = 5
    """Ordinary steps before there is a history; until then the time-out of a stage that goes on holds."""
    early_times: Annotated[float, msgspec.Meta(gt=0, le=1000)] = 8.0
    early_at_least: Duration = Duration("8m")
    """With no such stage: that many times the longest step so far, whatever was in it."""
    otherwise: Duration
    """Before the second step."""


class Baseline(Table, frozen=True, kw_only=True):
    """What is usual for a series: the median of its past values, those left out that were hits."""

    values: Annotated[int, msgspec.Meta(ge=3, le=60)] = 20
    frozen: bool = False
    """The first ones, for good; else the last ones, which follow what drifts slowly."""
    skip: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 0
    """Values at the beginning that say nothing yet."""
    warm_up: Annotated[int, msgspec.Meta(ge=2, le=60)] = 8
    """Values before there is a past to compare with."""

    def __post_init__(self) -> None:
        """Refuse one that never is warm."""
        if self.warm_up > self.values:
            message = f'"warm_up" ({self.warm_up}) is more than "values" keeps: {self.values}'
            raise ValueError(message)


class FromConfig(Table, frozen=True, kw_only=True):
    """A threshold that the run's own config gives: *times* what stands under the key."""

    key: Literal[
        "max_steps",
        "batch_size",
        "group_size",
        "seq_len",
        "checkpoint_interval",
        "eval_interval",
        "max_off_policy_steps",
    ]
    times: Annotated[float, msgspec.Meta(gt=0, le=1_000_000)] = 1.0


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
    """Of absence, blindness, what has begun and not ended: that long. Of metrics: all values have been hits so long."""
    pace: OwnPace | None = None
    """Of absence: longer than the run's own pace lets expect."""
    within: Duration | None = None
    over: Duration | None = None
    at_least: Annotated[int, msgspec.Meta(ge=1)] | None = None
    of: Literal["rollouts", "records", "values", "processes"] | None = None
    """What the fraction is of, said for the reader: it is what the trigger is about."""
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
    slope: float | None = None
    """Of metrics: a hit is a value whose trend rises by more than this in an hour; falls by more, if below zero."""
    reaches: float | None = None
    """Of metrics: a hit is a value on its way to this one, which it reaches within the time of `ahead`."""
    ahead: Duration | None = None
    of_last: Annotated[int, msgspec.Meta(ge=1, le=60)] | None = None
    """Of metrics: `persistent` counts hits among that many values, instead of `within` a time."""
    config: dict[Literal["above", "below", "reaches", "persistent", "at_least"], FromConfig] = {}
    """Thresholds that the run's config gives; the number that stands beside holds where it does not."""

    def __post_init__(self) -> None:
        """Refuse none or several of the words, and a word without what it needs."""
        given = [key for key, name in WORDS.items() if getattr(self, name) is not None]
        if len(given) != 1:
            message = f"give exactly one of {', '.join(WORDS)}; here: {' and '.join(given) or 'none'}"
            raise ValueError(message)
        goes_with = _GOES_WITH.get(given[0], ())
        if idle := [key for key in _COMPANIONS if getattr(self, key) is not None and key not in goes_with]:
            message = f'"{given[0]}" goes without {" and ".join(idle)}'
            raise ValueError(message)
        if self.within is not None and self.of_last is not None:
            message = "give within or of_last, not both"
            raise ValueError(message)
        for one, other in (("reaches", "ahead"), ("ahead", "reaches")):
            if getattr(self, one) is not None and getattr(self, other) is None:
                message = f'"{one}" needs {other}'
                raise ValueError(message)
        refuse_empty(self.above, self.below)
        if self.slope == 0:
            message = '"slope" is above zero for what rises, below for what falls'
            raise ValueError(message)
        if alone := [name for name in self.config if getattr(self, name) is None]:
            message = f'"config" gives {alone[0]}: say {alone[0]} as well, for runs whose config does not'
            raise ValueError(message)
        needs = () if self.of_last is not None else [key for key in goes_with if key not in _OPTIONAL]
        if missing := [key for key in needs if getattr(self, key) is None]:
            message = f'"{given[0]}" needs {" and ".join(missing)}'
            raise ValueError(message)


_GOES_WITH = {"persistent": ("within", "of_last"), "growing": ("within",), "fraction": ("over", "at_least", "of")}
_COMPANIONS = ("within", "of_last", "over", "at_least", "of")
_OPTIONAL = ("of_last", "of")
WORDS = {
    "immediately": "immediately",
    "persistent": "persistent",
    "growing": "growing",
    "fraction": "fraction",
    "for": "for_",
    "pace": "pace",
}


_CLEARS_BY = ("quiet", "fraction", "above", "below", "attempt", "steps")
_FOR = ("fraction", "above", "below")


class Clear(Table, frozen=True, kw_only=True):
    """When an alert resolves. Without it: logs and metrics after a quiet quarter of an hour, the rest as it ends."""

    quiet: Duration | None = None
    """No hit for that long, while the source sees."""
    above: float | None = None
    """Of metrics: all values are above this `for` that long."""
    below: float | None = None
    """Of metrics: all values are below this `for` that long."""
    fraction: Annotated[float, msgspec.Meta(ge=0, lt=1)] | None = None
    """The share is below this `for` that long."""
    for_: Duration | None = msgspec.field(default=None, name="for")
    attempt: Literal[True] | None = None
    """Only with the next launch."""
    steps: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """With the next launch; or, if it is to blame, when the trainer has made so many further steps."""

    def __post_init__(self) -> None:
        """Refuse none, or more than one."""
        given = [key for key in _CLEARS_BY if getattr(self, key) is not None]
        if len(given) != 1:
            message = f"give exactly one of {', '.join(_CLEARS_BY)}; here: {' and '.join(given) or 'none'}"
            raise ValueError(message)
        if (given[0] in _FOR) != (self.for_ is not None):
            message = f'"{given[0]}" {"needs" if given[0] in _FOR else "goes without"} for'
            raise ValueError(message)

    @property
    def is_bound(self) -> bool:
        """Whether it asks for values beyond a bound."""
        return self.above is not None or self.below is not None

    def is_good(self, value: float) -> bool:
        """Tell whether a value that is no hit is beyond its bound; not a number is not."""
        return is_within(value, self.above, self.below)
