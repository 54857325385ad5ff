"""The run's processes on this host: which they are, and that they live."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import msgspec

from pipeline.events import HostLine, ProcessState, Role, Seeing
from pipeline.formats.titles import role as role_of
from pipeline.sources.base import Emit, SideThread, Sight, SourceError, now
from pipeline.sources.halts import Halts
from pipeline.sources.process_exits import Exit, ExitWatch, exit_code, watch_exits
from pipeline.sources.process_table import Process, ProcessTable, writers
from pipeline.sources.run_tree import run_roles

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

SCAN_DEADLINE_S = 10.0
"""A process stuck in the kernel can hold up whoever reads its command line."""
FILES_DEADLINE_S = 5.0
"""A look at files hangs with their server; it holds up nothing but itself."""
REPEAT_S = 60.0


class Scan(msgspec.Struct, frozen=True, kw_only=True):
    """The run's processes that have a role, at one moment."""

    processes: dict[int, Process]
    roles: dict[int, Role]
    strangers: set[tuple[int, int]]
    """Pid and birth of others that could be of a run."""
    state: Seeing
    reason: str


def scan(
    table: ProcessTable,
    logs: tuple[str, ...],
    known: Mapping[tuple[int, int], Role],
    insiders: Collection[int] = (),
) -> Scan:
    """
    Find the processes of the run with these *logs*; *known* ones, by pid and birth, stay the run's.

    Raises:
        OSError: There is no /proc.

    """
    processes = table.read(pid for pid, _ in known)
    births = {pid: process.stat.start for pid, process in processes.items()}
    alive = {pid: role for (pid, start), role in known.items() if births.get(pid) == start}
    roles = run_roles(processes, logs, os.getpid(), alive, insiders)
    state, reason = _sight(roles, processes, logs)
    return Scan(
        processes={pid: processes[pid] for pid in roles},
        roles=roles,
        strangers={(pid, births[pid]) for pid in processes.keys() - roles.keys() if _is_alike(processes[pid])},
        state=state,
        reason=reason,
    )


def _is_alike(process: Process) -> bool:
    """Say whether a process has the title of a run's, and writes into a file."""
    is_titled = role_of(process.cmdline, None) is not None
    return is_titled and any(path.startswith("/") and not path.startswith("/dev/") for path in process.outputs)


def _sight(roles: Mapping[int, Role], processes: Mapping[int, Process], logs: tuple[str, ...]) -> tuple[Seeing, str]:
    """Say what is seen, and if nothing, why: it is not here, or it belongs to the run's user and is hidden from us."""
    if roles:
        return "seeing", ""
    try:
        user = Path(logs[0]).stat().st_uid
    except OSError:
        user = None
    if user in {None, os.geteuid()}:
        return "absent", "no process of this run on this host"
    if 1 not in processes:
        return "blind", "the processes of other users are hidden (/proc is mounted with hidepid)"
    denied = (other for other in processes.values() if other.denied_uid is not None and other.denied_uid == user)
    if alike := next((process for process in denied if role_of(process.cmdline, None)), None):
        return "blind", f"cannot tell whose run process {alike.pid} ({alike.title}) is: it belongs to user {user}"
    return "absent", "no process of this run on this host"


class _Report(msgspec.Struct, frozen=True, kw_only=True):
    """What was last said of a process."""

    event: ProcessState
    start: int | None
    """`None` if it was said before we started: then only its pid and role are known."""
    repeat_at_s: float = 0.0


