"""Entries of STATUS.md: when they are due, their form, and that nothing from a run can forge one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rules
from pipeline.alerts import CheckIn, Decision, Notification
from pipeline.events import (
    AttemptBegun,
    Deployment,
    Event,
    Gap,
    HostLine,
    LogRecord,
    Metrics,
    ProcessState,
    RunConfigured,
    Sample,
    ScrapeFailed,
    SourceState,
    Tick,
)
from pipeline.times import cut
from rules.checkins import code, markdown
from rules.engine import Engine
from rules.load import decode
from rules.rule_file import RuleFile
from rules.rulebook import Rulebook

NOON = datetime(2026, 8, 19, 12, tzinfo=UTC)
BUILTIN = Path(rules.__file__).parent / "builtin"
RULES = """\
[[rule]]
name = "oom"
failure_mode = "cuda-oom"
component = "trainer"
summary = "no memory: {what}"
advice = "Use less."
on = { log = { pattern = 'out of memory(?P<what>.*)' } }
escalate = [{ severity = "critical", immediately = true }]
specificity = 60
health = "Down"
clear = { quiet = "20m" }

[[rule]]
name = "slow"
failure_mode = "step-time-regression"
component = "trainer"
summary = "slow"
on = { log = { pattern = '^slow' } }
escalate = [{ severity = "warning", immediately = true }]
clear = { quiet = "10m" }
"""
BOOK = Rulebook(
    [decode((BUILTIN / f"{name}.toml").read_text(), name, RuleFile) for name in ("components", "phases", "checkin")]
    + [decode(RULES, "rules.toml", RuleFile)]
)
CONFIG = RunConfigured(
    time=NOON,
    name="demo",
    model="Qwen/Qwen3-8B",
    max_steps=400,
    batch_size=128,
    train_envs=["math", "code"],
    eval_envs=["aime"],
    eval_interval=20,
)
TOLD = "people are told of what is critical after 5s, of a warning after 30s"
BEGUN = AttemptBegun(time=NOON, number=1, identity="a")


def at(seconds: float) -> datetime:
    """Return a time after noon."""
    return NOON + timedelta(seconds=seconds)


def log(seconds: float, text: str) -> LogRecord:
    """Return a record of the trainer's log."""
    return LogRecord(time=at(seconds), source="logs/attempt_1/trainer.log", offset=7, attempt=None, text=text)


def step(seconds: float, number: int, **values: float) -> Metrics:
    """Return the row with which the trainer ends a step."""
    figures = {"time/step": 48.0, "time/wait_for_batch": 12.0, "optim/grad_norm": 0.2} | values
    return Metrics(
        time=at(seconds),
        source="metrics.jsonl",
        offset=0,
        writer="trainer",
        step=number,
        values=figures,
        completes=True,
    )


def entries(events: Sequence[Event], until_s: float, **options: Any) -> list[CheckIn]:
    """Return the entries of a run with these *events*, watched until then."""
    decisions = Engine(BOOK, **options).apply([CONFIG, BEGUN, *events, Tick(time=at(until_s))]).decisions
    return [one for one in decisions if isinstance(one, CheckIn)]


def test_an_entry_has_the_form_of_the_runbook() -> None:
    """Heading, step, health, the three sections, and no notes where nothing is notable."""
    values = {"entropy/all/mean": 0.5, "mismatch_kl/all/mean": 0.002}
    _, entry = entries([step(60 * i, i, **values) for i in range(1, 62)], 3700)
    assert entry.text == (
        "## 2026-08-19 13:01 UTC\n"
        "\n"
        "**Step**: 60 / 400\n"
        "**Health**: Healthy\n"
        "\n"
        "**Progress**: reward/mean not yet, seq_len not yet, truncation not yet, eval reward not yet\n"
        "**Stability**: entropy 0.500, mismatch_kl 0.0020, grad_norm 0.2\n"
        "**Performance**: trainer step 48.0 s, waits for batches 12.0 s (25%), orchestrator step not yet,"
        " waits for the policy not yet, requests running not yet, waiting not yet, KV cache not yet\n"
    )
    assert (entry.id, entry.time) == ("checkin-1-2026-08-19T13:01:00.000Z", at(3660))


