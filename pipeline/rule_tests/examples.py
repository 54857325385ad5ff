"""Examples of what a rule fires at, and of what it does not: each is a small rule test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from pipeline.rule_tests.file import Expectation, ExpectedAlert, RuleTest
from pipeline.rule_tests.given import GivenHost, GivenLog, GivenRollouts
from rules.pattern import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pipeline.rule_tests.file import Example

_ROLLOUTS = 100
_NAME_CHARS = 80


def tried(example: Example, text: str, *, fires: bool) -> Iterator[RuleTest]:
    """Yield the tests that try one text, one for each of its places."""
    alert = ExpectedAlert(rule=example.rule, severity=example.severity)
    expectation = Expectation(firing=[alert], only=False) if fires else Expectation(quiet=[example.rule])
    nothing = RuleTest(name="", phase=example.phase, expect=[expectation])
    for place, test in _placed(example, text, nothing):
        name = f"{example.rule}, {place}: {printable(text[:_NAME_CHARS])}"
        yield msgspec.structs.replace(test, name=name)


def _placed(example: Example, text: str, nothing: RuleTest) -> Iterator[tuple[str, RuleTest]]:
    """Yield each place with what happens there, on top of *nothing*."""
    often, every = example.repeat, example.every
    for file in example.files:
        log = GivenLog(file=file, text=text, level=example.level, at=every, repeat=often, every=every)
        yield file, msgspec.structs.replace(nothing, log=[log])
    for origin in example.origins:
        line = GivenHost(origin=origin, text=text, at=every, repeat=often, every=every)
        yield origin, msgspec.structs.replace(nothing, host=[line])
    if example.env is not None:
        error, _, message = text.partition(": ")
        rollouts = GivenRollouts(env=example.env, failed=_ROLLOUTS, error=error, message=message, every=every)
        yield example.env, msgspec.structs.replace(nothing, rollout=[rollouts])
