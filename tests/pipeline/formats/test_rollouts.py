"""Rollouts of both record shapes."""

from __future__ import annotations

import json
import tarfile
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.events import Rollout
from pipeline.formats import metric_rows, rollouts
from pipeline.formats.jsonl import JsonLines
from pipeline.times import EPOCH

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.formats.rollouts import Kind

ARCHIVE = Path(__file__).parents[3].parent / "shared" / "golden.tar.gz"
ERAS = pytest.mark.parametrize("era", ["trace-era", "episode-era"])
BEFORE = datetime(2026, 8, 19, tzinfo=UTC)
START = 1787140000.0
STARTED = datetime(2026, 8, 19, 11, 46, 40, tzinfo=UTC)
TRUNCATING = {"max_turns", "max_input_tokens", "max_output_tokens", "max_total_tokens", "context_length"}


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack what the real programs wrote."""
    if not ARCHIVE.exists():
        pytest.skip("the golden data is not beside the project")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(path := tmp_path_factory.mktemp("golden"), filter="data")
    return path / "golden"


def trace(**fields: object) -> dict[str, Any]:
    """Make a trace that went well, with *fields* other than usual."""
    call = {"finish_reason": "stop", "usage": {"completion_tokens": 7}, "error": None}
    return {
        "version": 1,
        "id": "9f",
        "agent": {"name": "agent", "trainable": True},
        "tools": [],
        "nodes": [{"message": {"content": 'a "quote": [] {"id": "µ'}, "sampled": True, "token_ids": [1, 2]}],
        "calls": [call, call],
        "rewards": {"correct": {"score": 1.0, "weight": 0.5}, "format": None},
        "info": {"env_name": "math", "group_id": "g1", "policy_version": 40},
        "ok": True,
        "stop_condition": "agent_completed",
        "errors": [],
        "timing": {"start": START, "agent": {"start": START, "end": START + 2}, "scoring": {"start": 0.0, "end": 0.0}},
    } | fields


def episode(*traces: dict[str, Any], **fields: object) -> dict[str, Any]:
    """Make an episode that went well, with *fields* other than usual."""
    work = {"type": "train", "step": 2, "policy": {"start": 39, "end": 40}}
    return {
        "id": "e1",
        "env": {"id": "math-env", "name": "math"},
        "group": {"id": "g1"},
        "run": {"type": "train", "id": "r", "work": work},
        "ok": True,
        "errors": [],
        "traces": list(traces),
    } | fields


def parse(record: dict[str, Any] | bytes, kind: Kind = "train") -> list[Rollout] | None:
    """Parse a record of the file of step 42."""
    line = record if isinstance(record, bytes) else json.dumps(record, separators=(",", ":")).encode()
    return rollouts.parse(line, source="traces.jsonl", offset=90, kind=kind, step=42, previous=BEFORE)


def only(record: dict[str, Any] | bytes) -> Rollout:
    """Parse a record that holds one rollout."""
    found = parse(record)
    assert found is not None
    assert len(found) == 1
    return found[0]


def error(kind: str, message: str = "it failed") -> dict[str, Any]:
    """Make the record of an error."""
    return {"type": kind, "message": message, "status_code": None, "traceback": "…"}


def test_a_trace() -> None:
    """A trace of its own is one rollout, with its place and what is derived from it."""
    assert only(trace()) == Rollout(
        time=STARTED + timedelta(seconds=2),
        source="traces.jsonl",
        offset=90,
        kind="train",
        step=42,
        env="math",
        agent="agent",
        ok=True,
        reward=0.5,
        turns=2,
        tokens=14,
        policy_version=40,
        group="g1",
    )


def test_an_episode_is_a_rollout_for_each_trace() -> None:
    """The traces of an episode share its environment, group and policy, and are told apart by their index."""
    found = parse(episode(trace(info={}), trace(info={}, agent={"name": "critic"})))
    assert found is not None
    assert [(rollout.index, rollout.agent) for rollout in found] == [(0, "agent"), (1, "critic")]
    assert {(rollout.env, rollout.group, rollout.policy_version, rollout.step) for rollout in found} == {
        ("math", "g1", 39, 42)
    }


def test_an_episode_without_a_trace_counts_as_one() -> None:
    """An episode that failed before any trace is a failed rollout, of the time of the record before."""
    failed = only(episode(ok=False, errors=[error("RuntimeError", "env server request failed")], env={"id": "math"}))
    assert (failed.ok, failed.error, failed.message) == (False, "RuntimeError", "env server request failed")
    assert (failed.env, failed.time, failed.reward) == ("math", BEFORE, None)


def test_an_evaluation_within_a_training_run() -> None:
    """An episode says itself whether it is an evaluation; where it does not, its directory does."""
    work = {"type": "eval", "step": 40}
    assert only(episode(trace(), run={"type": "train", "work": work})).kind == "eval"
    assert only(episode(trace(), run={"type": "eval"})).kind == "train"
    assert [rollout.kind for rollout in parse(trace(), kind="eval") or []] == ["eval"]


def test_ok_is_the_verdict() -> None:
    """Errors of a rollout that went well in the end are history; of one that failed the last one counts."""
    assert only(trace(errors=[error("ProviderError")])).error is None
    failed = only(trace(ok=False, errors=[error("ProviderError"), error("TaskError", "task setup: KeyError")]))
    assert (failed.ok, failed.error, failed.message) == (False, "TaskError", "task setup: KeyError")
    assert only(trace(ok=False)).error is None


def test_an_episode_that_failed_by_itself() -> None:
    """An episode with an error of its own fails with its traces; one with a failed trace only by that."""
    found = parse(episode(trace(), trace(), ok=False, errors=[error("EnvError")]))
    assert [(rollout.ok, rollout.error) for rollout in found or []] == [(False, "EnvError")] * 2
    found = parse(episode(trace(), trace(ok=False, errors=[error("TaskError")]), ok=False))
    assert [(rollout.ok, rollout.error) for rollout in found or []] == [(True, None), (False, "TaskError")]
    assert only(episode(trace(), errors=[error("TimeoutError")])).ok


def test_a_cancelled_rollout_is_marked() -> None:
    """What the run withdrew itself is neither a success nor a failure."""
    cancelled = only(trace(ok=False, errors=[error("Cancelled", "Off-policy cancel")], calls=[], nodes=[], timing=None))
    assert cancelled.cancelled
    assert cancelled.time == BEFORE
    assert not only(trace(ok=False, errors=[error("TaskError")])).cancelled


@pytest.mark.parametrize("stop", sorted(TRUNCATING))
def test_a_limit_truncates(stop: str) -> None:
    """A rollout that ran into a limit is truncated."""
    assert only(trace(stop_condition=stop)).truncated


def test_the_last_answer_truncates() -> None:
    """A rollout whose last answer was cut is truncated; calls that failed do not count."""
    cut, full = {"finish_reason": "length"}, {"finish_reason": "stop"}
    refused = {"finish_reason": None, "error": error("ProviderError")}
    assert only(trace(calls=[full, cut, refused])).truncated
    assert not only(trace(calls=[cut, full])).truncated
    assert only(trace(calls=[full, cut, refused])).turns == 2


@pytest.mark.parametrize(
    ("rewards", "reward"),
    [
        ({}, 0.0),
        ({"a": None}, 0.0),
        ({"a": {"score": 0.25, "weight": 0.5}, "b": {"score": -3, "weight": 1}}, -2.875),
        ({"a": {"score": None, "weight": 1.0}, "b": {"score": 1.0, "weight": 1.0}}, None),
        ({"a": {"score": 1e308, "weight": 10.0}}, None),
    ],
)
def test_rewards_are_summed_by_weight(rewards: dict[str, Any], reward: float | None) -> None:
    """The reward is the weighted sum of the functions that ran, and unknown where one gave no number."""
    assert only(trace(rewards=rewards)).reward == reward


@pytest.mark.parametrize(
    ("timing", "seconds"),
    [
        ({"start": START, "agent": {"end": START + 2}, "scoring": {"end": START + 3.0009}}, 3.0),
        ({"start": START, "agent": {"end": START + 2}, "finalize": {"start": 0.0, "end": 0.0}}, 2.0),
        ({"start": START, "scoring": {"end": 0.0}}, 0.0),
    ],
)
def test_a_rollout_happens_when_it_ends(timing: dict[str, Any], seconds: float) -> None:
    """A rollout's time is the end of the last phase it reached, else its start."""
    assert only(trace(timing=timing)).time == STARTED + timedelta(seconds=seconds)