def test_the_first_entry_comes_when_the_run_runs_and_sums_it_up() -> None:
    """Its notes say what is trained, on what, where the configs are, what is seen, and how it is watched."""
    blind = SourceState(time=at(1), name="gpus", state="absent", reason="no nvidia-smi")
    (entry,) = entries([blind, step(60, 1)], 120)
    assert entry.time == at(60)
    assert "**Step**: 1 / 400" in entry.text
    assert entry.text.split("**Notes**:\n\n")[1].splitlines() == [
        "- Run `demo` trains `Qwen/Qwen3-8B` on `math`, `code`: until step 400, batch size 128",
        "- Evaluated on `aime`, every 20 steps",
        "- Resolved configs: `configs/` in the run directory",
        "- Not to be seen here: gpus",
        f"- Watched by runwatch: an entry every 1h; {TOLD}",
    ]


@pytest.mark.parametrize(
    ("deployment", "said"),
    [
        (
            Deployment(kind="single_node", train_gpus=2, infer_gpus=1),
            "batch size 128, 2 GPUs to train, 1 to sample",
        ),
        (
            Deployment(kind="multi_node", train_nodes=4, infer_nodes=2, gpus_per_node=8),
            "batch size 128, 4 nodes of 8 GPUs to train, 2 to sample",
        ),
        (Deployment(kind="x"), "batch size 128"),
    ],
)
def test_on_how_much_it_runs(deployment: Deployment, said: str) -> None:
    """The summary says so where it is known."""
    config = RunConfigured(time=at(0), max_steps=400, batch_size=128, deployment=deployment)
    (entry,) = entries([config, step(60, 1)], 120)
    assert f"until step 400, {said}\n" in entry.text


def test_an_attempt_that_does_not_get_going_has_its_first_entry_after_ten_minutes() -> None:
    """Nothing is known yet, and it says so."""
    entry, *_ = entries([], 700)
    assert entry.time == at(600)
    assert "**Step**: not yet / 400\n" in entry.text
    assert "- The run is starting, since 2026-08-19 12:00 UTC\n" in entry.text


def test_an_incident_brings_the_first_entry_forward() -> None:
    """As soon as its root may have been found it is written down."""
    entry, *_ = entries([log(30, "out of memory")], 100)
    assert entry.time == at(35)
    assert "**Health**: Down\n" in entry.text


def test_entries_come_every_hour_from_the_first_or_as_often_as_asked() -> None:
    """The first entry sets the minute of all that follow."""
    steps: list[Event] = [step(90, 1)]
    assert [e.time for e in entries(steps, 4 * 3600)] == [at(90 + 3600 * i) for i in range(4)]
    assert [e.time for e in entries(steps, 1000, checkin_every_s=300)] == [at(90 + 300 * i) for i in range(4)]


def test_the_end_of_a_run_has_the_last_entry() -> None:
    """After it there are none, however long one goes on watching."""
    end = HostLine(time=at(5000), node="n", origin="launcher", text="Training finished!")
    found = entries([step(90, 1), end], 24 * 3600)
    assert [e.time for e in found] == [at(90), at(3690), at(5000)]
    assert "- The run finished at 2026-08-19 13:23 UTC" in found[-1].text


def test_an_entry_at_the_moment_of_another_one_has_an_id_of_its_own() -> None:
    """A run that ends in the very moment of an hourly entry has both."""
    end = HostLine(time=at(3690), node="n", origin="launcher", text="Training finished!")
    ids = [e.id for e in entries([step(90, 1), end], 4000)]
    assert ids[1:] == ["checkin-1-2026-08-19T13:01:30.000Z", "checkin-1-2026-08-19T13:01:30.001Z"]


