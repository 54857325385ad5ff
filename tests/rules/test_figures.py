"""The figures of a check-in: the last value of each, bounded, and whether it has spiked."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rules
from pipeline.config import Config, load_rules
from pipeline.events import Metrics, Sample
from pipeline.formats import metric_rows
from rules.figures import Figures
from rules.load import BadFile, decode
from rules.rows import Line, Source
from rules.rule_file import RuleFile
from rules.rulebook import Rulebook
from rules.state import State

NOON = datetime(2026, 8, 19, 12, tzinfo=UTC)
BUILTIN = (Path(rules.__file__).parent / "builtin" / "checkin.toml").read_text()
SHARED = Path(__file__).parents[2].parent / "shared"
LINES = """\
[[checkin_line]]
name = "reward"
section = "Progress"
label = "reward"
metric = ["train/agg/*/reward"]
most = 2

[[checkin_line]]
name = "eval"
section = "Progress"
label = "eval {1} avg@{3}"
metric = ["eval/*/*/avg@*"]
not = ["eval/hidden/*"]
step = true
optional = true

[[checkin_line]]
name = "norm"
section = "Stability"
label = "grad_norm"
metric = ["norm"]
format = "{:.2f}"
spike = 3.0

[[checkin_line]]
name = "step"
section = "Performance"
label = "step"
metric = ["time/step"]
writer = "trainer"
format = "{:.1f} s"

[[checkin_line]]
name = "wait"
section = "Performance"
label = "waits"
metric = ["time/wait"]
format = "{:.1f} s"
share_of = "step"

[[checkin_line]]
name = "queue"
section = "Performance"
label = "waiting"
sample = ["queue", "old_queue"]
format = "{:.0f}"

[[checkin_line]]
name = "cache"
section = "Performance"
label = "cache"
sample = ["cache"]
over = "max"
format = "{:.0%}"
"""


CLAUSES = """
[[checkin_clause]]
name = "long-queue"
section = "Performance"
text = "{queue} in the queue"
when = [{ line = "queue", above = 5.0 }]

[[checkin_clause]]
name = "waits"
section = "Performance"
text = "it waits {wait} of {step}, {queue} in the queue"
when = [{ line = "wait", share_of = "step", above = 0.5, below = 1.0 }]
"""


def made(text: str = LINES, state: State | None = None) -> tuple[Figures, State]:
    """Return figures of the lines of *text*, and the state they are in."""
    state = state or State()
    return Figures(state, Rulebook([decode(text, "lines.toml", RuleFile)])), state


def row(
    values: dict[str, float], step: int = 1, writer: Literal["trainer", "orchestrator"] = "trainer", **more: Any
) -> Metrics:
    """Return the metrics of a step."""
    return Metrics(time=NOON, source="metrics.jsonl", offset=0, writer=writer, step=step, values=values, **more)


def sample(name: str, value: float, endpoint: str = "http://a/metrics", **labels: str) -> Sample:
    """Return a value of a Prometheus page."""
    return Sample(time=NOON, endpoint=endpoint, name=name, labels=labels, value=value)


def test_what_is_not_known_is_not_yet_there_and_what_is_optional_is_left_out() -> None:
    """Before the first value a line says so, unless it is optional."""
    figures, _ = made()
    assert figures.shown("Progress") == ["reward not yet"]
    assert figures.shown("Performance") == ["step not yet", "waits not yet", "waiting not yet", "cache not yet"]


def test_the_last_value_is_shown_by_the_format_of_its_line() -> None:
    """Later values replace earlier ones; a metric of another writer is another metric."""
    figures, _ = made()
    figures.metrics(row({"time/step": 10.0}))
    figures.metrics(row({"time/step": 12.34}, step=2))
    figures.metrics(row({"time/step": 99.0}, step=3, writer="orchestrator"))
    assert figures.shown("Performance")[0] == "step 12.3 s"


def test_metrics_that_share_a_line_are_told_apart_by_what_the_stars_stand_for() -> None:
    """A single seat needs no name, several have one each, and those beyond the limit are counted."""
    figures, _ = made()
    figures.metrics(row({"train/agg/solver/reward": 0.5}))
    assert figures.shown("Progress") == ["reward 0.5"]
    figures.metrics(row({"train/agg/judge/reward": 0.25, "train/agg/critic/reward": 0.75}))
    assert figures.shown("Progress") == ["reward (critic) 0.75", "reward (judge) 0.25", "1 more"]


def test_a_label_can_name_stars_and_a_line_can_leave_names_out() -> None:
    """Names may contain slashes; what a label does not name sets alike labels apart."""
    figures, _ = made()
    values = {"eval/aime/agent/avg@8": 0.5, "eval/math/solver/avg@2": 0.25, "eval/math/judge/avg@2": 0.75}
    figures.metrics(row(values | {"eval/hidden/agent/avg@8": 0.1}, step=20))
    assert figures.shown("Progress")[1:] == [
        "eval aime avg@8 0.5 (step 20)",
        "eval math avg@2 (judge) 0.75 (step 20)",
        "eval math avg@2 (solver) 0.25 (step 20)",
    ]


def test_a_rounded_value_of_the_console_never_replaces_the_exact_one() -> None:
    """The console's value of a step stands only until, or where, the metrics file has none."""
    figures, _ = made()
    figures.metrics(row({"norm": 0.2}, console=True))
    figures.metrics(row({"norm": 0.21}))
    figures.metrics(row({"norm": 0.2}, console=True))
    assert figures.shown("Stability") == ["grad_norm 0.21"]
    figures.metrics(row({"norm": math.nan}, step=2, console=True))
    assert figures.shown("Stability") == ["grad_norm nan"]


