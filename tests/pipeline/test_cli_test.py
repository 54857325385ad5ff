"""`runwatch check`, `test` and `schema`: what they print, and how they exit."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import click
import pytest
from click.testing import CliRunner, Result

from pipeline.cli_test import COMMANDS

PASSES = '[[test]]\nname = "nothing happens"\nexpect = [{ at = "1m", firing = [], health = "Healthy" }]\n'
FAILS = '[[test]]\nname = "all is lost"\nexpect = [{ at = "1m", firing = [], health = "Down" }]\n'
UNTESTED = """
[[rule]]
name = "own"
failure_mode = "own"
summary = "s"
on = { log = { pattern = "x" } }
escalate = [{ severity = "info", immediately = true }]
"""


def run(*arguments: object) -> Result:
    """Run a command of this module."""
    return CliRunner().invoke(click.Group(commands=COMMANDS), [str(one) for one in arguments])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Give a file of tests, one of which fails."""
    path = tmp_path / "tests.toml"
    path.write_text(PASSES + FAILS, "utf-8")
    return path


def test_tests_that_pass(file: Path) -> None:
    """All pass: one line, and exit status 0."""
    file.write_text(PASSES, "utf-8")
    result = run("test", file)
    assert (result.exit_code, result.stdout) == (0, "1 test passed\n")


def test_a_test_that_fails(file: Path) -> None:
    """The place, the name and the difference are shown, and the exit status is 1."""
    result = run("test", file)
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        f'{file}:4: "all is lost" failed',
        "    at 1m:",
        "    - health Down",
        "    + health Healthy",
        "2 tests, 1 failed",
    ]


def test_only_some_tests(file: Path) -> None:
    """`--run` takes the tests in whose name the expression is found."""
    assert run("test", file, "--run", "^nothing").stdout == "1 test passed\n"
    assert run("test", file, "--run", "xyz").exit_code == 2
    assert run("test", file, "--run", "(").exit_code == 2


def test_machines_read_the_results(file: Path) -> None:
    """`--json` prints an object for each test and nothing else."""
    lines = [json.loads(line) for line in run("test", file, "--json").stdout.splitlines()]
    assert [(one["name"], one["passed"], one["line"]) for one in lines] == [
        ("nothing happens", True, 1),
        ("all is lost", False, 4),
    ]
    assert lines[1]["differences"][-1] == "+ health Healthy"


def test_junit(file: Path, tmp_path: Path) -> None:
    """`--junit` writes the results as XML that a CI reads, whatever stands in a name."""
    file.write_text(FAILS.replace("all is lost", "<lost> \\u0001 & more"), "utf-8")
    out = tmp_path / "out.xml"
    assert run("test", file, "--junit", out).exit_code == 1
    suite = ET.parse(out).getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("1", "1")
    (case,) = suite
    assert case.get("name") == "<lost> ? & more"
    assert "+ health Healthy" in (case[0].text or "")


def test_junit_where_nothing_can_be_written(file: Path, tmp_path: Path) -> None:
    """A file that cannot be written is said, with exit status 2."""
    result = run("test", file, "--junit", tmp_path / "nowhere" / "out.xml")
    assert (result.exit_code, "cannot be written" in result.stderr) == (2, True)


@pytest.mark.parametrize("command", ["test", "check"])
def test_what_cannot_be_used(file: Path, tmp_path: Path, command: str) -> None:
    """Every fault of every file is a line on standard error, and the exit status is 2."""
    file.write_text(PASSES.replace("firing", "fring"), "utf-8")
    result = run(command, file, tmp_path / "missing.toml")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "did you mean" in result.stderr
    assert "missing.toml: cannot be read" in result.stderr


def test_a_file_without_tests(tmp_path: Path) -> None:
    """A file of rules alone has nothing to run, which is an error and no success."""
    (tmp_path / "rules.toml").write_text(UNTESTED, "utf-8")
    assert run("test", tmp_path / "rules.toml").exit_code == 2


def test_lint_warns(tmp_path: Path) -> None:
    """Findings are warnings: said, and no failure unless that is asked for."""
    path = tmp_path / "rules.toml"
    path.write_text(UNTESTED, "utf-8")
    result = run("check", path)
    assert (result.exit_code, result.stdout) == (0, "ok, with 2 warnings\n")
    assert f'warning: {path}:3: rule "own": it has no advice' in result.stderr
    assert run("check", path, "--lint-fatal").exit_code == 3
    (one, other) = [json.loads(line) for line in run("check", path, "--json").stdout.splitlines()]
    assert one.keys() == other.keys() == {"file", "line", "message"}


def test_rules_that_ship_are_fine() -> None:
    """Without a file the rules that a run would use are looked at, and there is nothing to say of them."""
    result = run("check", "--lint-fatal")
    assert (result.exit_code, result.output) == (0, "ok\n")


@pytest.mark.parametrize("arguments", [(), ("config",), ("rules",), ("tests",)])
def test_schemas(arguments: tuple[str, ...]) -> None:
    """The schema of what is asked for is printed, that of a config without asking."""
    found = json.loads(run("schema", *arguments).stdout)
    assert found["title"] == f"runwatch: {(*arguments, 'config')[0]}"


def test_a_schema_of_nothing() -> None:
    """Of what has no schema none is printed."""
    assert run("schema", "pizza").exit_code == 2
