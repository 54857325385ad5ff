"""What happens in an invented run, as a rule test says it."""

# ruff: noqa: RUF012 - msgspec copies the defaults of a Table, which ruff takes for a plain class

from __future__ import annotations

import math
import re
from typing import Annotated, Literal, TypeAlias

import msgspec

from pipeline.events import Level, MarkerKind, Role
from rules.pattern import Duration, quoted
from rules.table import Table

Writer: TypeAlias = Literal["trainer", "orchestrator", "evaluator"]
Origin: TypeAlias = Literal["kernel", "scheduler", "cgroup", "launcher"]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=100_000)]
_MOST = 1e6
Number: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Times: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=100_000)]

_MOST_VALUES = 100_000
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?"
_SLOPE = r"[+-](?:\d+\.?\d*|\.\d+)"
_PART = re.compile(rf"(?P<value>nan|_|{_NUMBER})(?P<slope>{_SLOPE})?(?:x(?P<times>\d{{1,6}}))?", re.ASCII)


class Given(Table, frozen=True, kw_only=True):
    """Something that happens."""

    at: Duration | None = None
    """How long after the start of the test; at once without it."""


class Repeated(Given, frozen=True, kw_only=True):
    """Something that may happen several times."""

    repeat: Times = 1
    every: Duration = Duration("1m")


class GivenLog(Repeated, frozen=True, kw_only=True):
    """A record of a log."""

    file: str
    """Below the directory of the attempt's logs, such as `trainer.log`."""
    text: str
    level: Level | None = None
    rank: Number | None = None
    process: str | None = None


class GivenHost(Repeated, frozen=True, kw_only=True):
    """A line from outside the run directory."""

    origin: Origin
    text: str
    node: str = "node-0"


class GivenSeries(Given, frozen=True, kw_only=True):
    """Values of one series, one after the other."""

    values: str
    """`0.5` one value, `0.5x20` twenty, `1+0.5x4` is 1 1.5 2 2.5, `nan` no number, `_` none at that time."""
    every: Duration = Duration("1m")

    def __post_init__(self) -> None:
        """Refuse what is no series."""
        if not self.numbers():
            message = "there is no value in it"
            raise ValueError(message)

    def numbers(self) -> list[float | None]:
        """Return the values; `None` where there is none."""
        return [number for part in self.values.split() for number in _numbers(part)]


class GivenMetric(GivenSeries, frozen=True, kw_only=True):
    """A figure of one step after the other; what is of the same step, time and writer is one row."""

    name: str
    writer: Writer = "trainer"
    step: Count = 1
    """Of the first value."""
    completes: bool = True
    """Whether the step is done with it."""


class GivenSample(GivenSeries, frozen=True, kw_only=True):
    """Values of a series of a Prometheus page."""

    name: str
    endpoint: str = "http://localhost:8100/metrics"
    labels: dict[str, str] = {}


class GivenAmount(GivenSeries, frozen=True, kw_only=True):
    """Amounts of something."""

    def __post_init__(self) -> None:
        """Refuse what is no amount."""
        for number in self.numbers():
            if number is not None and not 0 <= number <= _MOST:
                message = f"{number:g} is no amount"
                raise ValueError(message)
        super().__post_init__()


class GivenDisk(GivenAmount, frozen=True, kw_only=True):
    """What is free of a file system, as shares of the whole."""

    node: str = "node-0"
    path: str = "/data"
    total_bytes: Annotated[int, msgspec.Meta(ge=1, le=10**18)] = 10**12


class GivenMemory(GivenAmount, frozen=True, kw_only=True):
    """The memory that a process that runs holds, in GiB."""

    role: Role
    pid: Number = 100
    node: str = "node-0"


class GivenRollouts(Given, frozen=True, kw_only=True):
    """Rollouts that end one after the other, failures spread evenly among the others."""

    env: str = "math"
    ok: Count = 0
    failed: Count = 0
    cancelled: Count = 0
    error: str = "Error"
    """The type of the error of those that fail."""
    message: str = ""
    every: Duration = Duration("1s")
    kind: Literal["train", "eval"] = "train"
    step: Count = 1
    agent: str | None = None


class GivenProcess(Given, frozen=True, kw_only=True):
    """The state of a process."""

    role: Role
    state: Literal["running", "exited", "zombie"] = "exited"
    exit_code: Number | None = None
    title: str = ""
    pid: Number = 100
    ppid: Number | None = None
    node: str = "node-0"


class GivenSource(Given, frozen=True, kw_only=True):
    """What a source says of itself."""

    name: str
    state: Literal["seeing", "blind", "absent"]
    reason: str = ""
    failed: bool = False


class GivenReceipt(Given, frozen=True, kw_only=True):
    """What became of a delivery to a sink."""

    sink: str
    outcome: Literal["delivered", "rejected", "failing"] = "failing"
    reason: str = ""


class GivenMarker(Given, frozen=True, kw_only=True):
    """A marker file appears."""

    kind: MarkerKind
    number: Count


class GivenAttempt(Given, frozen=True, kw_only=True):
    """A launch begins."""

    number: Times


class GivenConfig(Table, frozen=True, kw_only=True):
    """What the run's config says."""

    max_steps: Number | None = None
    batch_size: Number | None = None
    group_size: Number | None = None
    seq_len: Number | None = None
    max_off_policy_steps: Number | None = None
    checkpoint_interval: Number | None = None
    eval_interval: Number | None = None


def _numbers(part: str) -> list[float | None]:
    """
    Return the values of one part of a series.

    Raises:
        ValueError: It is none.

    """
    match = _PART.fullmatch(part)
    times = int(match["times"] or 1) if match else 0
    if match is None or not 0 < times <= _MOST_VALUES:
        message = f"{quoted(part)} is no part of a series: write 0.5, 0.5x20, 1+0.5x4, nan or _"
        raise ValueError(message)
    if match["value"] == "_":
        return [None] * times
    first, slope = float(match["value"]), float(match["slope"] or 0.0)
    return [first if math.isnan(first) else round(first + i * slope, 9) for i in range(times)]