@pytest.mark.parametrize("timing", [None, {}, {"start": 0.0}, {"start": 1e300}, {"start": -1e300}])
def test_a_rollout_without_a_time_has_that_of_the_one_before(timing: dict[str, Any] | None) -> None:
    """A rollout that does not say when it was has the time of the record before it."""
    assert only(trace(timing=timing)).time == BEFORE


def test_a_message_is_clean() -> None:
    """A message loses its control codes, whatever hides in it, and what is too long."""
    text = "a\x1b[31mb\x1b[0m\x00c\nd\te\u202ef\x1b]0;title\x07g" + "x" * 1000
    failed = only(trace(ok=False, errors=[error("T\x1b[2J\rype", text)]))
    assert failed.message.startswith("ab c d e fgx")
    assert len(failed.message) == 300
    assert failed.error == "T ype"


def test_a_record_behind_a_torn_one_is_found() -> None:
    """Wherever the first of two glued records was torn, the second is read and nothing of the first."""
    second = json.dumps(trace(ok=False, info={"env_name": "second"}), separators=(",", ":")).encode()
    first = json.dumps(trace(info={"env_name": "first"}), separators=(",", ":")).encode()
    for length in range(1, len(first) + 1):
        found = only(first[:length] + second)
        assert (found.env, found.ok, found.offset) == ("second", False, 90 + length)


