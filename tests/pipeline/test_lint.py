"""Lint: what is sound and not meant is found, with its line; what is meant is left alone."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from pipeline.check import check, findings

RULE = """
[[rule]]
name = "own"
failure_mode = "own"
summary = "{summary}"
advice = "do"
on = {on}
escalate = [{escalate}]
{more}
[[example]]
rule = "own"
files = ["trainer.log"]
fires = ["{text}"]
"""
LOG = '{ log = { pattern = "own" } }'
METRIC = '{ metric = { name = ["own"] } }'
PHASE = '[[phase]]\nname = "running"\nfrom = ["starting"]\n'
ABSENCE = '{ absence = { of = ["trained"] } }'
UNTIL = '{ log = { component = ["trainer"], pattern = "own", until = "done" } }'
ENDS = '{ log = { component = ["trainer"], pattern = "own (?P<id>.)", until = "done" }, per = ["id"] }'
LASTS = '{ severity = "info", for = "5m" }'
SHARE = '{ severity = "info", fraction = 0.5, over = "5m", at_least = 2 }'
BOUND = '{ severity = "info", above = 2.0, for = "5m" }'
CLAUSE = """[[checkin_clause]]
name = "own"
section = "Performance"
text = "{kv-cache}"
when = [{ line = "LINE", above = 1.0 }]
"""
NOW = '{ severity = "info", immediately = true }'


def rule(on: str = LOG, escalate: str = NOW, *, summary: str = "s", more: str = "", text: str = "our own text") -> str:
    """Return a rule with its test."""
    written = RULE
    filled = {"on": on, "escalate": escalate, "summary": summary, "more": more, "text": text}
    for name, value in filled.items():
        written = written.replace(f"{{{name}}}", value)
    return written


def found(folder: Path, text: str) -> list[str]:
    """Return what lint finds in *text*, without the file's name."""
    file = folder / "own.toml"
    file.write_text(text, "utf-8")
    assert check([file]) == []
    return [str(finding).removeprefix(f"{file}:") for finding in findings([file])]


def test_what_is_meant(tmp_path: Path) -> None:
    """A rule with advice and a test, that holds and clears, is left alone."""
    assert found(tmp_path, rule()) == []


