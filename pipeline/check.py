"""Config and rule files, looked at before they are used."""

from __future__ import annotations

import tomllib
from pathlib import Path

from pipeline.config import Config, load, load_rules, read_text
from rules.load import BadFile, decode
from rules.pattern import printable
from rules.rule_file import RuleFile
from rules.rulebook import Rulebook


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


def _check(file: Path | None) -> None:
    if file is not None and not _is_config(text := read_text(file)):
        decode(text, printable(str(file)), RuleFile)
        return
    config = load(file, Path.cwd())
    Rulebook(load_rules(config), config.disable)


def _is_config(text: str) -> bool:
    """Tell a config from a file of rules: by a table that only the former has."""
    try:
        keys = set(tomllib.loads(text))
    except tomllib.TOMLDecodeError:
        return False
    return bool(keys & (set(Config.__struct_fields__) - set(RuleFile.__struct_fields__)))
