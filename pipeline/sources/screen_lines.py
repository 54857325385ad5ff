"""
What is new on a terminal of which only the present contents can be read.

Lines already taken are recognised by their text: scrolled, reflowed or partly
cleared, what was read before is found again in what is read now.
"""

from __future__ import annotations

from datetime import timedelta
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Final

from pipeline.formats import headers
from pipeline.formats.clock import begin

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime
    from zoneinfo import ZoneInfo

KEPT: Final = 300
"""Lines taken that are remembered."""
COMPARED: Final = 600
"""The last lines of a screen that are compared one by one, where no run of lines is found again as a whole."""
SURE: Final = 3
"""Lines in a row, not counting empty ones, that do not look alike by chance."""
TANGLED: Final = timedelta(seconds=55)
"""How far the lines of several writers may be out of order."""


class Screen:
    """Tells what has been added to a screen since it was last looked at."""

    def __init__(self) -> None:
        self.is_quiet = False
        """Whether nothing had been added when it was last looked at."""
        self._known: list[str] = []
        self._half = ""

    def take(self, lines: list[str], *, whole: bool) -> list[str] | None:
        """
        Return the lines that are new; `None` if that cannot be told of *lines*, which are not the *whole* contents.

        The last line may still be written: it is held back until it has been met twice.
        """
        # a terminal of another width has other spaces where lines are wrapped
        keys = [line.replace(" ", "") for line in lines]
        places = _after(self._known, keys) if self._known else None
        if places is None and not whole:
            return None
        places = _added(self._known, keys) if places is None else places
        last = keys[places[-1]] if places else ""
        self.is_quiet = len(places) < 2 and last == self._half
        if last != self._half:
            places = places[:-1]
        self._half = last
        self._known = [*self._known, *(keys[place] for place in places)][-KEPT:]
        return [lines[place] for place in places]


def _after(known: list[str], lines: list[str]) -> Sequence[int] | None:
    """Return which lines follow the longest end of *known* that is found again; `None` without one that is sure."""
    text = "\n".join(("", *lines, ""))
    # of lines that are all alike, either all were remembered, or nothing tells how many are new
    find = text.find if len(known) < KEPT else text.rfind
    for size in _halves(len(known)):
        end = "\n".join(("", *known[-size:], ""))
        if (at := find(end)) >= 0:
            return range(len(lines) - text.count("\n", at + len(end)), len(lines))
    return None


def _halves(size: int) -> Iterator[int]:
    """Yield *size*, its half and so on, as long as so many lines are sure."""
    yield size
    while (size := size // 2) > SURE:
        yield size


def _added(known: list[str], lines: list[str]) -> Sequence[int]:
    """Return which lines are beyond what is *known*, after the first run of lines that is; all without one."""
    seen = [line for line in known if line]
    places = [place for place, line in enumerate(lines) if line][-COMPARED:]
    recent = [lines[place] for place in places]
    blocks = SequenceMatcher(None, seen, recent, autojunk=False).get_matching_blocks()
    sure = [block for block in blocks if block.size >= SURE]
    if not sure:
        return range(len(lines))
    old = {place for block in sure for place in range(block.b, block.b + block.size)}
    return [places[place] for place in range(sure[0].b, len(recent)) if place not in old]


def first_of(lines: list[str], not_before: datetime, now: datetime, zone: ZoneInfo) -> tuple[int, datetime] | None:
    """
    Return the place and the time of the first line that was written since *not_before*, `None` without one.

    Lines are dated from the last one back, each by the latest time that its clock can mean: what a day or more lies
    before the others is told from them so, which is not so the other way round.
    """
    found: tuple[int, datetime] | None = None
    limit = now
    for place in reversed(range(len(lines))):
        header = headers.parse(lines[place])
        if header is None or header.clock is None:
            continue
        time = begin([header.clock], limit + TANGLED, zone).last
        if time < not_before:
            break
        found, limit = (place, time), min(time, limit)
    return found