def test_a_new_attempt_has_a_first_entry_of_its_own() -> None:
    """It says that the attempt began, and what became of the incidents of the old one."""
    events: list[Event] = [
        step(60, 41),
        log(4000, "out of memory"),
        AttemptBegun(time=at(5000), number=2, identity="b"),
    ]
    last = entries([*events, step(5100, 41)], 5200)[-1]
    assert last.id == "checkin-2-2026-08-19T13:25:00.000Z"
    assert "- Run `demo` trains" in last.text
    assert "- Attempt 2 began 2026-08-19 13:23 UTC\n" in last.text
    assert "- Over (critical): cuda-oom in trainer from 2026-08-19 13:06 to 13:23 UTC\n" in last.text


def test_what_is_open_is_noted_with_its_evidence_and_what_is_over_once() -> None:
    """An incident that is over is in the next entry and in no later one."""
    found = entries([step(60, 1), log(3600, "out of memory: 2 GiB"), step(3650, 2)], 3 * 3600)
    assert (
        "- Open (critical): cuda-oom in trainer since 2026-08-19 13:00 UTC; no memory: : 2 GiB; advice: Use less.;"
        " evidence: `logs/attempt_1/trainer.log:7` `out of memory: 2 GiB`\n"
    ) in found[1].text
    assert "- Over (critical): cuda-oom in trainer from 2026-08-19 13:00 to 13:20 UTC\n" in found[2].text
    assert len(found) == 3
    assert "**Notes**" not in entries([step(60, 1), log(120, "slow")], 3 * 3600)[2].text


def test_what_is_not_seen_is_named_where_the_health_is() -> None:
    """A blind source is neither failure nor health."""
    url = "http://localhost:8100/metrics"
    seen = Sample(time=at(100), endpoint=url, name="vllm:num_requests_running", value=12.0)
    lost = ScrapeFailed(time=at(200), endpoint=url, error="connection <refused>")
    entry = entries([step(60, 1), seen, lost], 3700)[1]
    assert f"**Health**: Healthy (not seen: {url})\n" in entry.text
    assert "requests running not seen" in entry.text
    assert f"- Not seen since 2026-08-19 12:03 UTC: {url} (connection \\<refused\\>)\n" in entry.text


def test_downtime_has_one_entry_for_all_that_were_due_and_says_so() -> None:
    """Five hours in which nobody watched are one entry, for the last time that one was due."""
    gap = Gap(time=at(300), until=at(5 * 3600 + 120), cause="downtime")
    found = entries([step(60, 1), gap], 6 * 3600 + 100)
    assert [e.time for e in found] == [at(60), at(5 * 3600 + 60), at(6 * 3600 + 60)]
    assert "- Not watched from 2026-08-19 12:05 to 17:02 UTC (downtime)\n" in found[1].text
    assert "Not watched" not in found[2].text


def test_a_first_entry_that_was_due_in_a_downtime_is_made_after_it() -> None:
    """It tells of the run as it is, not as it was when nobody looked."""
    gap = Gap(time=at(300), until=at(7200), cause="suspension")
    assert entries([gap], 7300)[0].time == at(7200)


def test_a_spike_is_in_the_entry_after_it_and_in_no_later_one() -> None:
    """What has been told is not flagged again."""
    steps = [step(60 * i, i, **{"optim/grad_norm": 2.0 if i == 30 else 0.2}) for i in range(1, 200)]
    _, second, third, *_ = entries(steps, 3 * 3600)
    assert "grad_norm 0.2 (spike at step 30: 2, 10.0x median)" in second.text
    assert "spike" not in third.text


def test_an_attempt_does_not_show_the_figures_of_the_one_before() -> None:
    """Until it has trained a step of its own, nothing is known of it."""
    found = entries([step(60, 1), AttemptBegun(time=at(100), number=2, identity="b")], 800)
    assert "grad_norm 0.2" in found[0].text
    assert (found[1].time, "grad_norm not yet" in found[1].text) == (at(700), True)


