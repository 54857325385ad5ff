"""
Measure how many faults in the built-in rules are noticed by the rule tests that ship.

Each built-in rule is broken in one place at a time: a letter in each alternative of its patterns, its list of
exceptions, a name or role that it looks for, each threshold ten times higher and lower, each severity, the restart
verdict. Then the tests of its file are run; a fault is noticed if one of them fails.

    python benchmarks/mutations.py [--rule REGEX]
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

sys.path.insert(0, str(Path(__file__).parent.parent))

from pipeline.config import Config, load_rules
from pipeline.rule_tests.running import Case, Loaded, cases, judge_case, load_tests, shipped
from rules.load import decode
from rules.model import Rule
from rules.pattern import Duration, Pattern
from rules.rule_file import RuleFile
from rules.rulebook import Rulebook

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rules.escalation import Escalation, OwnPace

BUILTIN = Path(__file__).parent.parent / "rules" / "builtin"
FACTORS = (10.0, 0.1)
THRESHOLDS = (
    "persistent", "growing", "fraction", "at_least", "above", "below", "spike", "drop", "deviation", "slope", "ahead",
    "for_",
)  # fmt: skip
PACE_THRESHOLDS = ("at_least", "times", "otherwise")
NEXT_SEVERITY = {"info": "warning", "warning": "critical", "critical": "warning"}
_TOKEN = re.compile(r"\\.|\(\?P<\w+>|\(\?[a-z]*[:)]|\[\^?\]?(?:\\.|[^\]])*\]|\{\d*,?\d*\}|.", re.DOTALL)


class Tried(msgspec.Struct, frozen=True):
    """A test, and the rules that it names."""

    loaded: Loaded
    case: Case
    names: frozenset[str]


class Mutant(msgspec.Struct, frozen=True):
    """A rule with one fault."""

    kind: str
    what: str
    rule: Rule


def mutants(rule: Rule) -> Iterator[Mutant]:
    """Yield the rule with each of the faults that this looks for."""
    yield from _patterns(rule)
    for i, escalation in enumerate(rule.escalate):
        for what, changed in _escalations(escalation):
            escalate = [changed if i == j else other for j, other in enumerate(rule.escalate)]
            kind = "severity" if what.startswith("severity") else "threshold"
            yield Mutant(kind, f"escalate[{i}].{what}", msgspec.structs.replace(rule, escalate=escalate))
    if not rule.silent and any(one.severity != "info" for one in rule.escalate):  # else nothing is ever proposed
        yield Mutant(
            "restart", f"restart = {not rule.restart}", msgspec.structs.replace(rule, restart=not rule.restart)
        )


def _patterns(rule: Rule) -> Iterator[Mutant]:
    trigger = getattr(rule.on, rule.on.kind)
    for field in ("pattern", "until", "error", "message", "title"):
        pattern = getattr(trigger, field, None)
        for broken in _broken(pattern.text) if isinstance(pattern, Pattern) else ():
            yield Mutant("pattern", f"{field}: {broken}", _with(rule, **{field: Pattern(broken)}))
    if getattr(trigger, "not_", None) is not None:
        yield Mutant("pattern", "not: left out", _with(rule, not_=None))
    if isinstance(names := getattr(trigger, "name", None), list):
        for i, name in enumerate(names):
            others = [f"{name}-broken" if i == j else other for j, other in enumerate(names)]
            yield Mutant("pattern", f"name: {name}", _with(rule, name=others))
    for field in ("exit_code", "not_exit_code", "role", "component"):
        for one in getattr(trigger, field, None) or ():
            left = [other for other in getattr(trigger, field) if other != one]
            if left:
                yield Mutant("pattern", f"{field}: without {one}", _with(rule, **{field: left}))


def _with(rule: Rule, **changes: Any) -> Rule:
    trigger = msgspec.structs.replace(getattr(rule.on, rule.on.kind), **changes)
    return msgspec.structs.replace(rule, on=msgspec.structs.replace(rule.on, **{rule.on.kind: trigger}))


def _broken(text: str) -> Iterator[str]:
    """Yield *text* with a letter changed in each of its alternatives."""
    tokens = _TOKEN.findall(text)
    for start, stop in _alternatives(tokens):
        place = _letter(tokens, start, stop)
        if place is not None:
            yield "".join([*tokens[:place], "Q7", *tokens[place + 1 :]])


def _alternatives(tokens: list[str]) -> Iterator[tuple[int, int]]:
    """Yield where each alternative begins and ends: of the whole, and of the parts of a list of patterns."""
    depth, start, nested = 0, 0, False
    bounds: list[tuple[int, int]] = []
    for i, token in enumerate([*tokens, "|"]):
        if token == "|" and (depth == 0 or (depth == 1 and nested)):
            bounds.append((start, i))
            start = i + 1
        elif token.startswith("(") and not token.endswith(")"):
            nested = nested or (depth == 0 and token == "(?:" and start == i)
            depth += 1
        elif token == ")":
            depth -= 1
            nested = nested and depth > 0
    yield from bounds


def _letter(tokens: list[str], start: int, stop: int) -> int | None:
    """Return the place of the letter in the middle of the longest run of letters, none of them optional."""
    best: list[int] = []
    run: list[int] = []
    for i in range(start, stop + 1):
        token = tokens[i] if i < stop else ""
        optional = i + 1 < stop and (tokens[i + 1] in ("?", "*") or tokens[i + 1].startswith("{0"))
        if len(token) == 1 and token.isalpha() and not optional:
            run.append(i)
        else:
            best, run = max(best, run, key=len), []
    return best[len(best) // 2] if best else None


def _escalations(escalation: Escalation) -> Iterator[tuple[str, Escalation]]:
    severity = NEXT_SEVERITY[escalation.severity]
    yield f"severity = {severity}", msgspec.structs.replace(escalation, severity=severity)
    for name in THRESHOLDS:
        for value in _scaled(escalation, name):
            yield f"{name} = {value}", msgspec.structs.replace(escalation, **{name: value})
    if escalation.pace is not None:
        for name in PACE_THRESHOLDS:
            for value in _scaled(escalation.pace, name):
                pace = msgspec.structs.replace(escalation.pace, **{name: value})
                yield f"pace.{name} = {value}", msgspec.structs.replace(escalation, pace=pace)


def _scaled(of: Escalation | OwnPace, name: str) -> Iterator[Any]:
    """Yield the threshold ten times higher and lower, where the language allows that."""
    value = getattr(of, name)
    if value is None or value is True:
        return
    for factor in FACTORS:
        scaled = value * factor
        if isinstance(value, Duration):
            yield Duration(scaled)
        elif isinstance(value, int):
            least = 2 if name in ("persistent", "growing") else 1
            if (whole := max(least, round(scaled))) != value:
                yield whole
        elif not (name in ("fraction", "drop") and scaled >= 1):
            yield scaled


def noticed(mutant: Mutant, files: list[RuleFile], tests: list[Tried]) -> bool:
    """Tell whether a test fails because of the fault; those that name the rule are tried first."""
    book = Rulebook([*files, RuleFile(rule=[mutant.rule])])
    near = sorted(tests, key=lambda tried: mutant.rule.name not in tried.names)
    return any(not _passes(tried, book) for tried in near)


def _passes(tried: Tried, book: Rulebook | None = None) -> bool:
    return judge_case(tried.loaded, tried.case, book).passed


def tests_by_file() -> dict[str, list[Tried]]:
    """Return the tests that ship, by the name of their file, which is that of the rules they are about."""
    found: dict[str, list[Tried]] = {}
    for path in shipped():
        loaded = load_tests(path)
        for case in cases(loaded):
            expected = case.test.expect
            names = {alert.rule for e in expected for alert in e.firing or ()}
            names |= {name for e in expected for name in e.quiet}
            found.setdefault(path.name, []).append(Tried(loaded, case, frozenset(names)))
    return found


def main() -> None:
    """Break the rules, run the tests, print what they do not notice, and the share that they do."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rule", default="", metavar="REGEX", help="only rules in whose name this is found")
    wanted = re.compile(parser.parse_args().rule)
    files, tests = load_rules(Config()), tests_by_file()
    if failing := [tried.case.test.name for some in tests.values() for tried in some if not _passes(tried)]:
        sys.exit(f"these tests fail without any fault: {', '.join(failing)}")
    made: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    began = time.perf_counter()
    for path in sorted(BUILTIN.glob("*.toml")):
        rules = decode(path.read_text("utf-8"), path.name, RuleFile).rule
        for mutant in (mutant for rule in rules if wanted.search(rule.name) for mutant in mutants(rule)):
            made[mutant.kind] += 1
            if not noticed(mutant, files, tests.get(path.name, [])):
                missed[mutant.kind] += 1
                print(f"not noticed: {mutant.rule.name}: {mutant.what}", flush=True)
    for kind, number in made.items():
        print(f"{kind:<10} {number - missed[kind]:>5} of {number:>5} noticed")
    total, lost = made.total(), missed.total()
    share = (total - lost) / total if total else 1.0
    print(f"{'all':<10} {total - lost:>5} of {total:>5} noticed: {share:.1%} ({time.perf_counter() - began:.0f} s)")


if __name__ == "__main__":
    main()