def test_a_spike_is_flagged_against_the_median_of_the_values_before_it() -> None:
    """The last value is flagged as it is; an earlier spike is shown with its step until a check-in has shown it."""
    figures, _ = made()
    for step in range(1, 7):
        figures.metrics(row({"norm": 0.2}, step=step))
    figures.metrics(row({"norm": 1.0}, step=7))
    assert figures.shown("Stability") == ["grad_norm 1.00 (spike: 5.0x median)"]
    figures.metrics(row({"norm": 0.2}, step=8))
    assert figures.shown("Stability") == ["grad_norm 0.20 (spike at step 7: 1.00, 5.0x median)"]
    figures.forget_spikes()
    assert figures.shown("Stability") == ["grad_norm 0.20"]


def test_too_few_values_are_no_baseline_and_a_step_that_comes_twice_is_one() -> None:
    """Four steps told by console and metrics file are four values, not eight: nothing is usual yet."""
    figures, _ = made()
    for step in range(1, 5):
        figures.metrics(row({"norm": 0.2}, step=step, console=True))
        figures.metrics(row({"norm": 0.2}, step=step))
    figures.metrics(row({"norm": 9.0}, step=5))
    assert figures.shown("Stability") == ["grad_norm 9.00"]


def test_a_part_is_shown_as_a_share() -> None:
    """How much of another figure it is stands beside it."""
    figures, _ = made()
    figures.metrics(row({"time/step": 40.0, "time/wait": 10.0}))
    assert figures.shown("Performance")[1] == "waits 10.0 s (25%)"


def test_the_first_clause_that_fits_is_said() -> None:
    """It says what the figures mean, with them; where one that it asks for is not known, it does not fit."""
    figures, state = made(LINES + CLAUSES)
    figures.metrics(row({"time/step": 40.0, "time/wait": 10.0}))
    assert figures.shown("Performance")[0] == "step 40.0 s"
    figures.metrics(row({"time/step": 40.0, "time/wait": 30.0}, step=2))
    assert figures.shown("Performance")[:2] == ["it waits 30.0 s of 40.0 s, ? in the queue", "step 40.0 s"]
    figures.sample(sample("queue", 3.0))
    figures.sample(sample("queue", 4.0, endpoint="http://b/metrics"))
    assert figures.shown("Performance")[0] == "7 in the queue"
    state.put("source|metrics:http://b/metrics", Source(state="blind", since=NOON))
    assert figures.shown("Performance")[0] == "it waits 30.0 s of 40.0 s, 3 in the queue"


