"""Thresholds that a rule takes from the run's own config."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from pipeline.events import RunConfigured
    from rules.escalation import Escalation
    from rules.model import Rule

_WHOLE = {"persistent": 2, "at_least": 1}
"""Thresholds that are whole numbers, with the least that each may be."""


def refers(rule: Rule) -> bool:
    """Tell whether the rule takes any threshold from the config."""
    return any(escalation.config for escalation in rule.escalate)


def resolved(rule: Rule, config: RunConfigured) -> Rule:
    """Return the rule with the thresholds that the config gives; what it does not give is as the rule says."""
    return msgspec.structs.replace(rule, escalate=[_resolved(one, config) for one in rule.escalate])


def _resolved(escalation: Escalation, config: RunConfigured) -> Escalation:
    given: dict[str, Any] = {}
    for name, reference in escalation.config.items():
        value: int | None = getattr(config, reference.key)
        if value is None:
            continue
        given[name] = reference.times * value
        if name in _WHOLE:
            given[name] = max(round(given[name]), _WHOLE[name])
        if name == "persistent" and escalation.of_last is not None:
            given[name] = min(given[name], escalation.of_last)
    try:
        return msgspec.structs.replace(escalation, **given)
    except ValueError:  # what the config gives does not go with the rest of it
        return escalation
