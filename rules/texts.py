"""Lines of text: records of logs, and lines from outside, as the rules about logs see them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rules.copies import is_copy
from rules.facts import error_of
from rules.triggers import counts_log, ends_log, matches_log

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from rules.alerting import Alerts
    from rules.facts import Fact
    from rules.lasting import Lasting
    from rules.model import Rule
    from rules.rule_file import Milestone
    from rules.rulebook import Rulebook
    from rules.state import State
    from rules.unknown import Unknowns


class Texts:
    """The texts that rules look at."""

    def __init__(self, state: State, book: Rulebook, alerts: Alerts, lasting: Lasting, unknowns: Unknowns) -> None:
        self._state, self._book, self._alerts, self._lasting = state, book, alerts, lasting
        self._unknowns = unknowns

    def take(self, fact: Fact, at: datetime) -> Sequence[Milestone]:
        """Judge a text, and return the milestones that it tells of."""
        if is_copy(fact, self._state):
            return []
        found = self._book.matches(fact.text, fact.component)
        rules = [] if found.rules and self._book.is_quoted(fact.text, fact.level) else found.rules
        ended = [rule for rule in found.ended if self._end(rule, fact, at)]
        matched = {rule.name for rule in rules if rule not in ended and self._match(rule, fact, at)}
        for rule in found.counted if rules or not found.rules else ():  # what is quoted is neither
            if rule.name not in matched and (labels := counts_log(rule, fact)) is not None:
                self._alerts.other(rule, _labelled(fact, labels), at)
        if not (matched or ended or found.milestones):
            self._unknowns.take(fact, at)
        return found.milestones

    def _end(self, rule: Rule, fact: Fact, at: datetime) -> bool:
        labels = ends_log(rule, fact)
        if labels is not None:
            self._lasting.end(rule, _labelled(fact, labels), at)
        return labels is not None

    def _match(self, rule: Rule, fact: Fact, at: datetime) -> bool:
        labels = matches_log(rule, fact)
        if labels is not None:
            take = self._lasting.begin if rule.on.ends else self._alerts.hit
            take(rule, _labelled(fact, {"error": error_of(fact.text)} | labels), at)
        return labels is not None


def _labelled(fact: Fact, labels: dict[str, str]) -> Fact:
    return msgspec.structs.replace(fact, labels=fact.labels | labels)
