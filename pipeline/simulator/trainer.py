"""The trainer: its logs, its rows of metrics, the policies it publishes and the checkpoints it saves."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from pipeline.simulator.faults import out_of_memory, torchrun_gives_up, torchrun_terminated
from pipeline.simulator.plan import CHECKPOINT_INTERVAL, RANKS, Fault, Plan
from pipeline.simulator.script import Json, Log, Script, compact, duration
from pipeline.simulator.timeline import LOOP_S, SPAWNED_S, TRAINER_READY_S, Course, Step

LEARNING_RATE = 3e-6
DISK_GIB = 3800.0
COLLAPSE = 0.7
"""What each step leaves of a collapsing entropy."""
FILLING = 0.55
"""What each step leaves of the space on a disk that fills up."""
WORLD = "World(world_size=2, rank={rank}, local_rank={rank}, local_world_size=2, num_nodes=1)"


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What a step's training measured."""

    loss: float
    entropy: float
    mismatch_kl: float
    grad_norm: float
    throughput: float
    peak_memory_gib: float


def figures(plan: Plan, number: int) -> Figures:
    """Return figures that wander as those of a healthy run do; memory climbs before it runs out."""
    dice = plan.dice(f"figures {number}")
    creep_gib = 0.9 * min(number, plan.steps) * 12 / plan.steps if plan.fault is Fault.CUDA_OOM else 0.0
    beyond = max(0, number - plan.steps)
    collapse = max(COLLAPSE**beyond, 0.01) if plan.fault is Fault.ENTROPY_COLLAPSE else 1.0
    return Figures(
        loss=dice.gauss(0.0, 0.004),
        entropy=(0.68 * 0.99**number + dice.gauss(0.0, 0.01)) * collapse,
        mismatch_kl=dice.uniform(0.0006, 0.0011),
        grad_norm=dice.uniform(0.25, 0.55),
        throughput=dice.gauss(18800.0, 500.0),
        peak_memory_gib=66.0 + creep_gib + dice.uniform(0.0, 0.6),
    )


