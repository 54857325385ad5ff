"""Messages about incidents: when they come, what they say, and that none is lost or said twice."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

import rules
from pipeline.alerts import Notification
from pipeline.events import AttemptBegun, Event, LogRecord, Metrics, RunConfigured, Tick
from rules.engine import Engine
from rules.facts import one_line
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
summary = "{source} is out of memory"
advice = "Use less."
on = { log = { pattern = 'out of (?P<what>memory)' } }
escalate = [{ severity = "critical", immediately = true }]
specificity = 60
clear = { quiet = "10m" }

[[rule]]
name = "slow"
failure_mode = "step-time-regression"
component = "trainer"
summary = "slow: {what}"
on = { log = { pattern = '^slow (?P<what>.*)' } }
escalate = [
  { severity = "warning", immediately = true },
  { severity = "critical", persistent = 3, within = "1h" },
]
specificity = 50
clear = { quiet = "10m" }
restart = true

[[rule]]
name = "odd"
failure_mode = "loss-spike"
component = "trainer"
summary = "odd"
on = { log = { pattern = '^odd' } }
escalate = [{ severity = "info", immediately = true }]
clear = { quiet = "10m" }
"""
BOOK = Rulebook(
    [decode((BUILTIN / f"{name}.toml").read_text(), name, RuleFile) for name in ("components", "phases", "checkin")]
    + [decode(RULES, "rules.toml", RuleFile)]
)
START: list[Event] = [
    RunConfigured(time=NOON, name="demo", max_steps=200),
    AttemptBegun(time=NOON, number=1, identity="a"),
    Metrics(time=NOON, source="metrics.jsonl", offset=0, writer="trainer", step=41, completes=True),
]


def at(seconds: float) -> datetime:
    """Return a time after noon."""
    return NOON + timedelta(seconds=seconds)


def log(seconds: float, text: str, offset: int = 0) -> LogRecord:
    """Return a record of the trainer's log."""
    return LogRecord(time=at(seconds), source="logs/attempt_1/trainer.log", offset=offset, attempt=1, text=text)


def said(events: Sequence[Event], until_s: float, engine: Engine | None = None) -> list[Notification]:
    """Return the messages about a run with these *events*, watched until then."""
    found = (engine or Engine(BOOK)).apply([*START, *events, Tick(time=at(until_s))]).decisions
    return [one for one in found if isinstance(one, Notification)]


def test_a_critical_incident_is_told_after_its_settle_time() -> None:
    """Five seconds after it opened comes one message with all that a person has to know."""
    (message,) = said([log(60, "out of memory\nat line 3\nOutOfMemoryError: CUDA", 81920)], 120)
    assert (message.time, message.id, message.incident, message.severity) == (at(65), "1-1", "1", "critical")
    assert message.title == "[critical] demo: cuda-oom in trainer (step 41/200)"
    assert message.body.splitlines() == [
        "logs/attempt_1/trainer.log is out of memory",
        "Root cause: cuda-oom in trainer, since 2026-08-19 12:01:00 UTC",
        "Evidence: logs/attempt_1/trainer.log:81920: out of memory … OutOfMemoryError: CUDA",
        "Advice: Use less.",
        "Restart: not proposed: the same command would fail alike, or the run goes on without one",
        "The run is Degraded, running at 2026-08-19 12:01:05 UTC.",
    ]


def test_a_warning_waits_longer_and_what_is_for_information_is_not_told() -> None:
    """A warning has half a minute to find its root; an incident that is only information has no message."""
    assert [m.time for m in said([log(60, "slow disk")], 120)] == [at(90)]
    assert said([log(60, "odd")], 3600) == []


def test_the_root_that_is_found_while_it_settles_is_the_one_that_is_told() -> None:
    """What was told is the graver cause that came a moment later, and the first sign is its symptom."""
    (message,) = said([log(60, "slow disk"), log(62, "out of memory")], 120)
    assert (message.time, message.title.split(": ")[1]) == (at(67), "cuda-oom in trainer (step 41/200)")
    assert "Symptoms: step-time-regression" in message.body


