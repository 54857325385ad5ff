"""On which line of a TOML file a value stands, which `tomllib` does not tell."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

Path: TypeAlias = tuple[str | int, ...]
"""Keys and indices, from the top of the file."""

_TOKEN = re.compile(
    r'''
      (?P<skip> [\s]+ | \#[^\n]* )
    | """(?: [^"\\] | \\. | "{1,2}(?!") )*"{3,5}
    | \'\'\'(?: [^'] | '{1,2}(?!') )*'{3,5}
    | "(?: [^"\\\n] | \\. )*"
    | '[^'\n]*'
    | [0-9]{4}-[0-9]{2}-[0-9]{2}[ ][0-9][^\s,\]}\#]*   # a date and a time are one value
    | [\[\]{},=]
    | [^\s\[\]{},=\#"']+
    ''',
    re.VERBOSE | re.DOTALL,
)


class Lines:
    """The lines of all tables, keys and elements of *text*, which has to be valid TOML."""

    def __init__(self, text: str) -> None:
        self._lines: dict[Path, int] = {(): 1}
        self._lengths: dict[Path, int] = {}
        self._tokens = _tokens(text)
        self._advance()
        table: Path = ()
        while self._current:
            if self._current == "[":
                table = self._header()
            else:
                self._entry(table)

    def of(self, path: Path) -> int:
        """Return the line of *path*, or of the nearest thing that holds it."""
        while path not in self._lines:
            path = path[:-1]
        return self._lines[path]

    def _advance(self) -> None:
        self._current, self._line = next(self._tokens, ("", 0))

    def _header(self) -> Path:
        """Pass `[table]` or `[[table]]` and return its path."""
        line = self._line
        self._advance()
        is_array = self._current == "["
        if is_array:
            self._advance()
        path: Path = ()
        for key in self._keys("]"):
            path = (*self._last_of(path), key)
            self._lines.setdefault(path, line)
        if is_array:
            self._advance()
            self._lengths[path] = self._lengths.get(path, 0) + 1
        path = self._last_of(path)
        self._lines[path] = line
        return path

    def _last_of(self, path: Path) -> Path:
        """Return the path of the last element, if *path* is an array of tables."""
        return (*path, self._lengths[path] - 1) if path in self._lengths else path

    def _entry(self, table: Path) -> None:
        """Pass `key = value` within *table*."""
        line = self._line
        path = table
        for key in self._keys("="):
            path = (*path, key)
            self._lines.setdefault(path, line)
        self._value(path)

    def _value(self, path: Path) -> None:
        """Pass the value of *path*."""
        opening = self._current
        self._advance()
        index = 0
        while opening in ("[", "{") and self._current not in ("]", "}", ""):
            if self._current == ",":
                index += 1
                self._advance()
            elif opening == "{":
                self._entry(path)
            else:
                self._lines[*path, index] = self._line
                self._value((*path, index))
        if opening in ("[", "{"):
            self._advance()

    def _keys(self, end: str) -> list[str]:
        """Pass the parts of a dotted key and the *end* after it."""
        keys: list[str] = []
        while self._current not in (end, ""):
            if self._current[0] in "\"'":
                keys.append(tomllib.loads(f"key = {self._current}")["key"])
            else:
                keys += filter(None, self._current.split("."))
            self._advance()
        self._advance()
        return keys


def _tokens(text: str) -> Iterator[tuple[str, int]]:
    line = 1
    for match in _TOKEN.finditer(text):
        if match["skip"] is None:
            yield match[0], line
        line += match[0].count("\n")
