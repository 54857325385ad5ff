"""
Lines of a log file to its records: a header line and what belongs to it.

What belongs together is told from the lines alone, never from the time between
them, and after each record the reader is as new: reading on from the end of any
record gives the same records as reading from the start.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

from pipeline.events import Level
from pipeline.formats import headers
from pipeline.formats.headers import NOBODY, Clock, Header, Prefix

if TYPE_CHECKING:
    from pipeline.formats.lines import Line

HALF_TEXT = 8 << 10
"""Characters kept of the beginning, and of the end, of a text longer than both."""
CUT = "\n… (cut) …\n"
"""Stands between the two."""
LONGEST = 4 << 20
"""Bytes of a record; what goes on is another one."""

_TRACEBACK = "Traceback (most recent call last):"
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_FAILED = "ChildFailedError:"
_BESIDE = (" ", "\t", "│", "└", "├", "╰", "╭", "╮", "╯", "─", "┌", "┐", "┘", "╞", "═", "> File ")
_GRAVE: Final[frozenset[Level]] = frozenset({"WARNING", "ERROR", "CRITICAL"})
_BAR = re.compile(r"[^|]{0,200}\b\d{1,3}%(?:\|[^|]*\| | Completed \| )", re.ASCII)

_State: TypeAlias = Literal["plain", "bar", "traceback", "raised", "open", "block", "listed"]
"""
What the record has come to: `traceback` waits for its last line and `raised` had it; `open` takes everything up to the
next header; `block` and `listed` are torchrun's summary before and after the rule that opens it.
"""


class RawRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A record as it stands in its file, not yet dated."""

    offset: int
    """Bytes from the start of the file to its first byte."""
    end: int
    """Bytes from the start of the file to the byte after it."""
    text: str
    clock: Clock | None = None
    level: Level | None = None
    process: str | None = None
    pid: int | None = None
    rank: int | None = None


class RecordReader:
    """Joins lines into records, with memory bounded by the longest text that is kept."""

    def __init__(self) -> None:
        self._pending: _Pending | None = None

    @property
    def offset(self) -> int | None:
        """Where the record begins that may still grow; `None` if there is none."""
        return self._pending.offset if self._pending else None

    def add(self, line: Line) -> list[RawRecord]:
        """Return the record that *line* ends, if it ends one."""
        header = headers.parse(line.text)
        if header is None:
            prefix, text = headers.unprefixed(line.text)
            if self._pending and self._pending.takes(line, prefix, text):
                return []
            if not text.strip():
                return []
            header = Header(message=text, process=prefix.process, pid=prefix.pid, rank=prefix.rank)
            return self._begin(_Pending(line, header, _first_state(text)))
        if self._pending and self._pending.repeats(line, header):
            return []
        return self._begin(_Pending(line, header, "plain"))

    def finish(self) -> list[RawRecord]:
        """Return the record that may still have grown."""
        return self._begin(None)

    def _begin(self, pending: _Pending | None) -> list[RawRecord]:
        ended, self._pending = self._pending, pending
        return [ended.record()] if ended else []


class _Pending:
    """A record that may still grow."""

    def __init__(self, line: Line, header: Header, state: _State) -> None:
        self.offset = line.offset
        self._end = line.end
        self._header = header
        self._state = state
        self._text = _Text(header.message)
        self._blanks = 0

    def takes(self, line: Line, prefix: Prefix, text: str) -> bool:
        """Take in a *line* without a header, unless it does not belong here."""
        if line.end - self.offset > LONGEST:
            return False
        if not text.strip():
            self._blanks += 1
            return True
        if self._state == "bar" and _BAR.match(text):
            self._blanks, self._text = 0, _Text(text)
        elif self._is_by(prefix) and (state := self._next_state(text)):
            self._state = state
            self._append(text)
        else:
            return False
        self._end = line.end
        return True

    def repeats(self, line: Line, header: Header) -> bool:
        """Take in a *line* that repeats the header of the one before, as vLLM does on each line of a record."""
        mine = self._header
        if header.place is None or line.end - self.offset > LONGEST:
            return False
        if (header.place, header.clock, header.level, header.pid, header.process) != (
            mine.place, mine.clock, mine.level, mine.pid, mine.process,
        ):  # fmt: skip
            return False
        self._append(header.message)
        self._end = line.end
        return True

    def record(self) -> RawRecord:
        """Return what has come together."""
        header = self._header
        return RawRecord(
            offset=self.offset,
            end=self._end,
            text=headers.without_source(self._text.value()),
            clock=header.clock,
            level=header.level,
            process=header.process,
            pid=header.pid,
            rank=header.rank,
        )

    def _append(self, text: str) -> None:
        self._text.append("\n" * min(self._blanks, 2) + "\n" + text)
        self._blanks = 0

    def _is_by(self, prefix: Prefix) -> bool:
        # what is not signed may be anybody's: multi-node logs have lost their prefixes
        mine = self._header
        return prefix is NOBODY or (prefix.process, prefix.rank) == (mine.process, mine.rank)

    def _next_state(self, text: str) -> _State | None:
        """Return the state with *text* taken in; `None` if it begins another record."""
        if self._state in ("open", "block", "listed"):
            return self._in_summary(text)
        if text.startswith(_BESIDE):
            return self._state
        if text.startswith(_TRACEBACK):
            begins = self._header.level in _GRAVE or self._state == "raised"
            return "traceback" if begins else None
        if self._state == "traceback":
            return self._raised(text)
        return "raised" if self._state == "raised" and text.startswith(_CHAINED) else None

    def _raised(self, text: str) -> _State:
        """Return the state after the last line of a traceback."""
        if _FAILED in text:
            return "block"
        # a message may go on for lines that nothing tells from others; loguru ends it with the next header only
        return "open" if self._header.level in ("ERROR", "CRITICAL") else "raised"

    def _in_summary(self, text: str) -> _State:
        if self._state == "open":
            return "block" if text.startswith("torch.distributed.") and _FAILED in text else "open"
        if text.strip("= "):
            return self._state
        return "listed" if self._state == "block" else "raised"


class _Text:
    """A text that grows, and keeps its beginning and its end when it has grown too long."""

    def __init__(self, text: str) -> None:
        self._head, self._tail = text, ""
        self._parts: list[str] = []
        self._length = len(text)
        self._cut = False
        self._bound()

    def append(self, text: str) -> None:
        self._parts.append(text)
        self._length += len(text)
        self._bound()

    def value(self) -> str:
        if self._cut:
            return f"{self._head}{CUT}{self._tail}".rstrip()
        return "".join((self._head, *self._parts)).rstrip()

    def _bound(self) -> None:
        if not self._cut and self._length > 2 * HALF_TEXT:
            whole = "".join((self._head, *self._parts))
            self._head, self._tail, self._cut = whole[:HALF_TEXT], whole[-HALF_TEXT:], True
        elif self._cut:
            self._tail = (self._tail + self._parts[-1])[-HALF_TEXT:]
        if self._cut:
            self._parts = []


def _first_state(text: str) -> _State:
    if text.startswith(_TRACEBACK):
        return "traceback"
    if _FAILED in text and text.startswith("torch.distributed."):
        return "block"
    return "bar" if _BAR.match(text) else "plain"