def test_the_rules_that_ship_are_clean() -> None:
    """Lint finds nothing in the built-in rules."""
    assert [str(finding) for finding in findings([])] == []


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        (rule().replace('advice = "do"\n', ""), 3, "it has no advice"),
        (rule().partition("[[example]]")[0], 3, "no test expects anything of it"),
        (rule('{ log = { pattern = ".*" } }'), 7, '".*" is found in every text'),
        (rule('{ log = { pattern = "" } }'), 7, '"" is found in every text'),
        (rule('{ log = { pattern = ["own", "x?"] } }'), 7, "is found in every text"),
        (rule('{ log = { pattern = "own", not = "" } }'), 7, "is found in every text: nothing is left"),
        (rule(text="another text"), 7, "it is found in no text of the rule's own tests"),
        (rule('{ log = { pattern = "own" }, per = ["agent"] }'), 7, 'log events have no "agent"'),
        (rule('{ log = { pattern = "own", component = ["trainer"] }, per = ["env"] }'), 7, 'log events have no "env"'),
        (rule(summary="{vlaue}"), 5, 'its summary names "{vlaue}", which is never known'),
        (rule(summary="{value}"), 5, 'its summary names "{value}"'),
        (rule(summary="{fraction:.0%}"), 5, 'its summary names "{fraction}"'),
        (rule(summary="{"), 5, "its summary names"),
        (rule(escalate='{ severity = "info", for = "5m" }'), 8, '"for" never holds for log'),
        (rule(escalate='{ severity = "info", persistent = 2, within = "5s" }'), 8, 'within = "5s" is shorter than'),
        (rule(escalate='{ severity = "info", immediately = true, above = 2.0 }'), 8, '"above" is of metrics'),
        (rule(UNTIL), 8, '"immediately" never holds for log with until: use for'),
        (rule(UNTIL.replace("done", "x*"), LASTS), 7, '"x*" is found in every text'),
        (rule(UNTIL, LASTS, more='clear = { quiet = "5m" }'), 9, "what ends log resolves it"),
        (rule('{ log = { pattern = "own", until = "done" } }', LASTS), 7, "until in another component's log"),
        (rule(ENDS, LASTS), 7, 'until does not say which "id" it is of'),
        (rule(ENDS.replace("until", "among"), SHARE), 7, 'among does not say which "id" it is of'),
        (rule(LOG, SHARE), 7, "a fraction of records needs among"),
        (rule(UNTIL.replace("until", "among")), 7, "among is for nothing else"),
        (rule(METRIC, BOUND.replace("5m", "5s")), 8, 'for = "5s" is shorter than'),
        (rule(METRIC, BOUND, more="clear = { below = 3.0, for = '1m' }"), 9, "values that clear it are hits (above 2)"),
        (rule(LOG, more="clear = { below = 3.0, for = '1m' }"), 9, "what it looks at has no values"),
        (
            rule("{ rollout = { ok = false } }", SHARE.replace("over", 'of = "records", over')),
            8,
            '"of" says records: a fraction of rollout is of rollouts',
        ),
        (rule("{ attempt = {} }", more="clear = { attempt = true }"), 9, "begin anew with each launch"),
        (rule(LOG, summary="{minutes}"), 5, 'its summary names "{minutes}"'),
        (rule(LOG, more="silent = true"), 9, "nobody is told of it"),
        (rule('{ together = { modes = ["stall", "stal"] } }'), 7, '"stal" is no rule\'s failure mode; did you mean'),
        (rule('{ together = { modes = ["stall", "own"] } }'), 7, "waits for its own failure mode"),
        (
            rule(
                '{ together = { modes = ["stall", "cuda-oom"] } }',
                '{ severity = "info", pace = { at_least = "5m", times = 3.0, otherwise = "1h" } }',
            ),
            8,
            '"pace" never',
        ),
        (rule(METRIC), 8, "it says of no value that it is a hit"),
        (rule(METRIC, BOUND, summary="{value:q}"), 5, "its summary asks for {value:q}, which is no format"),
        (rule(METRIC, BOUND, more="clear = { above = 1.0, for = '1m' }"), 9, "values that clear it are hits (above 2)"),
        (rule(LOG, more="baseline = { values = 9 }"), 9, "only values have a baseline"),
        (rule(LOG, more="keep_firing_for = '1s'"), 9, "1s is shorter than sources are looked at"),
        (rule("{ process = { exit_code = [1], not_exit_code = [1] } }"), 7, "no exit code is left"),
        (rule("{ process = { exit_code = [1], state = ['running'] } }"), 7, "what runs has no exit code"),
        (
            rule('{ rollout = { ok = false }, per = ["error"] }', SHARE),
            7,
            "rollouts that are ok have no error: of each error all are hits",
        ),
        (
            rule(ENDS.replace("until", "among").replace('per = ["id"]', 'per = ["error"]'), SHARE),
            7,
            'among does not say which "error" it is of',
        ),
        (
            rule(
                ABSENCE.replace("] }", '], blame = [{ component = "env", ahead = "rollout", behind = "rollout" }] }'),
                LASTS,
            ),
            7,
            "no clock is ahead of itself",
        ),
        (rule(METRIC, '{ severity = "info", above = 1.0, persistent = 4, of_last = 3 }'), 8, "4 hits among 3 values"),
        (rule(more="clear = { fraction = 0.5, for = '1m' }"), 9, "it never clears: it measures no fraction"),
        (rule(more="clear = { quiet = '2s' }"), 9, "it clears after 2s, sooner than"),
        (
            rule(
                '{ absence = { of = ["trained"] } }',
                '{ severity = "info", for = "1h" }',
                more="clear = { quiet = '1h' }",
            ),
            9,
            "what ends absence resolves it",
        ),
        (
            rule(
                "{ rollout = { ok = false } }",
                '{ severity = "info", fraction = 0.2, over = "10m", at_least = 20 }',
                more="clear = { fraction = 0.3, for = '1m' }",
            ),
            9,
            "it will flap",
        ),
        (
            rule('{ absence = { of = ["traned"] } }', '{ severity = "info", for = "1h" }'),
            7,
            '"traned" is no clock; did you mean "trained"?',
        ),
    ],
    ids=count(),
)
def test_what_is_not_meant(tmp_path: Path, text: str, line: int, why: str) -> None:
    """Each trap is one finding at its line."""
    (finding,) = found(tmp_path, text)
    assert finding.startswith(f"{line}: ")
    assert why in finding


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ('[[cascade]]\ncause = { mode = ["cuda-omm"] }\neffect = {}', 2, '"cuda-omm" is no rule\'s failure mode; did'),
        ('[[cascade]]\ncause = {}\neffect = { mode = ["nothing-like-it"] }', 3, '"nothing-like-it" is no rule\'s'),
        (
            '[[stage]]\nname = "s"\nbegins = ["loop-strated"]\nends = ["trained"]\ntimeout = "1m"',
            3,
            "no milestone or clock",
        ),
        (
            '[[phase]]\nname = "running"\nfrom = ["starting"]\nwhen = [["treined"]]',
            4,
            '"treined" is no milestone or clock',
        ),
        ("[[cascade]]\ncause = {}\neffect = {}", 1, "every alert would bring about every other"),
        (
            '[[known]]\nwhy = "x"\npattern = "x*"\nquoted = true',
            3,
            "it is found in every text: no log would be looked at",
        ),
        ('[[file]]\npath = ""\ncomponent = "env"', 2, "it is found in every path"),
        ('[[phase]]\nname = "running"\nfrom = ["starting"]', 1, 'nothing begins phase "running"'),
        (CLAUSE.replace("LINE", "trainer-stp"), 5, '"trainer-stp" is no line of the check-in; did you mean'),
        (CLAUSE.replace("LINE", "trainer-step").replace("{kv-cache}", "{kv}"), 4, '"kv" is no line'),
        ('[[milestone]]\nname = "trained"\npattern = "x"', 2, '"trained" is the name of 2 milestones or clocks'),
    ],
    ids=count(),
)
def test_tables_around_rules(tmp_path: Path, text: str, line: int, why: str) -> None:
    """What names nothing, is never reached, or has the name of another is found."""
    (finding,) = found(tmp_path, text)
    assert finding.startswith(f"{line}: ")
    assert why in finding


