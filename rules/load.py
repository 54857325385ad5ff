"""Strict reading of TOML: a struct, or every message about why not, with file and line."""

from __future__ import annotations

import re
import tomllib
from itertools import islice
from typing import Any, TypeVar

import msgspec

from rules.pattern import decode_hook, printable, quoted
from rules.strict import Fault, find_faults, find_infinite, find_repeats
from rules.toml_lines import Lines, Path

T = TypeVar("T", bound=msgspec.Struct)

_MOST_FAULTS = 100
_SYNTAX = re.compile(r"(?s)(?P<reason>.*) \(at (?:line (?P<line>[0-9]+), column (?P<column>[0-9]+)|end of document)\)")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


class BadFile(Exception):  # noqa: N818 - what it is; the errors are its messages
    """A file that cannot be used. Each message is one line that begins with the file's name."""

    def __init__(self, messages: list[str]) -> None:
        super().__init__("\n".join(messages))
        self.messages = messages


def decode(text: str, name: str, wanted: type[T]) -> T:
    """
    Return the TOML *text* as *wanted*; *name* is the file's, for messages.

    Raises:
        BadFile: It is not TOML, or not a *wanted*; the messages come in the order of lines.

    """
    document = _parse(text, name)
    try:
        decoded = msgspec.convert(document, wanted, dec_hook=decode_hook)
        faults = list(islice((*find_infinite(document), *find_repeats(document, wanted)), _MOST_FAULTS))
    except msgspec.ValidationError as error:
        faults = list(islice(find_faults(document, wanted), _MOST_FAULTS)) or [Fault((), str(error))]
    if not faults:
        return decoded
    lines = Lines(text)
    placed = sorted((lines.of(_place(fault)), _shown_path(fault.path), fault.reason) for fault in faults)
    messages = [f"{name}:{line}: {path}: {reason}" for line, path, reason in placed]
    raise BadFile(messages + [f"{name}: these are the first {_MOST_FAULTS}"] * (len(faults) == _MOST_FAULTS))


def _parse(text: str, name: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        match = _SYNTAX.fullmatch(str(error))
        reason = match["reason"] if match else str(error)
        line = match["line"] if match and match["line"] else text.count("\n") + 1
        column = f" at column {match['column']}" if match and match["column"] else ""
        message = f"{name}:{line}: not TOML: {reason[:1].lower()}{printable(reason[1:])}{column}"
    except RecursionError:
        message = f"{name}:1: not TOML that can be read: nested too deeply"
    except ValueError:  # a number of more digits than Python reads
        message = f"{name}:1: not TOML that can be read: a number in it is too long"
    raise BadFile([message])


def _place(fault: Fault) -> Path:
    return fault.path if fault.key is None else (*fault.path, fault.key)


def _shown_path(path: Path) -> str:
    """Return *path* as msgspec shows it: `$.rule[2].escalate[0].severity`."""
    shown = "$"
    for part in path:
        if isinstance(part, int):
            shown += f"[{part}]"
        else:
            shown += f".{part if _BARE_KEY.fullmatch(part) else quoted(part)}"
    return shown
