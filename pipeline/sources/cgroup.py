"""What the kernel's memory controller counts: processes of the run's control groups that it killed for memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from pipeline.events import HostLine
from pipeline.sources.base import SideThread, Sight, SourceError, now
from pipeline.sources.process_table import GONE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pipeline.events import Event
    from pipeline.sources.base import Emit

DEADLINE_S = 10.0
GROUPS = 100
"""The most control groups that are looked at."""
GRACE_S = 15.0
"""Until then the processes may not have been looked at."""


class Cgroup:
    """Watches the counters of the groups that the run's processes are in, or were in."""

    name = "cgroup"

    def __init__(self, node: str, pids: Callable[[], Sequence[int]], interval_s: float = 15.0) -> None:
        """Take what returns the *pids* of the run's processes."""
        self._node, self._pids, self._interval_s = node, pids, interval_s
        self._thread = SideThread(DEADLINE_S)
        self._sight = Sight(self.name)
        self._kills: dict[Path, int] = {}
        """The last count of each file: a group outlives the processes that were killed in it."""
        self._started_s = 0.0

    async def run(self, emit: Emit) -> None:
        """
        Emit each rise of a counter.

        Raises:
            SourceError: The counters cannot be read in time.

        """
        self._sight = Sight(
            self.name
        )  # after a failure it has to be said anew: there may be nothing else to say for days
        self._started_s = anyio.current_time()
        while True:
            pids = list(self._pids())
            try:
                counts = await self._thread.call(lambda: _counts(pids, self._kills))  # noqa: B023 - awaited at once
            except OSError as error:
                msg = f"the counters cannot be read: {error}"
                raise SourceError(msg) from error
            await self._compare(counts, pids, emit)
            await anyio.sleep(self._interval_s)

    async def _compare(self, counts: dict[Path, int], pids: list[int], emit: Emit) -> None:
        has_waited = anyio.current_time() >= self._started_s + GRACE_S
        for change in self._changes(counts, has_looked=bool(pids) or has_waited):
            await emit(change)
        for file, count in counts.items():
            before = self._kills.get(file, count)
            if count > before:
                # the kernel's own words stand in it as well
                text = f"oom_kill counter rose from {before} to {count} in {file.parent} (oom_kill {count})"
                await emit(HostLine(time=now(), node=self._node, origin="cgroup", text=text))
        self._kills = counts

    def _changes(self, counts: dict[Path, int], *, has_looked: bool) -> Iterator[Event]:
        if counts:
            yield from self._sight.change("seeing")
        elif has_looked and not self._kills:
            yield from self._sight.change("absent", "no memory control group of this run can be read here")


def _counts(pids: Iterable[int], known: Iterable[Path]) -> dict[Path, int]:
    """
    Return how many were killed in each group of *pids*, and in those that are *known* and still there.

    Raises:
        OSError: /proc cannot be read.

    """
    mounts = _mounts()
    files = {file for pid in pids for file in _files(pid, mounts)}
    counted = ((file, _count(file)) for file in sorted({*known, *files})[:GROUPS])
    return {file: count for file, count in counted if count is not None}


def _mounts() -> dict[str, tuple[str, Path]]:
    """Return, by version, which group is mounted as the root of the memory controller, and where."""
    found: dict[str, tuple[str, Path]] = {}
    for line in Path("/proc/self/mountinfo").read_text("utf-8", "replace").splitlines():
        before, _, after = line.partition(" - ")
        fields, (kind, *_, options) = before.split(" "), after.split(" ")
        if kind == "cgroup2" or (kind == "cgroup" and "memory" in options.split(",")):
            found.setdefault("2" if kind == "cgroup2" else "1", (fields[3], Path(fields[4])))
    return found


def _files(pid: int, mounts: dict[str, tuple[str, Path]]) -> Iterator[Path]:
    """Yield the files that count for the groups of a process."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text("utf-8", "replace").splitlines()
    except GONE:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        version = "2" if not controllers else "1" if "memory" in controllers.split(",") else ""
        if version in mounts:
            root, place = mounts[version]
            inside = group.removeprefix(root if root != "/" else "").lstrip("/")
            yield place / inside / ("memory.events" if version == "2" else "memory.oom_control")


def _count(file: Path) -> int | None:
    """Return what a file counts, `None` if it is gone, may not be read or has no such line."""
    try:
        lines = file.read_text("ascii", "replace").splitlines()
    except OSError:
        return None
    counts = (line.split() for line in lines)
    return next((int(count[1]) for count in counts if len(count) == 2 and count[0] == "oom_kill"), None)
