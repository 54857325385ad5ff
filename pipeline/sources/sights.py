"""What of a run's files is not seen, said when it changes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pipeline.events import SourceState
from pipeline.sources.pieces import is_gone
from pipeline.sources.tails import Trouble
from pipeline.times import cut

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime
    from pathlib import Path

NAME = "files"
"""The name of the whole source; a part of it adds a colon and its path."""


class Sights:
    """What was said so far, by name."""

    def __init__(self) -> None:
        self._blind: dict[str, Trouble] = {}
        self._has_begun = False

    def changes(self, troubles: Mapping[str, Trouble], now: datetime) -> list[SourceState]:
        """Return what is to be said of *troubles*, all that there are; at first that the files are seen."""
        seeing = [name for name in self._blind if name not in troubles]
        if not self._has_begun and NAME not in troubles:
            seeing.append(NAME)
        blind = [(name, trouble) for name, trouble in troubles.items() if self._blind.get(name) != trouble]
        self._blind, self._has_begun = dict(troubles), True
        return [
            *(SourceState(time=cut(now), name=name, state="seeing") for name in seeing),
            *(
                SourceState(time=cut(now), name=name, state="blind", reason=trouble.reason, failed=trouble.failed)
                for name, trouble in blind
            ),
        ]


def unreadable(root: Path, parts: Iterable[Path]) -> dict[str, Trouble]:
    """Return the directories below *root* that cannot be listed; one that is not there is no trouble, but *root* is."""
    found: dict[str, Trouble] = {}
    for path in parts:
        try:
            os.scandir(path).close()
        except OSError as error:
            if path == root or not is_gone(error):
                name = NAME if path == root else f"{NAME}:{path.relative_to(root).as_posix()}"
                found[name] = Trouble(error.strerror or repr(error))
    return found
