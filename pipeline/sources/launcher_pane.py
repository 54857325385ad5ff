"""
The tmux pane that the run's launcher runs in: the only place where it prints its verdict.

It is read by its id, and never written to. The launcher's terminal also shows the
orchestrator's log: each record carries the time that it shows, by which the rules
know a copy.
"""

from __future__ import annotations

import os
import subprocess
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import msgspec

from pipeline.events import HostLine, LogRecord
from pipeline.formats.clock import ClockState, LogClock
from pipeline.sources.base import SideThread, Sight, now
from pipeline.sources.log_reader import LogReader
from pipeline.sources.process_table import age_s, ancestry, owner, read_stat
from pipeline.sources.screen_lines import Screen, first_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import datetime
    from zoneinfo import ZoneInfo

    from pipeline.events import Event
    from pipeline.sources.base import Emit

ANSWER_S = 2.0
"""For one call of tmux."""
GRACE_S = 15.0
"""Until then the processes may not have been looked at."""
FIND_AGAIN_S = 30.0
RECENT_LINES = 500
MOST_LINES = 20_000
"""Read of a scroll-back, which may be of any length."""
LAST_LOOKS = 3
"""Looks at the pane after the launcher's exit: what a person types there later is not the launcher's."""
MOST_SERVERS = 20
CLOSED = "the pane of this run's launcher is closed"


class Pane(msgspec.Struct, frozen=True, kw_only=True):
    """A pane of a tmux server."""

    socket: Path
    id: str
    pid: int


class LauncherPane:
    """Reads the pane for as long as the launcher lives."""

    name = "launcher-pane"

    def __init__(
        self,
        node: str,
        launchers: Callable[[], Sequence[int]],
        zone: ZoneInfo,
        *,
        since: datetime | None = None,
        interval_s: float = 2.0,
    ) -> None:
        """Take what returns the pids of the run's *launchers*, and how far the pane had been read before."""
        self._node, self._launchers, self._zone, self._since = node, launchers, zone, since
        self._interval_s = interval_s
        self._thread = SideThread(3 * ANSWER_S)  # two calls, each with its own limit
        self._sight = Sight(self.name)
        self._has_seen = False
        self._launch: _Launch | None = None
        self._find_at_s = 0.0

    async def run(self, emit: Emit) -> None:
        """Emit each record of the launcher's terminal, the scroll-back included; raises nothing of its own."""
        said_by_s = anyio.current_time() + GRACE_S
        while True:
            pid = next(iter(self._launchers()), None)
            try:
                events = await self._look(pid)
            except TimeoutError:
                events = [*self._sight.change("blind", "tmux does not answer")]
            except OSError as error:
                events = [*self._sight.change("absent", f"tmux cannot be run: {error.strerror}")]
            if pid is None and self._launch is None and not self._has_seen and anyio.current_time() > said_by_s:
                events += self._sight.change("absent", "no launcher of this run on this host")
            for event in events:
                await emit(event)
            await anyio.sleep(self._interval_s)

    async def _look(self, pid: int | None) -> list[Event]:
        """
        Return what is new in the pane of the launcher *pid*, and of the one before, which may have had a last word.

        Raises:
            TimeoutError: tmux does not answer.
            OSError: It cannot be run.

        """
        events: list[Event] = []
        if self._launch is not None:
            events += await self._read(self._launch, lives=pid == self._launch.pid)
        if pid is not None and (self._launch is None or self._launch.pid != pid):
            events += await self._find(pid)
        return events

    async def _find(self, pid: int) -> list[Event]:
        if anyio.current_time() < self._find_at_s:
            return []
        self._find_at_s = anyio.current_time() + FIND_AGAIN_S
        stat = read_stat(pid)
        pane = None if stat is None else await self._pane_of(pid)
        if stat is None or pane is None:
            lost = self._has_seen
            return [
                *self._sight.change("blind" if lost else "absent", CLOSED if lost else "it is in no tmux pane here")
            ]
        begun = (now() - timedelta(seconds=age_s(stat))).replace(microsecond=0)  # lines show whole seconds
        self._launch = _Launch(pid, pane, max(begun, self._since or begun), self._zone)
        self._since, self._has_seen = None, True
        self._find_at_s = 0.0
        return await self._read(self._launch, lives=True)

    async def _pane_of(self, pid: int) -> Pane | None:
        """
        Return the pane whose program is *pid* or has started it.

        Raises:
            TimeoutError: A server does not answer, and it is not in one of another server.
            OSError: tmux cannot be run.

        """
        line = ancestry(pid)
        panes: list[Pane] = []
        hung: TimeoutError | None = None
        for socket in _sockets({os.getuid(), owner(pid)}):
            try:
                panes += await self._thread.call(partial(_panes, socket))
            except TimeoutError as error:
                hung = error
        above = [pane for pane in panes if pane.pid in line]
        if hung and not above:
            raise hung
        return min(above, key=lambda pane: line.index(pane.pid), default=None)

    async def _read(self, launch: _Launch, *, lives: bool) -> list[Event]:
        launch.looks_left = LAST_LOOKS if lives else launch.looks_left - 1
        contents = await self._thread.call(partial(launch.read, last=launch.looks_left == 0))
        if contents is None or launch.looks_left == 0:
            self._launch = None
        if contents is None:
            return [*self._sight.change("blind", CLOSED)] if lives else []
        lines = [
            HostLine(time=record.time, node=self._node, origin="launcher", text=_as_line(record, self._zone))
            for record in contents
        ]
        return [*self._sight.change("seeing"), *lines]


