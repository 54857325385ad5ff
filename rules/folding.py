"""Ranks and processes that say the same at the same time: one fact."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from rules.facts import template

if TYPE_CHECKING:
    from datetime import datetime

    from rules.facts import Fact
    from rules.rows import Cell

FOLDED = timedelta(seconds=1)
"""The same record from another rank or process, no later than this, is one fact."""
_SAID = 8
"""Different records of such a moment that are remembered: a traceback has several that one rule looks for."""


def is_repeated(cell: Cell, fact: Fact, at: datetime) -> bool:
    """Tell whether another rank or process said the same a moment ago; remember that this one has."""
    said, by = template(fact.text), fact.by
    lately = [one for one in cell.said if at - one[2] <= FOLDED]
    repeated = any(one[0] == said and one[1] != by for one in lately)
    if not repeated:
        cell.said = [*(one for one in lately if one[0] != said), (said, by, at)][-_SAID:]
    return repeated
