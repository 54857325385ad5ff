"""The launcher: the configs it resolves, and what it says to its terminal alone."""

from __future__ import annotations

import json
from math import inf
from typing import TYPE_CHECKING

from pipeline.simulator.plan import CHECKPOINT_INTERVAL, ENVS, GROUP_SIZE, Plan
from pipeline.simulator.timeline import SPAWNED_S, Course

if TYPE_CHECKING:
    from pipeline.simulator.script import Json, Script

NODE = "node-0"
MODEL = "Qwen/Qwen3-0.6B"


def write_launcher(script: Script, fate: Course) -> None:
    """Write the configs, and the terminal's lines into the recording."""
    for name, config in configs(script.plan).items():
        script.write(1.0, f"configs/{name}", json.dumps(config, indent=2))
    _say(script, 0.5, "INFO", "Training from scratch, cleaning any stale rollouts and broadcasts")
    _say(script, 1.0, "INFO", f"Wrote subconfigs to {script.plan.directory}/configs")
    _say(script, 1.2, "INFO", "Starting RL run")
    _say(script, SPAWNED_S - 1, "INFO", "Starting inference on GPU(s) 0")
    for index, env in enumerate(ENVS):
        _say(script, SPAWNED_S - 0.5, "INFO", f"Starting train env server {env} at tcp://127.0.0.1:{5000 + index}")
    _say(script, SPAWNED_S, "INFO", "Starting orchestrator process")
    _say(script, SPAWNED_S, "INFO", "Starting trainer on GPU(s) 1 2")
    _say(script, SPAWNED_S + 1, "SUCCESS", "Startup complete. Showing orchestrator logs...")
    if fate.culprit:
        _say(script, fate.verdict_s, "ERROR", f"Error: {fate.culprit} failed with exit code 1")
        _say(script, fate.verdict_s, "ERROR", "Terminating all processes...")
    elif fate.verdict_s < inf:
        _say(script, fate.verdict_s, "SUCCESS", "Training finished!")


def _say(script: Script, at_s: float, level: str, message: str) -> None:
    """Write a line of the terminal, which has lost its colours when it is read."""
    script.event(
        at_s, "host", node=NODE, origin="launcher", text=f"{script.plan.clock(at_s):%H:%M:%S} {level:>7} {message}"
    )


def configs(plan: Plan) -> dict[str, dict[str, Json]]:
    """Return the configs by file name: a local run has no `rl.json`."""
    shared: dict[str, Json] = {
        "max_steps": plan.max_steps,
        "output_dir": plan.directory,
        "ckpt": {"interval": CHECKPOINT_INTERVAL, "keep_last": None, "keep_interval": None},
        "resume": None,
        "log": {"level": "info", "json_logging": False, "interval": 10.0, "ranks_filter": [0]},
        "monitors": {"wandb": None, "file": {"path": "metrics.jsonl"}},
        "weight_broadcast": {"type": "nccl", "host": "localhost", "port": 29501, "timeout": 1200},
    }
    sources: list[Json] = [
        {"name": env, "env": {"id": "", "taskset": {"id": env}}, "group_size": GROUP_SIZE} for env in ENVS
    ]
    client: Json = {"base_url": "http://localhost:8000/v1", "admin_base_url": ["http://localhost:8100/v1"]}
    named: dict[str, dict[str, Json]] = {
        "trainer.json": shared | {"model": {"name": MODEL, "seq_len": 4096}, "metrics_server": None},
        "orchestrator.json": shared
        | {
            "model": {"name": MODEL, "client": client},
            "train": {"source": sources},
            "eval": None,
            "batch_size": plan.batch_size,
            "group_size": GROUP_SIZE,
            "max_off_policy_steps": 8,
            "env_server_base_port": 5000,
        },
        "inference.json": {
            "server": {"host": None, "port": 8000},
            "router": {"type": "vllm-router", "policy": "consistent_hash"},
            "backend_port": 8100,
            "vllm": {"model": MODEL, "tensor_parallel_size": 1, "data_parallel_size": 1},
        },
    }
    for index, env in enumerate(ENVS):
        serve: Json = {"pool": {"type": "elastic"}, "address": f"tcp://127.0.0.1:{5000 + index}"}
        named[f"envs/train/{env}.json"] = {"env": {"taskset": {"id": env}}, "serve": serve}
    return named
