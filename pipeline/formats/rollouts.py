"""
Records of `traces.jsonl`: a trace a line, or an episode with its traces a line.

The shape is told by the line (`traces` or not), since a run that was resumed after
an upgrade has both. Only the wanted fields are decoded: a line can be megabytes of
token ids and messages.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from pipeline.events import Rollout
from pipeline.formats import jsonl
from pipeline.times import from_epoch

if TYPE_CHECKING:
    from datetime import datetime

Kind: TypeAlias = Literal["train", "eval"]

MESSAGE_CHARACTERS = 300
_KINDS: dict[str | None, Kind] = {"train": "train", "eval": "eval"}
_NAME_CHARACTERS = 100
_TRUNCATED = frozenset({"max_turns", "max_input_tokens", "max_output_tokens", "max_total_tokens", "context_length"})
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])")
# also what turns the direction of text round or hides in it
_CONTROLS = re.compile(r"[\x00-\x20\x7f-\xa0\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]+")

_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class _Error(msgspec.Struct, frozen=True):
    type: str | None = None
    message: str | None = None


class _Usage(msgspec.Struct, frozen=True):
    completion_tokens: _Count | None = None


class _Call(msgspec.Struct, frozen=True):
    finish_reason: str | None = None
    usage: _Usage | None = None
    error: _Error | None = None


class _Reward(msgspec.Struct, frozen=True):
    score: float | None = None
    weight: float | None = 1.0


class _Phase(msgspec.Struct, frozen=True):
    end: float | None = None


class _Timing(msgspec.Struct, frozen=True):
    """When the phases ended, seconds since the epoch; 0.0 if they were not reached."""

    start: float | None = None
    boot: _Phase | None = None
    setup: _Phase | None = None
    agent: _Phase | None = None
    finalize: _Phase | None = None
    scoring: _Phase | None = None


class _Agent(msgspec.Struct, frozen=True):
    name: str | None = None


class _Info(msgspec.Struct, frozen=True):
    env_name: str | None = None
    group_id: str | None = None
    policy_version: _Count | None = None


class _Trace(msgspec.Struct, frozen=True):
    ok: bool
    agent: _Agent | None = None
    calls: list[_Call] | UnsetType = UNSET
    rewards: dict[str, _Reward | None] | None = None
    info: _Info | None = None
    stop_condition: str | None = None
    errors: list[_Error] = []
    timing: _Timing | None = None


class _Policy(msgspec.Struct, frozen=True):
    start: _Count | None = None


class _Work(msgspec.Struct, frozen=True):
    type: str | None = None
    policy: _Policy | None = None


class _Run(msgspec.Struct, frozen=True):
    work: _Work | None = None


class _Named(msgspec.Struct, frozen=True):
    id: str | None = None
    name: str | None = None


class _Record(_Trace, frozen=True):
    """Either shape: `traces` is there in an episode only, `calls` in a trace only."""

    traces: list[_Trace] | UnsetType = UNSET
    env: _Named | None = None
    group: _Named | None = None
    run: _Run | None = None


class _Place(NamedTuple):
    """What the rollouts of one line have in common."""

    source: str
    offset: int
    kind: Kind
    step: int
    env: str
    group: str | None
    policy_version: int | None


_DECODER = msgspec.json.Decoder(_Record)
_START = re.compile(rb'\{"(?:version|id)"')
_NODES, _CALLS = b'"nodes":[', b'],"calls":['


def parse(  # noqa: PLR0913 (what a line does not say of its place)
    line: bytes, *, source: str, offset: int, kind: Kind, step: int, previous: datetime
) -> list[Rollout] | None:
    """
    Return the rollouts on *line*; `None` if it has no known shape.

    *kind* and *step* are those of the file's directory, *previous* is the time of the
    record before this one: a record without times of its own gets it. After a torn
    head that was dropped, the events' offset lies beyond *offset*.
    """
    found = _decode(line)
    if found is None:
        return None
    dropped, record = found
    if record.traces is UNSET:
        return [_rollout(_trace_place(record, source, offset + dropped, kind, step), 0, record, [], previous)]
    place = _episode_place(record, source, offset + dropped, kind, step)
    if not record.traces:
        return [_rollout(place, 0, _Trace(ok=record.ok, errors=record.errors), [], previous)]
    return [_rollout(place, index, trace, _blame(record), previous) for index, trace in enumerate(record.traces)]


def _decode(line: bytes) -> tuple[int, _Record] | None:
    try:
        found: tuple[int, _Record] | None = (0, _DECODER.decode(_without_nodes(line)))
    except jsonl.MALFORMED:
        found = jsonl.decode(line, _DECODER, _START)
    if found is None or (found[1].traces is UNSET and found[1].calls is UNSET):
        return None
    return found


def _without_nodes(line: bytes) -> bytes:
    """
    Cut the nodes of each trace out: most of the bytes, and nothing that is wanted.

    The needles cannot occur in a string: its quotes would be escaped. Where a second
    array of nodes begins before the first one's calls, two records were torn and
    glued, and the line is left as it is.
    """
    parts: list[bytes] = []
    begin = 0
    while (start := line.find(_NODES, begin)) >= 0:
        start += len(_NODES)
        stop = line.find(_CALLS, start)
        if stop < 0 or line.find(_NODES, start, stop) >= 0:
            return line
        parts.append(line[begin:start])
        begin = stop
    return b"".join([*parts, line[begin:]])


def _trace_place(record: _Record, source: str, offset: int, kind: Kind, step: int) -> _Place:
    info = record.info or _Info()
    return _Place(source, offset, kind, step, _clean(info.env_name), info.group_id, info.policy_version)


def _episode_place(record: _Record, source: str, offset: int, kind: Kind, step: int) -> _Place:
    env, group = record.env or _Named(), record.group or _Named()
    work = (record.run.work if record.run else None) or _Work()
    version = work.policy.start if work.policy else None
    return _Place(source, offset, _KINDS.get(work.type, kind), step, _clean(env.name or env.id), group.id, version)


def _blame(episode: _Record) -> list[_Error]:
    """Return the errors of an episode that failed although each of its traces is fine."""
    fine = isinstance(episode.traces, list) and all(trace.ok for trace in episode.traces)
    return episode.errors if fine and not episode.ok else []


def _rollout(place: _Place, index: int, trace: _Trace, blame: list[_Error], previous: datetime) -> Rollout:
    calls = trace.calls or []
    answered = [call for call in calls if call.error is None]
    ok = trace.ok and not blame
    last = None if ok else next(reversed(trace.errors or blame), None)
    return Rollout(
        time=_ended(trace.timing) or previous,
        index=index,
        ok=ok,
        agent=trace.agent.name if trace.agent else None,
        cancelled=last is not None and last.type == "Cancelled",
        error=_clean(last.type) or None if last else None,
        message=_clean(last.message, MESSAGE_CHARACTERS) if last else "",
        reward=_reward(trace.rewards),
        truncated=trace.stop_condition in _TRUNCATED or (bool(answered) and answered[-1].finish_reason == "length"),
        turns=len(answered),
        tokens=sum(call.usage.completion_tokens or 0 for call in calls if call.usage),
        **place._asdict(),
    )


def _ended(timing: _Timing | None) -> datetime | None:
    """Return when the last phase that was reached ended, else when the first began."""
    if timing is None:
        return None
    phases = (timing.scoring, timing.finalize, timing.agent, timing.setup, timing.boot)
    ends = [phase.end for phase in phases if phase and phase.end]
    try:
        return from_epoch(end) if (end := next(iter(ends), timing.start)) else None
    except (ValueError, OverflowError, OSError):
        return None


def _reward(rewards: dict[str, _Reward | None] | None) -> float | None:
    """Return the weighted sum; `None` where a score is missing: it was not a finite number."""
    if rewards is None:
        return None
    terms = [
        math.nan if reward.score is None or reward.weight is None else reward.score * reward.weight
        for reward in rewards.values()
        if reward is not None
    ]
    total = sum(terms)
    return total if math.isfinite(total) else None


def _clean(text: str | None, characters: int = _NAME_CHARACTERS) -> str:
    """Take control codes out and cut: it may be text of the model or of user code."""
    return _CONTROLS.sub(" ", _ESCAPES.sub("", (text or "")[: 10 * characters])).strip()[:characters]
