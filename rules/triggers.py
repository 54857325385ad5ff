"""Which events a rule's trigger matches."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.events import ProcessState, Rollout
    from rules.facts import Fact
    from rules.model import Rule


def matches_log(rule: Rule, fact: Fact) -> dict[str, str] | None:
    """Return the named groups of the rule's pattern if the record is one it looks for."""
    trigger = rule.on.log
    if trigger is None:
        return None
    components, levels = trigger.component, trigger.level
    if (components and fact.component not in components) or (levels and fact.level not in levels):
        return None
    if trigger.not_ is not None and trigger.not_.search(fact.text) is not None:
        return None
    return trigger.pattern.search(fact.text)


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


def matches_process(rule: Rule, event: ProcessState) -> bool:
    """Tell whether the state of a process is one that the rule looks for."""
    trigger = rule.on.process
    if trigger is None or event.state not in trigger.state:
        return False
    if trigger.title is not None and trigger.title.search(event.title) is None:
        return False
    if trigger.orphan and event.ppid != 1:
        return False
    roles, codes, not_codes = trigger.role, trigger.exit_code, trigger.not_exit_code
    if roles and event.role not in roles:
        return False
    return (not codes or event.exit_code in codes) and event.exit_code not in not_codes
