"""Puts a run on disk, with the times that its files would have."""

from __future__ import annotations

import os
from pathlib import Path

from pipeline.simulator.environments import write_environments
from pipeline.simulator.episodes import episodes
from pipeline.simulator.inference import write_inference
from pipeline.simulator.launcher import write_launcher
from pipeline.simulator.orchestrator import write_orchestrator
from pipeline.simulator.plan import LOGS, Plan
from pipeline.simulator.processes import write_processes
from pipeline.simulator.rollouts import write_rollouts
from pipeline.simulator.script import Script, compact
from pipeline.simulator.timeline import course, schedule
from pipeline.simulator.trainer import write_trainer


def simulate(plan: Plan) -> Script:
    """Return everything that happens in the run of *plan*."""
    fate = course(plan)
    steps = schedule(plan, fate, plan.max_steps)
    rollouts = episodes(plan, steps, fate)
    script = Script(plan, fate.ends_s)
    write_launcher(script, fate)
    write_inference(script, rollouts, fate)
    write_environments(script, rollouts, fate)
    write_orchestrator(script, steps, rollouts, fate)
    write_rollouts(script, steps, rollouts)
    write_trainer(script, steps, fate)
    write_processes(script, steps, fate)
    return script


def write_run(plan: Plan, out: Path) -> None:
    """
    Write the run directory *out*/run and *out*/recording.jsonl.

    Raises:
        FileExistsError: There is a run already.

    """
    script = simulate(plan)
    run = out / "run"
    run.mkdir(parents=True)
    contents: dict[str, list[bytes]] = {}
    modified_s: dict[str, float] = {}
    for write in script.writes():
        contents.setdefault(write.path, []).append(write.data)
        modified_s[write.path] = write.at_s
    for path, parts in contents.items():
        file = run / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"".join(parts))
        time = plan.epoch_s(modified_s[path])
        os.utime(file, (time, time))
    (run / LOGS).parent.joinpath("latest").symlink_to(Path(LOGS).name)
    lines = [compact(event.fields) + "\n" for event in script.events()]
    (out / "recording.jsonl").write_text("".join(lines), "utf-8")
