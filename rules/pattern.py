"""What rule files write as text: patterns that run in linear time whatever they read, and durations."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import re2

if TYPE_CHECKING:
    from collections.abc import Sequence

Key = TypeVar("Key")

_PATTERN_BYTES = 8 << 20
_SET_BYTES = 64 << 20
_SHOWN_CHARS = 200
_LONGEST_INTEGER = 10**40

_UNITS_MS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_LONGEST_MS = 3650 * _UNITS_MS["d"]
_DURATION = re.compile("".join(rf"(?:(?P<{unit}>[0-9]{{1,15}}){unit})?" for unit in _UNITS_MS))
_SPOKEN_PART = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?([a-z]+)")
_SPOKEN_UNITS = {
    "d": ("d", "day", "days"),
    "h": ("h", "hr", "hrs", "hour", "hours"),
    "m": ("m", "min", "mins", "minute", "minutes"),
    "s": ("s", "sec", "secs", "second", "seconds"),
    "ms": ("ms", "msec", "msecs", "millisecond", "milliseconds"),
}
_UNIT_OF = {word: unit for unit, words in _SPOKEN_UNITS.items() for word in words}


class Pattern:
    """
    A regular expression in RE2's syntax.

    As in Python, `.` stops at the end of a line and `^`, `$` mean the whole text; `(?s)` and `(?m)` change that.
    """

    __slots__ = ("_regexp", "group_count", "groups", "text")

    def __init__(self, text: str) -> None:
        """
        Compile *text*.

        Raises:
            ValueError: It is not a pattern; the message shows the place.

        """
        self.text = text
        try:
            self._regexp = re2.compile(text, _options(_PATTERN_BYTES))
        except UnicodeEncodeError as error:
            message = f"{quoted(text)} is not a pattern: half a surrogate pair at character {error.start + 1}"
            raise ValueError(message) from error
        except re2.error as error:
            message = f"{quoted(text)} is not a pattern: {_explain(text, error.args[0].decode(errors='replace'))}"
            raise ValueError(message) from error
        self.group_count: int = self._regexp.groups
        self.groups: list[tuple[str, int]] = list(self._regexp.groupindex.items())
        """The names of groups, with their numbers."""

    @classmethod
    def any_of(cls, patterns: Sequence[Pattern]) -> Pattern:
        """
        Return the pattern that finds what one of *patterns* finds; they may have groups of the same name.

        Raises:
            ValueError: There are none, or together they are too large.

        """
        if not patterns:
            message = "an empty list is not a pattern"
            raise ValueError(message)
        joined = cls("|".join(f"(?:{pattern.text})" for pattern in patterns))
        joined.groups = []
        start = 0
        for pattern in patterns:
            joined.groups += [(name, start + number) for name, number in pattern.groups]
            start += pattern.group_count
        return joined

    def search(self, text: str) -> dict[str, str] | None:
        """Return the named groups that the first match in *text* has, `None` if there is no match."""
        match = self._regexp.search(_utf8(text))
        if match is None:
            return None
        found = ((name, match[index]) for name, index in self.groups)
        return {name: group.decode(errors="replace") for name, group in found if group is not None}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pattern) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Pattern({self.text!r})"


class PatternSet(Generic[Key]):
    """Many patterns, all looked for in one pass over a text."""

    def __init__(self, patterns: Sequence[tuple[Key, Pattern]]) -> None:
        """
        Compile *patterns*; several may share a key.

        Raises:
            ValueError: Together they are too large.

        """
        self._keys = [key for key, _ in patterns]
        self._set = re2.Set.SearchSet(_options(_SET_BYTES))
        for _, pattern in patterns:
            self._set.Add(pattern.text.encode())
        try:
            self._set.Compile()
        except re2.error as error:
            message = f"{len(patterns)} patterns are too large together"
            raise ValueError(message) from error

    def matches(self, text: str) -> list[Key]:
        """Return the keys of the patterns found in *text*, each once, in the order they were given."""
        found = self._set.Match(_utf8(text)) if self._keys else None
        if not found:
            return []
        return list(dict.fromkeys(self._keys[index] for index in sorted(found)))


class Duration(float):
    """Seconds, above 0, written as text: `250ms`, `90s`, `15m`, `1h30m`, `2d`; the larger unit first."""

    __slots__ = ()

    def __new__(cls, value: str | float) -> Self:
        """
        Read text, or take a number of seconds.

        Raises:
            ValueError: It is not a duration; the message says how to write it.

        """
        seconds = _read_ms(value) / 1000 if isinstance(value, str) else float(value)
        if 0 < seconds <= _LONGEST_MS / 1000:
            return super().__new__(cls, seconds)
        message = f"{quoted(str(value))} is not a duration: it has to be above 0 and at most ten years"
        raise ValueError(message)

    def __str__(self) -> str:
        return _write_ms(round(self * 1000))


def decode_hook(wanted: type[Any], value: Any) -> Any:
    """
    Make a `Pattern` of text or of a list of texts, a `Duration` of text; the `dec_hook` of msgspec.

    Raises:
        ValueError: *value* is not one.
        NotImplementedError: *wanted* is another type.

    """
    if wanted not in (Pattern, Duration):
        raise NotImplementedError(wanted)
    if isinstance(value, str):
        return wanted(value)
    if wanted is Pattern and isinstance(value, list):
        return Pattern.any_of([decode_hook(Pattern, one) for one in value])
    how = "text in quotes" if wanted is Pattern else 'text with a unit, such as "15m"'
    message = f"{quoted(value)} is not a {wanted.__name__.lower()}: write it as {how}"
    raise ValueError(message)


def quoted(value: Any) -> str:
    """Return *value* as a message shows it: text in quotes, on one line, printable, cut."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and abs(value) > _LONGEST_INTEGER:  # Python refuses to write the longest ones
        return "a number that long"
    text = str(value)
    shown = printable(text[:_SHOWN_CHARS]) + "…" * (len(text) > _SHOWN_CHARS)
    return f'"{shown}"' if isinstance(value, str) else shown


