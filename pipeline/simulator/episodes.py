"""The rollouts of a run: which environment, which reward, and what failed."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from pipeline.simulator.plan import FAULTY_ENV, GROUP_SIZE, Fault, Plan
from pipeline.simulator.timeline import FAILURE_S, LOOP_S, Course, Step

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

CHANCE_FAILURES = 0.02
FAULTY_SHARE = 0.85
IN_FLIGHT_EACH = 12
"""Rollouts of an environment under way at any time."""

PROVIDER_DOWN = (
    "ProviderError",
    "Error code: 503 - {'error': {'message': 'No available workers (all circuits open or unhealthy)'}}",
)
SANDBOX_DOWN = ("SandboxError", "sandbox provisioning failed: 503 from the provider")
BROKEN_CODE = ("TaskError", "KeyError: 'tree' in score_leaves: the task has no such key")
BAD_ANSWER = ("TaskError", "ValueError: no <answer> tag in the last message")

FAULTS = {Fault.ENV_ERRORS: SANDBOX_DOWN, Fault.ONE_ENV_OF_THREE: BROKEN_CODE}
"""What the rollouts of the faulty environment fail of."""


@dataclass(frozen=True, kw_only=True)
class Episode:
    """A rollout, from dispatch to score."""

    id: str
    env: str
    group: str
    task: int
    step: int
    """The batch that was being collected when it ended."""
    policy: int
    began_s: float
    ended_s: float
    reward: float
    tokens: int
    error: tuple[str, str] | None = None
    """The type and the message of what made it fail."""


def episodes(plan: Plan, steps: list[Step], fate: Course) -> list[Episode]:
    """Return the rollouts of a run in the order in which they end."""
    alive_s = min(fate.engines_s, fate.orchestrator_s, fate.ends_s)
    found = [episode for step in steps for episode in _batch(plan, step, fate) if episode.ended_s < alive_s]
    return sorted([*found, *_storm(plan, steps, fate)], key=lambda episode: episode.ended_s)


@dataclass(frozen=True, kw_only=True)
class _Group:
    """The attempts at one task, which are compared with each other."""

    id: str
    env: str
    step: int


def _batch(plan: Plan, step: Step, fate: Course) -> Iterator[Episode]:
    """Yield the rollouts of one batch: as many good ones as it takes, and those that fail in between."""
    dice = plan.dice(f"rollouts {step.number}")
    pace_s = (step.full_s - step.collects_s) / plan.batch_size
    for index in range(plan.batch_size):
        ended_s = step.collects_s + (index + 1) * pace_s
        group = _group(plan, step, index // GROUP_SIZE, is_struck=ended_s > fate.strikes_s)
        error = FAULTS.get(plan.fault) if group.env == FAULTY_ENV and ended_s > fate.strikes_s else None
        for failure in range(_failures(dice, FAULTY_SHARE if error else CHANCE_FAILURES)):
            yield _episode(plan, dice, group, ended_s - pace_s * (failure + 1) / 10, error or BAD_ANSWER)
        yield _episode(plan, dice, group, ended_s, None)


def _group(plan: Plan, step: Step, place: int, *, is_struck: bool) -> _Group:
    """Return the group at a *place* of the batch: environments take turns, and one without workers loses its turn."""
    turn = step.number * (plan.batch_size // GROUP_SIZE) + place
    env = plan.envs[turn % len(plan.envs)]
    is_lost = plan.fault is Fault.ENV_WORKER_KILLED and is_struck and env == FAULTY_ENV
    return _Group(
        id=f"{step.number:08x}-{place + (0x800 if is_lost else 0):04x}-4000-8000-{plan.seed:012x}",
        env=plan.envs[0] if is_lost else env,
        step=step.number,
    )


def _failures(dice: Random, share: float) -> int:
    """Say how many rollouts fail before a good one comes; fewer than ten."""
    failures = 0
    while failures < 9 and dice.random() < share:
        failures += 1
    return failures


def _storm(plan: Plan, steps: list[Step], fate: Course) -> Iterator[Episode]:
    """Yield what fails at once when no engine answers any more."""
    if fate.engines_s == inf or fate.culprit is None:
        return
    dice = plan.dice("storm")
    step = next(step for step in reversed(steps) if step.collects_s < fate.engines_s)
    at_s = fate.engines_s + FAILURE_S
    while at_s < min(fate.orchestrator_s, fate.envs_s):
        identity = f"{step.number:08x}-f{dice.getrandbits(12):03x}-4000-8000-{plan.seed:012x}"
        group = _Group(id=identity, env=dice.choice(plan.envs), step=step.number)
        yield _episode(plan, dice, group, at_s, PROVIDER_DOWN)
        at_s += FAILURE_S


def _episode(plan: Plan, dice: Random, group: _Group, ended_s: float, error: tuple[str, str] | None) -> Episode:
    took_s = dice.uniform(0.2, 0.4) if error is PROVIDER_DOWN else dice.uniform(8.0, 24.0)
    skill = 0.25 + 0.4 * (1 - 0.96**group.step)
    return Episode(
        id=f"{dice.getrandbits(128):032x}",
        env=group.env,
        group=group.id,
        task=dice.randrange(512),
        step=group.step,
        policy=max(plan.resumed_from, group.step - 2),
        began_s=max(LOOP_S, ended_s - took_s),
        ended_s=ended_s,
        reward=0.0 if error else round(min(1.0, max(0.0, dice.gauss(skill, 0.2))), 3),
        tokens=0 if error else dice.randrange(180, 900),
        error=error,
    )
