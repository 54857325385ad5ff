"""When each batch fills, ships and is trained: the pipeline of a run, and how far a fault lets each part get."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from pipeline.simulator.plan import CHECKPOINT_INTERVAL, Fault, Plan

SPAWNED_S = 4.0
ENGINES_READY_S = 71.0
TRAINER_READY_S = 58.0
LOOP_S = 78.0
FAILURE_S = 0.5
"""Seconds between failed rollouts once no engine answers."""
GOES_ON_S = 1200.0
"""How long a run is watched after a fault that it survives."""
SILENT_S = 2400.0
EMPTY_BATCHES = 10
"""Empty batches after which the orchestrator gives up."""

LOSING_ROLLOUTS = {Fault.ENV_ERRORS, Fault.ONE_ENV_OF_THREE, Fault.ENV_WORKER_KILLED}


@dataclass(frozen=True, kw_only=True)
class Step:
    """A batch and the training on it. What the run does not get to do is infinitely late."""

    number: int
    collects_s: float
    full_s: float
    ships_s: float
    trains_s: float
    publishes_s: float
    joins_s: float
    done_s: float


@dataclass(frozen=True, kw_only=True)
class Course:
    """How far each part of the run gets, and what its launcher says in the end."""

    ends_s: float
    strikes_s: float = inf
    trainer_s: float = inf
    engines_s: float = inf
    envs_s: float = inf
    orchestrator_s: float = inf
    verdict_s: float = inf
    """When the launcher notices that the run is over."""
    culprit: str | None = None
    """Whom it blames; nobody for a run that finished."""


def course(plan: Plan) -> Course:
    """Decide when the fault strikes and whom it takes along."""
    ideal = schedule(plan, Course(ends_s=inf), plan.steps + 1)
    last, following = ideal[plan.steps - 1], ideal[plan.steps]
    match plan.fault:
        case Fault.NONE:
            return torn_down(Course(ends_s=inf, verdict_s=last.done_s + 4.0))
        case Fault.CUDA_OOM:
            strikes = following.trains_s + 14.0
            return torn_down(
                Course(ends_s=inf, strikes_s=strikes, trainer_s=strikes, verdict_s=strikes + 6.0, culprit="Trainer")
            )
        case Fault.HANG:
            strikes = following.trains_s + 3.0
            return Course(ends_s=strikes + (plan.patience_s or SILENT_S), strikes_s=strikes, trainer_s=strikes)
        case Fault.ENGINE_DEATH:
            strikes = last.done_s + 7.0
            crash = strikes + EMPTY_BATCHES * plan.batch_size * FAILURE_S + 2.0
            return torn_down(
                Course(
                    ends_s=inf,
                    strikes_s=strikes,
                    engines_s=strikes,
                    orchestrator_s=crash,
                    verdict_s=crash + 2.0,
                    culprit="Orchestrator",
                )
            )
        case _:  # the run goes on in spite of it
            return Course(ends_s=last.done_s + (plan.patience_s or GOES_ON_S), strikes_s=last.done_s)


def torn_down(before: Course) -> Course:
    """Let the launcher end one part after the other, as it does: the engines first."""
    verdict = before.verdict_s
    return Course(
        strikes_s=before.strikes_s,
        engines_s=min(before.engines_s, verdict + 4.0),
        envs_s=verdict + 9.0,
        orchestrator_s=min(before.orchestrator_s, verdict + 14.0),
        trainer_s=min(before.trainer_s, verdict + 19.0),
        verdict_s=verdict,
        culprit=before.culprit,
        ends_s=verdict + 90.0,
    )


def schedule(plan: Plan, fate: Course, limit: int) -> list[Step]:
    """Return up to *limit* steps, the last of which may not get to their end."""
    steps: list[Step] = []
    shipped_s = LOOP_S
    while len(steps) < limit and shipped_s < min(fate.orchestrator_s, fate.ends_s):
        steps.append(_next_step(plan, fate, steps, shipped_s))
        shipped_s = steps[-1].ships_s
    return steps


def _next_step(plan: Plan, fate: Course, steps: list[Step], collects_s: float) -> Step:
    """Return the step after *steps*. Each part of the run does its share as long as the fault lets it."""
    number = plan.resumed_from + len(steps) + 1
    dice = plan.dice(f"step {number}")
    trainer_s = min(fate.trainer_s, fate.ends_s)
    orchestrator_s = min(fate.orchestrator_s, fate.engines_s, fate.ends_s)
    full_s = collects_s + dice.uniform(34.0, 44.0) * (1.7 if _is_slow(plan, fate, collects_s) else 1.0)
    # a batch waits for the policy of two steps before: the orchestrator is at most that far ahead
    policy_s = steps[-2].joins_s if len(steps) > 1 else LOOP_S
    ships_s = _until(max(full_s, policy_s), orchestrator_s)
    trains_s = _until(max(ships_s, steps[-1].done_s if steps else LOOP_S), trainer_s)
    publishes_s = _until(trains_s + dice.uniform(22.0, 30.0), trainer_s)
    joins_s = _until(publishes_s + 0.6, orchestrator_s)
    saving_s = 6.0 if number % CHECKPOINT_INTERVAL == 0 else 0.0
    done_s = _until(joins_s + dice.uniform(1.4, 2.2) + saving_s, trainer_s)
    return Step(
        number=number,
        collects_s=collects_s,
        full_s=full_s,
        ships_s=ships_s,
        trains_s=trains_s,
        publishes_s=publishes_s,
        joins_s=joins_s,
        done_s=done_s,
    )


def _until(at_s: float, stop_s: float) -> float:
    return at_s if at_s < stop_s else inf


def _is_slow(plan: Plan, fate: Course, at_s: float) -> bool:
    """Rollouts that fail, or that never return, are replaced, which takes time."""
    return plan.fault in LOSING_ROLLOUTS and at_s > fate.strikes_s
