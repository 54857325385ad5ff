"""The run's processes: which there are, how they end, and what a recording holds of them, of the disk and of time."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from pipeline.simulator.faults import API_PID, ENGINE_PID, RANK_PIDS, TORCHRUN_PID
from pipeline.simulator.launcher import NODE
from pipeline.simulator.plan import FAULTY_ENV, Fault, Plan
from pipeline.simulator.timeline import SPAWNED_S, Course, Step
from pipeline.simulator.trainer import FILLING, torchrun_folder

if TYPE_CHECKING:
    from pipeline.simulator.script import Json, Script

LAUNCHER_PID = 4000
LOOK_S = 60.0
GIB = 1 << 30
DISK_BYTES = 3800 * GIB
SPAWNED_WORKER = "python -c from multiprocessing.spawn import spawn_main"


@dataclass(frozen=True, kw_only=True)
class Process:
    """A process of the run, from its start to its end."""

    role: str
    title: str
    pid: int
    ppid: int
    rss_gib: float
    log: str | None
    """Where its output goes, below the attempt's logs; the launcher's goes to a terminal."""
    errors: str | None = None
    """Where its standard error goes, if that is somewhere else."""
    begins_s: float = SPAWNED_S
    ends_s: float = inf
    exit_code: int | None = None
    is_reaped: bool = True
    """Its parent asks for its status; else it stays a zombie."""


def processes(plan: Plan, steps: list[Step], fate: Course) -> list[Process]:
    """Return the processes of the run with the ends that the fault gives them, parents first."""
    finished = plan.fault is Fault.NONE
    launcher = plan.pid(LAUNCHER_PID)
    return [
        Process(
            role="launcher",
            title="PRIME-RL::Launcher",
            pid=launcher,
            ppid=1,
            rss_gib=0.6,
            log=None,
            begins_s=0.2,
            ends_s=fate.verdict_s + 26.0,
            exit_code=0 if finished else 1,
        ),
        *_engines(plan, fate),
        *_trainers(plan, steps, fate),
        Process(
            role="orchestrator",
            title="PRIME-RL::Orchestrator",
            pid=plan.pid(4060),
            ppid=launcher,
            rss_gib=7.6,
            log="orchestrator.log",
            ends_s=steps[-1].ships_s + 3.5 if finished else fate.orchestrator_s,
            exit_code=_code(plan, {Fault.NONE: 0, Fault.ENGINE_DEATH: 1}),
        ),
        *_environments(plan, fate),
    ]


def _code(plan: Plan, codes: dict[Fault, int]) -> int:
    """Return the exit code under the plan's fault: who is not named there is terminated with the rest."""
    return codes.get(plan.fault, -15)


def _environments(plan: Plan, fate: Course) -> list[Process]:
    """Return the environment servers, each with a worker that has no title."""
    ends_s = fate.envs_s if fate.verdict_s < inf else inf
    found = []
    for index, env in enumerate(plan.envs):
        log, server = f"envs/train/{env}.log", plan.pid(4030 + 10 * index)
        is_killed = plan.fault is Fault.ENV_WORKER_KILLED and env == FAULTY_ENV
        found += [
            Process(
                role="env_server",
                title="PRIME-RL::EnvServer",
                pid=server,
                ppid=plan.pid(LAUNCHER_PID),
                rss_gib=0.9,
                log=log,
                ends_s=ends_s,
                exit_code=-15,
            ),
            Process(
                role="env_worker",
                title=SPAWNED_WORKER,
                pid=server + 1,
                ppid=server,
                rss_gib=3.2,
                log=log,
                ends_s=fate.strikes_s if is_killed else ends_s,
                exit_code=-9 if is_killed else None,
                is_reaped=not is_killed,
            ),
        ]
    return found


