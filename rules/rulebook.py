"""All rule files together, looked up by what an event brings."""

from __future__ import annotations

from collections import defaultdict
from copy import copy
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from pipeline.alerts import Component
from rules.own_config import refers, resolved
from rules.pattern import PatternSet
from rules.rule_file import Cascade, Clock, Components, File, Match, Milestone, Notify, PhaseStart, RuleFile, Stage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pipeline.events import Level, RunConfigured
    from rules.model import MetricTrigger, Rule

_NAMES_KEPT = 20_000
_TRACEBACK = "\nTraceback (most recent call last)"


class Origin(msgspec.Struct, frozen=True):
    """Whose records a source brings."""

    component: Component
    labels: dict[str, str]
    copies: str | None = None


class Found(NamedTuple):
    """What is found in a text."""

    milestones: list[Milestone]
    rules: list[Rule]
    """About logs, whose pattern is found."""
    ended: list[Rule]
    """That wait for such a text as an end."""
    counted: list[Rule]
    """That measure a fraction of such texts."""


class Rulebook:
    """
    The rules in force and what surrounds them.

    A later rule replaces an earlier one of the same name; *disabled* names are
    left out.
    """

    def __init__(self, files: Sequence[RuleFile], disabled: Iterable[str] = ()) -> None:
        without = set(disabled)
        named = {rule.name: rule for file in files for rule in file.rule if rule.name not in without}
        self.rules: dict[str, Rule] = named
        self.milestones: list[Milestone] = [m for file in files for m in file.milestone]
        self.phases: list[PhaseStart] = [p for file in files for p in file.phase]
        self.stages: list[Stage] = [s for file in files for s in file.stage]
        self.clocks: list[Clock] = [c for file in files for c in file.clock]
        self.cascades: list[Cascade] = [c for file in files for c in file.cascade]
        self.components = _merged(files)
        self.checkin_lines = list({line.name: line for file in files for line in file.checkin_line}.values())
        self.checkin_clauses = list({one.name: one for file in files for one in file.checkin_clause}.values())
        self.notify = next((file.notify for file in reversed(files) if file.notify), Notify())
        self.by_trigger: dict[str, list[Rule]] = defaultdict(list)
        for rule in named.values():
            self.by_trigger[rule.on.kind].append(rule)
        self._files: list[File] = [f for file in files for f in file.file]
        self._origins: dict[str, Origin | None] = {}
        self._metrics: dict[str, list[Rule]] = {}
        texts = [(("milestone", m.name), m.pattern) for m in self.milestones]
        texts += [(("rule", r.name), r.on.log.pattern) for r in self.by_trigger["log"] if r.on.log]
        texts += [(("end", r.name), r.on.ends) for r in self.by_trigger["log"] if r.on.ends]
        texts += [(("among", r.name), r.on.log.among) for r in self.by_trigger["log"] if r.on.log and r.on.log.among]
        self._texts = PatternSet(texts)
        self._milestones = {m.name: m for m in self.milestones}
        self._referring = [rule for rule in named.values() if refers(rule)]
        known = [one for file in files for one in file.known]
        self._known = PatternSet([(number, one.pattern) for number, one in enumerate(known)])
        self._quoted = PatternSet([(frozenset(one.not_level), one.pattern) for one in known if one.quoted])

    def of_one_run(self) -> Rulebook:
        """Return the same rules, for one run to `configure`."""
        mine = copy(self)
        mine.rules, mine.by_trigger = dict(self.rules), defaultdict(list, self.by_trigger)
        return mine

    def configure(self, config: RunConfigured | None) -> None:
        """Take from the run's config the thresholds that rules refer to."""
        if config is None or not self._referring:
            return
        self._metrics = {}  # names their rules as they were
        for rule in self._referring:
            now, of_kind = self.rules[rule.name], self.by_trigger[rule.on.kind]
            self.rules[rule.name] = made = resolved(rule, config)
            self.by_trigger[rule.on.kind] = [made if one is now else one for one in of_kind]

    def origin(self, path: str) -> Origin | None:
        """Return whose log the file at *path* is; `None` of an unknown one."""
        if path not in self._origins:
            self._origins[path] = next((o for file in self._files if (o := _origin(file, path))), None)
        return self._origins[path]

    def matches(self, text: str, component: Component) -> Found:
        """Return what is found in *text*, a record of *component*."""
        found = self._texts.matches(text)
        milestones = [self._milestones[name] for kind, name in found if kind == "milestone"]
        rules, ended, counted = (
            [self.rules[name] for kind, name in found if kind == wanted] for wanted in ("rule", "end", "among")
        )
        return Found([m for m in milestones if not m.component or component in m.component], rules, ended, counted)

    def is_quoted(self, text: str, level: Level | None) -> bool:
        """Tell whether a record only quotes what it says; one with a traceback never does."""
        return _TRACEBACK not in text and any(level not in without for without in self._quoted.matches(text))

    def is_known(self, text: str) -> bool:
        """Tell whether *text* is known to be harmless."""
        return bool(self._known.matches(text))

    def of_metric(self, name: str) -> list[Rule]:
        """Return the rules that look at the metric *name*."""
        if name not in self._metrics:
            if len(self._metrics) >= _NAMES_KEPT:
                self._metrics.clear()
            self._metrics[name] = [r for r in self.by_trigger["metric"] if r.on.metric and _named(r.on.metric, name)]
        return self._metrics[name]

    def causes(self, cause: tuple[str, Component], effect: tuple[str, Component]) -> bool:
        """Tell whether an alert of one (failure mode, component) is declared to bring about the other."""
        return any(_fits(c.cause, *cause) and _fits(c.effect, *effect) for c in self.cascades)


def _merged(files: Sequence[RuleFile]) -> Components:
    """Return the tables of all files as one; later files win."""
    tables = [file.components for file in files]
    return Components(
        role={key: value for table in tables for key, value in table.role.items()},
        origin={key: value for table in tables for key, value in table.origin.items()},
        writer={key: value for table in tables for key, value in table.writer.items()},
        copies={key: value for table in tables for key, value in table.copies.items()},
        rollout=next((table.rollout for table in reversed(tables) if table.rollout), None),
    )


def _origin(file: File, path: str) -> Origin | None:
    labels = file.path.search(path)
    return None if labels is None else Origin(file.component, labels, file.copies)


def _named(trigger: MetricTrigger, name: str) -> bool:
    return any(_glob(wanted, name) for wanted in trigger.name)


def _glob(wanted: str, name: str) -> bool:
    """Tell whether *name* is *wanted*, whose stars stand for anything."""
    if "*" not in wanted:
        return wanted == name
    head, *middle, tail = wanted.split("*")
    if len(name) < len(head) + len(tail) or not (name.startswith(head) and name.endswith(tail)):
        return False
    at, end = len(head), len(name) - len(tail)
    for part in middle:
        found = name.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


def _fits(match: Match, mode: str, component: Component) -> bool:
    modes, components = match.mode, match.component
    return (not modes or mode in modes) and (not components or component in components)
