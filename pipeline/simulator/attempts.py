"""The attempts of a run, each of which is launched, lives and ends."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from pipeline.simulator.environments import write_environments
from pipeline.simulator.episodes import Episode, episodes
from pipeline.simulator.inference import write_inference
from pipeline.simulator.launcher import write_launcher
from pipeline.simulator.orchestrator import write_orchestrator
from pipeline.simulator.plan import CHECKPOINT_INTERVAL, Fault, Plan
from pipeline.simulator.processes import Process, processes, write_processes
from pipeline.simulator.rollouts import write_rollouts
from pipeline.simulator.script import Script
from pipeline.simulator.timeline import Course, Step, course, schedule
from pipeline.simulator.trainer import write_trainer


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """Everything that happens from one launch until nobody watches any more."""

    plan: Plan
    fate: Course
    steps: list[Step]
    rollouts: list[Episode]
    script: Script
    processes: list[Process]

    @property
    def ends_s(self) -> float:
        """When it is over, since the plan's start."""
        return self.plan.begins_s + self.script.ends_s


def simulate(plan: Plan) -> list[Attempt]:
    """Return everything that happens in the run of *plan*, one attempt after the other."""
    if plan.fault is not Fault.SECOND_ATTEMPT:
        return [_attempt(plan)]
    first = _attempt(replace(plan, fault=Fault.CUDA_OOM, total_steps=plan.steps + CHECKPOINT_INTERVAL))
    return [first, _attempt(_resumed(first))]


def _attempt(plan: Plan) -> Attempt:
    fate = course(plan)
    steps = schedule(plan, fate, plan.max_steps - plan.resumed_from)
    rollouts = episodes(plan, steps, fate)
    script = Script(plan, fate.ends_s)
    write_launcher(script, fate)
    write_inference(script, rollouts, fate)
    write_environments(script, rollouts, fate)
    write_orchestrator(script, steps, rollouts, fate)
    write_rollouts(script, steps, rollouts)
    write_trainer(script, steps, fate)
    found = processes(plan, steps, fate)
    write_processes(script, found, steps)
    return Attempt(plan=plan, fate=fate, steps=steps, rollouts=rollouts, script=script, processes=found)


def _resumed(first: Attempt) -> Plan:
    """Return the plan of the attempt that goes on from the last complete checkpoint, and finishes."""
    done = max(step.number for step in first.steps if step.done_s < inf)
    plan = first.plan
    resumed_from = done // CHECKPOINT_INTERVAL * CHECKPOINT_INTERVAL
    steps = plan.max_steps - resumed_from
    return replace(plan, fault=Fault.NONE, attempt=2, begins_s=first.ends_s, resumed_from=resumed_from, steps=steps)
