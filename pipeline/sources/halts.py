"""
Processes that are alive and cannot run.

They hang in the kernel, as on a file server that does not answer, where no signal can end them; or somebody has
stopped them, as Ctrl-Z does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pipeline.sources.process_table import Process

LONG_S = 60.0
REPEAT_S = 300.0
"""As long as it lasts it is said again, so that what was told of it does not pass for over."""
HALTED: Final = {"D": "in uninterruptible sleep", "T": "stopped by a signal", "t": "stopped by a debugger"}
"""By the state that the kernel shows."""


class Halt(NamedTuple):
    """A process that has been unable to run for long."""

    pid: int
    how: str
    for_s: float
    """How long it has been seen so."""


class _Spell(msgspec.Struct, frozen=True, kw_only=True):
    state: str
    since_s: float
    switches: int | None
    """As of the process: with another count it has run in between. Where it is not known, all are taken for one."""
    said_s: float | None = None
    """When it was last said."""


class Halts:
    """Finds them: a process that is often asleep in the kernel, but not for long each time, merely reads files."""

    def __init__(self) -> None:
        self._spells: dict[tuple[int, int], _Spell] = {}

    def look(self, processes: Iterable[Process], now_s: float) -> list[Halt]:
        """Return each process that has been halted for long by now; again as long as it lasts."""
        long: list[Halt] = []
        spells: dict[tuple[int, int], _Spell] = {}
        for process in processes:
            state = process.stat.state
            if state not in HALTED:
                continue
            key = process.pid, process.stat.start
            spell = self._spells.get(key)
            if spell is None or (spell.state, spell.switches) != (state, process.switches):
                spell = _Spell(state=state, since_s=now_s, switches=process.switches)
            due_s = spell.since_s + LONG_S if spell.said_s is None else spell.said_s + REPEAT_S
            if now_s >= due_s:
                long.append(Halt(process.pid, HALTED[state], now_s - spell.since_s))
                spell = msgspec.structs.replace(spell, said_s=now_s)
            spells[key] = spell
        self._spells = spells
        return long