def printable(text: str) -> str:
    """Return *text* with what does not print, line ends too, as escapes."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def _options(max_bytes: int) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = max_bytes
    return options


def _utf8(text: str) -> bytes:
    return text.encode(errors="replace")


def _explain(text: str, reason: str) -> str:
    """Return the *reason* of RE2 for refusing *text*, with the place and what to do."""
    what, _, fragment = reason.partition(": ")
    if fragment == "(?P" and _find(text, "(?P=") is not None:
        fragment = "(?P="
    if fragment == text or (place := _find(text, fragment)) is None:
        return what
    shown = f"{what} {quoted(fragment)} at character {place + 1}"
    if fragment.startswith(("(?=", "(?!", "(?<=", "(?<!")):
        return f"{shown}; patterns run in linear time, they cannot have look-around"
    if fragment == "(?P=" or re.match(r"\\[1-9gk]", fragment):
        return f"{shown}; patterns run in linear time, they cannot have back-references"
    return rf"{shown}; write \z" if fragment == r"\Z" else shown


def _find(text: str, fragment: str) -> int | None:
    r"""Return where *fragment* is in *text* with no backslash before it that takes its meaning: not in `\(?=`."""
    place = text.find(fragment) if fragment else -1
    while place > 0 and (place - len(text[:place].rstrip("\\"))) % 2:
        place = text.find(fragment, place + 1)
    return place if place >= 0 else None


def _read_ms(text: str) -> int:
    match = _DURATION.fullmatch(text)
    if match is None or not text:
        message = f"{quoted(text)} is not a duration: {_advice(text)}"
        raise ValueError(message)
    return sum(int(number) * _UNITS_MS[unit] for unit, number in match.groupdict("0").items())


def _write_ms(left: int) -> str:
    parts = []
    for unit, size in _UNITS_MS.items():
        number, left = divmod(left, size)
        parts.append(f"{number}{unit}" if number else "")
    return "".join(parts) or "0s"


def _advice(text: str) -> str:
    """Return how to write what a person may have meant by *text*, such as `15 min` or `1.5h`."""
    spoken = text.strip().lower()
    if spoken.isascii() and spoken.isdecimal():
        return f'add the unit, such as "{spoken[:9]}s"'
    parts = _SPOKEN_PART.findall(spoken)
    rest = _SPOKEN_PART.sub("", spoken).strip(" ,")
    if parts and not rest and all(word in _UNIT_OF for _, word in parts):
        meant_ms = round(sum(float(number) * _UNITS_MS[_UNIT_OF[word]] for number, word in parts))
        if 0 < meant_ms <= _LONGEST_MS:
            return f'write it as "{_write_ms(meant_ms)}"'
    return 'write it like "250ms", "90s", "15m", "1h30m" or "2d"'
