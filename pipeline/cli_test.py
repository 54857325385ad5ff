"""`runwatch check`, `test` and `schema`: config, rules and their tests, before they are used."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import NoReturn
from xml.etree import ElementTree as ET

import click
import msgspec

from pipeline.check import check as faults_in
from pipeline.check import findings
from pipeline.rule_tests.running import Loaded, Result, cases, judge_case, load_tests, shipped
from pipeline.schema import KINDS, Kind, schema
from rules.load import BadFile

FAILED, UNUSABLE, LINT = 1, 2, 3
_PATH = click.Path(path_type=Path)


class Timed(msgspec.Struct, frozen=True):
    """The result of a test, and how long it took."""

    result: Result
    seconds: float


@click.command()
@click.argument("files", nargs=-1, type=_PATH)
@click.option("--lint-fatal", is_flag=True, help="Exit with 3 if lint finds anything.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def check(files: tuple[Path, ...], *, lint_fatal: bool, as_json: bool) -> None:
    """Check config, rules and rule tests; without FILE those that a run would use."""
    if faults := faults_in(list(files)):
        _refuse(*faults)
    found = findings(list(files))
    for finding in found:
        if as_json:
            click.echo(msgspec.json.encode(finding))
        else:
            click.echo(f"warning: {finding}", err=True)
    if not as_json:
        click.echo(f"ok, with {_count(len(found), 'warning')}" if found else "ok")
    if found and lint_fatal:
        sys.exit(LINT)


@click.command()
@click.argument("files", nargs=-1, type=_PATH)
@click.option("--run", "wanted", metavar="REGEX", default="", help="Only tests in whose name this is found.")
@click.option("--junit", type=_PATH, metavar="OUT", help="Write the results there, as JUnit's XML.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line: a test each.")
def test(files: tuple[Path, ...], wanted: str, junit: Path | None, *, as_json: bool) -> None:
    """Run rule tests; without FILE those of the built-in rules."""
    loaded = _loaded(list(files) or shipped())
    pattern = _pattern(wanted)
    done = [_timed(one, pattern, as_json=as_json) for one in loaded]
    timed = [one for some in done for one in some]
    failed = sum(not one.result.passed for one in timed)
    if junit is not None:
        _write_junit(junit, timed)
    if not timed:
        _refuse("no test has such a name" if wanted else "there is no test in these files")
    if not as_json:
        click.echo(_count(len(timed), "test") + (f", {failed} failed" if failed else " passed"))
    if failed:
        sys.exit(FAILED)


@click.command(name="schema")
@click.argument("kind", type=click.Choice(list(KINDS)), default="config")
def print_schema(kind: Kind) -> None:
    """Print the JSON Schema of a config, of rules or of rule tests, for editors."""
    click.echo(json.dumps(schema(kind), indent=2))


COMMANDS: list[click.Command] = [check, test, print_schema]


def _loaded(files: list[Path]) -> list[Loaded]:
    """Read all files; what is wrong with any of them ends the program."""
    loaded: list[Loaded] = []
    messages: list[str] = []
    for path in files:
        try:
            loaded.append(load_tests(path))
        except BadFile as error:
            messages += error.messages
    if messages:
        _refuse(*messages)
    return loaded


def _timed(loaded: Loaded, wanted: re.Pattern[str], *, as_json: bool) -> list[Timed]:
    """Run the tests of a file, and show what came of each."""
    timed: list[Timed] = []
    for case in cases(loaded):
        if wanted.search(case.test.name):
            began = time.perf_counter()
            result = judge_case(loaded, case)
            timed.append(Timed(result, time.perf_counter() - began))
            _show(result, as_json=as_json)
    return timed


def _show(result: Result, *, as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.encode({"passed": result.passed} | msgspec.structs.asdict(result)))
    elif not result.passed:
        click.echo(f'{result.file}:{result.line}: "{result.name}" failed')
        for line in result.differences:
            colour = {"-": "red", "+": "green"}.get(line[0])
            click.secho(f"    {line}", fg=colour)


def _write_junit(path: Path, timed: list[Timed]) -> None:
    failed = sum(not one.result.passed for one in timed)
    suite = ET.Element("testsuite", name="runwatch test", tests=str(len(timed)), failures=str(failed))
    for one in timed:
        result = one.result
        case = ET.SubElement(suite, "testcase", classname=result.file, name=_xml(result.name), line=str(result.line))
        case.set("time", f"{one.seconds:.3f}")
        if not result.passed:
            failure = ET.SubElement(case, "failure", message=_xml(result.differences[-1]))
            failure.text = _xml("\n".join(result.differences))
    try:
        path.write_bytes(ET.tostring(suite, encoding="utf-8", xml_declaration=True))
    except OSError as error:
        _refuse(f"{path}: cannot be written: {error.strerror}")


def _xml(text: str) -> str:
    """Return *text* without the characters that XML has no way to write."""
    return "".join(char if char.isprintable() or char == "\n" else "?" for char in text)


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        _refuse(f"--run: not a regular expression: {error}")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _refuse(*messages: str) -> NoReturn:
    """End the program: what it was given cannot be used."""
    for message in messages:
        click.echo(message, err=True)
    sys.exit(UNUSABLE)
