"""Files of one kind: those that are there, and those that appear."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from pipeline.run_directory import LogFile
    from pipeline.sources.tails import Tail


class TailGroup:
    """The files that are *listed*, each *opened* once."""

    def __init__(self, listed: Callable[[], list[LogFile]], opened: Callable[[LogFile], Tail]) -> None:
        self.tails: dict[str, Tail] = {}
        self.gone: list[str] = []
        """Paths of those that have vanished since the look before."""
        self._listed, self._opened = listed, opened
        self._is_ending = self._is_left = False

    def leave(self) -> None:
        """Look at none of them again: there are others in their place."""
        self._is_left = True

    def end(self) -> None:
        """Take it that nothing more will be written."""
        self._is_ending = True

    def look(self, now: datetime) -> list[Tail]:
        """Return those that have something to give, or may soon."""
        for file in () if self._is_left else self._listed():
            if file.relative not in self.tails:
                self.tails[file.relative] = self._opened(file)
        looked = list(self.tails.values())
        self.gone = []
        for tail in looked:
            tail.ending = self._is_ending
            if self._is_left:
                tail.leave()
            elif not tail.look(now):
                del self.tails[tail.relative]
                if tail.position is not None:
                    self.gone.append(tail.relative)
        return [tail for tail in looked if not tail.is_idle]
