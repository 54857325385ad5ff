"""What is seen and what is not: blindness is shown when it lasts, and is neither failure nor health."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pipeline.events import Receipt, Sample, ScrapeFailed

Watch = Callable[..., Any]
URL = "http://localhost:8100/metrics"

BLIND = """
[[rule]]
name = "lost"
failure_mode = "lost"
component = "host"
summary = "{source}: {reason}"
on = { blind = { failed = false }, per = ["source"] }
escalate = [{ severity = "info", for = "1m" }, { severity = "warning", for = "10m" }]

[[rule]]
name = "broken"
failure_mode = "broken"
component = "host"
summary = "{source}: {reason}"
on = { blind = { failed = true } }
escalate = [{ severity = "warning", for = "1m" }]
"""
RUNNING = """
[[milestone]]
name = "ready"
pattern = "^ready"

[[phase]]
name = "running"
from = ["starting"]
when = [["ready"]]
"""


def at(run: Any, seconds: float, kind: type, **fields: Any) -> None:
    """Tell of a Prometheus page."""
    run.tick(seconds)
    run.apply(kind(time=run.engine.clock, endpoint=URL, **fields))


def test_blindness_fires_when_it_lasts(watch: Watch) -> None:
    """A source that stays blind is reported at each of the rule's deadlines, and resolves as it sees."""
    run = watch(BLIND)
    run.source(0, "blind", "files", reason="permission denied")
    run.tick(2000)
    run.source(3000, "seeing", "files")
    assert run.alerts == [
        (60, "lost", "info", "firing"),
        (600, "lost", "warning", "firing"),
        (3000, "lost", "warning", "resolved"),
    ]
    assert run.decisions[-4].summary == "files: permission denied"


def test_a_moment_of_blindness_is_nothing(watch: Watch) -> None:
    """A source that sees again in time was never reported; the next time counts from its own start."""
    run = watch(BLIND)
    run.source(0, "blind")
    run.source(59, "seeing")
    run.source(100, "blind")
    run.tick(159)
    assert run.alerts == []
    run.tick(160)
    assert run.alerts == [(160, "lost", "info", "firing")]


def test_what_was_never_there_is_not_missed(watch: Watch) -> None:
    """An absent source fires nothing, and one that turns absent resolves what fired."""
    run = watch(BLIND)
    run.source(0, "absent", "processes")
    run.tick(10_000)
    assert run.alerts == []
    run.source(10_001, "blind", "processes")
    run.source(20_000, "absent", "processes")
    assert run.alerts[-1] == (20_000, "lost", "warning", "resolved")


def test_each_source_is_missed_for_itself(watch: Watch) -> None:
    """Sources have alerts of their own, even under a rule that does not ask for it."""
    run = watch(BLIND)
    for name in ("files", "processes"):
        run.source(0, "blind", name, failed=True)
    run.tick(60)
    run.source(61, "seeing", "files")
    assert run.alerts == [(60, "broken", "warning", "firing")] * 2 + [(61, "broken", "warning", "resolved")]


def test_our_own_failure_is_another_kind(watch: Watch) -> None:
    """A source whose reader fails is no longer merely blind: the one alert ends, the other begins."""
    run = watch(BLIND)
    run.source(0, "blind")
    run.tick(100)
    run.source(200, "blind", failed=True, reason="TypeError")
    run.tick(300)
    assert run.alerts == [
        (60, "lost", "info", "firing"),
        (200, "lost", "info", "resolved"),
        (260, "broken", "warning", "firing"),
    ]


def test_a_page_that_answered_once_is_missed(watch: Watch) -> None:
    """A metrics page that stops to answer turns blind; its next sample shows that it can be read."""
    run = watch(BLIND)
    at(run, 0, ScrapeFailed, error="connection refused")
    run.tick(500)
    assert run.alerts == []
    at(run, 1000, Sample, name="up", value=1.0)
    at(run, 1100, ScrapeFailed, error="connection refused")
    at(run, 1130, ScrapeFailed, error="timeout")
    at(run, 1200, Sample, name="up", value=1.0)
    assert run.alerts == [(1160, "lost", "info", "firing"), (1200, "lost", "info", "resolved")]