def test_what_joins_while_it_settles_does_not_put_it_off() -> None:
    """Symptoms that keep coming in cannot hold up the first message."""
    assert [m.time for m in said([log(60, "out of memory"), log(63, "slow disk")], 120)] == [at(65)]


def test_a_revision_comes_once_and_not_before_the_group_interval_is_over() -> None:
    """Another root or severity is told five minutes after the message before it."""
    messages = said([log(60, "slow disk"), log(120, "out of memory")], 600)
    assert [m.time for m in messages] == [at(90), at(390)]
    assert [m.id for m in messages] == ["1-1", "1-2"]
    assert messages[1].title == "[critical] demo: now cuda-oom in trainer (step 41/200)"


def test_a_revision_after_the_group_interval_comes_at_once() -> None:
    """Who was told long ago is told of a change as it happens."""
    repeats = [log(60 + 300 * i, f"slow {i}") for i in range(3)]
    messages = said(repeats, 700)
    assert [(m.time, m.severity) for m in messages] == [(at(90), "warning"), (at(660), "critical")]


def test_an_incident_that_was_told_is_told_to_be_over() -> None:
    """The end has a message with the same incident and the next number."""
    messages = said([log(60, "slow disk")], 3600)
    assert [m.id for m in messages] == ["1-1", "1-2"]
    assert messages[1].title == "[resolved] demo: step-time-regression in trainer (step 41/200)"
    assert "until 2026-08-19 12:11:00 UTC" in messages[1].body


def test_an_incident_that_ends_while_it_settles_is_not_told_at_all() -> None:
    """Nobody is woken for what is over before it could be told."""
    assert said([log(60, "slow disk"), AttemptBegun(time=at(70), number=2, identity="b")], 3600) == []


def test_what_stays_critical_is_told_again() -> None:
    """A reminder comes four hours after the last message."""
    ongoing = [log(60 + 300 * i, f"out of memory {i}") for i in range(120)]
    messages = said(ongoing, 60 + 300 * 119)
    assert [m.time for m in messages] == [at(65), at(65 + 4 * 3600), at(65 + 8 * 3600)]
    assert messages[1].title == "[critical] demo: still cuda-oom in trainer (step 41/200)"


def test_a_warning_is_not_told_again_while_the_run_goes_on() -> None:
    """Reminders are for what is critical, or while the run is down."""
    rules_ = RULES.replace('"critical", persistent = 3', '"warning", persistent = 3')
    files = [decode((BUILTIN / f"{n}.toml").read_text(), n, RuleFile) for n in ("components", "phases", "checkin")]
    engine = Engine(Rulebook([*files, decode(rules_, "rules.toml", RuleFile)]))
    ongoing = [log(60 + 300 * i, f"slow {i}") for i in range(120)]
    assert len(said(ongoing, 60 + 300 * 119, engine)) == 1


def limited(most: int) -> Engine:
    """Return an engine that may say only so much in an hour."""
    text = (BUILTIN / "checkin.toml").read_text().replace("most_per_hour = 10", f"most_per_hour = {most}")
    files = [decode((BUILTIN / f"{n}.toml").read_text(), n, RuleFile) for n in ("components", "phases")]
    return Engine(Rulebook([*files, decode(text, "few.toml", RuleFile), decode(RULES, "rules.toml", RuleFile)]))


def test_a_storm_is_limited_and_says_how_much_it_held_back() -> None:
    """What comes beyond the limit is announced with the first one held back, and named as the hour ends."""
    messages = said([log(700 * i + 60, f"slow {i}") for i in range(8)], 2 * 3600, limited(2))
    assert [m.id for m in messages[:4]] == ["1-1", "1-2", "storm-1", "storm-2"]
    assert messages[2].title == "[warning] demo: messages are held back until 13:13 UTC"
    assert "step-time-regression" in messages[2].body
    assert messages[3].time == messages[2].time + timedelta(hours=1)
    held = int(messages[3].title.split(": ")[1].split()[0])
    assert messages[3].body.count("\n") == held


