"""Which alerts make one incident, which of them is its root, and when something is said of it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import permutations
from typing import Any

import pytest

from pipeline.alerts import IncidentChanged
from pipeline.events import AttemptBegun, Event, LogRecord, Metrics
from rules.engine import Engine
from rules.rulebook import Rulebook

Watch = Callable[..., Any]


def rule(name: str, **settings: str) -> str:
    """Return a rule that fires at once when a trainer's record says its name."""
    lines = {"specificity": "50", "severity": "critical", "clear": '{ quiet = "1m" }', "restart": "false"} | settings
    severity = lines.pop("severity")
    return f"""
    [[rule]]
    name = "{name}"
    failure_mode = "{name}"
    summary = ""
    on = {{ log = {{ pattern = '\\b{name}\\b' }} }}
    escalate = [{{ severity = "{severity}", immediately = true }}]
    """ + "\n".join(f"{key} = {value}" for key, value in lines.items())


def causes(cause: str, *effects: str) -> str:
    """Declare that one failure mode brings about others."""
    return f"[[cascade]]\ncause = {{ mode = ['{cause}'] }}\neffect = {{ mode = {list(effects)} }}\n"


def final(run: Any) -> dict[str, tuple[str, list[str], str]]:
    """Return root, symptoms and state of each incident, as they last were."""
    changes = [one for one in run.decisions if isinstance(one, IncidentChanged)]
    return {one.id: (one.failure_mode, sorted(one.symptoms), one.state) for one in changes}


def test_what_is_close_in_time_is_one_incident(watch: Watch) -> None:
    """Alerts within five minutes of each other share an incident, each after the last one that joined."""
    keep = {"clear": "{ attempt = true }"}
    run = watch(rule("a", **keep), rule("b", **keep), rule("c", **keep), rule("d", **keep))
    run.log(0, "a")
    run.log(299, "b")
    run.log(598, "c")
    run.log(899, "d")
    assert final(run) == {"1": ("a", ["b", "c"], "open"), "2": ("d", [], "open")}
    assert [one.incident for one in run.decisions if hasattr(one, "rule")] == ["1", "1", "1", "2"]


def test_what_a_cascade_joins_is_one_incident_however_late(watch: Watch) -> None:
    """A declared consequence joins its cause hours later, and so does a cause its consequence."""
    keep = {"clear": "{ attempt = true }"}
    for order in permutations(["cause", "effect"]):
        run = watch(rule("cause", **keep), rule("effect", **keep), causes("cause", "effect"))
        run.log(0, order[0])
        run.log(9000, order[1])
        assert final(run) == {"1": ("cause", ["effect"], "open")}


def test_what_has_resolved_no_longer_relates(watch: Watch) -> None:
    """A cause that is over explains nothing that comes long after it."""
    stays = rule("other", clear="{ attempt = true }")
    run = watch(rule("cause"), rule("effect"), stays, causes("cause", "effect"))
    run.log(0, "cause")
    run.log(1, "other")
    run.log(9000, "effect")
    assert len(final(run)) == 2


@pytest.mark.parametrize("order", list(permutations(["cause", "middle", "effect"])), ids="-".join)
def test_the_declared_cause_is_the_root_whatever_the_order(watch: Watch, order: tuple[str, ...]) -> None:
    """The root is what nothing else explains, even if it is the mildest, least specific and last to be seen."""
    run = watch(
        rule("cause", specificity="0", severity="info"),
        rule("middle", specificity="90"),
        rule("effect", specificity="100"),
        causes("cause", "middle"),
        causes("middle", "effect"),
    )
    for i, name in enumerate(order):
        run.log(i * 20, name)
    assert final(run) == {"1": ("cause", ["effect", "middle"], "open")}
    (incident,) = run.summary.incidents
    assert incident.severity == "critical"


def test_a_circle_of_causes_has_a_root_all_the_same(watch: Watch) -> None:
    """Causes that explain each other leave the choice to gravity and specificity."""
    other = rule("other", specificity="10")
    run = watch(rule("a"), rule("b", specificity="60"), other, causes("a", "b"), causes("b", "a"))
    for i, name in enumerate(["other", "a", "b"]):
        run.log(i * 20, name)
    assert final(run) == {"1": ("b", ["a", "other"], "open")}


def test_the_gravest_is_the_root_then_the_most_specific_then_the_first(watch: Watch) -> None:
    """Without a declared cause gravity decides, then specificity, then time."""
    mild, grave = rule("mild", severity="warning", specificity="99"), rule("grave", specificity="10")
    specific, late = rule("specific", specificity="20"), rule("late", specificity="20")
    run = watch(mild, grave, specific, late)
    roots = {"mild": "mild", "grave": "grave", "specific": "specific", "late": "specific"}
    for i, (name, root) in enumerate(roots.items()):
        run.log(i * 10, name)
        assert final(run)["1"][0] == root


def test_order_alone_does_not_decide_within_a_moment(watch: Watch) -> None:
    """Of equals less than two seconds apart the root is the same whichever is seen first."""
    roots = []
    for first, second in permutations(["a", "b"]):
        run = watch(rule("a"), rule("b"))
        run.log(0, first)
        run.log(1.9, second)
        roots.append(final(run)["1"][0])
    assert len(set(roots)) == 1
    run = watch(rule("a"), rule("b"))
    run.log(0, "b")
    run.log(2, "a")
    assert final(run)["1"][0] == "b"


