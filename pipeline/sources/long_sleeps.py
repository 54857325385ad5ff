"""Processes that hang in the kernel, as on a file server that does not answer, where no signal can end them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pipeline.sources.process_table import Process

LONG_S = 60.0


class _Sleep(msgspec.Struct, frozen=True, kw_only=True):
    since_s: float
    switches: int | None
    """As of the process: another count is another sleep. Where it is not known, all are taken for one."""
    said: bool = False


class LongSleeps:
    """Finds them: a process that is often asleep in the kernel, but not for long each time, merely reads files."""

    def __init__(self) -> None:
        self._sleeps: dict[tuple[int, int], _Sleep] = {}

    def look(self, processes: Iterable[Process], now_s: float) -> list[tuple[int, float]]:
        """Return the pid of each process whose sleep is long by now, once, with the seconds it has been seen in it."""
        long: list[tuple[int, float]] = []
        sleeps: dict[tuple[int, int], _Sleep] = {}
        for process in processes:
            if process.stat.state != "D":
                continue
            key = process.pid, process.stat.start
            sleep = self._sleeps.get(key)
            if sleep is None or sleep.switches != process.switches:
                sleep = _Sleep(since_s=now_s, switches=process.switches)
            if not sleep.said and now_s - sleep.since_s >= LONG_S:
                long.append((process.pid, now_s - sleep.since_s))
                sleep = msgspec.structs.replace(sleep, said=True)
            sleeps[key] = sleep
        self._sleeps = sleeps
        return long