class _Launch:
    """A launcher, its pane, and how far that has been read."""

    def __init__(self, pid: int, pane: Pane, not_before: datetime, zone: ZoneInfo) -> None:
        self.pid = pid
        self.looks_left = LAST_LOOKS
        self._pane = pane
        self._not_before = not_before
        self._zone = zone
        self._screen = Screen()
        self._reader: LogReader | None = None
        self._read_at: datetime | None = None

    def read(self, *, last: bool) -> list[LogRecord] | None:
        """
        Return the records that are new, the *last* time the one that may still grow too; `None` if the pane is closed.

        Raises:
            TimeoutError: tmux does not answer.
            OSError: It cannot be run.

        """
        time = now()
        for most in (RECENT_LINES, MOST_LINES):
            lines = _capture(self._pane, most)
            if lines is None:
                return None
            new = self._screen.take(lines, whole=most == MOST_LINES)
            if new is not None:
                return self._records(new, time, last=last)
        return []

    def _records(self, new: list[str], time: datetime, *, last: bool) -> list[LogRecord]:
        if self._reader is None:  # the scroll-back holds earlier launches as well
            first = first_of(new, self._not_before, time, self._zone)
            new, begun = (new[first[0] :], first[1]) if first else ([], time)
            self._reader = LogReader("launcher", None, LogClock(self._zone, ClockState(last=begun)))
        data = "".join(f"{line}\n" for line in new).encode("utf-8", "replace")
        events = self._reader.feed(data, self._read_at, time)
        if last or self._screen.is_quiet:
            events += self._reader.settle(time)
        self._read_at = time
        return [event for event, _ in events if isinstance(event, LogRecord)]


def _as_line(record: LogRecord, zone: ZoneInfo) -> str:
    """Return a record as it stood on the terminal, its header always in the same form."""
    if record.level is None:
        return record.text
    return f"{record.time.astimezone(zone):%H:%M:%S} {record.level:>7} {record.text}"


def _sockets(users: set[int | None]) -> list[Path]:
    """Return the sockets of the tmux servers of *users*, our own server's first."""
    own = os.environ.get("TMUX", "").partition(",")[0]
    roots = dict.fromkeys((os.environ.get("TMUX_TMPDIR", "/tmp"), "/tmp"))  # noqa: S108 - where tmux has them
    folders = [Path(root, f"tmux-{user}") for root in roots for user in users if user is not None]
    found = [Path(own)] if own else []
    found += [socket for folder in folders for socket in _sockets_in(folder)]
    return list(dict.fromkeys(found))[:MOST_SERVERS]


def _sockets_in(folder: Path) -> Iterator[Path]:
    try:
        yield from sorted(path for path in folder.iterdir() if path.is_socket())
    except OSError:  # none there, or not ours to see
        return


def _panes(socket: Path) -> list[Pane]:
    text = _tmux(socket, "list-panes", "-a", "-F", "#{pane_id} #{pane_pid}") or ""
    fields = (line.split() for line in text.splitlines())
    return [Pane(socket=socket, id=found[0], pid=int(found[1])) for found in fields if len(found) == 2]


def _capture(pane: Pane, most: int) -> list[str] | None:
    """
    Return the last lines of a pane, at *most* so many above what it shows; `None` if it is closed.

    A program that takes the whole screen for itself, such as an editor, is not read.
    """
    about = ("display-message", "-p", "-t", pane.id, "#{pane_pid} #{alternate_on}")
    text = _tmux(pane.socket, *about, ";", "capture-pane", "-p", "-J", "-S", f"-{most}", "-t", pane.id)
    if text is None:
        return None
    status, _, shown = text.partition("\n")
    pid, _, alternate = status.partition(" ")
    if pid != str(pane.pid):  # another server, whose numbers begin anew
        return None
    return [] if alternate == "1" or not shown.strip() else [line.rstrip() for line in shown.rstrip().split("\n")]


def _tmux(socket: Path, *words: str) -> str | None:
    """
    Return what a tmux command prints, `None` if it fails; none of those used here starts a server or changes anything.

    Raises:
        TimeoutError: It does not answer.
        OSError: It cannot be run.

    """
    command = ["tmux", "-S", str(socket), *words]
    try:
        answer = subprocess.run(  # noqa: S603 - fixed words, and ids that tmux gave
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=ANSWER_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        msg = "tmux does not answer"
        raise TimeoutError(msg) from error
    return answer.stdout.decode("utf-8", "replace") if answer.returncode == 0 else None