def test_a_line_comes_only_with_a_change(watch: Watch) -> None:
    """An incident is said to have opened, to have been revised, and to have closed; more evidence says nothing."""
    run = watch(rule("cause", restart="true"), rule("effect"), causes("cause", "effect"))
    run.log(0, "effect")
    run.log(1, "effect")
    run.log(2, "cause")
    run.log(3, "cause")
    run.tick(1000)
    changes = [one for one in run.decisions if isinstance(one, IncidentChanged)]
    assert [(one.failure_mode, one.symptoms, one.proposes_restart, one.state) for one in changes] == [
        ("effect", [], False, "open"),
        ("cause", ["effect"], True, "open"),
        ("cause", ["effect"], True, "closed"),
    ]


def test_an_incident_closes_with_its_last_alert(watch: Watch) -> None:
    """As long as one alert fires the incident is open; what comes after it closed opens another."""
    run = watch(rule("a"), rule("b", clear='{ quiet = "10m" }'))
    run.log(0, "a")
    run.log(1, "b")
    run.log(300, "a")
    run.log(2000, "a")
    assert run.incidents[-2:] == [(601, "1", "closed", "a"), (2000, "2", "open", "a")]
    first, second = run.summary.incidents
    assert (first.closed is None, second.closed is None) == (False, True)


def test_an_alert_that_comes_back_returns_to_its_incident(watch: Watch) -> None:
    """An alert that resolved and fires again belongs to the incident that is still open."""
    run = watch(rule("a"), rule("b", clear="{ attempt = true }"))
    run.log(0, "a")
    run.log(1, "b")
    run.log(5000, "a")
    assert [one.incident for one in run.decisions if hasattr(one, "rule")] == ["1"] * 4


def test_an_attempt_closes_all_and_numbers_on(watch: Watch) -> None:
    """A new launch closes what is open; its incidents are new ones."""
    run = watch(rule("a", clear="{ attempt = true }"))
    run.attempt(0, 1)
    run.log(1, "a")
    run.attempt(2, 2)
    run.log(3, "a", attempt=2)
    assert final(run) == {"1": ("a", [], "closed"), "2": ("a", [], "open")}


def test_many_incidents_stay_in_order(watch: Watch) -> None:
    """Of the open incidents that a consequence could join it joins the latest, also after a restart."""
    names = [f"n{i}" for i in range(1, 13)]
    rules = [rule(name, clear="{ attempt = true }") for name in names]
    run = watch(*rules, *[causes(name, "n12") for name in names[:-1]])
    for i, name in enumerate(names[:-1]):
        run.log(i * 1000, name)
    run.restart()
    run.log(20_000, "n12")
    assert run.last_alert.incident == "11"
    assert [incident.id for incident in run.summary.incidents] == [str(i) for i in range(1, 12)]


def test_a_flood_does_not_hide_a_root(watch: Watch) -> None:
    """After hundreds of alerts of one rule, another one can still be the root, and the incident stays one."""
    flood = rule("flood", severity="warning").replace(" } }\n", " }, per = ['env'] }\n").replace("quiet = '1m'", "")
    run = watch(flood, rule("root", specificity="99"))
    for i in range(300):
        run.log(i * 2, "flood", f"env/{i}.log")
    run.log(601, "root")
    assert final(run)["1"][:2] == ("root", ["flood"])
    assert len(run.rows["incident|1"]) <= 16 * 1024
    assert len(final(run)) == 1


def test_old_incidents_make_room(watch: Watch) -> None:
    """The latest five hundred that closed are kept, and the open ones, however old; numbers go on."""
    run = watch(rule("long", clear="{ attempt = true }"), rule("short"))
    run.log(0, "long")
    for i in range(510):
        run.log(1000 + 1000 * i, "short")
    run.restart()
    run.log(1_000_000, "short")
    shown = [incident.id for incident in run.summary.incidents]
    assert shown == ["1", *map(str, range(12, 513))]
    assert len([key for key in run.rows if key.startswith(("incident|", "notice|"))]) <= 2 * len(shown)


def test_an_alert_stays_with_its_incident(watch: Watch) -> None:
    """An alert that is raised later is still of its incident, though that lists too many to list it."""
    flood = rule("flood", severity="warning", clear="{ attempt = true }").replace(" } }\n", " }, per = ['env'] }\n")
    flood = flood.replace("true }]", "true }, { severity = 'critical', persistent = 2, within = '2h' }]")
    run = watch(flood)
    for i in range(100):
        run.log(i * 2, "flood", f"env/{i}.log")
    for i in range(100):
        run.log(5000 + i, "flood", f"env/{i}.log")
    assert {one.incident for one in run.decisions if hasattr(one, "rule")} == {"1"}
    assert run.summary.incidents[0].severity == "critical"


def test_the_same_failure_without_progress_proposes_no_restart(builtin: Rulebook) -> None:
    """A second attempt that dies alike at the same step would die a third time; one that came further may not."""

    def attempt(number: int, second: float, step: int) -> list[Event]:
        def at(later: float) -> datetime:
            return datetime(2026, 8, 19, 12, tzinfo=UTC) + timedelta(seconds=second + later)

        log = f"logs/attempt_{number}/inference.log"
        done = Metrics(time=at(60), source="metrics.jsonl", offset=0, writer="trainer", step=step, completes=True)
        dead = LogRecord(time=at(90), source=log, offset=9, attempt=number, text="EngineDeadError: engine core died")
        return [AttemptBegun(time=at(0), number=number, identity=str(number)), done, dead]

    def proposed(*steps: int) -> list[bool]:
        engine = Engine(builtin)
        for number, step in enumerate(steps, start=1):
            engine.apply(attempt(number, 1000.0 * number, step))
        return [incident.proposes_restart for incident in engine.summary().incidents]

    assert proposed(7, 7) == [True, False]
    assert proposed(7, 6) == [True, False]
    assert proposed(7, 8) == [True, True]
    assert proposed(7, 7, 8) == [True, False, True]