def test_it_is_reported_once_the_phase_allows(watch: Watch) -> None:
    """A source that turned blind in a phase that the rule does not look at is missed in the next."""
    run = watch(BLIND + 'during = ["running"]\n', RUNNING)
    run.source(0, "blind", failed=True)
    run.tick(1000)
    assert "broken" not in {alert[1] for alert in run.alerts}
    run.log(2000, "ready")
    assert run.alerts[-1] == (2000, "broken", "warning", "firing")


def test_a_failure_is_not_explained_by_what_is_not_seen(watch: Watch) -> None:
    """A run that fails in a phase that the rule does not look at adds no alert about what was blind."""
    boom = '[[rule]]\nname = "boom"\nfailure_mode = "boom"\nsummary = ""\non = { log = { pattern = "ready" } }\n'
    boom += 'escalate = [{ severity = "critical", immediately = true }]\n'
    run = watch(BLIND + 'during = ["running"]\n', RUNNING.replace('name = "running"', 'name = "failed"'), boom)
    run.source(0, "blind", failed=True)
    run.log(1000, "ready")
    run.tick(2000)
    assert [alert[1] for alert in run.alerts] == ["boom"]
    assert run.phase == "failed"


def test_a_new_attempt_counts_anew(watch: Watch) -> None:
    """What is still blind when the run is launched again is reported again, after its time."""
    run = watch(BLIND)
    run.attempt(0, 1)
    run.source(0, "blind")
    run.attempt(1000, 2)
    run.tick(1059)
    assert run.alerts[-1] == (1000, "lost", "warning", "resolved")
    run.tick(1060)
    assert run.alerts[-1] == (1060, "lost", "info", "firing")


def test_blindness_survives_a_restart(watch: Watch) -> None:
    """What is blind, and since when, is known from the rows."""
    run = watch(BLIND)
    run.source(0, "blind")
    run.restart()
    run.tick(60)
    run.restart()
    run.source(70, "seeing")
    assert run.alerts == [(60, "lost", "info", "firing"), (70, "lost", "info", "resolved")]


SINKS = """
[[rule]]
name = "mute"
failure_mode = "mute"
component = "host"
summary = "{source}: {reason}"
on = { blind = { sink = true } }
escalate = [{ severity = "warning", for = "2m" }]
"""


def receipt(run: Any, seconds: float, outcome: str, reason: str = "") -> None:
    """Tell what became of a delivery."""
    run.tick(seconds)
    run.apply(Receipt(time=run.engine.clock, item="1-1", sink="slack", outcome=outcome, reason=reason))


def test_a_sink_that_does_not_deliver_is_reported(watch: Watch) -> None:
    """It fires when it lasts, and resolves with the next delivery; it makes no source blind."""
    run = watch(SINKS + BLIND)
    receipt(run, 0, "failing", "hooks.slack.com answered 503")
    run.tick(1000)
    receipt(run, 1100, "delivered")
    assert run.alerts == [(120, "mute", "warning", "firing"), (1100, "mute", "warning", "resolved")]


def test_what_never_fired_is_forgotten_though_its_source_was_blind(watch: Any) -> None:
    """Its timer is not lost: subjects that a run makes up do not stay for ever."""
    run = watch(
        """
[[rule]]
name = "twice"
failure_mode = "twice"
component = "trainer"
summary = "twice"
on = { log = { pattern = "^id (?P<id>.*)" }, per = ["id"] }
escalate = [{ severity = "info", persistent = 3, within = "10m" }]
"""
    )
    for at_s in (0, 1800):
        for i in range(5):
            run.log(at_s + i, f"id {i}")
    run.source(2200, "blind")
    run.source(6001, "seeing")
    run.tick(100_000)
    assert not [key for key in run.rows if key.startswith("cell|")]