class ProcessSource:
    """Scans for the run's processes, and notices at once when one of them exits."""

    def __init__(self, run_dir: Path, node: str, interval_s: float = 15.0, known: Iterable[ProcessState] = ()) -> None:
        """Take what was last *known* of the processes, so that those that died unwatched are reported too."""
        self.name = "processes"
        # resolved once: a network mount that hangs later must not keep the processes from being seen
        self._logs = tuple({f"{path}/logs/" for path in (run_dir.absolute(), run_dir.resolve())})
        self._node = node
        self._interval_s = interval_s
        self._thread = SideThread(SCAN_DEADLINE_S)
        self._files_thread = SideThread(FILES_DEADLINE_S)
        self._strangers: set[tuple[int, int]] = set()
        self._halts = Halts()
        self._forks: set[tuple[int, int]] = set()
        """Pid and birth of those that have their parent's title: for a moment each that becomes another program has."""
        self._reports = {event.pid: _Report(event=event, start=None) for event in known if event.state != "exited"}
        self._has_seen = bool(self._reports)

    @property
    def has_seen(self) -> bool:
        """Whether the run has, or had, processes on this host."""
        return self._has_seen

    def alive(self, *roles: Role) -> list[int]:
        """Return the pids of those that were seen running, in any of these *roles* or, without one, in all."""
        seen = (said.event for said in self._reports.values() if said.start is not None)
        running = [event for event in seen if event.state == "running"]
        return [event.pid for event in running if not roles or event.role in roles]

    async def run(self, emit: Emit) -> None:
        """
        Emit each process at first sight, then every minute, and when it dies.

        Raises:
            SourceError: /proc cannot be read.

        """
        try:
            await self._watch(emit)
        except OSError as error:
            msg = f"cannot scan the processes: {error}"
            raise SourceError(msg) from error

    async def _watch(self, emit: Emit) -> None:
        table = ProcessTable()
        sight = Sight(self.name)
        with watch_exits() as exits:
            while True:
                due_s = anyio.current_time() + self._interval_s
                found = await self._scan(table)
                for event in sight.change(*self._sight(found)):
                    await emit(event)
                await self._compare(found, exits, emit)
                await self._say_who_hangs(found, emit)
                while (left_s := due_s - anyio.current_time()) > 0:
                    for death in await exits.wait(left_s):
                        await self._bury(death, emit)

    async def _scan(self, table: ProcessTable) -> Scan:
        """Scan, and scan again if somebody new writes into the run's files by another path, as from a container."""
        known = {(pid, said.start): said.event.role for pid, said in self._reports.items() if said.start}
        found = await self._thread.call(partial(scan, table, self._logs, known))
        new = found.strangers - self._strangers
        inside: set[int] = set()
        if new:
            with suppress(TimeoutError):
                inside = await self._files_thread.call(partial(writers, [pid for pid, _ in new], self._logs))
                self._strangers = found.strangers
        return await self._thread.call(partial(scan, table, self._logs, known, inside)) if inside else found

    async def _say_who_hangs(self, found: Scan, emit: Emit) -> None:
        for halt in self._halts.look(found.processes.values(), anyio.current_time()):
            text = f"process {found.roles[halt.pid]} {halt.pid} has been {halt.how} for {halt.for_s:.0f} s"
            await emit(HostLine(time=now(), node=self._node, origin="kernel", text=text))

    def _sight(self, found: Scan) -> tuple[Seeing, str]:
        """Say what is seen: that a run's processes are gone is seen too, once one of them was."""
        self._has_seen = self._has_seen or bool(found.roles)
        return ("seeing", "") if found.state == "absent" and self._has_seen else (found.state, found.reason)

    async def _compare(self, found: Scan, exits: ExitWatch, emit: Emit) -> None:
        """Emit what differs from what was last said, but leave deaths to the watch, which knows the exit code."""
        for pid, report in list(self._reports.items()):
            if found.state != "blind" and _is_gone(report, found, exits):
                await self._bury(Exit(pid=pid, start=report.start, state="exited", code=None), emit)
        forks = {(pid, process.stat.start) for pid, process in found.processes.items() if _is_fork(process, found)}
        fresh, self._forks = forks - self._forks, forks
        dead_last = sorted(found.roles.items(), key=lambda item: found.processes[item[0]].stat.state == "Z")
        for pid, role in dead_last:  # who dies is a part of those that there are
            process = found.processes[pid]
            if pid not in self._reports and (pid, process.stat.start) in fresh:
                continue
            if process.stat.state != "Z":
                exits.add(pid, process.stat.start)
            if process.stat.state != "Z" or not exits.holds(pid, process.stat.start):
                await self._tell(process, role, emit)

    async def _tell(self, process: Process, role: Role, emit: Emit) -> None:
        """Emit a process that is new, has become something else, or was last spoken of a minute ago."""
        last = self._reports.get(process.pid)
        is_dead = process.stat.state == "Z"
        event = ProcessState(
            time=now(),
            node=self._node,
            role=role,
            pid=process.pid,
            state="zombie" if is_dead else "running",
            title=process.title,
            ppid=process.stat.ppid,
            rss_bytes=None if is_dead else process.stat.rss_bytes,
            exit_code=exit_code(process.pid, process.stat),
        )
        is_same = last is not None and (last.event.role, last.event.state) == (event.role, event.state)
        if last is not None and is_same and (is_dead or anyio.current_time() < last.repeat_at_s):
            return
        await emit(event)
        repeat_at_s = anyio.current_time() + REPEAT_S
        self._reports[process.pid] = _Report(event=event, start=process.stat.start, repeat_at_s=repeat_at_s)

    async def _bury(self, death: Exit, emit: Emit) -> None:
        """Emit a death, with the exit code from when it was a zombie if that is all there is."""
        last = self._reports.get(death.pid)
        if last is None or last.start != death.start or last.event.state == death.state:
            return
        code = last.event.exit_code if death.code is None else death.code
        event = msgspec.structs.replace(last.event, time=now(), state=death.state, rss_bytes=None, exit_code=code)
        await emit(event)
        if death.state == "exited":
            del self._reports[death.pid]
        else:
            self._reports[death.pid] = _Report(event=event, start=last.start)


def _is_fork(process: Process, found: Scan) -> bool:
    parent = found.processes.get(process.stat.ppid)
    return parent is not None and process.cmdline == parent.cmdline and process.stat.state != "Z"


def _is_gone(report: _Report, found: Scan, exits: ExitWatch) -> bool:
    """Say whether the process of *report* is certainly gone, and nobody else will say so."""
    pid, start = report.event.pid, report.start
    if (process := found.processes.get(pid)) is None:
        return start is None or not exits.holds(pid, start)
    return found.roles[pid] != report.event.role if start is None else process.stat.start != start