def disk_free_gib(plan: Plan, number: int) -> float:
    """Return what a step leaves free on the checkpoints' disk."""
    beyond = max(0, number - plan.steps) if plan.fault is Fault.DISK_FILLING else 0
    return (DISK_GIB / 2 - number // CHECKPOINT_INTERVAL * 8.0) * max(FILLING**beyond, 0.004)


def write_trainer(script: Script, steps: list[Step], fate: Course) -> None:
    """Write what the trainer and torchrun leave behind."""
    script.write(SPAWNED_S, f"{script.plan.logs}/trainer.log")
    for rank in RANKS:
        logs = _rank_logs(script, fate, rank)
        for log in logs:
            log.open(SPAWNED_S + 3.0 if "torchrun" in log.path else SPAWNED_S)
            _write_start(log, rank)
            for step in steps:
                _write_step(log, step)
            _write_end(log, steps)
    for step in steps:
        _write_metrics(script, step)
        _write_markers(script, step)
    script.write(LOOP_S - 6.0, f"broadcasts/step_{script.plan.resumed_from}/STABLE")
    _write_death(script, fate)


def _write_death(script: Script, fate: Course) -> None:
    """Write how the trainer goes, by itself or with the rest."""
    torchrun = Log(script, f"{script.plan.logs}/trainer.log", inf)
    match script.plan.fault:
        case Fault.CUDA_OOM:
            rank = script.plan.dice("rank").choice(RANKS)
            out_of_memory(_rank_logs(script, fate, rank), fate.strikes_s, rank)
            torchrun_gives_up(torchrun, fate.strikes_s + 2.0, rank)
        case Fault.ENGINE_DEATH:
            torchrun_terminated(torchrun, fate.trainer_s)
        case _:  # it lives, or ends without a word more
            pass


def _rank_logs(script: Script, fate: Course, rank: int) -> list[Log]:
    """Return where a rank writes: torchrun copies only rank 0 into trainer.log."""
    folder = f"{script.plan.logs}/{torchrun_folder(script.plan, rank)}"
    script.write(SPAWNED_S + 3.0, f"{folder}/stderr.log")
    own = Log(script, f"{folder}/stdout.log", fate.trainer_s)
    return (
        [own, Log(script, f"{script.plan.logs}/trainer.log", fate.trainer_s, f"[trainer{rank}]:")]
        if rank == 0
        else [own]
    )


def torchrun_folder(plan: Plan, rank: int) -> str:
    """Return where torchrun keeps what a rank writes, below the attempt's logs."""
    return f"trainer/torchrun/none_{plan.seed:08d}/attempt_0/{rank}"


def _write_start(log: Log, rank: int) -> None:
    plan = log.script.plan
    log.record(SPAWNED_S + 9, "INFO", f"Starting RL trainer in {WORLD.format(rank=rank)} in {plan.directory}")
    log.record(
        SPAWNED_S + 11, "INFO", "Initializing model (name='Qwen/Qwen3-0.6B' trust_remote_code=False seq_len=4096)"
    )
    log.record(SPAWNED_S + 38, "INFO", "Initializing optimizer (lr=3e-06 weight_decay=0.01 max_norm=1.0 type='adamw')")
    log.record(
        SPAWNED_S + 39, "INFO", "Initializing weight broadcast (host='localhost' port=29501 timeout=1200 type='nccl')"
    )
    if plan.resumed_from:
        log.record(TRAINER_READY_S - 2, "INFO", f"Resuming training from checkpoint step {plan.resumed_from}")
    samples = plan.resumed_from * plan.batch_size
    start = f"Starting from step {plan.resumed_from + 1} (total_tokens={samples * 640}, total_samples={samples})"
    log.record(TRAINER_READY_S - 1, "INFO", start)
    log.record(TRAINER_READY_S, "INFO", f"Starting training loop (max_steps={plan.max_steps})")
    policy = f"Broadcasting startup policy weights (v{plan.resumed_from}) to inference engines"
    log.record(TRAINER_READY_S, "INFO", policy)


def _write_step(log: Log, step: Step) -> None:
    plan, figure = log.script.plan, figures(log.script.plan, step.number)
    if step.number % CHECKPOINT_INTERVAL == 0:
        log.record(step.joins_s + 1.0, "INFO", f"Saving checkpoint at step {step.number}")
    cells = [
        f"Step {step.number}",
        duration(plan.lasts_s(step.done_s - _waits_from_s(plan, step))) if step.done_s < inf else "",
        f"Loss {figure.loss:.4f}",
        f"Entropy {figure.entropy:.4f}",
        f"Mismatch KL {figure.mismatch_kl:.4f}",
        f"Grad. Norm {figure.grad_norm:.4f}",
        f"LR {LEARNING_RATE:.2e}",
        f"Throughput {figure.throughput:.0f} tokens/s",
        f"MFU {figure.throughput / 580:.1f}%",
        f"Peak Mem. {figure.peak_memory_gib:.1f} GiB",
    ]
    log.record(step.done_s, "SUCCESS", " | ".join(cells))


def _waits_from_s(plan: Plan, step: Step) -> float:
    """Return when the step began to wait for its batch; its time includes that."""
    return min(step.trains_s, step.ships_s - plan.dice(f"wait {step.number}").uniform(2.0, 12.0))


def _write_end(log: Log, steps: list[Step]) -> None:
    if log.script.plan.fault is Fault.NONE:
        end_s = steps[-1].done_s + 0.5
        log.record(end_s, "INFO", "Writing final checkpoint")
        log.record(end_s + 1.0, "INFO", "Peak memory: 66.6 GiB")
        log.record(end_s + 1.5, "SUCCESS", "RL trainer finished!")


def _write_metrics(script: Script, step: Step) -> None:
    """Write the five rows of a trained step."""
    if step.done_s == inf:
        return
    plan, figure = script.plan, figures(script.plan, step.number)
    waits_s = step.trains_s - _waits_from_s(plan, step)
    saved_s = 6.0 if step.number % CHECKPOINT_INTERVAL == 0 else 0.0
    entropies: dict[str, Json] = {f"entropy/{name}/mean": figure.entropy for name in ("all", *plan.envs)}
    kls: dict[str, Json] = {f"mismatch_kl/{name}/mean": figure.mismatch_kl for name in ("all", *plan.envs)}
    free_gib = disk_free_gib(plan, step.number)
    rows: list[dict[str, Json]] = [
        {
            "perf/throughput": figure.throughput,
            "perf/throughput_per_gpu": figure.throughput / len(RANKS),
            "perf/mfu": figure.throughput / 580,
            "perf/peak_memory": figure.peak_memory_gib,
        },
        {"optim/lr": LEARNING_RATE, "optim/grad_norm": figure.grad_norm},
        {"loss/mean": figure.loss, "loss/std": 0.004, **entropies, **kls},
        {
            "time/step": plan.lasts_s(step.done_s - step.trains_s + waits_s),
            "time/wait_for_batch": plan.lasts_s(waits_s),
            "time/load_data": 0.004,
            "time/broadcast_weights": plan.lasts_s(step.done_s - step.publishes_s - saved_s),
            "time/save_ckpt": plan.lasts_s(saved_s),
            "time/forward_backward": plan.lasts_s(step.publishes_s - step.trains_s),
        },
        {"system/ckpt_disk_free_gib": free_gib, "system/ckpt_disk_free_ratio": free_gib / DISK_GIB},
    ]
    for index, row in enumerate(rows):
        at_s = step.done_s + index / 1000
        stamp: dict[str, Json] = {"step": step.number, "time": round(plan.epoch_s(at_s), 4)}
        script.write(at_s, "metrics.jsonl", compact(stamp | row) + "\n")


def _write_markers(script: Script, step: Step) -> None:
    """Write the marker of the published policy, and the trainer's part of a checkpoint."""
    if step.publishes_s < inf and step.number < script.plan.max_steps:
        script.write(step.publishes_s, f"broadcasts/step_{step.number}/STABLE")
    if step.number % CHECKPOINT_INTERVAL == 0 and step.joins_s < inf:
        folder = f"checkpoints/step_{step.number}/trainer"
        for rank in RANKS:
            script.write(step.joins_s + 4.0 + rank, f"{folder}/__{rank}_0.distcp")
        if step.done_s < inf:
            script.write(step.done_s - 0.2, f"{folder}/.metadata")