def test_an_episode_behind_a_torn_one_is_found() -> None:
    """The same holds for episodes, in which many objects begin as a record does."""
    second = json.dumps(episode(trace(), env={"id": "second"}, ok=True), separators=(",", ":")).encode()
    first = json.dumps(episode(trace(), trace(ok=False)), separators=(",", ":")).encode()
    for length in range(1, len(first) + 1):
        found = only(first[:length] + second)
        assert (found.env, found.offset) == ("second", 90 + length)


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
@pytest.mark.parametrize("order", [1, -1])
def test_neither_order_nor_spaces_matter(separators: tuple[str, str], order: int) -> None:
    """Records are read alike whatever the order of their fields, and with spaces between them."""
    for record in (trace(), episode(trace(), trace(ok=False, errors=[error("TaskError")]))):
        turned = dict(list(record.items())[::order])
        assert parse(json.dumps(turned, separators=separators).encode()) == parse(record)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        b"[]",
        b'{"ok":true}',
        b'{"ok":"yes","calls":[]}',
        b'{"reward":1.0,"completion":"old record"}',
        b"\xff" * 20,
        b"\0" * 20,
        b'{"ok":true,"calls":' + b"[" * 100_000,
        b'{"ok":true,"calls":[],"info":{"policy_version":' + b"9" * 400 + b"}}",
        b'{"ok":true,"calls":[],"stop_condition":"\\ud800"}',
        b'{"ok":true,"calls":[],"stop_condition":"\xff"}',
        b'{"ok":true,"calls":[],"timing":{"start":1e999}}',
    ],
    ids=range(13),
)
def test_an_unknown_shape(line: bytes) -> None:
    """What has no known shape yields nothing, so that the source can say that it is blind."""
    assert parse(line) is None


@given(st.binary(max_size=60), st.integers(0, 400))
def test_no_bytes_raise(data: bytes, place: int) -> None:
    """Whatever stands on a line, parsing it does not raise."""
    line = json.dumps(episode(trace()), separators=(",", ":")).encode()
    parse(data)
    parse(line[:place] + data + line[place:])


def read(path: Path, kind: Kind = "train", step: int = 1) -> list[Rollout]:
    """Parse every whole line of a file."""
    found: list[Rollout] = []
    for line in JsonLines().feed(path.read_bytes()):
        records = rollouts.parse(line.data, source="t", offset=line.offset, kind=kind, step=step, previous=EPOCH)
        assert records is not None
        found += records
    return found


def rollout_files(golden: Path, era: str, subset: str) -> list[tuple[Path, Kind, int]]:
    """Name the files of a real run, with what their directories say."""
    paths = sorted((golden / era / "run" / "rollouts").glob(f"step_*/*/{subset}/traces.jsonl"))
    assert paths
    return [
        (path, "eval" if path.parts[-3] == "eval" else "train", int(path.parts[-4].removeprefix("step_")))
        for path in paths
    ]