@pytest.mark.parametrize("text", ["{", "{queue:.2f}", "{queue.nothing}", "{0[a]}"])
def test_a_clause_that_cannot_be_filled_in(text: str) -> None:
    """It is refused when it is read, with its line."""
    with pytest.raises(BadFile, match=r'lines\.toml:1: .*"text" cannot be filled in'):
        decode(CLAUSES.strip().replace("{queue} in the queue", text, 1), "lines.toml", RuleFile)


@pytest.mark.parametrize(
    ("samples", "metrics", "said"),
    [
        ({"waiting": 20.0, "running": 48.0, "cache": 0.9}, (40, 20, 50, 0), "and these for the engines (20 requests"),
        ({"waiting": 0.0, "running": 48.0, "cache": 0.99}, (40, 20, 50, 0), "and these for the engines (48 requests"),
        ({"waiting": 0.0, "running": 4.0, "cache": 0.1}, (40, 20, 50, 0, 35), "their environments (35.0 s in each"),
        (
            {"waiting": 0.0, "running": 4.0, "cache": 0.1},
            (40, 20, 50, 0, 5),
            "waits for rollouts (20.0 s of each 40.0 s)",
        ),
        ({}, (40, 20, 50, 0), "the trainer waits for rollouts (20.0 s of each 40.0 s)"),
        ({}, (40, 1, 50, 20), "the rollouts wait for the trainer (20.0 s of each 50.0 s)"),
        ({}, (40, 1, 50, 2), "neither side waits for the other for long (1.0 s of each 40.0 s, 2.0 s of each 50.0 s)"),
        ({}, (40,), None),
        ({}, (0, 0, 0, 0), None),
    ],
)
def test_who_waits_for_whom(samples: dict[str, float], metrics: tuple[float, ...], said: str | None) -> None:
    """The built-in clauses name the side that the other one waits for, and what that waits for in turn."""
    state = State()
    figures = Figures(state, Rulebook(load_rules(Config())))
    named = {"waiting": "num_requests_waiting", "running": "num_requests_running", "cache": "kv_cache_usage_perc"}
    for name, value in samples.items():
        figures.sample(sample(f"vllm:{named[name]}", value))
    env = "train/agg/effective/all/timing/agent/harness/mean"
    names = ["time/step", "time/wait_for_batch", "time/step", "time/wait_for_policy", env]
    for number, (name, value) in enumerate(zip(names, metrics, strict=False)):
        figures.metrics(row({name: float(value)}, writer="orchestrator" if number > 1 else "trainer"))
    first = figures.shown("Performance")[0]
    assert said in first if said else first.startswith("trainer step")


def test_samples_are_taken_together_over_the_engines() -> None:
    """Queues add up, the fullest cache counts, an old name is the same sample."""
    figures, _ = made()
    for engine, (queue, cache) in enumerate([(3.0, 0.25), (4.0, 0.75)]):
        figures.sample(sample("queue" if engine else "old_queue", queue, engine=str(engine)))
        figures.sample(sample("cache", cache, engine=str(engine)))
    figures.sample(sample("cache", math.nan, engine="1"))
    assert figures.shown("Performance")[2:] == ["waiting 7", "cache 75%"]


def test_engines_that_are_not_seen_do_not_count() -> None:
    """The last values of an engine that no longer answers are not shown as if they were true."""
    figures, state = made()
    figures.sample(sample("queue", 3.0))
    figures.sample(sample("queue", 4.0, endpoint="http://b/metrics"))
    state.put("source|metrics:http://b/metrics", Source(state="blind", since=NOON))
    assert figures.shown("Performance")[2] == "waiting 3"
    state.put("source|metrics:http://a/metrics", Source(state="blind", since=NOON))
    assert figures.shown("Performance")[2] == "waiting not seen"


def test_an_attempt_begins_without_figures() -> None:
    """What the attempt before has reached says nothing of this one."""
    figures, _ = made()
    figures.metrics(row({"norm": 0.2}))
    figures.begin()
    assert figures.shown("Stability") == ["grad_norm not yet"]


def test_the_rows_stay_small_whatever_comes() -> None:
    """Names and engines beyond the limits are counted and not kept."""
    figures, state = made()
    for i in range(300):
        figures.metrics(row({f"train/agg/{'x' * 170}{i}/reward": 1.0, "norm": float(i)}, step=i))
        figures.sample(sample("queue", 1.0, endpoint="http://" + "y" * 90, engine=str(i)))
    figures.metrics(row({f"train/agg/{'x' * 5000}/reward": 1.0}))
    assert max(len(row) for row in state.changes().values() if row) < 16 * 1024
    assert state.dropped["figures"] > 0
    assert figures.shown("Progress")[-1] == "30 more"


