"""A file of rules, and what surrounds them: milestones, phases, stages, clocks, cascades, components."""

from __future__ import annotations

from typing import Literal

import msgspec

from pipeline.alerts import Component, Phase
from pipeline.events import Role
from rules.model import Name, Rule, Table
from rules.pattern import Duration, Pattern


class Milestone(Table, frozen=True, kw_only=True):
    """A record that says how far the run has come."""

    name: Name
    component: list[Component] = []
    pattern: Pattern


class PhaseStart(Table, frozen=True, kw_only=True):
    """A phase begins when all milestones of one of the lists have been passed in this attempt."""

    name: Phase
    when: list[list[Name]] = []
    from_: list[Phase] = msgspec.field(name="from")
    within: Duration | None = None
    """Only that soon after the phase it comes from began."""
    last_step: bool = False
    """Or when the last step of the run's config is done."""
    exited: list[list[Role]] = []
    """Or when the last known process of each of these roles has exited."""


class Stage(Table, frozen=True, kw_only=True):
    """A part of a run with a silence of its own, from one milestone to another."""

    name: str
    begins: list[Name]
    ends: list[Name]
    """Milestones or clocks."""
    timeout: Duration
    """Longer than that, it is stuck."""
    pause: bool = False
    """Whether it is part of training, which rests meanwhile, rather than of the start."""


class Clock(Table, frozen=True, kw_only=True):
    """What counts as progress."""

    name: Name
    event: Literal["metrics", "rollout", "marker"]
    of: str = ""
    """The writer of the metrics, or the kind of the marker."""
    is_step: bool = False
    """Whether its number is the step of the run."""


class Match(Table, frozen=True, kw_only=True):
    """Alerts of these failure modes and components; of any where there is no list."""

    mode: list[Name] = []
    component: list[Component] = []


class Cascade(Table, frozen=True, kw_only=True):
    """Alerts that match `cause` bring about those that match `effect`."""

    cause: Match
    effect: Match


class File(Table, frozen=True, kw_only=True):
    """Whose log a file is. Named groups of the pattern are labels of its records."""

    path: Pattern
    component: Component
    copies: Name | None = None
    """A group of files that may repeat each other's records."""


class Components(Table, frozen=True, kw_only=True):
    """Which component an event is of."""

    role: dict[Role, Component] = {}
    origin: dict[str, Component] = {}
    writer: dict[str, Component] = {}
    rollout: Component | None = None
    copies: dict[str, Name] = {}
    """By origin: the group of files that its lines may repeat."""


class RuleFile(Table, frozen=True, kw_only=True):
    """One file of rules and what surrounds them."""

    rule: list[Rule] = []
    milestone: list[Milestone] = []
    phase: list[PhaseStart] = []
    stage: list[Stage] = []
    clock: list[Clock] = []
    cascade: list[Cascade] = []
    file: list[File] = []
    components: Components = Components()
