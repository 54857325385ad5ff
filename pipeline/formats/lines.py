"""
Bytes of a log file to its lines, however the bytes were cut.

A physical line is split once more where torchrun put the prefix of a rank in
mid-line (`text without end[trainer0]:12:00:00 INFO …`), which happens whenever
a rank writes without a newline. Everything else is cosmetic: colours, progress
bars drawn with carriage returns, control characters.
"""

from __future__ import annotations

import re
from itertools import pairwise

import msgspec

LONGEST = 1 << 20
"""Bytes of a line that are kept; what follows up to the newline is skipped."""
CUT = "… (line cut at 1 MiB)"
"""Stands at the end of a line that was longer."""

# no byte of the marker may complete a colour code that the cut tore
_CUT = CUT.encode()
_COLOUR = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")
_COMMON_COLOURS = (b"\x1b[0m", b"\x1b[1m", b"\x1b[22m", b"\x1b[2m", b"\x1b[32m")
"""Those of loguru and of the router; replacing them first takes a third of the time."""
_CONTROLS = bytes(byte for byte in (*range(0x20), 0x7F) if byte not in b"\t\n\r")
_SEAM = re.compile(
    rb"\[(?!rank)[a-z_]{1,32}\d{1,5}\]:"
    rb"(?=(?:\x1b\[[\d;]*m)*(?:\d\d:\d\d:\d\d[\x1b ]|\d{4}-\d\d-\d\d |\{\"timestamp\"|[IWEF]\d{4} |\r*\Z))"
)


class Line(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A line of text."""

    offset: int
    """Bytes from the start of the file to its first byte."""
    end: int
    """Bytes from the start of the file to the byte after it, its newline included."""
    text: str


class LineReader:
    """Cuts a stream of bytes into lines, with memory bounded by the longest line."""

    def __init__(self, offset: int = 0) -> None:
        self.offset = offset
        """Where the first byte stands that has not been given out."""
        self._half = bytearray()
        self._skipped = 0

    def feed(self, data: bytes) -> list[Line]:
        """Return the lines that *data* completes."""
        if b"\n" not in data:
            self._hold(data)
            return []
        if len(self._half) > LONGEST:
            start = data.index(b"\n")
            self._skipped += start
            data = data[start:]
        end = data.rindex(b"\n")
        lines = self._lines(bytes(self._half) + data[:end], 1)
        self._half.clear()
        self._hold(data[end + 1 :])
        return lines

    def finish(self) -> list[Line]:
        """Return what stands after the last newline, if anything."""
        lines = self._lines(bytes(self._half), 0) if self._half else []
        self._half.clear()
        return lines

    def _hold(self, data: bytes) -> None:
        room = LONGEST + 1 - len(self._half)
        self._half += data[:room]
        self._skipped += max(len(data) - room, 0)

    def _lines(self, block: bytes, newline: int) -> list[Line]:
        """Return the lines of *block*; *newline* is the length of what ends each."""
        pieces: list[bytes] = []
        ends: list[int] = []
        at = self.offset + self._skipped
        for raw in block.split(b"\n"):
            for piece in _pieces(raw):
                at += len(piece)
                pieces.append(piece if len(piece) <= LONGEST else piece[:LONGEST] + _CUT)
                ends.append(at)
            at += newline
            ends[-1] = at
        starts = [self.offset, *ends]
        self.offset, self._skipped = at, 0
        return [
            Line(offset=start, end=end, text=text)
            for start, end, text in zip(starts, ends, _texts(b"\n".join(pieces)), strict=False)
        ]


def visible(text: str) -> str:
    """Return *text* without colours and control characters; tabs and newlines stay."""
    return text if text.isprintable() else "\n".join(_texts(text.encode("utf-8", "replace")))


def _pieces(raw: bytes) -> list[bytes]:
    """Cut a physical line where the prefix of a rank begins another one."""
    # a line that is cut is read anew from its start only, so it must not be left half-way
    seam = raw.find(b"]:")
    if seam >= 0 and raw.startswith(b"["):
        seam = raw.find(b"]:", seam + 2)
    if seam < 0 or len(raw) > LONGEST:
        return [raw]
    cuts = [0, *(match.start() for match in _SEAM.finditer(raw) if match.start()), len(raw)]
    return [raw[start:end] for start, end in pairwise(cuts)]


def _texts(block: bytes) -> list[str]:
    """Return what a terminal would show of each line of *block*."""
    if b"\x1b" in block:
        for code in _COMMON_COLOURS:
            block = block.replace(code, b"")
        block = _COLOUR.sub(b"", block)
    text = block.translate(None, _CONTROLS).decode("utf-8", "replace")
    lines = text.split("\n")
    return [_after_return(line) for line in lines] if "\r" in text else lines


def _after_return(line: str) -> str:
    return line.rstrip("\r").rpartition("\r")[2]