@ERAS
def test_golden_means_are_the_orchestrators(golden: Path, era: str) -> None:
    """Of each real batch, the means over its rollouts are exactly those that the orchestrator wrote."""
    reported: dict[int, dict[str, float]] = {}
    for line in JsonLines().feed((golden / era / "run" / "metrics.jsonl").read_bytes()):
        row = metric_rows.parse(line.data, line.offset, "m")
        if row and row.writer == "orchestrator":
            reported[row.step] = row.values
    compared = 0
    for path, kind, step in rollout_files(golden, era, "effective"):
        agents: dict[str, list[Rollout]] = defaultdict(list)
        for rollout in read(path, kind, step):
            agents[rollout.agent or ""].append(rollout)
        for agent, found in agents.items() if kind == "train" else ():
            prefix = f"train/agg/effective/{agent}"
            derived: dict[str, Sequence[float | None]] = {
                "reward": [rollout.reward for rollout in found],
                "is_truncated": [rollout.truncated for rollout in found],
                "num_turns": [rollout.turns for rollout in found],
                "num_output_tokens": [rollout.tokens for rollout in found],
            }
            for key, values in derived.items():
                mean = sum(value or 0.0 for value in values) / len(values)
                assert mean == pytest.approx(reported[step][f"{prefix}/{key}/mean"], abs=1e-12), (path, key)
                compared += 1
    assert compared >= 50


@ERAS
def test_golden_counts_and_errors(golden: Path, era: str) -> None:
    """In every real file there are as many rollouts and as many failed ones as plain JSON says."""
    for path, kind, step in rollout_files(golden, era, "all"):
        records = [json.loads(line) for line in path.read_bytes().splitlines()]
        traces = [one for record in records for one in (record.get("traces", [record]) or [record])]
        found = read(path, kind, step)
        assert [rollout.ok for rollout in found] == [one["ok"] for one in traces]
        failed = [one["errors"][-1]["type"] if one["errors"] else None for one in traces if not one["ok"]]
        assert [rollout.error for rollout in found if not rollout.ok] == failed
        assert {(rollout.kind, rollout.step) for rollout in found} == {(kind, step)}
        assert all(rollout.env and rollout.policy_version is not None and rollout.group for rollout in found)
        assert all(rollout.time > EPOCH for rollout in found)


@ERAS
def test_golden_corner_cases(golden: Path, era: str) -> None:
    """Each corner case that the real library can write is judged rightly."""
    path = golden / era / "extra-records" / "rollouts" / "step_7" / "train" / "all" / "traces.jsonl"
    records = [json.loads(line) for line in path.read_bytes().splitlines()]
    names = [
        one.get("info", {}).get("golden_case")
        for record in records
        for one in (record.get("traces", [record]) or [record])
    ]
    found = read(path)
    assert len(found) == len(names)
    cases = {name: rollout for name, rollout in zip(names, found, strict=True) if name}
    assert {name for name, rollout in cases.items() if rollout.truncated} == {
        name for name in cases if name.startswith("truncated-")
    }
    assert cases["retried-then-ok"].ok
    assert cases["nan-reward"].reward is None
    assert cases["several-rewards-negative"].reward == pytest.approx(0.25 * 0.5 + 0.2 - 3.0)
    assert (cases["no-nodes"].turns, cases["long-graph-40-turns-2-branches"].turns) == (0, 40)
    assert (cases["not-completed-no-errors"].ok, cases["not-completed-no-errors"].error) == (False, None)
    assert (cases["task-reward"].error, cases["task-reward"].reward) == ("TaskError", 0.0)
    assert cases["sandbox"].error == "SandboxError"
    assert cases["multiline-ansi-unicode-message"].message.isprintable()


@ERAS
@pytest.mark.parametrize("name", ["cut-mid-line", "cut-before-newline", "cut-inside-utf8"])
def test_golden_cut_files(golden: Path, era: str, name: str) -> None:
    """Of a real file that was cut, the whole lines are read and the rest waits; forced, it is unreadable or whole."""
    path = golden / era / "extra-records" / "partial" / f"traces-{name}.jsonl"
    data = path.read_bytes()
    assert len(read(path)) == data.count(b"\n")
    rest = parse(data[data.rindex(b"\n") + 1 :])
    assert (rest is not None) == (name == "cut-before-newline")
