"""The schemas: what runwatch reads is valid by them, and what it refuses for its form is not."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from pipeline.schema import KINDS, schema

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is a development dependency")

ROOT = Path(__file__).parents[2]
RULE_FILES = sorted((ROOT / "rules" / "builtin").glob("*.toml"))
TEST_FILES = sorted((ROOT / "rules" / "tests").glob("*.toml"))
BEYOND_DRAFT_4 = {"const", "if", "then", "else", "contains", "propertyNames", "unevaluatedProperties", "$defs"}
RULE = {"name": "a", "failure_mode": "b", "summary": "s", "on": {"log": {"pattern": "x"}}}
NOW = {"severity": "info", "immediately": True}


def is_valid(kind: Any, document: Any) -> bool:
    """Tell whether a document is valid by the schema of its kind."""
    return bool(jsonschema.Draft4Validator(schema(kind)).is_valid(document))


def words(part: Any) -> set[str]:
    """Return the words of a schema: its keys, those left out that name properties and definitions."""
    if isinstance(part, list):
        return {word for one in part for word in words(one)}
    if not isinstance(part, dict):
        return set()
    inner = [one for key, one in part.items() if key not in ("properties", "definitions")]
    inner += [one for key in ("properties", "definitions") for one in part.get(key, {}).values()]
    return set(part) | {word for one in inner for word in words(one)}


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_a_schema_of_draft_4(kind: Any) -> None:
    """Each schema is one of draft 4, and has no word that came later."""
    jsonschema.Draft4Validator.check_schema(schema(kind))
    assert words(schema(kind)) & BEYOND_DRAFT_4 == set()
    assert schema(kind)["$schema"] == "http://json-schema.org/draft-04/schema#"


@pytest.mark.parametrize("path", RULE_FILES, ids=lambda path: path.stem)
def test_rules_that_ship_are_valid(path: Path) -> None:
    """Each built-in file is valid by the schema of rules."""
    document = tomllib.loads(path.read_text("utf-8"))
    jsonschema.validate(document, schema("rules"), cls=jsonschema.Draft4Validator)


@pytest.mark.parametrize("path", TEST_FILES, ids=lambda path: path.stem)
def test_tests_that_ship_are_valid(path: Path) -> None:
    """Each file of tests that ships is valid by the schema of tests."""
    document = tomllib.loads(path.read_text("utf-8"))
    jsonschema.validate(document, schema("tests"), cls=jsonschema.Draft4Validator)


def test_the_example_of_a_config_is_valid() -> None:
    """The commented config is valid, also with every comment that is a setting taken in."""
    text = (ROOT / "config.example.toml").read_text("utf-8")
    settings = re.sub(r"(?m)^#(?! \S)", "", text)
    for document in (tomllib.loads(text), tomllib.loads(settings)):
        jsonschema.validate(document, schema("config"), cls=jsonschema.Draft4Validator)


@pytest.mark.parametrize(
    ("kind", "document"),
    [
        ("rules", {"rule": [RULE | {"escalate": [NOW]}]}),
        ("rules", {"rule": [RULE | {"escalate": [NOW], "on": {"log": {"pattern": ["x", "y"], "not": "z"}}}]}),
        ("rules", {"rule": [RULE | {"escalate": [{"severity": "info", "for": "1h30m"}]}]}),
        ("rules", {"rule": [RULE | {"escalate": [NOW | {"above": 1}]}]}),
        ("config", {"checkin": {"every": "250ms"}}),
        ("config", {"sink": [{"type": "apprise", "name": "a", "url_env": "X"}]}),
        ("tests", {"test": [{"name": "t", "expect": [{"firing": []}]}], "rule": []}),
    ],
)
def test_what_is_valid(kind: Any, document: Any) -> None:
    """What can be written is valid."""
    assert is_valid(kind, document)


@pytest.mark.parametrize(
    ("kind", "document"),
    [
        ("rules", {"rule": [RULE]}),
        ("rules", {"rule": [RULE | {"escalate": []}]}),
        ("rules", {"rule": [RULE | {"escalate": [NOW], "severity": "info"}]}),
        ("rules", {"rule": [RULE | {"escalate": [NOW], "name": "No Name"}]}),
        ("rules", {"rule": [RULE | {"escalate": [NOW | {"severity": "fatal"}]}]}),
        ("rules", {"rule": [RULE | {"escalate": [{"severity": "info", "for": "5 min"}]}]}),
        ("rules", {"rule": [RULE | {"escalate": [{"severity": "info", "for": ""}]}]}),
        ("rules", {"rule": [RULE | {"escalate": [{"severity": "info", "fraction": 0}]}]}),
        ("rules", {"rule": [RULE | {"escalate": [{"severity": "info", "drop": 1}]}]}),
        ("rules", {"rules": []}),
        ("config", {"sink": [{"name": "a"}]}),
        ("config", {"sink": [{"type": "slack", "name": "a"}]}),
        ("config", {"disable": "stall"}),
        ("tests", {"test": [{"name": "t", "expect": []}]}),
    ],
)
def test_what_is_not_valid(kind: Any, document: Any) -> None:
    """What is refused for its form, is refused in the editor too."""
    assert not is_valid(kind, document)


def test_fields_say_what_they_mean() -> None:
    """Tables and fields carry the words that the source has for them, for an editor to show."""
    rule = schema("rules")["definitions"]["Rule"]
    assert rule["description"].startswith("A declaration")
    assert rule["properties"]["restart"]["description"] == "Whether the same command is likely to get further."
    assert rule["properties"]["baseline"]["description"].startswith("Of metrics")
