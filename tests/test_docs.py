"""What the documentation shows is true: its TOML is read, its rules are linted, its tests pass."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from pipeline.check import check, findings
from pipeline.rule_tests.running import cases, judge_case, load_tests

DOCS = Path(__file__).parents[1] / "docs"
if not DOCS.is_dir():
    pytest.skip("the documentation is not beside the tests", allow_module_level=True)

BLOCK = re.compile(r"^```toml\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks() -> list[tuple[int, str]]:
    """Return the TOML of the page about rules, each piece with its line."""
    text = (DOCS / "rules.md").read_text("utf-8")
    return [(text[: match.start()].count("\n") + 2, match[1]) for match in BLOCK.finditer(text)]


def is_test(text: str) -> bool:
    """Tell whether a piece holds tests; what it tests stands before it."""
    return bool({"test", "example"} & tomllib.loads(text).keys())


def examples() -> list[tuple[int, str, str]]:
    """Return the pieces that hold rules: the line, the piece, and the tests that follow it, if any do."""
    pieces = blocks()
    followed = zip(pieces, [*pieces[1:], (0, "")], strict=True)
    return [(line, text, after if is_test(after) else "") for (line, text), (_, after) in followed if not is_test(text)]


@pytest.mark.parametrize(
    ("line", "text", "tests"), examples(), ids=lambda value: value if isinstance(value, int) else ""
)
def test_an_example(tmp_path: Path, line: int, text: str, tests: str) -> None:
    """Each example is a file of rules or a config without a fault, and does what the tests beside it say."""
    (tmp_path / "team-rules.toml").write_text("")
    file = tmp_path / "example.toml"
    file.write_text(f"{text}\n{tests}")
    assert check([file]) == []
    if not tests:
        return
    loaded = load_tests(file)
    results = [judge_case(loaded, case) for case in cases(loaded)]
    assert results
    assert [result for result in results if not result.passed] == []
    assert [str(finding) for finding in findings([file])] == []


def test_what_is_claimed_is_tested() -> None:
    """All examples stand beside their tests, but for the first one, which shows a form."""
    assert [tests == "" for _, _, tests in examples()] == [True] + [False] * (len(examples()) - 1)
