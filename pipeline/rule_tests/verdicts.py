"""How an invented run stands, compared with what a test expects."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from pipeline.alerts import Component, IncidentSummary, Severity, Summary
from rules.figures import SECTIONS, Figures
from rules.pattern import Duration
from rules.rows import Cell
from rules.state import State
from rules.summaries import summary

if TYPE_CHECKING:
    from datetime import datetime

    from pipeline.rule_tests.file import Expectation, ExpectedAlert, ExpectedIncident
    from rules.rulebook import Rulebook


class Firing(msgspec.Struct, frozen=True):
    """An alert that fires."""

    rule: str
    severity: Severity
    component: Component
    subject: dict[str, str]
    summary: str
    silent: bool

    def __str__(self) -> str:
        subject = "".join(f" {name}={value}" for name, value in self.subject.items())
        return f'{self.rule} ({self.severity}, {self.component}{subject}) "{self.summary}"'


class Standing(msgspec.Struct, frozen=True):
    """How a run stands."""

    run: Summary
    firing: list[Firing]
    shown: list[str]
    """The figures that a check-in would show."""

    @classmethod
    def of(cls, run: Summary, book: Rulebook, rows: dict[str, bytes]) -> Standing:
        """Return what an engine with *rows* makes of its run."""
        state = State(rows)
        cells = [(cell, cell.severity, book.rules[cell.rule]) for _, cell in state.every(Cell)]
        firing = [
            Firing(rule.name, severity, cell.component, cell.labels, summary(rule, cell, run.time), rule.silent)
            for cell, severity, rule in cells
            if severity is not None
        ]
        figures = Figures(state, book)
        return cls(run, firing, [part for section in SECTIONS for part in figures.shown(section)])


def differences(expected: Expectation, standing: Standing, start: datetime) -> list[str]:
    """Return what is not as expected, one line each: `-` what was expected, `+` what there is instead."""
    found = [*_of_alerts(expected, standing), *_of_incident(expected.incident, standing)]
    for name, wanted, actual in (
        ("health", expected.health, standing.run.health),
        ("phase", expected.phase, standing.run.phase),
    ):
        if wanted is not None and wanted != actual:
            found += [f"- {name} {wanted}", f"+ {name} {actual}"]
    missing = [text for text in expected.shows if not any(text in part for part in standing.shown)]
    if missing:
        found += [*(f'- shows "{text}"' for text in missing), f'+ shows "{", ".join(standing.shown)}"']
    after_s = (standing.run.time - start).total_seconds()
    return [f"at {Duration(after_s) if after_s > 0 else 'the start'}:", *found] if found else []


def _of_alerts(expected: Expectation, standing: Standing) -> list[str]:
    left = list(standing.firing)
    found: list[str] = []
    for alert in expected.firing or ():
        met = next((one for one in left if _is(alert, one)), None)
        if met is None:
            found.append(f"- firing {_shown(alert)}")
        else:
            left.remove(met)
    if expected.firing is not None and expected.only:
        found += [f"+ firing {one}" for one in left if not one.silent]
    elif found:
        found += [f"+ firing {one}" for one in left if one.rule in {alert.rule for alert in expected.firing or ()}]
    return found + [f"- quiet {one.rule}\n+ firing {one}" for one in standing.firing if one.rule in expected.quiet]


def _is(alert: ExpectedAlert, firing: Firing) -> bool:
    return (
        alert.rule == firing.rule
        and alert.severity in (None, firing.severity)
        and alert.component in (None, firing.component)
        and alert.subject.items() <= firing.subject.items()
        and (alert.summary is None or alert.summary in firing.summary)
    )


def _shown(alert: ExpectedAlert) -> str:
    figures = [alert.severity, alert.component, *(f"{name}={value}" for name, value in alert.subject.items())]
    shown = ", ".join(one for one in figures if one)
    return alert.rule + (f" ({shown})" if shown else "") + (f' "…{alert.summary}…"' if alert.summary else "")


def _of_incident(expected: ExpectedIncident | None, standing: Standing) -> list[str]:
    if expected is None:
        return []
    incidents = [one for one in standing.run.incidents if one.closed is None]
    if len(incidents) == 1 and _is_incident(expected, incidents[0]):
        return []
    wanted = [expected.failure_mode, expected.component, expected.severity]
    restart = "" if expected.restart is None else _restart(proposed=expected.restart)
    symptoms = "" if expected.symptoms is None else _symptoms(expected.symptoms)
    shown = f"- incident {', '.join(one for one in wanted if one)}{restart}{symptoms}"
    return [shown, *(f"+ incident {_shown_incident(one)}" for one in incidents or ())] + ["+ no incident"] * (
        not incidents
    )


def _is_incident(expected: ExpectedIncident, incident: IncidentSummary) -> bool:
    return (
        expected.failure_mode == incident.failure_mode
        and expected.component in (None, incident.component)
        and expected.severity in (None, incident.severity)
        and expected.restart in (None, incident.proposes_restart)
        and (expected.symptoms is None or sorted(expected.symptoms) == sorted(incident.symptoms))
    )


def _shown_incident(one: IncidentSummary) -> str:
    restart = _restart(proposed=one.proposes_restart)
    return f"{one.failure_mode}, {one.component}, {one.severity}{restart}{_symptoms(one.symptoms)}"


def _restart(*, proposed: bool) -> str:
    return ", proposes a restart" if proposed else ", proposes no restart"


def _symptoms(modes: list[str]) -> str:
    return f", with {', '.join(sorted(modes))}" if modes else ""
