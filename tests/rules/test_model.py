"""What no rule can mean: it is refused with its line, and what would be right."""

from __future__ import annotations

import pytest

from rules.load import BadFile, decode
from rules.rule_file import RuleFile

NOW = 'severity = "info", immediately = true'


def rule(on: str = 'metric = { name = ["x"] }', escalate: str = f"{NOW}, above = 1.0", more: str = "") -> str:
    """Return a rule: its trigger in line 6, its escalation in line 7, what is added from line 8 on."""
    return f"""
[[rule]]
name = "a"
failure_mode = "a"
summary = "a"
on = {{ {on} }}
escalate = [{{ {escalate} }}]
{more}
"""


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        (rule(escalate=f'{NOW}, above = 1.0, within = "5m"'), 7, '"immediately" goes without within'),
        (rule(escalate=f"{NOW}, above = 1.0, of_last = 3"), 7, '"immediately" goes without of_last'),
        (
            rule(escalate='severity = "info", growing = 3, within = "5m", of_last = 4'),
            7,
            '"growing" goes without of_last',
        ),
        (
            rule(escalate='severity = "info", fraction = 0.5, over = "5m", at_least = 8, within = "5m"'),
            7,
            '"fraction" goes without within',
        ),
        (rule(escalate='severity = "info", fraction = 0.5, over = "5m"'), 7, '"fraction" needs at_least'),
        (rule(escalate='severity = "info", for = "5m", at_least = 3'), 7, '"for" goes without at_least'),
        (rule(escalate='severity = "info", persistent = 3'), 7, '"persistent" needs within'),
        (
            rule(escalate='severity = "info", persistent = 3, within = "5m", of_last = 4'),
            7,
            "give within or of_last, not both",
        ),
        (rule(escalate=f"{NOW}, above = 10.0, below = 5.0"), 7, "no value is above 10 and below 5"),
        (rule(escalate=f'{NOW}, ahead = "2h"'), 7, '"ahead" needs reaches'),
        (rule(escalate=f"{NOW}, reaches = 2.0"), 7, '"reaches" needs ahead'),
        (rule(escalate=f"{NOW}, above = inf"), 7, "inf is not a finite number"),
        (rule(escalate=f"{NOW}, below = -nan"), 7, "nan is not a finite number"),
        (rule(more="baseline = { values = 5 }"), 8, '"warm_up" (8) is more than "values" keeps: 5'),
        (rule('metric = { name = ["x"], over = "y", rate = true }'), 6, "give rate or over, not both"),
        (rule('metric = { name = ["x"], over = "y", labels = { a = "b" } }'), 6, "labels are of Prometheus pages"),
        (rule('metric = { name = ["x"], where = [{ name = "y" }] }'), 6, "give above, below, or both"),
        (
            rule('metric = { name = ["x"], where = [{ name = "y", above = 2.0, below = 1.0 }] }'),
            6,
            "no value is above 2 and below 1",
        ),
        (
            rule(
                more='[[checkin_clause]]\nname = "c"\nsection = "Progress"\ntext = "t"\n'
                'when = [{ line = "x", above = 1.0, below = 1.0 }]'
            ),
            12,
            "no value is above 1 and below 1",
        ),
        (rule("metric = { name = [] }"), 6, "0 entries are not a list"),
        (rule('metric = { name = ["x"], labels = { a = "(" } }'), 6, "is not a pattern"),
        (rule('rollout = { ok = true, error = "x" }', NOW), 6, "a rollout that is ok has no error"),
        (rule("process = { state = [] }", NOW), 6, "0 entries are not a list"),
        (
            rule(
                'process = { state = ["running"], orphan = true }',
                'severity = "info", fraction = 0.5, over = "5m", at_least = 2',
            ),
            2,
            "a fraction of processes is of those that are gone",
        ),
        (rule("absence = { of = [] }", 'severity = "info", for = "5m"'), 6, "0 entries are not a list"),
        (
            rule(
                'absence = { of = ["x"] }',
                'severity = "info", pace = { at_least = "1m", times = 1e10, otherwise = "1h" }',
            ),
            7,
            "is at most 1000",
        ),
        (rule(more="during = []"), 8, "0 entries are not a list"),
        (rule("attempt = { number = 3 }", NOW), 6, 'unknown key "number"; known are none'),
    ],
)
def test_what_no_rule_can_mean(text: str, line: int, why: str) -> None:
    """Each is one message, with its line."""
    with pytest.raises(BadFile) as caught:
        decode(text, "f.toml", RuleFile)
    (message,) = caught.value.messages
    assert message.startswith(f"f.toml:{line}: ")
    assert why in message