def _engines(plan: Plan, fate: Course) -> list[Process]:
    dead_s = 8.0 if plan.fault is Fault.ENGINE_DEATH else 0.0
    return [
        Process(
            role="inference",
            title="PRIME-RL::Inference",
            pid=plan.pid(API_PID),
            ppid=plan.pid(LAUNCHER_PID),
            rss_gib=9.1,
            log="inference.log",
            ends_s=fate.engines_s + dead_s,
            # the server exits with 0 when its engine dies, and so the launcher sees nothing
            exit_code=_code(plan, {Fault.ENGINE_DEATH: 0}),
        ),
        Process(
            role="inference",
            title="VLLM::EngineCore",
            pid=plan.pid(ENGINE_PID),
            ppid=plan.pid(API_PID),
            rss_gib=14.0,
            log="inference.log",
            ends_s=fate.engines_s + 0.3,
            exit_code=_code(plan, {Fault.ENGINE_DEATH: 1}),
        ),
    ]


def _trainers(plan: Plan, steps: list[Step], fate: Course) -> list[Process]:
    """Return torchrun and its ranks: it ends the others when one dies."""
    failed = plan.dice("rank").choice(list(RANK_PIDS)) if plan.fault is Fault.CUDA_OOM else None
    own_end_s = steps[-1].done_s + 3.0 if plan.fault is Fault.NONE else fate.trainer_s
    if plan.fault is Fault.HANG:
        own_end_s = inf
    found = [
        Process(
            role="torchrun",
            title="python /opt/prime-rl/.venv/bin/torchrun --role=trainer",
            pid=plan.pid(TORCHRUN_PID),
            ppid=plan.pid(LAUNCHER_PID),
            rss_gib=0.5,
            log="trainer.log",
            ends_s=own_end_s + (4.0 if failed is not None else 0.5),
            exit_code=_code(plan, {Fault.NONE: 0, Fault.CUDA_OOM: 1}),
        )
    ]
    for rank, pid in RANK_PIDS.items():
        victim = failed not in {None, rank}
        folder = torchrun_folder(plan, rank)
        found.append(
            Process(
                role="trainer",
                title="PRIME-RL::Trainer",
                pid=plan.pid(pid),
                ppid=plan.pid(TORCHRUN_PID),
                rss_gib=38.0,
                log=f"{folder}/stdout.log",
                errors=f"{folder}/stderr.log",
                ends_s=own_end_s + (2.5 if victim else 0.4),
                exit_code=-15 if victim else _code(plan, {Fault.NONE: 0, Fault.CUDA_OOM: 1}),
            )
        )
    return found


def write_processes(script: Script, found: list[Process], steps: list[Step]) -> None:
    """Write a look at the process table every minute, each exit when it comes, disk space and ticks."""
    for process in found:
        _write_process(script, process)
    at_s, end_s = 0.0, script.ends_s
    while at_s < end_s:
        script.event(at_s, "tick")
        free = _free_bytes(script.plan, steps, at_s)
        script.event(at_s + 0.1, "disk", node=NODE, path="/data", total_bytes=DISK_BYTES, free_bytes=free)
        at_s += LOOK_S
    script.event(end_s, "tick")


def _free_bytes(plan: Plan, steps: list[Step], at_s: float) -> int:
    done = max((step.number for step in steps if step.done_s <= at_s), default=0)
    left = FILLING ** max(0, done - plan.steps) if plan.fault is Fault.DISK_FILLING else 1.0
    return int((DISK_BYTES // 2 - int(at_s) * (GIB // 60)) * left)


def _write_process(script: Script, process: Process) -> None:
    dice = script.plan.dice(f"process {process.pid}")
    who: dict[str, Json] = {
        "node": NODE,
        "role": process.role,
        "title": process.title,
        "pid": process.pid,
        "ppid": process.ppid,
    }
    at_s = process.begins_s
    while at_s < min(process.ends_s, script.ends_s):
        rss_bytes = int(process.rss_gib * GIB * dice.uniform(0.99, 1.01))
        script.event(at_s, "process", **who, state="running", rss_bytes=rss_bytes)
        at_s += LOOK_S
    if process.ends_s < inf:
        fields: dict[str, Json] = {
            "node": NODE,
            "state": "exited" if process.is_reaped else "zombie",
            **{key: value for key, value in who.items() if key != "node"},
        }
        if process.exit_code is not None:
            fields["exit_code"] = process.exit_code
        script.event(process.ends_s, "process", **fields)
