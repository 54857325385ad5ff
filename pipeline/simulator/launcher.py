"""The launcher: the configs it resolves, and what it says to its terminal alone."""

from __future__ import annotations

import json
from math import inf
from typing import TYPE_CHECKING

from pipeline.simulator.inference import MODEL
from pipeline.simulator.plan import CHECKPOINT_INTERVAL, GROUP_SIZE, Plan
from pipeline.simulator.timeline import SPAWNED_S, Course

if TYPE_CHECKING:
    from pipeline.simulator.script import Json, Script

NODE = "node-0"
LOGS_OPEN_S = SPAWNED_S - 1.5


def write_launcher(script: Script, fate: Course) -> None:
    """Write the configs, and the terminal's lines into the recording."""
    for name, config in configs(script.plan).items():
        script.write(1.0, f"configs/{name}", json.dumps(config, indent=2), replaces=True)
    script.link(LOGS_OPEN_S, "logs/latest", f"attempt_{script.plan.attempt}")
    _say_where_from(script)
    _remove_stale(script)
    _say(script, 1.0, "INFO", f"Wrote subconfigs to {script.plan.directory}/configs")
    _say(script, 1.2, "INFO", "Starting RL run")
    _say(script, SPAWNED_S - 1, "INFO", "Starting inference on GPU(s) 0")
    for index, env in enumerate(script.plan.envs):
        _say(script, SPAWNED_S - 0.5, "INFO", f"Starting train env server {env} at tcp://127.0.0.1:{5000 + index}")
    _say(script, SPAWNED_S, "INFO", "Starting orchestrator process")
    _say(script, SPAWNED_S, "INFO", "Starting trainer on GPU(s) 1 2")
    _say(script, SPAWNED_S + 1, "SUCCESS", "Startup complete. Showing orchestrator logs...")
    if fate.culprit:
        _say(script, fate.verdict_s, "ERROR", f"Error: {fate.culprit} failed with exit code 1")
        _say(script, fate.verdict_s, "ERROR", "Terminating all processes...")
    elif fate.verdict_s < inf:
        _say(script, fate.verdict_s, "SUCCESS", "Training finished!")


def _say_where_from(script: Script) -> None:
    plan = script.plan
    if plan.attempt > 1:
        found = f"Found latest checkpoint in {plan.directory}/checkpoints: {plan.resumed_from}"
        missing = f"No checkpoints found in {plan.directory}/checkpoints. Starting from scratch."
        _say(script, 0.4, *(("INFO", found) if plan.resumed_from else ("WARNING", missing)))
    if plan.resumed_from:
        message = f"Resuming from step {plan.resumed_from}, cleaning future rollouts and broadcasts"
        _say(script, 0.5, "INFO", message)
    else:
        _say(script, 0.5, "INFO", "Training from scratch, cleaning any stale rollouts and broadcasts")


def _remove_stale(script: Script) -> None:
    """Remove what an attempt before this one got to after the checkpoint."""
    plan = script.plan
    if plan.attempt > 1:
        for number in range(plan.resumed_from + 1 if plan.resumed_from else 0, plan.max_steps + 1):
            script.remove(0.6, f"rollouts/step_{number}")
            script.remove(0.6, f"broadcasts/step_{number}")


def _say(script: Script, at_s: float, level: str, message: str) -> None:
    script.say(at_s, level, message, NODE)


def configs(plan: Plan) -> dict[str, dict[str, Json]]:
    """Return the configs by file name: a local run has no `rl.json`."""
    named: dict[str, dict[str, Json]] = {
        "trainer.json": _shared(plan) | {"model": {"name": MODEL, "seq_len": 4096}, "metrics_server": None},
        "orchestrator.json": _orchestrator(plan),
        "inference.json": {
            "server": {"host": None, "port": plan.router_port},
            "router": {"type": "vllm-router", "policy": "consistent_hash"},
            "backend_port": plan.engine_port,
            "vllm": {"model": MODEL, "tensor_parallel_size": 1, "data_parallel_size": 1},
        },
    }
    for index, env in enumerate(plan.envs):
        serve: Json = {"pool": {"type": "elastic"}, "address": f"tcp://127.0.0.1:{5000 + index}"}
        named[f"envs/train/{env}.json"] = {"env": {"taskset": {"id": env}}, "serve": serve}
    return named


def _shared(plan: Plan) -> dict[str, Json]:
    """Return what the trainer and the orchestrator are both told."""
    return {
        "max_steps": plan.max_steps,
        "output_dir": plan.directory,
        "ckpt": {"interval": CHECKPOINT_INTERVAL, "keep_last": None, "keep_interval": None},
        "resume": {"step": plan.resumed_from, "dir": None} if plan.resumed_from else None,
        "log": {"level": "info", "json_logging": False, "interval": 10.0, "ranks_filter": [0]},
        "monitors": {"wandb": None, "file": {"path": "metrics.jsonl"}},
        "weight_broadcast": {"type": "nccl", "host": "localhost", "port": 29501, "timeout": 1200},
    }


def _orchestrator(plan: Plan) -> dict[str, Json]:
    sources: list[Json] = [
        {"name": env, "env": {"id": "", "taskset": {"id": env}}, "group_size": GROUP_SIZE} for env in plan.envs
    ]
    client: Json = {
        "base_url": f"http://localhost:{plan.router_port}/v1",
        "admin_base_url": [f"http://localhost:{plan.engine_port}/v1"],
    }
    return _shared(plan) | {
        "model": {"name": MODEL, "client": client},
        "train": {"source": sources},
        "eval": None,
        "batch_size": plan.batch_size,
        "group_size": GROUP_SIZE,
        "max_off_policy_steps": 8,
        "env_server_base_port": 5000,
    }
