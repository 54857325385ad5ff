"""The traces that the orchestrator keeps: an episode a line, as it ends, and once more if it was trained on."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from pipeline.simulator.plan import Era
from pipeline.simulator.script import Json, Script, compact

if TYPE_CHECKING:
    from pipeline.simulator.episodes import Episode
    from pipeline.simulator.plan import Plan
    from pipeline.simulator.timeline import Step

PROMPT_TOKENS = 127


def write_rollouts(script: Script, steps: list[Step], episodes: list[Episode]) -> None:
    """Write `all` as episodes end, and `effective` when their batch ships."""
    ships_s = {step.number: step.ships_s for step in steps}
    record = {Era.TRACE: _trace_record, Era.EPISODE: _episode_record}[script.plan.era]
    for episode in episodes:
        line = compact(record(script.plan, episode)) + "\n"
        folder = f"rollouts/step_{episode.step}/train"
        script.write(episode.ended_s, f"{folder}/all/traces.jsonl", line)
        if not episode.error and ships_s[episode.step] < inf:
            script.write(ships_s[episode.step], f"{folder}/effective/traces.jsonl", line)


def _episode_record(plan: Plan, episode: Episode) -> dict[str, Json]:
    return {
        "id": episode.id,
        "env": {"id": episode.env, "name": episode.env},
        "task": {"data": {"idx": episode.task}},
        "group": {"id": episode.group},
        "run": {
            "type": "train",
            "id": plan.run_id,
            "name": plan.name,
            "work": {"type": "train", "step": episode.step, "policy": {"start": episode.policy, "end": episode.policy}},
        },
        "ok": episode.error is None,
        "errors": [],
        "traces": [_trace(plan, episode)],
    }


def _trace_record(plan: Plan, episode: Episode) -> dict[str, Json]:
    trace = _trace(plan, episode)
    return trace | {
        "run": {"type": "train", "id": plan.run_id, "name": plan.name, "step": episode.step},
        "task": {"type": "Task", "data": {"idx": episode.task}},
        "info": {
            "env_name": episode.env,
            "group_id": episode.group,
            "episode_id": episode.id,
            "policy_version": episode.policy,
        },
    }


def _trace(plan: Plan, episode: Episode) -> dict[str, Json]:
    began, ended = (round(plan.epoch_s(at_s), 3) for at_s in (episode.began_s, episode.ended_s))
    answered = episode.error is None
    usage: Json = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": episode.tokens}
    return {
        "version": 1,
        "id": episode.id[::-1],
        "agent": {"name": "agent", "trainable": True},
        "nodes": [{"parent": 0, "sampled": True, "timestamp": ended}] if answered else [],
        "calls": [{"node": 0, "finish_reason": "stop", "usage": usage}] if answered else [],
        "rewards": {"score": {"score": episode.reward, "weight": 1.0}},
        "is_completed": True,
        "ok": answered,
        "stop_condition": "agent_completed" if answered else "error",
        "errors": [{"type": episode.error[0], "message": episode.error[1]}] if episode.error else [],
        "timing": {
            "start": began,
            "agent": {"start": began, "end": ended},
            "scoring": {"start": ended, "end": ended},
        },
    }
