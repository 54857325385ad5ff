"""Why something fires, and what a rule that does not fire still waits for."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from rules.explain import Explainer, Subject
from rules.state import State

START = datetime(2026, 8, 19, 12, tzinfo=UTC)
RULES = r"""
[[rule]]
name = "flaky"
failure_mode = "connection-error"
summary = "{count} connections of rank {rank} lost"
on = { log = { pattern = "^lost connection" }, per = ["rank"] }
escalate = [
  { severity = "warning", persistent = 3, within = "15m" },
  { severity = "critical", growing = 2, within = "5m" },
]
during = ["running"]

[[rule]]
name = "broken"
failure_mode = "env-exception"
summary = "{fraction:.0%} fail in {env}"
on = { rollout = { ok = false }, per = ["env"] }
escalate = [{ severity = "warning", fraction = 0.5, over = "10m", at_least = 8 }]

[[rule]]
name = "loud"
failure_mode = "loss-spike"
summary = "{value}"
on = { metric = { name = ["loss"] } }
escalate = [{ severity = "warning", spike = 3, persistent = 2, of_last = 4 }]
baseline = { warm_up = 3 }

[[rule]]
name = "high"
failure_mode = "mismatch-kl-high"
summary = "{value}"
on = { metric = { name = ["kl"] } }
escalate = [{ severity = "warning", above = 0.5, immediately = true }]

[[rule]]
name = "gone"
failure_mode = "process-exited"
component = "trainer"
summary = "gone"
on = { process = { role = ["trainer"] } }
escalate = [{ severity = "critical", immediately = true }]

[[rule]]
name = "stuck"
failure_mode = "stall"
component = "trainer"
summary = "stuck"
on = { absence = { of = ["trained"] } }
escalate = [{ severity = "critical", for = "10m" }]

[[rule]]
name = "unseen"
failure_mode = "telemetry-missing"
component = "host"
summary = "{source} is not seen"
on = { blind = {} }
escalate = [{ severity = "warning", for = "10m" }]

[[clock]]
name = "trained"
event = "metrics"
of = "trainer"
is_step = true

[[milestone]]
name = "loop"
pattern = "^loop"

[[phase]]
name = "running"
from = ["starting"]
when = [["loop"]]