def test_the_figures_survive_a_restart() -> None:
    """Read back from their rows, they show and flag the same."""
    figures, state = made()
    for step in range(1, 8):
        figures.metrics(row({"norm": 0.2 if step < 7 else 1.0}, step=step))
    rows = {key: row for key, row in state.changes().items() if row is not None}
    again, _ = made(state=State(rows))
    assert again.shown("Stability") == figures.shown("Stability") == ["grad_norm 1.00 (spike: 5.0x median)"]


@given(
    names=st.lists(st.text(max_size=40) | st.sampled_from(["norm", "time/step", "time/wait"]), max_size=20),
    values=st.lists(st.floats(), min_size=20, max_size=20),
)
def test_no_name_and_no_value_is_too_strange(names: list[str], values: list[float]) -> None:
    """Whatever a run calls its metrics, and whatever they are, there is something to show."""
    figures, state = made()
    for step, (name, value) in enumerate(zip(names, values, strict=False)):
        figures.metrics(row({name: value, f"train/agg/{name}/reward": value, f"eval/{name}/{name}/avg@1": value}, step))
        figures.sample(sample("queue", value, endpoint=name.encode(errors="replace").decode(), engine=str(step)))
    for section in ("Progress", "Stability", "Performance"):
        assert all(part for part in figures.shown(section))
    assert all(isinstance(row, Line) for row in state.rows.values())


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("format", '"{:d}"', '"format" does not show a number'),
        ("format", '"{name}"', '"format" does not show a number'),
        ("format", '"high"', '"format" shows no number'),
        ("sample", '["queue"]', "either metric or sample"),
        ("spike", "0.5", "above 1"),
    ],
)
def test_a_line_that_could_not_be_shown_is_refused(key: str, value: str, reason: str) -> None:
    """A mistake in a rule file is told when it is read, not when the first entry is due."""
    text = f'[[checkin_line]]\nname = "a"\nsection = "Progress"\nlabel = "a"\nmetric = ["a"]\n{key} = {value}\n'
    with pytest.raises(BadFile, match=reason):
        decode(text, "lines.toml", RuleFile)


def test_the_built_in_lines_show_what_the_runbook_asks_for() -> None:
    """Real rows of trainer and orchestrator fill all that the runbook names."""
    path = SHARED / "golden.tar.gz"
    if not path.exists():
        pytest.skip("the golden data is not there")
    import tarfile  # noqa: PLC0415

    figures, _ = made(BUILTIN)
    with tarfile.open(path) as tar:
        member = next(m for m in tar if m.name.endswith("trace-era/run/metrics.jsonl"))
        file = tar.extractfile(member)
        assert file is not None
        for line in file.read().splitlines():
            if (event := metric_rows.parse(line, 0, "metrics.jsonl")) is not None:
                figures.metrics(event)
    progress, stability = "; ".join(figures.shown("Progress")), "; ".join(figures.shown("Stability"))
    assert all(name in progress for name in ("reward/mean", "seq_len", "truncation", "avg@", "pass@"))
    assert "pass@2" in progress
    assert "not yet" not in progress + stability
    assert "not yet" not in "; ".join(figures.shown("Performance")[:4])


def test_later_files_replace_lines_and_notify() -> None:
    """A rule file of one's own changes a line by its name, and the times of messages as a whole."""
    mine = 'notify = { group_wait = "1m" }\n[[checkin_line]]\nname = "norm"\nsection = "Progress"\nlabel = "n"\n'
    book = Rulebook([decode(text, "f.toml", RuleFile) for text in (LINES, mine + 'metric = ["n"]\n')])
    assert [line.label for line in book.checkin_lines if line.name == "norm"] == ["n"]
    assert (book.notify.group_wait, book.notify.critical_wait) == (60.0, 5.0)
    assert msgspec.structs.asdict(Rulebook([]).notify)["repeat_interval"] == 4 * 3600.0