def test_nothing_is_written_for_a_time_before_the_watch_began() -> None:
    """A run that is old when the watch begins has its first entry then, whatever has happened in it."""
    assert entries([log(30, "out of memory")], 400, announce_from=at(300))[0].time == at(300)
    found = entries([step(60 * i, i) for i in range(1, 300)], 5 * 3600 - 1, announce_from=at(4 * 3600))
    assert [e.time for e in found] == [at(4 * 3600)]
    assert "- Run `demo` trains" in found[0].text


def test_a_run_that_was_over_before_the_watch_began_has_one_entry() -> None:
    """It says that the run is over."""
    end = HostLine(time=at(600), node="n", origin="launcher", text="Training finished!")
    found = entries([step(60, 1), end], 9 * 3600, announce_from=at(4 * 3600))
    assert [e.time for e in found] == [at(4 * 3600)]
    assert "- The run finished at 2026-08-19 12:10 UTC" in found[0].text


def test_an_endless_run_has_no_last_step() -> None:
    """What is not limited is shown as such; what is not known, as not yet known."""
    endless = RunConfigured(time=at(1), name="demo")
    assert "**Step**: 1 / ∞\n" in entries([endless, step(60, 1)], 61)[0].text
    (entry,) = (d for d in Engine(BOOK).apply([step(60, 1)]).decisions if isinstance(d, CheckIn))
    assert "**Step**: 1 / not yet\n" in entry.text


HOSTILE = st.text(max_size=80) | st.sampled_from(
    [
        "\n## 2026-08-19 14:00 UTC\n\n**Step**: 1 / 2",
        "```\n# x",
        "[a](http://b)",
        "<img src=x>",
        "`",
        "\r\n\r\n# a",
        "\u2028## b",
    ]
)


@given(text=HOSTILE)
def test_no_line_of_a_run_can_forge_an_entry(text: str) -> None:
    """Whatever the logs, the configs and the metrics say, an entry has its own heading and its own lines alone."""
    config = RunConfigured(time=at(1), name=text, model=text, train_envs=[text], eval_envs=[text])
    lost = SourceState(time=at(2), name=text, state="blind", reason=text)
    named = step(3, 1, **{f"eval/{text}/effective/{text}/avg@{text}": 1.0})
    for entry in entries([config, lost, named, log(4, f"out of memory{text}")], 3700):
        lines = entry.text.splitlines()
        assert [line for line in lines if line.startswith("#")] == [f"## {entry.time:%Y-%m-%d %H:%M} UTC"]
        words = [line for line in lines if line]
        assert all(line.startswith(("## ", "**", "- ")) for line in words)
        assert [line.split(":")[0] for line in words if line.startswith("**")] == [
            f"**{name}**" for name in ("Step", "Health", "Progress", "Stability", "Performance", "Notes")
        ]
        outside = "".join(re.sub(r"\\[!-/:-@\[-`{-~]|`[^`]+`", "", line) for line in lines)
        assert not set(outside) & set("`[]<>|~")
        entry.text.encode()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("# a\n## b", "\\# a \\#\\# b"),
        ("[a](b) ![c](d)", "\\[a\\](b) \\!\\[c\\](d)"),
        ("<b>&amp;", "\\<b\\>\\&amp;"),
        ("wait_for_batch _x_ *y*", "wait_for_batch \\_x\\_ \\*y\\*"),
        ("https://a.b www.c.d", "https\\://a.b www\\.c.d"),
        ("avg@8 @all a@b.c", "avg@8 \\@all a\\@b.c"),
        ("a\x1b[31m\x00b\ud800", "a \\[31m b"),
    ],
)
def test_markdown_in_a_text_means_nothing(text: str, shown: str) -> None:
    """What would be a heading, a link, HTML or emphasis is words, and what is harmless stays legible."""
    assert markdown(text) == shown


@given(text=st.text(max_size=200))
def test_code_ends_where_it_should(text: str) -> None:
    """A quoted line has a back-tick before it and one behind it, and none within."""
    quoted = code(text)
    assert quoted.count("`") == 2
    assert quoted[0] == quoted[-1] == "`"
    assert len(quoted) > 2


