"""
Rows of `metrics.jsonl`, which trainer, orchestrator and evaluator share.

A row does not say who wrote it: its keys do. Values that are not finite are left
out by the writer, so an absent key may be a NaN.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from pipeline.events import Metrics
from pipeline.formats import jsonl
from pipeline.times import from_epoch

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime

Writer: TypeAlias = Literal["trainer", "orchestrator", "evaluator"]
_Value: TypeAlias = float | bool | str | list[Any] | dict[str, Any] | None

_DECODER = msgspec.json.Decoder(dict[str, _Value])
_START = re.compile(rb'\{"step"')
_TRAINER_KEYS = frozenset({"time/wait_for_batch", "time/forward_backward"})
_ORCHESTRATOR_KEYS = frozenset({"progress/total_tasks", "time/wait_for_policy"})
_ORCHESTRATOR_PREFIXES = ("train/", "eval/", "batch/", "curriculum/", "off_policy/")
_LARGEST_STEP = 2**53


def parse(line: bytes, offset: int, source: str) -> Metrics | None:
    """
    Return the row on *line*, which begins at *offset* of *source*; `None` if it cannot be read.

    After a torn head that was dropped, the event's offset lies beyond *offset*.
    """
    found = jsonl.decode(line, _DECODER, _START)
    if found is None:
        return None
    dropped, row = found
    step, time = _step(row.pop("step", None)), _time(row.pop("time", None))
    if step is None or time is None:
        return None
    writer = _writer(row.keys())
    return Metrics(
        time=time,
        source=source,
        offset=offset + dropped,
        writer=writer,
        step=step,
        values={key: value for key, value in row.items() if isinstance(value, float)},
        completes=writer != "trainer" or ("time/step" in row and not _TRAINER_KEYS.isdisjoint(row)),
    )


def _step(value: _Value) -> int | None:
    """Return a step, which rows of evaluations write as a float."""
    if isinstance(value, float) and 0 <= value <= _LARGEST_STEP and value.is_integer():
        return int(value)
    return None


def _time(value: _Value) -> datetime | None:
    try:
        return from_epoch(value) if isinstance(value, float) else None
    except (ValueError, OverflowError, OSError):
        return None


def _writer(keys: Collection[str]) -> Writer:
    if not _TRAINER_KEYS.isdisjoint(keys):
        return "trainer"
    if keys and all(key.startswith("eval/") for key in keys):
        return "evaluator"
    if not _ORCHESTRATOR_KEYS.isdisjoint(keys) or any(key.startswith(_ORCHESTRATOR_PREFIXES) for key in keys):
        return "orchestrator"
    return "trainer"
