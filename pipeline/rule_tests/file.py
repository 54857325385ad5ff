"""A file of rule tests: what happens in an invented run, and what is then expected of the rules."""

# ruff: noqa: RUF012 - msgspec copies the defaults of a Table, which ruff takes for a plain class

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

import msgspec

from pipeline.alerts import Component, Health, Phase, Severity
from pipeline.config import find_zone
from pipeline.events import Level
from pipeline.rule_tests.given import (
    Given,
    GivenAttempt,
    GivenConfig,
    GivenDisk,
    GivenHost,
    GivenLog,
    GivenMarker,
    GivenMemory,
    GivenMetric,
    GivenProcess,
    GivenReceipt,
    GivenRollouts,
    GivenSample,
    GivenSource,
    Origin,
    Times,
)
from rules.pattern import Duration, quoted
from rules.rule_file import RuleFile
from rules.table import Name, Table


class ExpectedAlert(Table, frozen=True, kw_only=True):
    """An alert that fires; only what is given is compared."""

    rule: Name
    severity: Severity | None = None
    component: Component | None = None
    subject: dict[str, str] = {}
    """Labels it is for, such as `{ env = "math" }`."""
    summary: str | None = None
    """Is part of its summary."""


class ExpectedIncident(Table, frozen=True, kw_only=True):
    """The incident that is open; only what is given is compared."""

    failure_mode: Name
    component: Component | None = None
    severity: Severity | None = None
    restart: bool | None = None
    """Whether a restart is proposed."""
    symptoms: list[Name] | None = None


class Expectation(Table, frozen=True, kw_only=True):
    """How the run stands at a time; only what is given is compared."""

    at: Duration | None = None
    """How long after the start of the test; when all has happened without it."""
    firing: list[ExpectedAlert] | None = None
    """These alerts fire, and no others."""
    only: bool = True
    """Whether others are a difference."""
    quiet: list[Name] = []
    """Rules that do not fire."""
    incident: ExpectedIncident | None = None
    """The one open incident."""
    health: Health | None = None
    phase: Phase | None = None
    shows: list[str] = []
    """Parts of what a check-in would show of the figures."""

    def __post_init__(self) -> None:
        """Refuse one that is always met."""
        asked = (self.firing, self.incident, self.health, self.phase)
        if all(one is None for one in asked) and not self.quiet and not self.shows:
            message = "it expects nothing: give firing, quiet, incident, health, phase or shows"
            raise ValueError(message)


class RuleTest(Table, frozen=True, kw_only=True):
    """A run, invented or recorded, and what is expected of the rules at some times."""

    name: str
    start: str = "2026-08-19T12:00:00Z"
    phase: Literal["starting", "running"] = "running"
    """How far the run has come at the start. To later phases lead records and processes."""
    config: GivenConfig = GivenConfig()
    steps_every: Duration | None = None
    """The trainer finishes a step that often, to the end of the test."""
    run: str | None = None
    """A run directory, relative to the test's file; times count from its first event."""
    recording: str | None = None
    timezone: str = "UTC"
    attempt: list[GivenAttempt] = []
    log: list[GivenLog] = []
    host: list[GivenHost] = []
    metric: list[GivenMetric] = []
    sample: list[GivenSample] = []
    disk: list[GivenDisk] = []
    memory: list[GivenMemory] = []
    rollout: list[GivenRollouts] = []
    process: list[GivenProcess] = []
    source: list[GivenSource] = []
    receipt: list[GivenReceipt] = []
    marker: list[GivenMarker] = []
    tick: list[Given] = []
    expect: Annotated[list[Expectation], msgspec.Meta(min_length=1)]

    def __post_init__(self) -> None:
        """Refuse a start that is no time, and a zone that is not known here."""
        self.begins()
        find_zone(self.timezone)

    def begins(self) -> datetime:
        """Return the start."""
        try:
            begins = datetime.fromisoformat(self.start)
        except ValueError:
            begins = None
        if begins is None or begins.tzinfo is None:
            message = f'"start" is not a time with a zone: {quoted(self.start)}; write it like "2026-08-19T12:00:00Z"'
            raise ValueError(message)
        return begins


class Example(Table, frozen=True, kw_only=True):
    """
    Texts for one rule, each tried alone in a run that trains.

    They are records of each of the `files`, lines from each of the `origins`, or, with an `env`, what is wrong
    with each of a hundred rollouts: `Type: what it says`.
    """

    rule: Name
    fires: list[str] = []
    quiet: list[str] = []
    files: list[str] = []
    origins: list[Origin] = []
    env: str | None = None
    level: Level | None = None
    severity: Severity | None = None
    phase: Literal["starting", "running"] = "running"
    repeat: Times = 1
    every: Duration = Duration("5s")

    def __post_init__(self) -> None:
        """Refuse texts that are nowhere, and a rule without texts."""
        if not (self.files or self.origins or self.env):
            message = "give files, origins or env: where the texts are"
            raise ValueError(message)
        if not (self.fires or self.quiet):
            message = "give fires or quiet: the texts"
            raise ValueError(message)


class RuleTestFile(RuleFile, frozen=True, kw_only=True):
    """Tests, and rules of their own on top of those that ship."""

    rule_files: list[str] = []
    """Files of rules to test, relative to this one."""
    disable: list[Name] = []
    test: list[RuleTest] = []
    example: list[Example] = []
