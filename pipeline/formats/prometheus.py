"""
Prometheus' text exposition format, and OpenMetrics where it differs.

Dozens of engines answer with thousands of lines each, of which a few are wanted: a
line is only split at its name until that is known to be wanted.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:.]*")
_LABEL = re.compile(r'\s*+([a-zA-Z_][a-zA-Z0-9_.]*+)\s*+=\s*+"((?:[^"\\]|\\.)*+)"\s*+(?:,|$)')
_LABELS_END = re.compile(r'(?:[^"}]|"(?:[^"\\]|\\.)*+")*+\}')
_ESCAPE = re.compile(r"\\(.)")
_UNESCAPED = {"n": "\n"}
_SHOWN_CHARACTERS = 60
_CACHED_CHARACTERS = 500


class Value(NamedTuple):
    """One value. The labels are shared between pages: not to be changed."""

    name: str
    labels: dict[str, str]
    value: float


def parse(text: bytes, wanted: Callable[[str], bool], limit: int) -> list[Value]:
    """
    Return the values of the *wanted* names, in the page's order.

    *wanted* is asked once for each name. A name is all that is checked of a line that
    is not wanted.

    Raises:
        ValueError: It is not exposition format, or has more than *limit* wanted values.

    """
    values: list[Value] = []
    known: dict[str, bool] = {}
    for number, line in enumerate(text.decode(errors="replace").split("\n"), 1):
        if line[:1].isspace():
            line = line.lstrip()  # noqa: PLW2901 (as good as the line)
        if not line or line[0] == "#":
            continue
        name, brace, _ = line.partition("{")
        if not brace or " " in name:
            name = line.split(None, 1)[0]
        if name not in known:
            known[name] = _is_name(name, line, number) and wanted(name)
        if known[name]:
            values.append(_value(name, line, number))
            if len(values) > limit:
                message = f"more than {limit} wanted values"
                raise ValueError(message)
    return values


def _is_name(name: str, line: str, number: int) -> bool:
    if not _NAME.fullmatch(name) or len(name) == len(line):
        raise _refusal(line, number)
    return True


def _refusal(line: str, number: int) -> ValueError:
    return ValueError(f"line {number} is not in Prometheus' exposition format: {line[:_SHOWN_CHARACTERS]!r}")


def _value(name: str, line: str, number: int) -> Value:
    rest = line[len(name) :].lstrip()
    try:
        labels, rest = _split_labels(rest[1:]) if rest[0] == "{" else ("", rest)
        # a timestamp, and an exemplar behind " # ", may follow
        return Value(name, _labels(labels), float(rest.split(None, 1)[0]))
    except (ValueError, IndexError):
        raise _refusal(line, number) from None


def _split_labels(text: str) -> tuple[str, str]:
    """Split what follows the opening brace into labels and the rest."""
    if "#" not in text:
        labels, brace, rest = text.rpartition("}")
        if brace:
            return labels, rest
    if (match := _LABELS_END.match(text)) is None:
        message = "no closing brace"
        raise ValueError(message)
    return text[: match.end() - 1], text[match.end() :]


def _labels(text: str) -> dict[str, str]:
    text = text.strip()
    return _cached_labels(text) if len(text) <= _CACHED_CHARACTERS else _parse_labels(text)


def _parse_labels(text: str) -> dict[str, str]:
    labels: dict[str, str] = {}
    end = 0
    while end < len(text):
        if (match := _LABEL.match(text, end)) is None:
            message = "not a label"
            raise ValueError(message)
        labels[match[1]] = _ESCAPE.sub(_unescape, match[2]) if "\\" in match[2] else match[2]
        end = match.end()
    return labels


_cached_labels = lru_cache(maxsize=4096)(_parse_labels)  # the same series come with every scrape


def _unescape(match: re.Match[str]) -> str:
    return _UNESCAPED.get(match[1], match[1])
