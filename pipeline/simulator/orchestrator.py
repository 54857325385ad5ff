"""The orchestrator: its log, its rows of metrics, and its side of policies and checkpoints."""

from __future__ import annotations

from bisect import bisect
from dataclasses import dataclass
from math import inf
from statistics import fmean
from typing import TYPE_CHECKING

from pipeline.simulator.episodes import IN_FLIGHT_EACH
from pipeline.simulator.faults import orchestrator_gives_up
from pipeline.simulator.plan import CHECKPOINT_INTERVAL, FAULTY_ENV, Era, Fault
from pipeline.simulator.script import Json, Log, Script, compact, duration
from pipeline.simulator.timeline import EMPTY_BATCHES, ENGINES_READY_S, LOOP_S, SPAWNED_S, Course, Step

if TYPE_CHECKING:
    from pipeline.simulator.episodes import Episode

HEARTBEAT_S = 10.0
MAX_OFF_POLICY_STEPS = 8


@dataclass(frozen=True)
class Orchestrator:
    """What the orchestrator knows of a run when it writes."""

    script: Script
    log: Log
    steps: list[Step]
    episodes: list[Episode]

    def batch(self, number: int) -> list[Episode]:
        """Return what arrived while batch *number* was collected."""
        return [episode for episode in self.episodes if episode.step == number]


def write_orchestrator(script: Script, steps: list[Step], episodes: list[Episode], fate: Course) -> None:
    """Write what the orchestrator leaves behind, rollouts aside."""
    log = Log(script, f"{script.plan.logs}/orchestrator.log", fate.orchestrator_s)
    log.open(SPAWNED_S)
    own = Orchestrator(script, log, steps, episodes)
    _write_start(log)
    for step in steps:
        _write_step(own, step, fate)
        _write_markers(script, step)
    script.write(LOOP_S - 1.0, f"broadcasts/step_{script.plan.resumed_from}/NCCL_READY")
    what = {Era.TRACE: "Rollout", Era.EPISODE: "Trace"}[script.plan.era]
    for episode in episodes:
        if episode.error:
            text = f"{what} failed in group {episode.group} ({episode.env}) — {': '.join(episode.error)}"
            log.record(episode.ended_s, "WARNING", text)
    _write_heartbeat(own, fate)
    _write_end(own, fate)


def _write_start(log: Log) -> None:
    plan = log.script.plan
    log.record(SPAWNED_S + 6, "INFO", "Starting orchestrator (algorithm: grpo)")
    log.record(
        SPAWNED_S + 7,
        "INFO",
        f"Logging metrics to {plan.directory}/metrics.jsonl and {plan.era}s to {plan.directory}/rollouts",
    )
    log.record(SPAWNED_S + 7, "INFO", "Loading training environments")
    for env in plan.envs:
        log.record(SPAWNED_S + 14, "INFO", f"Env {env} ready: num_tasks=512")
    log.record(SPAWNED_S + 14, "SUCCESS", "Train environment(s) ready")
    log.record(SPAWNED_S + 14, "INFO", "Waiting for policy inference pool to be ready")
    for waited in range(10, int(ENGINES_READY_S - SPAWNED_S - 14), 10):
        error = f"Inference server was not reached after {waited} seconds (Error: All connection attempts failed)"
        log.record(SPAWNED_S + 14 + waited, "WARNING", f"{error} on http://localhost:{plan.router_port}")
    log.record(LOOP_S - 3, "SUCCESS", "Policy inference pool ready")
    log.record(
        LOOP_S - 3, "INFO", "Initializing weight broadcast (host='localhost' port=29501 timeout=1200 type='nccl')"
    )
    resumed = f"Resuming orchestrator from checkpoint step {plan.resumed_from}"
    log.record(LOOP_S - 2, "INFO", resumed if plan.resumed_from else "Training from scratch")
    log.record(LOOP_S - 1, "INFO", f"Updating policy in-flight to v{plan.resumed_from}")
    log.record(LOOP_S, "INFO", f"Starting orchestrator loop (max_steps={plan.max_steps})")


