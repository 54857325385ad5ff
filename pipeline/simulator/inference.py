"""The inference server: its log, and the metrics page of its engine."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from pipeline.simulator.faults import engine_dies, vllm_processes
from pipeline.simulator.plan import Fault, Plan
from pipeline.simulator.script import Json, Log, Script
from pipeline.simulator.timeline import ENGINES_READY_S, SPAWNED_S, Course

if TYPE_CHECKING:
    from pipeline.simulator.episodes import Episode

MODEL = "Qwen/Qwen3-0.6B"
SCRAPE_S = 30.0
STATS_S = 10.0


def write_inference(script: Script, episodes: list[Episode], fate: Course) -> None:
    """Write what the engine and the server in front of it leave behind."""
    api, _ = vllm_processes(script.plan)
    log = Log(script, f"{script.plan.logs}/inference.log", fate.engines_s)
    log.open(SPAWNED_S - 1.0)
    _write_start(log)
    for episode in episodes:
        if not episode.error:
            port = 40000 + episode.task
            line = f'({api}) INFO:     127.0.0.1:{port} - "POST /inference/v1/generate HTTP/1.1" 200 OK'
            log.raw(episode.ended_s, line)
    _write_statistics(log, episodes)
    _write_samples(script, episodes, fate)
    last_words = Log(script, log.path, inf)
    if script.plan.fault is Fault.ENGINE_DEATH:
        engine_dies(last_words, fate.strikes_s)
        _write_router(last_words, fate)
    elif fate.verdict_s < inf:
        farewell = "[shutdown] API server: shutdown triggered"
        last_words.raw(fate.engines_s, _vllm(script.plan, fate.engines_s, api, farewell))


def _vllm(plan: Plan, at_s: float, process: str, message: str, place: str = "loggers.py:310") -> str:
    return f"({process}) INFO {plan.clock(at_s):%m-%d %H:%M:%S} [{place}] {message}"


def _write_start(log: Log) -> None:
    plan = log.script.plan
    api, engine = vllm_processes(plan)
    router = f"Starting router on http://0.0.0.0:{plan.router_port}/v1 (engine on port {plan.engine_port})"
    log.record(SPAWNED_S + 5, "INFO", router)
    for at_s, process, message in (
        (SPAWNED_S + 21, api, "vLLM API server version 0.26.0"),
        (SPAWNED_S + 27, engine, "Starting to load model Qwen/Qwen3-0.6B..."),
        (SPAWNED_S + 36, engine, "Loading weights took 3.41 seconds"),
        (SPAWNED_S + 48, engine, "GPU KV cache size: 786,432 tokens"),
        (SPAWNED_S + 60, engine, "init engine (profile, create kv cache, warmup model) took 24.10 seconds"),
    ):
        log.raw(at_s, _vllm(plan, at_s, process, message, "core.py:90"))
    log.raw(ENGINES_READY_S, f"({api}) INFO:     Application startup complete.")


def busy(episodes: list[Episode], at_s: float) -> list[Episode]:
    """Return the rollouts that the engine works on."""
    return [episode for episode in episodes if episode.began_s <= at_s < episode.ended_s]


def _write_statistics(log: Log, episodes: list[Episode]) -> None:
    """Write the statistics line; an idle engine has none."""
    api, _ = vllm_processes(log.script.plan)
    at_s = ENGINES_READY_S + STATS_S
    while at_s <= min(log.until_s, log.script.ends_s):
        if running := busy(episodes, at_s):
            rate = sum(episode.tokens / (episode.ended_s - episode.began_s) for episode in running)
            message = (
                f"Engine 000: Avg prompt throughput: {len(running) * 12.7:.1f} tokens/s, "
                f"Avg generation throughput: {rate:.1f} tokens/s, Running: {len(running)} reqs, Waiting: 0 reqs, "
                f"GPU KV cache usage: {len(running) * 1.9:.1f}%, Prefix cache hit rate: 49.8%"
            )
            log.raw(at_s, _vllm(log.script.plan, at_s, api, message))
        at_s += STATS_S


def _write_samples(script: Script, episodes: list[Episode], fate: Course) -> None:
    """Write what a poller of the metrics page would have seen."""
    endpoint = f"http://localhost:{script.plan.engine_port}/metrics"
    labels: Json = {"engine": "0", "model_name": MODEL}
    at_s = ENGINES_READY_S + 5.0
    while at_s <= min(script.ends_s, fate.engines_s):
        for name, value in gauges(episodes, at_s).items():
            script.event(at_s, "sample", endpoint=endpoint, name=f"vllm:{name}", labels=labels, value=float(value))
        at_s += SCRAPE_S
    while at_s <= script.ends_s:
        script.event(at_s, "scrape_failed", endpoint=endpoint, error="connection refused")
        at_s += SCRAPE_S


def gauges(episodes: list[Episode], at_s: float) -> dict[str, float]:
    """Return what the engine measures of itself at a moment, by the name of the metric."""
    running = len(busy(episodes, at_s))
    return {
        "num_requests_running": running,
        "num_requests_waiting": 0,
        "kv_cache_usage_perc": round(running * 0.019, 4),
        "num_preemptions_total": 0,
        "generation_tokens_total": sum(
            episode.tokens for episode in episodes if episode.ended_s <= at_s and not episode.error
        ),
    }


def _write_router(log: Log, fate: Course) -> None:
    """Write how the router gives its only worker up."""
    api, _ = vllm_processes(log.script.plan)
    at_s = fate.strikes_s + 1.2
    stamp = f"{log.script.plan.clock(at_s):%Y-%m-%d %H:%M:%S}"
    place = (
        "\x1b[2mvllm_router_rs::core::worker\x1b[0m\x1b[2m:\x1b[0m \x1b[2msrc/core/worker.rs\x1b[0m\x1b[2m:\x1b[0m210:"
    )
    complaint = f"worker http://localhost:{log.script.plan.engine_port} unhealthy"
    log.raw(at_s, f"\x1b[2m{stamp}\x1b[0m \x1b[33m WARN\x1b[0m {place} {complaint}")
    for index in range(4):
        answer = f'({api}) INFO:     127.0.0.1:{41000 + index} - "POST /inference/v1/generate HTTP/1.1" 500'
        log.raw(at_s + index / 10, f"{answer} Internal Server Error")
