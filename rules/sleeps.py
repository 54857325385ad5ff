"""Suspensions of the host: while it sleeps nothing goes on, and nothing is late."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from rules.rows import Run

KEPT = 10
"""Suspensions of an attempt that are remembered, the latest."""


def note(run: Run, since: datetime, until: datetime) -> None:
    """Remember that the host slept."""
    run.sleeps = [*run.sleeps[1 - KEPT :], (since, max(since, until))]


def awake_from(since: datetime, run: Run) -> datetime:
    """Return from when on a time since *since* counts, as if what was slept of it had been before."""
    for begun, ended in run.sleeps:
        if since < ended:
            since = ended if since > begun else since + (ended - begun)
    return since