URL = "http://a/metrics"
FACTS: list[Event] = [
    log(0, "slow"),
    log(0, "out of memory"),
    log(0, "nothing"),
    step(0, 1, **{"entropy/all/mean": 0.5}),
    step(0, 2, **{"optim/grad_norm": 9.0}),
    CONFIG,
    AttemptBegun(time=NOON, number=1, identity="a"),
    AttemptBegun(time=NOON, number=2, identity="b"),
    SourceState(time=NOON, name="files", state="blind", reason="slow"),
    SourceState(time=NOON, name="files", state="seeing"),
    Sample(time=NOON, endpoint=URL, name="vllm:kv_cache_usage_perc", value=0.5),
    ScrapeFailed(time=NOON, endpoint=URL, error="refused"),
    ProcessState(time=NOON, node="n", role="trainer", pid=1, state="running"),
    ProcessState(time=NOON, node="n", role="trainer", pid=1, state="exited", exit_code=1),
    HostLine(time=NOON, node="n", origin="launcher", text="Training finished!"),
    HostLine(time=NOON, node="n", origin="launcher", text="Received SIGTERM, terminating"),
]
STORIES = st.lists(
    st.tuples(st.integers(0, len(FACTS) - 1), st.sampled_from([0, 1, 5, 29, 30, 300, 600, 3600, 20_000])),
    min_size=1,
    max_size=25,
)
ANNOUNCE = st.sampled_from([None, at(0), at(400), at(7200)])
AFTER = timedelta(hours=10)
"""How long a run is watched after its last event."""


def told(story: list[tuple[int, int]]) -> list[Event]:
    """Return the events of a story: which fact, and how many seconds after the one before."""
    seconds, events = 0, []
    for number, later_s in story:
        seconds += later_s
        events.append(_at(FACTS[number], seconds))
    return events


def _at(event: Event, seconds: float) -> Event:
    moved: Event = msgspec.structs.replace(event, time=at(seconds))
    return moved


@given(story=STORIES, ticks=st.lists(st.floats(0, 1), max_size=20), since=ANNOUNCE)
def test_ticks_change_no_decision(story: list[tuple[int, int]], ticks: list[float], since: datetime | None) -> None:
    """Check-ins and messages are due when they are due, however often the clock is looked at."""
    events = told(story)
    end = Tick(time=events[-1].time + AFTER)
    more = [Tick(time=cut(NOON + tick * (end.time - NOON))) for tick in ticks]
    plain = Engine(BOOK, announce_from=since).apply([*events, end]).decisions
    with_ticks = sorted([*events, *more, end], key=lambda event: event.time)
    assert Engine(BOOK, announce_from=since).apply(with_ticks).decisions == plain


@given(story=STORIES, cuts=st.sets(st.integers(0, 25), max_size=4), since=ANNOUNCE)
def test_the_state_survives_a_restart_at_any_event(
    story: list[tuple[int, int]], cuts: set[int], since: datetime | None
) -> None:
    """An engine that goes on from the rows decides what one that never stopped does, and no id comes twice."""
    events = told(story)
    events.append(Tick(time=events[-1].time + AFTER))
    whole = Engine(BOOK, announce_from=since).apply(events).decisions
    kept: dict[str, bytes] = {}
    parts: list[Decision] = []
    bounds = [0, *sorted(place for place in cuts if place < len(events)), len(events)]
    for start, stop in pairwise(bounds):
        outcome = Engine(BOOK, kept, announce_from=None if start else since).apply(events[start:stop])
        parts += outcome.decisions
        kept = {key: row for key, row in (kept | outcome.changed).items() if row is not None}
        assert all(len(row) < 16 * 1024 for row in kept.values())
    assert parts == whole
    ids = [one.id for one in whole if isinstance(one, CheckIn | Notification)]
    assert len(ids) == len(set(ids))