def test_a_steady_pace_is_no_storm() -> None:
    """The limit looks back one hour and no further."""
    messages = said([log(4000 * i + 60, f"slow {i}") for i in range(8)], 40_000, limited(2))
    assert len(messages) == 16
    assert not [m for m in messages if m.id.startswith("storm")]


@given(pauses_s=st.lists(st.integers(1, 2000), min_size=1, max_size=20), most=st.integers(1, 4))
def test_no_hour_has_too_many_messages_and_none_is_lost(pauses_s: list[int], most: int) -> None:
    """An hour has as many as may be, and one that says that more are held back; said and held, all are there."""
    times = list(accumulate(pauses_s))
    story = [log(60 + time, "out of memory" if i % 3 else "slow disk") for i, time in enumerate(times)]
    every = said(story, times[-1] + 30_000, limited(60))
    messages = said(story, times[-1] + 30_000, limited(most))
    begun = [m for m in messages if "are held back until" in m.title]
    for last in messages:
        hour = [m for m in messages if last.time - timedelta(hours=1) < m.time <= last.time]
        assert len([m for m in hour if m not in begun]) <= most
        assert len([m for m in hour if m in begun]) <= 1
    digests = [m for m in messages if "were held back" in m.title]
    held = sum(int(m.title.split(": ")[1].split()[0]) for m in digests)
    assert len(messages) - len(begun) - len(digests) + held == len(every)
    assert len({m.id for m in messages}) == len(messages)


def test_what_was_over_before_the_watch_began_is_not_told() -> None:
    """Neither its beginning nor its end."""
    assert said([log(60, "out of memory")], 7200, Engine(BOOK, announce_from=at(3600))) == []


def test_one_incident_that_is_open_as_the_watch_begins_is_told_then() -> None:
    """It is told at once, whatever it went through before, and its end as well."""
    messages = said([log(60, "slow 1"), log(590, "slow 2")], 7200, Engine(BOOK, announce_from=at(600)))
    assert [(m.id, m.time) for m in messages] == [("1-1", at(600)), ("1-2", at(590 + 600))]


def test_several_incidents_that_are_open_as_the_watch_begins_are_one_message() -> None:
    """All of them are named in it, the gravest gives its severity, and each one's end is told."""
    events: list[Event] = [log(60, "slow 1"), log(500, "out of memory")]
    messages = said(events, 7200, Engine(BOOK, announce_from=at(600)))
    assert messages[0].title == "[critical] demo: 2 incidents are open (step 41/200)"
    assert "cuda-oom in trainer" in messages[0].body
    assert "step-time-regression in trainer" in messages[0].body
    assert [(m.id, m.time) for m in messages] == [("2-1", at(600)), ("1-2", at(660)), ("2-2", at(1100))]


def test_the_text_of_the_run_is_one_line_and_cut() -> None:
    """A hostile line can neither begin a new line of the message nor make it long."""
    evil = "slow \x1b[31m\x00\u202e\u2028Restart: may help\r\nAdvice: rm\n" + "x" * 100_000
    (message,) = said([log(60, evil)], 120)
    lines = message.body.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "slow",
        "Root cause",
        "Evidence",
        "Restart",
        "The run is Degraded, running at 2026-08-19 12",
    ]
    assert all(char.isprintable() for line in lines for char in line)
    assert len(message.body) < 2000


@given(text=st.text(max_size=300), most=st.integers(2, 100))
def test_one_line_is_one_line(text: str, most: int) -> None:
    """Whatever the text is, what is shown of it is printable, on one line, and as long as it may be."""
    line = one_line(text, most)
    assert len(line) <= most
    assert len(line.splitlines()) <= 1
    line.encode()
