"""Lint of what surrounds rules: milestones, phases, stages, clocks, cascades."""

from __future__ import annotations

from collections import Counter
from difflib import get_close_matches
from string import Formatter
from typing import TYPE_CHECKING

from rules.rule_file import Match

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rules.rule_file import RuleFile
    from rules.rulebook import Rulebook
    from rules.toml_lines import Path

_FIRST_PHASE = "starting"


def named_in(text: str) -> list[str]:
    """Return the names in a text that is filled in; of one that is no format, the whole."""
    try:
        return [name for _, name, _, _ in Formatter().parse(text) if name is not None]
    except ValueError:
        return [text]


def formats_in(text: str) -> list[tuple[str, str]]:
    """Return the names in a text that is filled in, each with its format; nothing of what is no such text."""
    try:
        return [(name, spec or "") for _, name, spec, _ in Formatter().parse(text) if name is not None]
    except ValueError:
        return []


def is_format(spec: str) -> bool:
    """Tell whether a text, or a number, can be written so."""
    for value in ("text", 1.5, 1):
        try:
            format(value, spec)
        except ValueError:
            continue
        return True
    return False


def table_faults(file: RuleFile, book: Rulebook) -> Iterator[tuple[Path, str]]:
    """Yield where, and what: names that nothing has, phases that no way leads to, names given twice."""
    clocks = {clock.name for clock in book.clocks}
    passed = clocks | {milestone.name for milestone in book.milestones}
    yield from _repeats(file, book)
    yield from _phases(file, book, passed)
    for i, stage in enumerate(file.stage):
        for key in ("begins", "ends"):
            for j, name in enumerate(getattr(stage, key)):
                yield from _unknown(("stage", i, key, j), name, passed, "milestone or clock")
    yield from _together(file, book)
    yield from _clauses(file, book)
    for i, rule in enumerate(file.rule):
        absence = rule.on.absence
        for j, name in enumerate(absence.of if absence else ()):
            yield from _unknown(("rule", i, "on", "absence", "of", j), name, clocks, "clock")
        for j, blame in enumerate(absence.blame if absence else ()):
            for key in ("ahead", "behind"):
                yield from _unknown(("rule", i, "on", "absence", "blame", j, key), getattr(blame, key), clocks, "clock")
    yield from _cascades(file, book)
    yield from _everything(file)


def _everything(file: RuleFile) -> Iterator[tuple[Path, str]]:
    """Yield what fits every record or file, or nothing."""
    for i, known in enumerate(file.known):
        if known.pattern.search("") is not None:
            yield ("known", i, "pattern"), "it is found in every text: no log would be looked at"
    for i, log in enumerate(file.file):
        if log.path.search("") is not None:
            yield ("file", i, "path"), "it is found in every path: all files would be of this component"
    for i, cascade in enumerate(file.cascade):
        if cascade.cause == cascade.effect == Match():
            yield ("cascade", i), "every alert would bring about every other: give mode or component"


def _cascades(file: RuleFile, book: Rulebook) -> Iterator[tuple[Path, str]]:
    modes = {rule.failure_mode for rule in book.rules.values()}
    for i, cascade in enumerate(file.cascade):
        for side in ("cause", "effect"):
            for j, mode in enumerate(getattr(cascade, side).mode):
                yield from _unknown(("cascade", i, side, "mode", j), mode, modes, "rule's failure mode")


def _together(file: RuleFile, book: Rulebook) -> Iterator[tuple[Path, str]]:
    modes = {rule.failure_mode for rule in book.rules.values()}
    named = {mode for rule in book.rules.values() if rule.on.together for mode in rule.on.together.modes}
    for i, rule in enumerate(file.rule):
        for j, mode in enumerate(rule.on.together.modes if rule.on.together else ()):
            where: Path = ("rule", i, "on", "together", "modes", j)
            yield from _unknown(where, mode, modes, "rule's failure mode")
            if mode == rule.failure_mode:
                yield where, f'rule "{rule.name}" waits for its own failure mode'
        if rule.silent and rule.failure_mode not in named:
            yield (
                ("rule", i, "silent"),
                f'rule "{rule.name}": nobody is told of it, and no rule is about it together with others',
            )


def _clauses(file: RuleFile, book: Rulebook) -> Iterator[tuple[Path, str]]:
    lines = {line.name for line in book.checkin_lines}
    for i, clause in enumerate(file.checkin_clause):
        for j, compared in enumerate(clause.when):
            for key in ("line", "share_of"):
                if (name := getattr(compared, key)) is not None:
                    yield from _unknown(("checkin_clause", i, "when", j, key), name, lines, "line of the check-in")
        for name in named_in(clause.text):
            yield from _unknown(("checkin_clause", i, "text"), name, lines, "line of the check-in")


def _phases(file: RuleFile, book: Rulebook, passed: set[str]) -> Iterator[tuple[Path, str]]:
    reached = _reached(book)
    for i, phase in enumerate(file.phase):
        for j, names in enumerate(phase.when):
            for k, name in enumerate(names):
                yield from _unknown(("phase", i, "when", j, k), name, passed, "milestone or clock")
        if not reached & set(phase.from_):
            reason = f'no way leads to phase "{phase.name}": none of {", ".join(phase.from_)} is reached'
            yield ("phase", i, "from"), reason
        if not (phase.when or phase.last_step or phase.exited):
            yield ("phase", i), f'nothing begins phase "{phase.name}": give when, last_step or exited'
    for i, rule in enumerate(file.rule):
        for j, name in enumerate(rule.during):
            if name not in reached:
                yield ("rule", i, "during", j), f'rule "{rule.name}": no way leads to phase "{name}"'


def _reached(book: Rulebook) -> set[str]:
    """Return the phases that a run can come to."""
    reached: set[str] = {_FIRST_PHASE}
    while more := {p.name for p in book.phases if reached & set(p.from_)} - reached:
        reached |= more
    return reached


def _repeats(file: RuleFile, book: Rulebook) -> Iterator[tuple[Path, str]]:
    """Yield milestones and clocks that share a name: a second one does not replace the first."""
    names = Counter([m.name for m in book.milestones] + [clock.name for clock in book.clocks])
    for key in ("milestone", "clock"):
        for i, one in enumerate(getattr(file, key)):
            if names[one.name] > 1:
                yield (key, i, "name"), f'"{one.name}" is the name of {names[one.name]} milestones or clocks'


def _unknown(path: Path, name: str, known: Iterable[str], what: str) -> Iterator[tuple[Path, str]]:
    names = sorted(known)
    if name not in names:
        near = get_close_matches(name, names, n=1)
        yield path, f'"{name}" is no {what}' + (f'; did you mean "{near[0]}"?' if near else "")
