"""How a run writes its files: a line at a time, now and then only half of one, and links in one move."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

from pipeline.simulator.script import Change, Link, Removal, Write

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path
    from random import Random
    from typing import IO

HALVED = 0.04
"""The share of writes that a buffer cuts in two."""
HALF_A_LINE_S = 0.25
"""The longest time on the clock between the halves."""
HALF_A_LINE_PLAN_S = 2.0
"""The longest time in the plan, so that a fast run keeps its order of things."""
SHORTEST = 40


def apply(change: Change, run: Path) -> None:
    """
    Let a change happen in the run directory.

    Raises:
        OSError: The disk does not take it.

    """
    path = run / change.path
    match change:
        case Write(data=data, replaces=replaces):
            with _opened(path, "wb" if replaces else "ab") as file:
                file.write(data)
        case Link(target=target):
            (path.parent / target).mkdir(parents=True, exist_ok=True)
            new = path.with_name(f".{target}")
            new.symlink_to(target)
            new.rename(path)  # nobody ever sees the run without the link
        case Removal():
            shutil.rmtree(path, ignore_errors=True)


def _opened(path: Path, mode: str) -> IO[bytes]:
    try:
        return path.open(mode)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open(mode)


def halved(changes: Iterable[Change], dice: Random, speed: float) -> Iterator[Change]:
    """
    Yield *changes*, but cut some lines in two, the rest of which comes a moment later.

    What else is written to the same file in between comes after the rest, as from
    one buffer. The order of time is not kept.
    """
    whole_at_s: dict[str, float] = {}
    for change in changes:
        at_s = max(change.at_s, whole_at_s.get(change.path, 0.0))
        if isinstance(change, Write) and len(change.data) > SHORTEST and dice.random() < HALVED:
            place = dice.randrange(1, len(change.data))
            pause_s = dice.uniform(0.2, 1.0) * min(HALF_A_LINE_S * speed, HALF_A_LINE_PLAN_S)
            whole_at_s[change.path] = at_s + pause_s
            yield replace(change, at_s=at_s, data=change.data[:place])
            yield replace(change, at_s=whole_at_s[change.path], data=change.data[place:])
        else:
            yield replace(change, at_s=at_s)
