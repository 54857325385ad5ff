"""
JSON Lines that other programs append to: whole lines only, and what a torn line still holds.

prime-rl's trainer and orchestrator append to one file, on file systems where that
is not atomic, and both can be killed in the middle of a line.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

if TYPE_CHECKING:
    import re

T = TypeVar("T")

LINE_BYTES = 64 * 2**20
"""A longer line is not kept in memory."""
MALFORMED = (msgspec.DecodeError, ValueError, RecursionError)
"""What decoding hostile bytes raises: syntax and shape, UTF-8 and huge integers, depth."""
_STARTS = 256


class Line(NamedTuple):
    """A whole line, without its newline."""

    offset: int
    end: int
    """Where the next line begins."""
    data: bytes


class JsonLines:
    """
    Cuts what is read of a file into lines.

    `offset` is the beginning of the line that is not whole yet, `fed_to` where the
    next data must come from, `skipped` the number of lines that were too long.
    """

    def __init__(self, offset: int = 0, *, line_bytes: int = LINE_BYTES) -> None:
        self.offset = offset
        self.fed_to = offset
        self.skipped = 0
        self._line_bytes = line_bytes
        self._half = bytearray()
        self._too_long = False

    def feed(self, data: bytes) -> list[Line]:
        """Return the lines that *data* completes, blank ones left out."""
        lines: list[Line] = []
        begin = 0
        while (newline := data.find(b"\n", begin)) >= 0:
            whole = self._completed(data[begin:newline])
            begin = newline + 1
            end = self.fed_to + begin
            if whole and not whole.isspace():
                lines.append(Line(self.offset, end, whole))
            self.offset = end
        self._keep(data[begin:])
        self.fed_to += len(data)
        return lines

    def _completed(self, part: bytes) -> bytes:
        """Return the line that *part* completes, nothing if it is too long."""
        if not self._half and not self._too_long and len(part) <= self._line_bytes:
            return part  # nearly every line: not copied once more
        self._keep(part)
        self.skipped += self._too_long
        line = bytes(self._half)
        self._half.clear()
        self._too_long = False
        return line

    def _keep(self, part: bytes) -> None:
        if self._too_long or len(self._half) + len(part) > self._line_bytes:
            self._too_long = True
            self._half.clear()
        else:
            self._half += part


def decode(line: bytes, decoder: msgspec.json.Decoder[T], start: re.Pattern[bytes]) -> tuple[int, T] | None:
    """
    Decode the record on *line*; return the bytes dropped before it, and the record.

    After a writer that was killed in mid-line, the next one's record follows on the
    same line. The torn head is dropped: *start* says how a record begins.
    """
    try:
        return 0, decoder.decode(line)
    except MALFORMED:
        # objects within a torn record begin alike, but do not end where the line ends
        for begin in itertools.islice(start.finditer(line, 1), _STARTS):
            try:
                return begin.start(), decoder.decode(memoryview(line)[begin.start() :])
            except MALFORMED:
                continue
    return None
