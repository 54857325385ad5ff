"""The environment servers: one log for each environment."""

from __future__ import annotations

from pipeline.simulator.episodes import IN_FLIGHT_EACH, PROVIDER_DOWN, Episode
from pipeline.simulator.plan import FAULTY_ENV, Fault
from pipeline.simulator.script import Log, Script
from pipeline.simulator.timeline import SPAWNED_S, Course


def write_environments(script: Script, episodes: list[Episode], fate: Course) -> None:
    """Write what the environment servers leave behind; they log a failed rollout as calmly as a good one."""
    for index, env in enumerate(script.plan.envs):
        log = Log(script, f"{script.plan.logs}/envs/train/{env}.log", fate.envs_s)
        log.open(SPAWNED_S)
        _write_start(log, env, 5000 + index)
        for episode in episodes:
            if episode.env == env:
                _write_episode(log, episode)
        if script.plan.fault is Fault.ENV_WORKER_KILLED and env == FAULTY_ENV:
            _write_lost(log, fate)


def _write_start(log: Log, env: str, port: int) -> None:
    up = f"EnvServerPool up: address=tcp://127.0.0.1:{port} workers=1/inf multiplex=128 elastic=True"
    log.record(SPAWNED_S + 8, "INFO", up)
    log.record(SPAWNED_S + 12, "INFO", f"EnvServer up: taskset={env} address=ipc:///tmp/vf-pool-{port}/0")


def _write_episode(log: Log, episode: Episode) -> None:
    who = f"id={episode.id[:12]} task={episode.task}"
    log.record(episode.began_s, "INFO", f"rollout start: {who} harness=null runtime=subprocess")
    if episode.error == PROVIDER_DOWN:
        log.record(episode.ended_s, "WARNING", f"model call failed: id={episode.id[:12]} {': '.join(PROVIDER_DOWN)}")
    stop, turns = (episode.error[0], 0) if episode.error else ("agent_completed", 1)
    log.record(episode.ended_s, "INFO", f"rollout done: {who} reward={episode.reward:.3f} turns={turns} stop={stop}")


def _write_lost(log: Log, fate: Course) -> None:
    """Write the starts of rollouts that die with their worker: nothing ever says so."""
    dice = log.script.plan.dice("lost")
    for _ in range(IN_FLIGHT_EACH):
        who = f"id={dice.getrandbits(48):012x} task={dice.randrange(512)}"
        log.record(
            fate.strikes_s - dice.uniform(0.1, 20.0), "INFO", f"rollout start: {who} harness=null runtime=subprocess"
        )
