"""The line that a person reads: figures in whatever format it asks for."""

from __future__ import annotations

import pytest

from pipeline.times import EPOCH
from rules.load import decode
from rules.rows import Cell
from rules.rule_file import RuleFile
from rules.summaries import summary

RULE = """
[[rule]]
name = "a"
failure_mode = "a"
summary = "SAID"
on = { metric = { name = ["x"] } }
escalate = [{ severity = "info", immediately = true, above = 1.0 }]
"""


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("{value}", "0.12345"),
        ("{value:.1f}", "0.1"),
        ("{value:.0%}", "12%"),
        ("{value:>10}", "   0.12345"),
        ("{step:04d} {step:.1f}", "0007 7.0"),
        ("{count:03d}", "003"),
        ("{metric:.3}", "los"),
        ("{metric:.1f}", "loss/mean"),
        ("{usual:.2f}", "unknown"),
        ("{big:.1f}", "inf"),
        ("{nothing:.1f}", "?"),
        ("{value:d}", "0.12345"),
        ("{value:.2}", "0.12"),
        ("{step:.3}", "7.0"),
        ("{count:q}", "{count:q}"),
        ("{", "{"),
    ],
)
def test_figures_in_any_format(asked: str, said: str) -> None:
    """A figure is written as a number where it is one and is asked for as one; nothing fails."""
    (rule,) = decode(RULE.replace("SAID", asked), "f.toml", RuleFile).rule
    fields = {"value": "0.12345", "step": "7", "metric": "loss/mean", "usual": "unknown", "big": "inf"}
    assert summary(rule, Cell(rule="a", component="trainer", count=3, fields=fields), EPOCH) == said
