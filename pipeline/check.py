"""Config, rule and test files, looked at before they are used."""

from __future__ import annotations

import tomllib
from pathlib import Path

import rules
from pipeline.config import Config, load, load_rules, read_text
from pipeline.lint import Checked, Finding, lint
from pipeline.rule_tests.file import RuleTestFile
from pipeline.rule_tests.running import load_tests, rules_tested, shipped
from rules.load import BadFile, decode
from rules.pattern import printable
from rules.rule_file import RuleFile
from rules.rulebook import Rulebook

_BUILTIN = Path(rules.__file__).parent / "builtin"


def check(files: list[Path]) -> list[str]:
    """Return what is wrong with *files*, one line each; without any, with those that a run would use."""
    messages: list[str] = []
    wanted: list[Path | None] = [*files] or [None]
    for file in wanted:
        try:
            _check(file)
        except BadFile as error:
            messages += error.messages
    return messages


def findings(files: list[Path]) -> list[Finding]:
    """
    Return what lint finds in *files*; without any, in those that a run would use.

    Tests among them count, as do those that ship.

    Raises:
        BadFile: One of them is wrong: `check` tells.

    """
    builtin = [_rules(path) for path in sorted(_BUILTIN.glob("*.toml"))]
    asked = [one for file in files for one in _asked(file)] if files else [*builtin, *_of_config(None)]
    names = {one.name for one in asked}
    whole = [one.file for one in builtin if one.name not in names] + [one.file for one in asked]
    tests = [_tests(path) for path in shipped()] + [one.file for one in asked]
    return lint(asked, whole, rules_tested(test for test in tests if isinstance(test, RuleTestFile)))


def _asked(path: Path) -> list[Checked]:
    """Return the rules that the file at *path* holds or names."""
    kind = _kind(read_text(path))
    if kind is Config:
        return _of_config(path)
    return [_rules(path) if kind is RuleFile else Checked(name=_shown(path), text=read_text(path), file=_tests(path))]


def _of_config(path: Path | None) -> list[Checked]:
    """Return the rules of a config, the built-in ones left out; without a path of that which a run here would use."""
    config = load(path, Path.cwd())
    mine = [] if path is None else [Checked(name=_shown(path), text=read_text(path), file=RuleFile(rule=config.rule))]
    return [*mine, *(_rules(Path(name)) for name in config.rule_files)]


def _rules(path: Path) -> Checked:
    text = read_text(path)
    return Checked(name=_shown(path), text=text, file=decode(text, _shown(path), RuleFile))


def _tests(path: Path) -> RuleTestFile:
    return decode(read_text(path), _shown(path), RuleTestFile)


def _check(file: Path | None) -> None:
    kind = Config if file is None else _kind(read_text(file))
    if kind is Config:
        config = load(file, Path.cwd())
        Rulebook(load_rules(config), config.disable)
    elif file is not None and kind is RuleTestFile:
        load_tests(file)
    elif file is not None:
        _rules(file)


def _kind(text: str) -> type[Config | RuleFile]:
    """Tell a config, a file of rules and one of tests: by a table that only one of them has."""
    try:
        keys = set(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, RecursionError, ValueError):  # said when it is decoded
        return RuleFile
    if keys & {"test", "example"}:
        return RuleTestFile
    return Config if keys & (set(Config.__struct_fields__) - set(RuleFile.__struct_fields__)) else RuleFile


def _shown(path: Path) -> str:
    return printable(str(path))
