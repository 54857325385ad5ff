"""Rows of `metrics.jsonl`: who wrote them, and what they say."""

from __future__ import annotations

import json
import tarfile
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.events import Metrics
from pipeline.formats import metric_rows
from pipeline.formats.jsonl import JsonLines

ARCHIVE = Path(__file__).parents[3].parent / "shared" / "golden.tar.gz"
TIME = 1787140000.1239
WRITERS = ("trainer", "orchestrator", "evaluator")


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack what the real programs wrote."""
    if not ARCHIVE.exists():
        pytest.skip("the golden data is not beside the project")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(path := tmp_path_factory.mktemp("golden"), filter="data")
    return path / "golden"


def parse(**fields: object) -> Metrics | None:
    """Parse a row with these keys besides step and time."""
    row = {"step": 17, "time": TIME} | fields
    return metric_rows.parse(json.dumps(row).encode(), 40, "metrics.jsonl")


def test_a_row_is_an_event() -> None:
    """A row's event has its place, its time in whole milliseconds, and its numbers."""
    row = parse(**{"time/step": 48.2, "time/forward_backward": 33})
    assert row == Metrics(
        time=datetime(2026, 8, 19, 11, 46, 40, 123000, UTC),
        source="metrics.jsonl",
        offset=40,
        writer="trainer",
        step=17,
        values={"time/step": 48.2, "time/forward_backward": 33.0},
        completes=True,
    )


@pytest.mark.parametrize(
    ("keys", "writer", "completes"),
    [
        (["time/step", "time/wait_for_batch"], "trainer", True),
        (["time/step", "time/forward_backward"], "trainer", True),
        (["optim/grad_norm"], "trainer", False),
        (["system/ckpt_disk_free_ratio"], "trainer", False),
        (["time/step"], "trainer", False),
        ([], "trainer", False),
        (["progress/epoch", "progress/num_tokens"], "trainer", False),
        (["time/step", "time/wait_for_policy"], "orchestrator", True),
        (["progress/total_tasks", "time/step"], "orchestrator", True),
        (["train/math/all/num_turns/mean", "time/step"], "orchestrator", True),
        (["off_policy/mean"], "orchestrator", True),
        (["eval/aime/effective/agent/reward/mean", "eval/aime/policy_version"], "evaluator", True),
    ],
)
def test_keys_tell_the_writer(keys: list[str], writer: str, completes: bool) -> None:
    """Who wrote a row, and whether it says that a step is done, is told by its keys."""
    row = parse(**dict.fromkeys(keys, 1.0))
    assert row is not None
    assert (row.writer, row.completes) == (writer, completes)


def test_what_is_no_number_is_ignored() -> None:
    """Values other than numbers are left out, truth values among them."""
    row = parse(a=1, b=True, c=None, d="x", e=[1], f={"g": 1}, h=10**18)
    assert row is not None
    assert row.values == {"a": 1.0, "h": 1e18}


@pytest.mark.parametrize("step", [-1, 1.5, None, "3", True, 1e300, [1]])
def test_a_row_needs_a_step(step: object) -> None:
    """A row without a whole step cannot be read."""
    assert parse(step=step) is None


@pytest.mark.parametrize("time", [None, "now", True, 1e300, -1e300, 2**70])
def test_a_row_needs_a_time(time: object) -> None:
    """A row without a time of this era cannot be read."""
    assert parse(time=time) is None


def test_the_step_of_an_evaluation_is_whole() -> None:
    """A step that was written as a float is the same step."""
    row = parse(step=4.0)
    assert row is not None
    assert row.step == 4


def test_a_torn_head_moves_the_offset() -> None:
    """Behind a torn row the next one's is read, and its offset is where it begins."""
    head = b'{"step": 5, "time": 17871400'
    row = metric_rows.parse(head + b'{"step": 6, "time": 1787140001.0, "loss/mean": 0.5}', 40, "metrics.jsonl")
    assert row is not None
    assert (row.step, row.offset, row.values) == (6, 40 + len(head), {"loss/mean": 0.5})


@given(st.binary(max_size=80))
def test_no_bytes_raise(data: bytes) -> None:
    """Whatever stands on a line, parsing it does not raise."""
    metric_rows.parse(data, 0, "metrics.jsonl")
    metric_rows.parse(b'{"step":1,"time":1' + data + b"}", 0, "metrics.jsonl")


@pytest.mark.parametrize("era", ["trace-era", "episode-era"])
def test_golden_rows(golden: Path, era: str) -> None:
    """Every real row is read, and of each writer exactly one row completes each time a step was done."""
    data = (golden / era / "run" / "metrics.jsonl").read_bytes()
    rows = [metric_rows.parse(line.data, line.offset, "metrics.jsonl") for line in JsonLines().feed(data)]
    assert None not in rows
    assert len(rows) == data.count(b"\n")
    found = [row for row in rows if row]
    assert [row.offset for row in found] == sorted(row.offset for row in found)
    done = {writer: Counter(row.step for row in found if row.writer == writer and row.completes) for writer in WRITERS}
    assert done["trainer"] == Counter(range(1, 9))
    # two batches were ahead of the trainer when it died, and were collected again after the resume
    assert done["orchestrator"] == Counter([*range(1, 9), 5, 6])
    evaluations = 3 if era == "trace-era" else 2
    assert done["evaluator"] == Counter(dict.fromkeys((1, 4, 8), evaluations))
    steps = Counter(row.step for row in found if row.writer == "trainer")
    assert steps == Counter({step: 5 * times for step, times in done["trainer"].items()})


@pytest.mark.parametrize("era", ["trace-era", "episode-era"])
def test_golden_corner_cases(golden: Path, era: str) -> None:
    """Odd rows that the real monitor writes are read, and a cut one waits."""
    extra = golden / era / "extra-records"
    rows = [
        metric_rows.parse(line.data, line.offset, "m")
        for line in JsonLines().feed((extra / "metrics.jsonl").read_bytes())
    ]
    assert [row.step for row in rows if row] == [1, 2, 4, 5, 6]
    assert rows[4] is not None
    assert rows[4].values == {"odd/name with spaces/µ": 1.0, "big": 1e18, "tiny": 1e-300}
    lines = JsonLines()
    assert len(lines.feed((extra / "partial" / "metrics-cut-mid-line.jsonl").read_bytes())) == 4
    assert lines.offset < lines.fed_to


def test_golden_nan(golden: Path) -> None:
    """A loss that is not a number is absent from the real row, which is read all the same."""
    data = (golden / "scenarios" / "trainer-nan" / "run" / "metrics.jsonl").read_bytes()
    rows = [metric_rows.parse(line.data, line.offset, "m") for line in JsonLines().feed(data)]
    losses = {row.step: "loss/mean" in row.values for row in rows if row and "entropy/all/std" in row.values}
    assert losses[2] is True
    assert False in losses.values()