[[cascade]]
cause = { mode = ["process-exited"] }
effect = { mode = ["connection-error"] }
"""


@pytest.fixture
def small(watch: Callable[..., Any]) -> Any:
    """Watch a run with a rule of each kind."""
    return watch(RULES)


def at(seconds: float) -> datetime:
    """Return the time so many seconds after the start."""
    return START + timedelta(seconds=seconds)


def ask(run: Any) -> Explainer:
    """Ask of the rows that are on disk, as another process does."""
    return Explainer(State(dict(run.rows)), run.book)


def only(run: Any, rule: str) -> Subject:
    """Return the one subject of a rule."""
    [subject] = ask(run).rule(rule)
    return subject


def has(subject: Subject) -> list[str]:
    """Return what there is of what each escalation needs."""
    return [one.has for one in subject.conditions]


def test_a_rule_that_was_never_hit_says_what_it_looks_for(small: Any) -> None:
    """Without a subject there still is what is needed, and why nothing can come: the phase."""
    small.tick(1)
    subject = only(small, "flaky")
    assert (subject.state, subject.id) == ("quiet", "flaky")
    assert has(subject) == ["0 of 3 hits", "no hit"]
    assert [one.needs for one in subject.conditions] == [
        "3 hits within 15m",
        "more hits in each of 2 spans of 5m than in the one before",
    ]
    assert subject.waits == [
        "the phase is starting, the rule looks during running",
        "nothing that it looks for has come, or not lately",
    ]


def test_what_is_on_its_way_says_how_far(small: Any) -> None:
    """Hits are counted per subject, within the window, as of the clock."""
    small.log(0, "loop")
    small.log(1, "lost connection", rank=0)
    small.log(400, "lost connection", rank=0)
    small.log(500, "lost connection", rank=1)
    zero, one = ask(small).rule("flaky")
    assert (zero.state, zero.labels, has(zero)) == (
        "pending",
        {"rank": "0"},
        ["2 of 3 hits", "0, 1, 1 hits, the newest span last"],
    )
    assert (one.state, one.labels, one.hits) == ("pending", {"rank": "1"}, 1)
    small.tick(950)
    assert has(ask(small).rule("flaky")[0])[0] == "1 of 3 hits"
    small.tick(3000)
    assert {subject.state for subject in ask(small).rule("flaky")} == {"quiet"}


def test_what_fires_has_its_evidence_and_its_end(small: Any) -> None:
    """The records are the very ones, with their places; a timer says when it resolves."""
    small.log(0, "loop")
    for second in (10, 20, 30):
        small.log(second, f"lost connection {second}", rank=0)
    subject = only(small, "flaky")
    assert (subject.state, subject.severity, subject.since, subject.incident) == ("firing", "warning", at(30), "1")
    assert subject.summary == "3 connections of rank 0 lost"
    assert [(one.source, one.text) for one in subject.evidence] == [
        ("trainer.log", f"lost connection {second}") for second in (10, 20, 30)
    ]
    assert [one.offset for one in subject.evidence] == [200, 300, 400]
    assert (subject.clears, subject.due) == ("after 15m without a hit", at(930))
    assert subject.waits == []


def test_a_share_names_both_numbers(small: Any) -> None:
    """Hits and all of them, the share, and how large a sample has to be."""
    small.rollouts(1, good=3, bad=1)
    subject = only(small, "broken")
    assert (subject.state, has(subject)) == ("pending", ["1 of 4 (25%)"])
    assert subject.conditions[0].needs == "50% of the rollouts over 10m, of at least 8"
    assert (subject.conditions[0].hits, subject.conditions[0].total) == (1, 4)


def test_a_series_says_what_is_usual(small: Any) -> None:
    """Until enough values are known, that is what is waited for; then the usual one is named."""
    small.metric(1, 1, loss=1.0)
    assert only(small, "loud").waits[:2] == ["1 value has come", "what is usual is not known yet: 1 of 3 values"]
    for step in range(2, 6):
        small.metric(step, step, loss=1.0 + step / 100)
    small.metric(10, 6, loss=9.0)
    subject = only(small, "loud")
    assert (subject.state, has(subject)) == ("pending", ["1 of 2 hits"])
    assert subject.conditions[0].needs == (
        "2 hits among the last 4 values; a hit is a value more than 3 times the usual one, once 3 values are known"
    )
    assert "usual is 1.03" in subject.waits
    assert only(small, "high").conditions[0].needs == "one hit; a hit is a value above 0.5"


def test_an_absence_says_when_it_fires(small: Any) -> None:
    """The clocks it looks at, and the deadline, which moves with them."""
    small.log(1, "hello")
    assert only(small, "stuck").waits == [
        "none of trained has moved yet",
        "fires at 2026-08-19 12:10:01 UTC unless one of them moves before",
    ]
    small.step(120, 1)
    assert only(small, "stuck").waits == [
        "last moved: trained 1 at 12:02:00 UTC",
        "fires at 2026-08-19 12:12:00 UTC unless one of them moves before",
    ]
    small.tick(721)
    assert only(small, "stuck").state == "firing"


def test_what_is_not_seen_is_said_to_be(small: Any) -> None:
    """A rule cannot be judged while its source is blind; one about processes neither where there are none."""
    small.source(1, "absent", "processes")
    small.source(2, "blind", "files", reason="stale handle")
    assert "files is not seen since 12:00:02 UTC" in only(small, "high").waits
    assert "processes is not to be seen here" in only(small, "gone").waits
    blind = only(small, "unseen")
    assert (blind.state, blind.due, blind.conditions[0].needs) == ("pending", at(602), "to last 10m")
    assert "fires" not in " ".join(only(small, "stuck").waits)


def test_alerts_are_what_fires_and_what_may(small: Any) -> None:
    """First what fires, oldest first; what is quiet, or not looked at in this phase, is left out."""
    small.log(0, "loop")
    small.process(5)
    small.log(6, "lost connection", rank=3)
    small.rollouts(7, good=5)
    found = [(one.rule, one.state) for one in ask(small).alerts()]
    assert found == [("gone", "firing"), ("flaky", "pending")]


def test_an_incident_says_who_began_it_and_why(small: Any) -> None:
    """The root, what follows from it by a cascade, and what came with it."""
    small.log(0, "loop")
    small.process(5)
    for second in (10, 20, 30):
        small.log(second, "lost connection", rank=0)
    small.metric(31, 1, kl=0.7)
    incident = ask(small).incident("1")
    assert incident is not None
    assert (incident.state, incident.failure_mode, incident.messages) == ("open", "process-exited", 1)
    assert [(part.role, part.rule, part.reason) for part in incident.parts] == [
        ("root", "gone", "nothing else in the incident explains it"),
        ("symptom", "flaky", "follows from process-exited in trainer, as a cascade says"),
        ("symptom", "high", "came within 5m of another alert"),
    ]
    assert all(part.subject is not None and part.subject.evidence for part in incident.parts)
    assert ask(small).incident("2") is None


def test_a_closed_incident_has_no_subjects_left(small: Any) -> None:
    """What has resolved is forgotten: only its place in the incident remains."""
    small.log(0, "loop")
    for second in (10, 20, 30):
        small.log(second, "lost connection", rank=0)
    small.tick(3000)
    incident = ask(small).incident("1")
    assert incident is not None
    assert (incident.state, incident.closed) == ("closed", at(930))
    assert [(part.reason, part.firing, part.subject) for part in incident.parts] == [("it came alone", False, None)]


def test_subjects_are_found_by_the_beginning_of_their_id(small: Any) -> None:
    """An id is a rule, a component and the labels; what is cut off does not matter."""
    small.log(0, "loop")
    small.log(1, "lost connection", rank=0)
    small.log(2, "lost connection", rank=12)
    assert [one.id for one in ask(small).matching("flaky|trainer|rank=1")] == ["flaky|trainer|rank=12"]
    assert len(ask(small).matching("fla")) == 2
    assert ask(small).matching("nothing") == []


def test_asking_changes_nothing(small: Any) -> None:
    """The rows are the same before and after: whoever asks only reads."""
    small.log(0, "loop")
    small.process(5)
    small.source(6, "blind", "files")
    state = State(dict(small.rows))
    before = msgspec.msgpack.encode(state.rows)
    explainer = Explainer(state, small.book)
    explainer.alerts()
    explainer.incident("1")
    for rule in small.book.rules:
        explainer.rule(rule)
    assert msgspec.msgpack.encode(state.rows) == before
    assert state.changes() == {}


def test_every_rule_that_ships_can_be_explained(run: Any, builtin: Any) -> None:
    """Whatever its kind, a rule says what it needs, in words without a hole."""
    run.tick(1)
    for name in builtin.rules:
        for subject in ask(run).rule(name):
            assert all(one.needs and "None" not in one.needs for one in subject.conditions)
            assert subject.waits
            assert subject.clears
            assert "None" not in subject.clears