def test_a_config_and_what_it_names(tmp_path: Path) -> None:
    """Of a config its own rules are looked at, and those of the files that it names, each in its own place."""
    own = rule().partition("[[example]]")[0]
    (tmp_path / "team.toml").write_text(own.replace('"own"', '"team"'), "utf-8")
    config = tmp_path / "runwatch.toml"
    config.write_text(f'rule_files = ["team.toml"]\n{own}', "utf-8")
    assert check([config]) == []
    places = [(Path(finding.file).name, finding.line) for finding in findings([config])]
    assert places == [("runwatch.toml", 4), ("team.toml", 3)]


def test_tests_beside_the_rules_count(tmp_path: Path) -> None:
    """A rule is tested if its tests are given as well."""
    own, _, example = rule().partition("[[example]]")
    rules, tests = tmp_path / "rules.toml", tmp_path / "tests.toml"
    rules.write_text(own, "utf-8")
    tests.write_text(f'rule_files = ["rules.toml"]\n[[example]]{example}', "utf-8")
    assert check([rules, tests]) == []
    assert len(findings([rules])) == 1
    assert findings([rules, tests]) == []


def test_a_test_file_that_is_wrong(tmp_path: Path) -> None:
    """A file of tests is checked like a file of rules."""
    file = tmp_path / "tests.toml"
    file.write_text('[[test]]\nname = "t"\nexpect = [{ quiet = ["stal"] }]', "utf-8")
    (message,) = check([file])
    assert 'no rule is named "stal"' in message
