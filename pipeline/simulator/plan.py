"""What run is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from random import Random

ENVS = ("reverse-text", "word-sort")
GROUP_SIZE = 4
CHECKPOINT_INTERVAL = 5
RANKS = (0, 1)
LOGS = "logs/attempt_1"


class Fault(StrEnum):
    """What goes wrong."""

    NONE = "none"
    CUDA_OOM = "cuda-oom"
    HANG = "hang"
    ENV_ERRORS = "env-errors"
    ENGINE_DEATH = "engine-death"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run as asked for. The same plan always gives the same run, byte for byte."""

    fault: Fault
    seed: int = 1
    steps: int = 12
    """Steps that are trained before the fault strikes, or before the run ends."""
    batch_size: int = 16
    """Rollouts that make a step: a multiple of 8, so that each environment has whole groups."""
    start: datetime = datetime(2026, 8, 19, 12, 0, tzinfo=UTC)

    def __post_init__(self) -> None:
        """Refuse what no run could be, with `ValueError`."""
        if self.steps < 1:
            message = f"{self.steps} steps: at least 1 is needed"
            raise ValueError(message)
        if self.batch_size < 1 or self.batch_size % (GROUP_SIZE * len(ENVS)):
            message = f"a batch of {self.batch_size}: it must be a multiple of {GROUP_SIZE * len(ENVS)}"
            raise ValueError(message)

    @property
    def max_steps(self) -> int:
        """Steps that the run's config asks for."""
        return self.steps if self.fault is Fault.NONE else 10 * self.steps

    @property
    def name(self) -> str:
        """The run's name, and that of its directory."""
        return f"{'+'.join(ENVS)}--qwen3-0.6b--{self.dice('name').getrandbits(32):08x}"

    @property
    def directory(self) -> str:
        """Where the run itself believes to be."""
        return f"/data/outputs/{self.name}"

    def dice(self, topic: str) -> Random:
        """Return the random numbers of one *topic*: asking for more of one leaves the others as they are."""
        return Random(f"{self.seed}/{topic}")

    def clock(self, at_s: float) -> datetime:
        """Return the time of a moment, cut to milliseconds."""
        time = self.start + timedelta(seconds=at_s)
        return time.replace(microsecond=time.microsecond // 1000 * 1000)

    def epoch_s(self, at_s: float) -> float:
        """Return a moment in seconds since the epoch."""
        return self.start.timestamp() + at_s
