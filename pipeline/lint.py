"""
What is sound in a file of rules and still not meant: lint.

A finding names its file, its line and the rule. It looks at the files that are asked for, in the light of all
that a run would use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import msgspec

from pipeline.lint_tables import formats_in, is_format, named_in, table_faults
from rules.conditions import clearing
from rules.conditions_in_words import OF
from rules.escalation import WORDS, Clear, Escalation
from rules.model import TRIGGERS, Rule
from rules.pattern import Duration, Pattern, quoted
from rules.rule_file import File, RuleFile
from rules.rulebook import Rulebook
from rules.toml_lines import Lines, Path

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

SHORTEST_S = 10.0
"""Files are swept, pages and processes looked at, no more often than that."""

Fault: TypeAlias = tuple[Path, str]
"""Where it is in its file, and what it is."""

_ALWAYS_KNOWN = {"component", "count"}
_FIGURES = {
    "log": {"source", "rank", "process", "node", "error"},
    "rollout": {"env", "agent", "error", "source"},
    "metric": {"metric", "series", "step", "source", "node", "path", "free", "role", "pid", "size", "value", "usual"},
    "process": {"node", "role", "pid", "source", "exit_code"},
    "absence": {"minutes", "seen"},
    "blind": {"source", "reason"},
    "attempt": {"number", "source"},
    "together": {"parts", "minutes"},
}
"""By the kind of trigger: what its facts say."""
_HOLDS_BY = {
    "log": {"immediately", "persistent", "growing", "fraction"},
    "rollout": {"immediately", "persistent", "growing", "fraction"},
    "metric": {"immediately", "persistent", "growing", "fraction", "for"},
    "process": {"immediately", "persistent", "growing", "fraction"},
    "absence": {"for", "pace"},
    "blind": {"for"},
    "attempt": {"immediately", "persistent", "growing"},
    "together": {"immediately", "for"},
}
_OF_VALUES = ("nan", "above", "below", "spike", "drop", "deviation", "slope", "reaches")
_OF_BASELINE = ("spike", "drop", "deviation")


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """A file of rules, or a config, that is to be looked at."""

    name: str
    text: str
    file: RuleFile


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is not meant, most likely."""

    file: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.message}"


def lint(checked: Sequence[Checked], whole: Sequence[RuleFile], tested: Mapping[str, Sequence[str]]) -> list[Finding]:
    """
    Return the findings in *checked*, file by file in the order of lines.

    *whole* is all that a run uses, those checked among them; *tested* has the rules that tests name, each with the
    texts that it should fire at.
    """
    findings: list[Finding] = []
    book, logs = Rulebook(whole), [file for one in whole for file in one.file]
    for one in checked:
        lines = Lines(one.text)
        faults: list[Fault] = [*table_faults(one.file, book)]
        for i, rule in enumerate(one.file.rule):
            faults += [(("rule", i, *path), f'rule "{rule.name}": {why}') for path, why in _of_rule(rule, logs, tested)]
        found = [Finding(file=one.name, line=lines.of(path), message=why) for path, why in faults]
        findings += sorted(found, key=lambda finding: finding.line)
    return findings


def _of_rule(rule: Rule, logs: Sequence[File], tested: Mapping[str, Sequence[str]]) -> Iterator[Fault]:
    if not rule.advice:
        yield ("name",), "it has no advice: say what to do about it"
    if rule.name not in tested:
        yield ("name",), "no test expects anything of it: write one, and give its file as well"
    yield from _patterns(rule, tested.get(rule.name, ()))
    yield from _figures(rule, logs)
    for i, escalation in enumerate(rule.escalate):
        for why in _escalation(rule, escalation):
            yield ("escalate", i), why
    yield from _clearing(rule)
    yield from _second_pattern(rule)
    yield from _never(rule)


def _never(rule: Rule) -> Iterator[Fault]:
    """Yield what no event fits, and words that say nothing of the rule's events."""
    process, rollout = rule.on.process, rule.on.rollout
    if process is not None and process.exit_code and set(process.exit_code) <= set(process.not_exit_code):
        yield ("on", "process", "not_exit_code"), "no exit code is left"
    if process is not None and process.exit_code and process.state == ["running"]:
        yield ("on", "process", "exit_code"), "what runs has no exit code"
    if rollout is not None and rule.has_fraction and "error" in rule.on.per:
        yield ("on", "per"), "rollouts that are ok have no error: of each error all are hits"
    if rule.baseline is not None and rule.on.metric is None:
        yield ("baseline",), "only values have a baseline: it says nothing here"
    if rule.keep_firing_for is not None and rule.keep_firing_for < SHORTEST_S:
        yield ("keep_firing_for",), f"{rule.keep_firing_for} is shorter than sources are looked at ({SHORTEST_S:.0f} s)"
    for i, blame in enumerate(rule.on.absence.blame if rule.on.absence else ()):
        if blame.ahead == blame.behind:
            yield ("on", "absence", "blame", i), "no clock is ahead of itself"


def _second_pattern(rule: Rule) -> Iterator[Fault]:
    """Yield what keeps an end from being known as one, or a record as one of those that a fraction is of."""
    log = rule.on.log
    if log is None:
        return
    if rule.has_fraction != (log.among is not None):
        yield ("on", "log"), "a fraction of records needs among: what all of them say; and among is for nothing else"
    for word, pattern in (("until", log.until), ("among", log.among)):
        if pattern is None:
            continue
        if rule.component is None and len(log.component) != 1:
            yield ("on", "log", word), f"{word} in another component's log would be of another subject: give component"
        groups, hits = ({name for name, _ in one.groups} for one in (pattern, log.pattern))
        hits.add("error")
        for i, label in enumerate(rule.on.per):
            if label in hits and label not in groups:
                yield ("on", "per", i), f'{word} does not say which "{label}" it is of: name that group in it as well'


