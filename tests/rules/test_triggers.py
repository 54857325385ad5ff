"""Which events a trigger matches."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from pipeline.alerts import Component, Evidence
from pipeline.events import Level, ProcessState, Rollout
from rules.facts import Fact
from rules.load import decode
from rules.model import Rule
from rules.rule_file import RuleFile
from rules.triggers import matches_log, matches_process, matches_rollout

NOW = datetime(2026, 8, 19, 12, tzinfo=UTC)


def rule(on: str) -> Rule:
    """Return a rule with this trigger."""
    text = f'[[rule]]\nname = "x"\nfailure_mode = "x"\nsummary = ""\non = {{ {on} }}\n'
    return decode(text + 'escalate = [{ severity = "info", immediately = true }]', "x.toml", RuleFile).rule[0]


def fact(text: str, component: Component = "trainer", level: Level | None = "ERROR") -> Fact:
    """Return the fact of a record."""
    return Fact(
        time=NOW, component=component, level=level, text=text, evidence=Evidence(source="x", offset=0, text=text)
    )


def rollout(**fields: Any) -> Rollout:
    """Return a rollout that failed."""
    known = {"kind": "train", "ok": False, "error": "ToolError", "message": "timed out"} | fields
    return Rollout(time=NOW, source="r", offset=0, step=1, env="math", **known)


def process(**fields: Any) -> ProcessState:
    """Return a trainer that is gone."""
    known = {"role": "trainer", "state": "exited", "exit_code": 1} | fields
    return ProcessState(time=NOW, node="n", pid=1, **known)


def test_a_log_trigger_gives_the_named_groups() -> None:
    """A match says what its pattern captured; a list of patterns is any of them."""
    found = rule("log = { pattern = ['rank (?P<rank>\\d+)', 'node (?P<node>\\w+)'] }")
    assert matches_log(found, fact("on rank 7")) == {"rank": "7"}
    assert matches_log(found, fact("on node a")) == {"node": "a"}
    assert matches_log(found, fact("on neither")) is None


@pytest.mark.parametrize(
    ("component", "level", "text", "matches"),
    [
        ("trainer", "ERROR", "boom", True),
        ("env", "ERROR", "boom", False),
        ("trainer", "INFO", "boom", False),
        ("trainer", None, "boom", False),
        ("trainer", "ERROR", "boom, but harmless", False),
        ("trainer", "ERROR", "calm", False),
    ],
    ids=["all", "component", "level", "no-level", "not", "pattern"],
)
def test_a_log_trigger_needs_all_that_it_names(
    component: Component, level: Level | None, text: str, *, matches: bool
) -> None:
    """Component, level, pattern, and what must not be there: all of them have to fit."""
    wanted = rule("log = { pattern = 'boom', not = 'harmless', component = ['trainer'], level = ['ERROR'] }")
    assert (matches_log(wanted, fact(text, component, level)) is not None) is matches


@pytest.mark.parametrize(
    ("on", "fields", "expected"),
    [
        ("{}", {}, True),
        ("{ scope = 'train' }", {"kind": "eval"}, None),
        ("{ scope = 'eval' }", {"kind": "eval"}, True),
        ("{ ok = false }", {}, True),
        ("{ ok = false }", {"ok": True}, False),
        ("{ error = '^Tool' }", {}, True),
        ("{ error = '^Tool' }", {"error": None}, False),
        ("{ error = '^Tool', message = 'timed out' }", {}, True),
        ("{ error = '^Tool', message = 'refused' }", {}, False),
    ],
    ids=["any", "other-scope", "eval", "failed", "good", "type", "no-type", "type-and-text", "other-text"],
)
def test_a_rollout_is_a_hit_a_miss_or_not_counted(on: str, fields: dict[str, Any], *, expected: bool | None) -> None:
    """A rollout of the other scope is no part of the fraction; any other is, hit or not."""
    assert matches_rollout(rule(f"rollout = {on}"), rollout(**fields)) is expected


@pytest.mark.parametrize(
    ("on", "fields", "matches"),
    [
        ("{}", {}, True),
        ("{}", {"state": "running"}, False),
        ("{}", {"state": "zombie"}, False),
        ("{ state = ['zombie'] }", {"state": "zombie"}, True),
        ("{ role = ['trainer'] }", {}, True),
        ("{ role = ['launcher'] }", {}, False),
        ("{ exit_code = [-9, 137] }", {"exit_code": -9}, True),
        ("{ exit_code = [-9, 137] }", {}, False),
        ("{ exit_code = [-9, 137] }", {"exit_code": None}, False),
        ("{ not_exit_code = [0] }", {"exit_code": 0}, False),
        ("{ not_exit_code = [0] }", {"exit_code": None}, True),
    ],
)
def test_a_process_needs_all_that_it_names(on: str, fields: dict[str, Any], *, matches: bool) -> None:
    """State, role and exit code have to fit; an unknown code is none that is named."""
    assert bool(matches_process(rule(f"process = {on}"), process(**fields))) is matches


def test_a_trigger_of_another_kind_matches_nothing() -> None:
    """A rule about metrics looks at neither records, rollouts nor processes."""
    other = rule("metric = { name = ['loss'] }")
    assert matches_log(other, fact("loss")) is None
    assert matches_rollout(other, rollout()) is None
    assert not matches_process(other, process())
