"""The process table, the disk and the passing of time: what only a recording holds."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from pipeline.simulator.faults import API_PID, ENGINE_PID, RANK_PIDS, TORCHRUN_PID
from pipeline.simulator.launcher import NODE
from pipeline.simulator.plan import ENVS, Fault, Plan
from pipeline.simulator.timeline import SPAWNED_S, Course, Step

if TYPE_CHECKING:
    from pipeline.simulator.script import Json, Script

LAUNCHER_PID = 4000
LOOK_S = 60.0
GIB = 1 << 30
DISK_BYTES = 3800 * GIB


@dataclass(frozen=True, kw_only=True)
class Process:
    """A process of the run, from its start to its end."""

    role: str
    title: str
    pid: int
    ppid: int = LAUNCHER_PID
    rss_gib: float
    begins_s: float = SPAWNED_S
    ends_s: float = inf
    exit_code: int | None = None


def processes(plan: Plan, steps: list[Step], fate: Course) -> list[Process]:
    """Return the processes of the run with the ends that the fault gives them."""
    over = fate.verdict_s < inf
    launcher_ends_s = fate.verdict_s + 26.0
    finished = plan.fault is Fault.NONE
    found = [
        Process(
            role="launcher",
            title="PRIME-RL::Launcher",
            pid=LAUNCHER_PID,
            ppid=1,
            rss_gib=0.6,
            begins_s=0.2,
            ends_s=launcher_ends_s,
            exit_code=0 if finished else 1,
        ),
        *_engines(plan, fate),
        *_trainers(plan, steps, fate),
        Process(
            role="orchestrator",
            title="PRIME-RL::Orchestrator",
            pid=4060,
            rss_gib=7.6,
            ends_s=steps[-1].ships_s + 3.5 if finished else fate.orchestrator_s,
            exit_code=_code(plan, {Fault.NONE: 0, Fault.ENGINE_DEATH: 1}),
        ),
    ]
    for index in range(len(ENVS)):
        server, ends_s = 4030 + 10 * index, fate.envs_s if over else inf
        worker = "python -c from multiprocessing.spawn import spawn_main"
        server_title = "PRIME-RL::EnvServer"
        found += [
            Process(role="env_server", title=server_title, pid=server, rss_gib=0.9, ends_s=ends_s, exit_code=-15),
            Process(role="env_worker", title=worker, pid=server + 1, ppid=server, rss_gib=3.2, ends_s=ends_s),
        ]
    return found


def _code(plan: Plan, codes: dict[Fault, int]) -> int:
    """Return the exit code under the plan's fault: who is not named there is terminated with the rest."""
    return codes.get(plan.fault, -15)


def _engines(plan: Plan, fate: Course) -> list[Process]:
    dead_s = 8.0 if plan.fault is Fault.ENGINE_DEATH else 0.0
    # the server exits with 0 when its engine dies, and so the launcher sees nothing
    code = _code(plan, {Fault.ENGINE_DEATH: 0})
    return [
        Process(
            role="inference",
            title="PRIME-RL::Inference",
            pid=API_PID,
            rss_gib=9.1,
            ends_s=fate.engines_s + dead_s,
            exit_code=code,
        ),
        Process(
            role="inference",
            title="VLLM::EngineCore",
            pid=ENGINE_PID,
            ppid=API_PID,
            rss_gib=14.0,
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
    torchrun_ends_s = own_end_s + (4.0 if failed is not None else 0.5)
    found = [
        Process(
            role="torchrun",
            title="python /opt/prime-rl/.venv/bin/torchrun --role=trainer",
            pid=TORCHRUN_PID,
            rss_gib=0.5,
            ends_s=torchrun_ends_s,
            exit_code=_code(plan, {Fault.NONE: 0, Fault.CUDA_OOM: 1}),
        )
    ]
    for rank, pid in RANK_PIDS.items():
        victim = failed not in {None, rank}
        found.append(
            Process(
                role="trainer",
                title="PRIME-RL::Trainer",
                pid=pid,
                ppid=TORCHRUN_PID,
                rss_gib=38.0,
                ends_s=own_end_s + (2.5 if victim else 0.4),
                exit_code=-15 if victim else _code(plan, {Fault.NONE: 0, Fault.CUDA_OOM: 1}),
            )
        )
    return found


def write_processes(script: Script, steps: list[Step], fate: Course) -> None:
    """Write a look at the process table every minute, each exit when it comes, disk space and ticks."""
    for process in processes(script.plan, steps, fate):
        _write_process(script, process)
    at_s, end_s = 0.0, script.ends_s
    while at_s < end_s:
        script.event(at_s, "tick")
        free = DISK_BYTES // 2 - int(at_s) * (GIB // 60)
        script.event(at_s + 0.1, "disk", node=NODE, path="/data", total_bytes=DISK_BYTES, free_bytes=free)
        at_s += LOOK_S
    script.event(end_s, "tick")


def _write_process(script: Script, process: Process) -> None:
    dice = script.plan.dice(f"process {process.pid}")
    at_s = process.begins_s
    while at_s < min(process.ends_s, script.ends_s):
        script.event(
            at_s,
            "process",
            node=NODE,
            role=process.role,
            title=process.title,
            pid=process.pid,
            ppid=process.ppid,
            state="running",
            rss_bytes=int(process.rss_gib * GIB * dice.uniform(0.99, 1.01)),
        )
        at_s += LOOK_S
    if process.ends_s < inf:
        fields: dict[str, Json] = {
            "role": process.role,
            "title": process.title,
            "pid": process.pid,
            "ppid": process.ppid,
        }
        if process.exit_code is not None:
            fields["exit_code"] = process.exit_code
        script.event(process.ends_s, "process", node=NODE, state="exited", **fields)