def _patterns(rule: Rule, texts: Sequence[str]) -> Iterator[Fault]:
    trigger = getattr(rule.on, rule.on.kind)
    for field in msgspec.structs.fields(trigger):
        pattern = getattr(trigger, field.name)
        if isinstance(pattern, Pattern) and pattern.search("") is not None:
            where = ("on", rule.on.kind, field.encode_name)
            left = ": nothing is left" if field.name == "not_" else ""
            yield where, f"{quoted(pattern.text)} is found in every text{left}"
    log = rule.on.log
    if log is not None and texts and all(log.pattern.search(text) is None for text in texts):
        yield ("on", "log", "pattern"), "it is found in no text of the rule's own tests"


def _figures(rule: Rule, logs: Sequence[File]) -> Iterator[Fault]:
    """Yield what the summary or `per` names and no event that the rule looks at has."""
    known = _FIGURES[rule.on.kind] | _captured(rule, logs) | ({"minutes"} if rule.on.ends else set())
    for i, label in enumerate(rule.on.per):
        if label not in known:
            yield ("on", "per", i), f'{rule.on.kind} events have no "{label}": all are one subject'
    if rule.has_fraction:
        known |= {"hits", "total", "fraction"}
    for name, spec in formats_in(rule.summary):
        if spec and not is_format(spec):
            yield ("summary",), f"its summary asks for {{{name}:{spec}}}, which is no format"
    for name in named_in(rule.summary):
        if name not in known | _ALWAYS_KNOWN:
            known_names = ", ".join(sorted(known | _ALWAYS_KNOWN))
            yield ("summary",), f'its summary names "{{{name}}}", which is never known; known are {known_names}'


def _captured(rule: Rule, logs: Sequence[File]) -> set[str]:
    """Return the named groups of the rule's pattern, and of the paths of the files that it looks at."""
    log = rule.on.log
    if log is None:
        return set()
    mine = [file for file in logs if not log.component or file.component in log.component]
    return {name for pattern in (log.pattern, *(file.path for file in mine)) for name, _ in pattern.groups}


def _escalation(rule: Rule, escalation: Escalation) -> Iterator[str]:
    kind = rule.on.kind
    word = next(key for key, name in WORDS.items() if getattr(escalation, name) is not None)
    holds = {"for"} if rule.on.ends else _HOLDS_BY[kind]
    if word not in holds:
        end = " with until" if rule.on.ends else ""
        yield f'"{word}" never holds for {kind}{end}: use {" or ".join(sorted(holds))}'
    given = [key for key in _OF_VALUES if getattr(escalation, key) is not None]
    if kind == "metric" and not given:
        yield f"it says of no value that it is a hit, and never holds: add one of {', '.join(_OF_VALUES)}"
    if kind != "metric" and (given or escalation.of_last is not None):
        yield f'"{(given or ["of_last"])[0]}" is of metrics: it says nothing here'
    for name in ("for_", "within", "over"):
        span = getattr(escalation, name)
        if isinstance(span, Duration) and span < SHORTEST_S:
            yield f"{name.rstrip('_')} = {quoted(str(span))} is shorter than sources are looked at ({SHORTEST_S:.0f} s)"
    if escalation.of is not None and escalation.of != OF.get(kind):
        yield f'"of" says {escalation.of}: a fraction of {kind} is of {OF.get(kind, "nothing")}'
    if escalation.of_last is not None and (escalation.persistent or 1) > escalation.of_last:
        yield f"{escalation.persistent} hits among {escalation.of_last} values never come"


def _clearing(rule: Rule) -> Iterator[Fault]:
    clear = clearing(rule)
    fractions = [e.fraction for e in rule.escalate if e.fraction is not None]
    if clear is None or rule.clear is None:
        return
    if rule.on.attempt is not None and (clear.attempt or clear.steps):
        yield ("clear",), "its alerts begin anew with each launch; clear them by quiet"
    if rule.on.lasts:
        yield ("clear",), f"what ends {rule.on.kind} resolves it; clear says nothing here"
    elif clear.fraction is not None and not fractions:
        yield ("clear",), "it never clears: it measures no fraction"
    elif clear.fraction is not None and clear.fraction >= min(fractions):
        yield ("clear",), f"it clears below {clear.fraction:g} and holds from {min(fractions):g} on: it will flap"
    elif clear.quiet is not None and clear.quiet < SHORTEST_S:
        yield ("clear",), f"it clears after {clear.quiet}, sooner than sources are looked at ({SHORTEST_S:.0f} s)"
    elif clear.is_bound and rule.on.metric is None:
        yield ("clear",), "it never clears: what it looks at has no values"
    elif clear.is_bound and (bad := next((e for e in rule.escalate if _overlap(e, clear)), None)):
        yield ("clear",), f"values that clear it are hits ({_bound(bad)}): give a bound on the other side"


def _overlap(escalation: Escalation, clear: Clear) -> bool:
    """Tell whether a bound that clears has hits beyond it, or nothing else."""
    above = escalation.above is not None and (clear.above is not None or (clear.below or 0.0) > escalation.above)
    below = escalation.below is not None and (clear.below is not None or (clear.above or 0.0) < escalation.below)
    return above or below


def _bound(escalation: Escalation) -> str:
    return f"above {escalation.above:g}" if escalation.above is not None else f"below {escalation.below:g}"


assert set(_FIGURES) == set(_HOLDS_BY) == set(TRIGGERS)
