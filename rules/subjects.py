"""Whom an alert is about: the labels that tell one subject of a rule from another, and the key they make."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from rules.facts import clip

if TYPE_CHECKING:
    from pipeline.alerts import Component
    from rules.facts import Fact
    from rules.model import Rule

_SUBJECT_BYTES = 64


def subject(rule: Rule, fact: Fact) -> dict[str, str]:
    """Return the labels of a fact by which the rule has an alert for each."""
    return {name: clip(fact.labels.get(name, "")) for name in rule.on.subject}


def cell_key(rule: Rule, component: Component, labels: dict[str, str]) -> str:
    """Return the key of a rule and a subject: bounded, however long the labels are."""
    subject = "|".join(f"{name}={value}" for name, value in sorted(labels.items()))
    if len(said := subject.encode()) > _SUBJECT_BYTES:  # incidents list the keys of their alerts
        subject = hashlib.blake2b(said, digest_size=16).hexdigest()
    return f"cell|{rule.name}|{component}|{subject}"
