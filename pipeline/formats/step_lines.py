"""
The line that a component prints at the end of a step, and what it left out of `metrics.jsonl`.

    Step 17 |   48.2s | Loss 0.0031 | Entropy 0.4120 | …                       trainer
    Step 18 |   51.7s | Reward 0.4375 | Trainable 112/128 (87.5%) | …          orchestrator
    Evaluated aime25 (Step 20) | Policy v20 |  3m 2s | Reward 0.5313 | …       either's evaluation

Until v0.5 the labels had a colon (`Time: 48.20s | Loss: 0.0031`).
"""

from __future__ import annotations

import re
from typing import Final, Literal, TypeAlias

import msgspec

Writer: TypeAlias = Literal["trainer", "orchestrator", "evaluator"]


class StepLine(msgspec.Struct, frozen=True, kw_only=True):
    """What a step line says."""

    writer: Writer
    step: int
    values: dict[str, float]
    """By the key of `metrics.jsonl`; not a number and infinite where the line says so."""
    env: str | None = None
    """What was evaluated."""


_STEP = re.compile(r"Step (\d{1,12})$", re.ASCII)
_EVALUATED = re.compile(r"Evaluated (\S{1,200}) \(Step (\d{1,12})\)$", re.ASCII)
_CELL = re.compile(
    r"([A-Z][A-Za-z. -]{1,30}?):? +(-?\d{1,30}(?:\.\d{1,30})?(?:e[+-]?\d{1,3})?|nan|-?inf)\b(%?)",
    re.ASCII | re.IGNORECASE,
)
_DURATION = re.compile(r"(?:Time:? +)?((?:\d{1,12}(?:\.\d{1,12})?(?:ms|[smhd])(?: +|$)){1,4})$", re.ASCII)
_PART = re.compile(r"([\d.]+)(ms|[smhd])", re.ASCII)
_UNIT_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_DROPPED = re.compile(r"Dropping \d+ non-finite value\(s\) from [^:\n]+: (.+)")
_KEY = re.compile(r"[\w./@^+:-]{1,300}")

_TRAINER_KEYS: Final = {
    "loss": "loss/mean",
    "entropy": "entropy/all/mean",
    "mismatch kl": "mismatch_kl/all/mean",
    "grad. norm": "optim/grad_norm",
    "throughput": "perf/throughput",
}
_AGENT_KEYS: Final = {
    "reward": "{scope}/effective/agent/reward/mean",
    "truncation": "{scope}/effective/agent/is_truncated/mean",
    "error": "{scope}/all/agent/has_error/mean",
}


def parse(text: str) -> StepLine | None:
    """Return what *text*, the message of a record, says of a step; `None` if it is no step line."""
    if not text.startswith(("Step ", "Evaluated ")):
        return None
    first, *cells = (cell.strip() for cell in text.partition("\n")[0].split(" | "))
    if evaluated := _EVALUATED.match(first):
        env = evaluated[1]
        values = _values(cells, f"eval/{env}")
        # the time of an evaluation is not the time of a step
        values.pop("time/step", None)
        return StepLine(writer="evaluator", step=int(evaluated[2]), values=values, env=env)
    step = _STEP.match(first)
    if step is None:
        return None
    values = _values(cells, "train/agg")
    if "loss/mean" in values:
        return StepLine(writer="trainer", step=int(step[1]), values=values)
    if _AGENT_KEYS["reward"].format(scope="train/agg") in values:
        return StepLine(writer="orchestrator", step=int(step[1]), values=values)
    return None


def dropped(text: str) -> list[str]:
    """Return the keys that *text* says were left out of `metrics.jsonl`, being no numbers."""
    match = _DROPPED.match(text)
    return [key for key in match[1].split(", ") if _KEY.fullmatch(key)] if match else []


def _values(cells: list[str], scope: str) -> dict[str, float]:
    values: dict[str, float] = {}
    for cell in cells:
        if duration := _DURATION.match(cell):
            values.setdefault("time/step", _seconds(duration[1]))
        elif match := _CELL.match(cell):
            label, number, percent = match.groups()
            if key := _TRAINER_KEYS.get(label.lower()) or _AGENT_KEYS.get(label.lower()):
                values[key.format(scope=scope)] = float(number) / 100 if percent else float(number)
    return values


def _seconds(duration: str) -> float:
    return sum(float(number) * _UNIT_S[unit] for number, unit in _PART.findall(duration))