def _write_step(own: Orchestrator, step: Step, fate: Course) -> None:
    plan, log = own.script.plan, own.log
    if step.ships_s > step.full_s and step.full_s < fate.engines_s:
        wanted = f"Holding batch {step.number} until the trainer publishes policy v{step.number - 2}"
        log.record(step.full_s, "INFO", f"{wanted} (currently v{max(plan.resumed_from, step.number - 3)})")
        log.record(
            step.full_s,
            "INFO",
            "Pausing dispatcher to prevent orchestrator from racing from trainer. Waiting for new policy...",
        )
        log.record(step.ships_s, "INFO", "Resuming dispatcher")
    if step.ships_s < inf:
        if _stale_since(own, fate) == step.number:
            stale = f"Cancelled {IN_FLIGHT_EACH} train episodes past max_off_policy_steps={MAX_OFF_POLICY_STEPS}"
            log.record(step.ships_s, "WARNING", f"{stale}. Consider increasing it to avoid this.")
        if step.number % CHECKPOINT_INTERVAL == 0:
            log.record(step.ships_s, "INFO", f"Saving checkpoint at step {step.number}")
        log.record(step.ships_s, "SUCCESS", _step_line(own, step))
        own.script.write(step.ships_s, "metrics.jsonl", compact(_metrics(own, step)) + "\n")
    if step.number < plan.max_steps:
        log.record(step.joins_s, "INFO", f"Updating policy in-flight to v{step.number}")


def _step_line(own: Orchestrator, step: Step) -> str:
    def cells(arrived: list[Episode]) -> list[str]:
        good = [episode for episode in arrived if not episode.error]
        return [
            f"Reward {fmean([episode.reward for episode in good] or [0.0]):.4f}",
            "Turns 1.0",
            "Branches 1.0",
            f"Max Off-Policy {_off_policy(own, step)}",
            f"Error {_failed(arrived):.1%}",
            *(["Cancelled 0.0%"] if own.script.plan.era is Era.EPISODE else []),
            "Truncation 0.0%",
        ]

    arrived = own.batch(step.number)
    size = own.script.plan.batch_size
    reward, *rest = cells(arrived)
    head = [
        f"Step {step.number}",
        duration(own.script.plan.lasts_s(step.ships_s - step.collects_s)),
        reward,
        f"Trainable {size}/{size} (100.0%)",
    ]
    lines = [" | ".join([*head, *rest])]
    envs = [env for env in own.script.plan.envs if any(episode.env == env for episode in arrived)]
    width = max(map(len, envs))
    for env in envs:
        of_env = [episode for episode in arrived if episode.env == env]
        ratio = f"Ratio {len(of_env) / len(arrived):.1%}"
        lines.append(" | ".join([f"\t\t ╰─ {env:<{width}}", ratio, *cells(of_env)]))
    return "\n".join(lines)


def _off_policy(own: Orchestrator, step: Step) -> int:
    return min(2, step.number - 1 - own.script.plan.resumed_from)


def _stale_since(own: Orchestrator, fate: Course) -> int | None:
    """Return the step in which rollouts that died with their worker are given up."""
    if own.script.plan.fault is not Fault.ENV_WORKER_KILLED:
        return None
    lost = next(step.number for step in own.steps if step.full_s > fate.strikes_s)
    return lost + MAX_OFF_POLICY_STEPS + 1


def _failed(arrived: list[Episode]) -> float:
    return fmean(episode.error is not None for episode in arrived)


def _metrics(own: Orchestrator, step: Step) -> dict[str, Json]:
    """Return the one row of a shipped batch."""
    arrived = own.batch(step.number)
    row: dict[str, Json] = {"step": step.number, "time": round(own.script.plan.epoch_s(step.ships_s), 4)}
    for scope in ("agg", *own.script.plan.envs):
        chosen = [episode for episode in arrived if scope in {"agg", episode.env}]
        if not chosen:
            continue
        good = [episode for episode in chosen if not episode.error]
        every, clean = f"train/{scope}/all", f"train/{scope}/effective"
        row |= {
            f"{every}/has_error/mean": _failed(chosen),
            f"{every}/cancelled/mean": 0.0,
            f"{every}/agent/has_error/mean": _failed(chosen),
            f"{clean}/num_total_tokens/mean": fmean(episode.tokens + 127 for episode in good),
            f"{clean}/agent/reward/mean": fmean(episode.reward for episode in good),
            f"{clean}/agent/is_truncated/mean": 0.0,
        }
        kinds = [episode.error[0] for episode in chosen if episode.error]
        row |= {f"{every}/agent/error/{kind}": float(kinds.count(kind)) for kind in sorted(set(kinds))}
    return row | {
        "progress/rollouts": len(arrived),
        "progress/total_tasks": step.number * own.script.plan.batch_size // 4,
        "time/step": own.script.plan.lasts_s(step.ships_s - step.collects_s),
        "time/wait_for_policy": own.script.plan.lasts_s(step.ships_s - step.full_s),
        "off_policy/max": _off_policy(own, step),
    }


