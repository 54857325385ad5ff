"""The inference server: its log, and the metrics page of its engine."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from pipeline.simulator.faults import API_PID, ENGINE_PID, engine_dies
from pipeline.simulator.plan import LOGS, Fault, Plan
from pipeline.simulator.script import Log, Script
from pipeline.simulator.timeline import ENGINES_READY_S, SPAWNED_S, Course

if TYPE_CHECKING:
    from pipeline.simulator.episodes import Episode

ENDPOINT = "http://localhost:8100/metrics"
SCRAPE_S = 30.0
STATS_S = 10.0
API = f"APIServer pid={API_PID}"
ENGINE = f"EngineCore_DP0 pid={ENGINE_PID}"


def write_inference(script: Script, episodes: list[Episode], fate: Course) -> None:
    """Write what the engine and the server in front of it leave behind."""
    log = Log(script, f"{LOGS}/inference.log", fate.engines_s)
    log.open(SPAWNED_S - 1.0)
    _write_start(log)
    for episode in episodes:
        if not episode.error:
            port = 40000 + episode.task
            line = f'({API}) INFO:     127.0.0.1:{port} - "POST /inference/v1/generate HTTP/1.1" 200 OK'
            log.raw(episode.ended_s, line)
    _write_statistics(log, episodes)
    _write_samples(script, episodes, fate)
    last_words = Log(script, log.path, inf)
    if script.plan.fault is Fault.ENGINE_DEATH:
        engine_dies(last_words, fate.strikes_s)
        _write_router(last_words, fate)
    elif fate.verdict_s < inf:
        last_words.raw(
            fate.engines_s, _vllm(script.plan, fate.engines_s, API, "[shutdown] API server: shutdown triggered")
        )


def _vllm(plan: Plan, at_s: float, process: str, message: str, place: str = "loggers.py:310") -> str:
    return f"({process}) INFO {plan.clock(at_s):%m-%d %H:%M:%S} [{place}] {message}"


def _write_start(log: Log) -> None:
    plan = log.script.plan
    log.record(SPAWNED_S + 5, "INFO", "Starting router on http://0.0.0.0:8000/v1 (engine on port 8100)")
    for at_s, process, message in (
        (SPAWNED_S + 21, API, "vLLM API server version 0.26.0"),
        (SPAWNED_S + 27, ENGINE, "Starting to load model Qwen/Qwen3-0.6B..."),
        (SPAWNED_S + 36, ENGINE, "Loading weights took 3.41 seconds"),
        (SPAWNED_S + 48, ENGINE, "GPU KV cache size: 786,432 tokens"),
        (SPAWNED_S + 60, ENGINE, "init engine (profile, create kv cache, warmup model) took 24.10 seconds"),
    ):
        log.raw(at_s, _vllm(plan, at_s, process, message, "core.py:90"))
    log.raw(ENGINES_READY_S, f"({API}) INFO:     Application startup complete.")


def _busy(episodes: list[Episode], at_s: float) -> list[Episode]:
    return [episode for episode in episodes if episode.began_s <= at_s < episode.ended_s]


def _write_statistics(log: Log, episodes: list[Episode]) -> None:
    """Write the statistics line; an idle engine has none."""
    at_s = ENGINES_READY_S + STATS_S
    while at_s <= min(log.until_s, log.script.ends_s):
        busy = _busy(episodes, at_s)
        if busy:
            rate = sum(episode.tokens / (episode.ended_s - episode.began_s) for episode in busy)
            message = (
                f"Engine 000: Avg prompt throughput: {len(busy) * 12.7:.1f} tokens/s, "
                f"Avg generation throughput: {rate:.1f} tokens/s, Running: {len(busy)} reqs, Waiting: 0 reqs, "
                f"GPU KV cache usage: {len(busy) * 1.9:.1f}%, Prefix cache hit rate: 49.8%"
            )
            log.raw(at_s, _vllm(log.script.plan, at_s, API, message))
        at_s += STATS_S


def _write_samples(script: Script, episodes: list[Episode], fate: Course) -> None:
    """Write what a poller of the metrics page would have seen."""
    at_s = ENGINES_READY_S + 5.0
    while at_s <= min(script.ends_s, fate.engines_s):
        busy = len(_busy(episodes, at_s))
        answered = [episode for episode in episodes if episode.ended_s <= at_s and not episode.error]
        for name, value in {
            "num_requests_running": busy,
            "num_requests_waiting": 0,
            "kv_cache_usage_perc": round(busy * 0.019, 4),
            "num_preemptions_total": 0,
            "generation_tokens_total": sum(episode.tokens for episode in answered),
        }.items():
            labels = {"engine": "0", "model_name": "Qwen/Qwen3-0.6B"}
            script.event(at_s, "sample", endpoint=ENDPOINT, name=f"vllm:{name}", labels=labels, value=float(value))
        at_s += SCRAPE_S
    while at_s <= script.ends_s:
        script.event(at_s, "scrape_failed", endpoint=ENDPOINT, error="connection refused")
        at_s += SCRAPE_S


def _write_router(log: Log, fate: Course) -> None:
    """Write how the router gives its only worker up."""
    at_s = fate.strikes_s + 1.2
    stamp = f"{log.script.plan.clock(at_s):%Y-%m-%d %H:%M:%S}"
    place = (
        "\x1b[2mvllm_router_rs::core::worker\x1b[0m\x1b[2m:\x1b[0m \x1b[2msrc/core/worker.rs\x1b[0m\x1b[2m:\x1b[0m210:"
    )
    log.raw(at_s, f"\x1b[2m{stamp}\x1b[0m \x1b[33m WARN\x1b[0m {place} worker http://localhost:8100 unhealthy")
    for index in range(4):
        answer = f'({API}) INFO:     127.0.0.1:{41000 + index} - "POST /inference/v1/generate HTTP/1.1" 500'
        log.raw(at_s + index / 10, f"{answer} Internal Server Error")
