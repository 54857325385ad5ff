"""What run is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from random import Random

ENVS = ("reverse-text", "word-sort", "ascii-tree")
FAULTY_ENV = ENVS[1]
GROUP_SIZE = 4
CHECKPOINT_INTERVAL = 5
RANKS = (0, 1)


class Fault(StrEnum):
    """What goes wrong."""

    NONE = "none"
    CUDA_OOM = "cuda-oom"
    HANG = "hang"
    ENV_ERRORS = "env-errors"
    ONE_ENV_OF_THREE = "one-env-of-three"
    ENV_WORKER_KILLED = "env-worker-killed"
    ENGINE_DEATH = "engine-death"
    ENTROPY_COLLAPSE = "entropy-collapse"
    DISK_FILLING = "disk-filling"
    SECOND_ATTEMPT = "second-attempt"

    @property
    def story(self) -> str:
        """What happens, in a line."""
        return _STORIES[self]


_STORIES = {
    Fault.NONE: "every step is trained and the run finishes",
    Fault.CUDA_OOM: "a trainer rank runs out of GPU memory and the launcher ends the rest",
    Fault.HANG: "the trainer hangs in the middle of a step: nobody dies and nobody complains",
    Fault.ENV_ERRORS: "sandboxes of one of two environments fail, for a large share of its rollouts",
    Fault.ONE_ENV_OF_THREE: "the code of one of three environments raises in most of its rollouts",
    Fault.ENV_WORKER_KILLED: "the worker of an environment is killed without a word, and its rollouts never return",
    Fault.ENGINE_DEATH: "the engine dies, every rollout fails, and at last the orchestrator gives up",
    Fault.ENTROPY_COLLAPSE: "the policy's entropy sinks to nothing, step by step, while all else looks well",
    Fault.DISK_FILLING: "the disk of the checkpoints fills up",
    Fault.SECOND_ATTEMPT: "out of GPU memory, then started again from the last checkpoint, until it finishes",
}


class Era(StrEnum):
    """How prime-rl keeps rollouts: a trace a line until August 2026, an episode a line since."""

    TRACE = "trace"
    EPISODE = "episode"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run as asked for. The same plan always gives the same run, byte for byte."""

    fault: Fault
    era: Era = Era.EPISODE
    seed: int = 1
    steps: int = 12
    """Steps that are trained before the fault strikes, or before the run ends."""
    batch_size: int = 16
    """Rollouts that make a step: a multiple of 8, so that each environment has whole groups."""
    start: datetime = datetime(2026, 8, 19, 12, 0, tzinfo=UTC)
    speed: float = 1.0
    """Moments are this many times closer together on the clock than in the plan."""
    patience_s: float | None = None
    """How long a run that nobody ends goes on after the fault; its own time if not given."""
    home: str = "/data/outputs"
    engine_port: int = 8100
    attempt: int = 1
    begins_s: float = 0.0
    """When the attempt is launched; its own moments count from there."""
    resumed_from: int = 0
    """The step of the checkpoint that the attempt goes on from; 0 for none."""
    total_steps: int | None = None
    """Steps that the config asks for, if the fault does not decide."""

    def __post_init__(self) -> None:
        """Refuse what no run could be, with `ValueError`."""
        if self.steps < 1:
            message = f"{self.steps} steps: at least 1 is needed"
            raise ValueError(message)
        if self.batch_size < 1 or self.batch_size % (GROUP_SIZE * 2):
            message = f"a batch of {self.batch_size}: it must be a multiple of {GROUP_SIZE * 2}"
            raise ValueError(message)
        if not 0.01 <= self.speed <= 10_000:
            message = f"a speed of {self.speed:g}: it must be from 0.01 to 10000"
            raise ValueError(message)

    @property
    def max_steps(self) -> int:
        """Steps that the run's config asks for."""
        return self.total_steps or (self.steps if self.fault is Fault.NONE else 10 * self.steps)

    @property
    def envs(self) -> tuple[str, ...]:
        """The environments that are trained on."""
        return ENVS if self.fault is Fault.ONE_ENV_OF_THREE else ENVS[:2]

    @property
    def name(self) -> str:
        """The run's name, and that of its directory."""
        return f"{'+'.join(self.envs)}--qwen3-0.6b--{Random(f'{self.seed}/name').getrandbits(32):08x}"

    @property
    def directory(self) -> str:
        """Where the run itself believes to be."""
        return f"{self.home}/{self.name}"

    @property
    def logs(self) -> str:
        """The folder of the attempt's logs, in the run directory."""
        return f"logs/attempt_{self.attempt}"

    @property
    def run_id(self) -> str:
        """What the run calls itself in its rollouts; each attempt has its own."""
        return f"{self.dice('run').getrandbits(128):032x}"

    @property
    def router_port(self) -> int:
        """Where rollouts ask the model."""
        return self.engine_port - 100

    def pid(self, first: int) -> int:
        """Return the process id, in this attempt, of what has *first* in the first one."""
        return first + 1000 * (self.attempt - 1)

    def dice(self, topic: str) -> Random:
        """Return the random numbers of one *topic*: asking for more of one leaves the others as they are."""
        again = f"/{self.attempt}" if self.attempt > 1 else ""
        return Random(f"{self.seed}{again}/{topic}")

    def lasts_s(self, seconds: float) -> float:
        """Return how long something takes on the clock."""
        return seconds / self.speed

    def clock(self, at_s: float) -> datetime:
        """Return the time of a moment of the attempt, cut to milliseconds."""
        time = self.start + timedelta(seconds=self.lasts_s(self.begins_s + at_s))
        return time.replace(microsecond=time.microsecond // 1000 * 1000)

    def epoch_s(self, at_s: float) -> float:
        """Return a moment of the attempt in seconds since the epoch."""
        return self.start.timestamp() + self.lasts_s(self.begins_s + at_s)
