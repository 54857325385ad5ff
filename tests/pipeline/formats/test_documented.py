"""Each example of the formats' description is read, and as a second and plainer reading of it has it."""

from __future__ import annotations

import json
import re
from itertools import count
from pathlib import Path

import pytest

from pipeline.formats import headers, metric_rows, step_lines
from pipeline.formats.headers import LocalTime, TimeOfDay

FORMATS = Path(__file__).parents[3].parent / "shared" / "prime-rl-formats.md"
if not FORMATS.is_file():
    pytest.skip("the description of the formats is not beside the project", allow_module_level=True)

HEADERS = {
    "loguru": re.compile(r"(\[trainer0\]:)?(?P<time>\d\d:\d\d:\d\d) +(?P<level>[A-Z]{4,8}) (?P<message>.*)"),
    "vllm": re.compile(
        r"(\(\w+ pid=\d+\) )?(?P<level>[A-Z]+) \d\d-\d\d (?P<time>\d\d:\d\d:\d\d) \[\S+\] (?P<message>.*)"
    ),
    "router": re.compile(r"\d{4}-\d\d-\d\d (?P<time>\d\d:\d\d:\d\d) +(?P<level>[A-Z]+) (?P<message>.*)"),
    "torchrun": re.compile(r"(?P<level>[WE])\d{4} (?P<time>\d\d:\d\d:\d\d)\.\d+ \d+ \S+\] (?P<message>.*)"),
    "uvicorn": re.compile(r"(\(\w+ pid=\d+\) )?(?P<level>[A-Z]+): +(?P<message>\S+:\d+ - .*)"),
}
LEVELS = {"WARN": "WARNING", "W": "WARNING", "E": "ERROR"}


def blocks(kind: str = "") -> list[list[str]]:
    """Return the lines of each block of a kind."""
    found: list[list[str]] = []
    inside: str | None = None
    for line in FORMATS.read_text("utf-8").splitlines():
        if line.startswith("```"):
            inside = line[3:] if inside is None else None
            found += [[]] if inside == kind else []
        elif inside == kind:
            found[-1].append(line)
    return found


def examples() -> list[str]:
    """Return the lines of the blocks that show what is written, colours as they are in files."""
    lines = [line for block in blocks() if not any("├" in line for line in block) for line in block]
    return [line.replace("ESC[", "\x1b[").rstrip("⏎") for line in lines]


def shown() -> list[tuple[str, re.Match[str]]]:
    """Return the examples that begin a record, each with what a plain expression takes from it."""
    plain = [(line, re.sub(r"\x1b\[\d*m", "", line)) for line in examples()]
    found = [(line, match) for _, line in plain for one in HEADERS.values() if (match := one.fullmatch(line))]
    return [(line, match) for line, match in found if "…" not in line[:30]]


@pytest.mark.parametrize(("line", "match"), shown(), ids=count())
def test_a_line_that_begins_a_record(line: str, match: re.Match[str]) -> None:
    """Its level, its time of day and its message are those that stand in it."""
    header = headers.parse(line)
    assert header is not None
    assert header.level == LEVELS.get(match["level"], match["level"])
    assert header.message == match["message"]
    if "time" in match.re.groupindex:
        hours, minutes, seconds = (int(part) for part in match["time"].split(":"))
        clock = header.clock
        assert clock is not None
        if isinstance(clock, TimeOfDay | LocalTime):
            assert int(clock.seconds) == hours * 3600 + minutes * 60 + seconds
        else:
            assert (clock.hour, clock.minute, clock.second) == (hours, minutes, seconds)


def test_there_are_examples_of_each_form() -> None:
    """None of the forms has gone from the description without a word."""
    lines = [re.sub(r"\x1b\[\d*m", "", line) for line in examples()]
    assert {name for name, form in HEADERS.items() if any(form.fullmatch(line) for line in lines)} == set(HEADERS)
    assert len(shown()) > 30


def test_step_lines_give_their_figures() -> None:
    """Each example of a step line has its step, and each of its figures that is a number is one of the line's."""
    found = [(line, step_lines.parse(match["message"])) for line, match in shown() if match["message"][:5] == "Step "]
    assert len(found) >= 4
    for line, parsed in found:
        assert parsed is not None, line
        assert parsed.step == int(line.split("Step ")[1].split()[0])


def test_rows_of_metrics() -> None:
    """Each example row has its step, its time, and all of its other keys that are numbers."""
    lines = [line for block in blocks("json") for line in block]
    rows = [line for line in lines if line.startswith('{"step"') and line.endswith("}")]
    assert rows
    for row in rows:
        plain, parsed = json.loads(row), metric_rows.parse(row.encode(), 0, "metrics.jsonl")
        assert parsed is not None
        assert (parsed.step, round(parsed.time.timestamp(), 2)) == (plain.pop("step"), round(plain.pop("time"), 2))
        assert parsed.values == plain