def _write_markers(script: Script, step: Step) -> None:
    """Write the sign that the engines wait for a policy, and the orchestrator's part of a checkpoint."""
    if step.joins_s < inf and step.number < script.plan.max_steps:
        script.write(step.joins_s, f"broadcasts/step_{step.number}/NCCL_READY")
    if step.number % CHECKPOINT_INTERVAL == 0 and step.ships_s < inf:
        script.write(step.ships_s + 0.3, f"checkpoints/step_{step.number}/orchestrator/progress.pt")


def _write_heartbeat(own: Orchestrator, fate: Course) -> None:
    """Write the line that shows the event loop alive: every 10 seconds, whether anything advances or not."""
    begins = [step.collects_s for step in own.steps]
    at_s = LOOP_S + 5.0
    finished_s = own.steps[-1].ships_s + 2.0 if own.script.plan.fault is Fault.NONE else inf
    while at_s < min(fate.orchestrator_s, fate.ends_s, finished_s) and begins[-1] < inf:
        step = own.steps[max(0, bisect(begins, at_s) - 1)]
        own.log.record(at_s, "INFO", _pipeline_line(own, step, at_s, fate))
        at_s += HEARTBEAT_S


def _pipeline_line(own: Orchestrator, step: Step, at_s: float, fate: Course) -> str:
    envs = own.script.plan.envs
    size = own.script.plan.batch_size
    arrived = [episode for episode in own.batch(step.number) if episode.ended_s <= at_s and not episode.error]
    counts = [sum(episode.env == env for episode in arrived) for env in envs]
    waits = at_s >= step.full_s or step.ships_s < at_s
    lost = own.script.plan.fault is Fault.ENV_WORKER_KILLED and at_s > fate.strikes_s
    flying = [0 if waits and not (lost and env == FAULTY_ENV) else IN_FLIGHT_EACH for env in envs]
    shares, flights = (", ".join(f"{env}={n}" for env, n in zip(envs, ns, strict=True)) for ns in (counts, flying))
    total = sum(flying)
    return (
        f"Train batch {len(arrived)}/{size} ({len(arrived) / size:.1%}) ({shares}); "
        f"{total} inflight episodes (train={total}, eval=0 | {flights})"
    )


def _write_end(own: Orchestrator, fate: Course) -> None:
    log, plan = own.log, own.script.plan
    if plan.fault is Fault.NONE:
        end_s = own.steps[-1].ships_s
        log.record(
            end_s + 0.1, "INFO", "Shipped the final batch — draining pipeline (cancelled 0 in-flight train episode(s))"
        )
        log.record(end_s + 2.0, "INFO", "Pipeline drained, exiting main loop")
        log.record(
            end_s + 2.0, "SUCCESS", f"Orchestrator step loop done in {duration(plan.lasts_s(end_s - LOOP_S)).strip()}"
        )
        log.record(end_s + 2.2, "INFO", "Writing final checkpoint")
        log.record(end_s + 3.0, "SUCCESS", "Orchestrator finished.")
    if plan.fault is Fault.ENGINE_DEATH:
        _write_starving(own, fate)
        ran = duration(plan.lasts_s(fate.orchestrator_s - LOOP_S))
        orchestrator_gives_up(log, fate.orchestrator_s - 0.1, ran)
        shipped = max(step.number for step in own.steps if step.ships_s < inf)
        own.script.write(fate.orchestrator_s - 1.0, f"checkpoints/step_{shipped}/orchestrator/progress.pt")


def _write_starving(own: Orchestrator, fate: Course) -> None:
    """Write how batch after batch comes to nothing without engines."""
    size = own.script.plan.batch_size
    period_s = (fate.orchestrator_s - 2.0 - fate.strikes_s) / EMPTY_BATCHES
    for index in range(1, EMPTY_BATCHES + 1):
        counted = f"(consecutive zero-output batch equivalents: {index}/{EMPTY_BATCHES})"
        text = f"No admitted train payload after {size} finalized units {counted}"
        own.log.record(fate.strikes_s + index * period_s, "WARNING", text)
    at_s = fate.strikes_s + 6.0
    while at_s < fate.orchestrator_s - 2.0:
        own.log.record(at_s, "WARNING", "Inference metrics poll failed: ConnectError('All connection attempts failed')")
        at_s += 5.0
