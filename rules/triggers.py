"""Which events a rule's trigger matches."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.events import ProcessState, Rollout, Sample
    from rules.facts import Fact
    from rules.model import LogTrigger, MetricTrigger, Rule


def matches_log(rule: Rule, fact: Fact) -> dict[str, str] | None:
    """Return the named groups of the rule's pattern if the record is one it looks for."""
    trigger = rule.on.log
    if trigger is None or not _looks_at(trigger, fact) or (trigger.level and fact.level not in trigger.level):
        return None
    return trigger.pattern.search(fact.text)


def counts_log(rule: Rule, fact: Fact) -> dict[str, str] | None:
    """Return the named groups of what a record shares with those that the rule's fraction is of, if it is one."""
    trigger = rule.on.log
    if trigger is None or trigger.among is None or not _looks_at(trigger, fact):
        return None
    return trigger.among.search(fact.text)


def _looks_at(trigger: LogTrigger, fact: Fact) -> bool:
    if trigger.component and fact.component not in trigger.component:
        return False
    return trigger.not_ is None or trigger.not_.search(fact.text) is None


def ends_log(rule: Rule, fact: Fact) -> dict[str, str] | None:
    """Return the named groups of what ends that which the rule waits for, if the record does."""
    trigger = rule.on.log
    if trigger is None or trigger.until is None:
        return None
    if trigger.component and fact.component not in trigger.component:
        return None
    return trigger.until.search(fact.text)


def matches_rollout(rule: Rule, event: Rollout) -> bool | None:
    """Tell whether the rollout is a hit; `None` if it is not even one that the rule counts."""
    trigger = rule.on.rollout
    if trigger is None or trigger.scope not in ("any", event.kind):
        return None
    if trigger.ok is not None and event.ok != trigger.ok:
        return False
    if trigger.error is not None and (event.error is None or trigger.error.search(event.error) is None):
        return False
    return trigger.message is None or trigger.message.search(event.message) is not None


def matches_labels(trigger: MetricTrigger, event: Sample) -> bool:
    """Tell whether a series of a Prometheus page is one that the rule looks at."""
    return all(pattern.search(event.labels.get(name, "")) is not None for name, pattern in trigger.labels.items())


def matches_process(rule: Rule, event: ProcessState) -> bool | None:
    """Tell whether the state of a process is a hit; `None` if it is not even one that the rule counts."""
    trigger = rule.on.process
    if trigger is None or (trigger.role and event.role not in trigger.role):
        return None
    if event.state not in trigger.state or (trigger.orphan and event.ppid != 1):
        return False
    if trigger.title is not None and trigger.title.search(event.title) is None:
        return False
    codes = trigger.exit_code
    return (not codes or event.exit_code in codes) and event.exit_code not in trigger.not_exit_code
