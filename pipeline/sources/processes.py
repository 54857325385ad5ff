"""The run's processes on this host: which they are, and that they live."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import msgspec

from pipeline.events import ProcessState, Role, Seeing
from pipeline.formats.titles import role as role_of
from pipeline.sources.base import Emit, SideThread, Sight, SourceError, now
from pipeline.sources.process_exits import Exit, ExitWatch, Process, exit_code, read_process, watch_exits

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

SCAN_DEADLINE_S = 10.0
"""A process stuck in the kernel can hold up whoever reads its command line."""
SETTLED_S = 300.0
"""Younger processes are looked at in every scan: they set their titles after their imports."""
REPEAT_S = 60.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Scan(msgspec.Struct, frozen=True, kw_only=True):
    """The run's processes that have a role, at one moment."""

    processes: dict[int, Process]
    roles: dict[int, Role]
    state: Seeing
    reason: str


def run_roles(
    table: Mapping[int, Process], logs: tuple[str, ...], own: int, known: Mapping[int, Role]
) -> dict[int, Role]:
    """
    Return the roles of one run's processes.

    To the run belong: who writes to a file below its *logs* (each ends in a slash) or into a pipe that such a process
    reads, the launcher above them, what descends from these, and who was *known* to. Titles alone say nothing: another
    run on the host has the same. Our *own* process, its ancestors and its descendants never belong to a run.
    """
    children: dict[int, list[int]] = defaultdict(list)
    for process in table.values():
        children[process.stat.ppid].append(process.pid)
    ours = {*_ancestry(table, own), *_descend(children, {own})}
    seeds = _writers(table, logs) - ours
    above = [_launchers(table, _ancestry(table, pid)) for pid in seeds | _followers(table, logs)]
    seeds |= {launchers[0] for launchers in above if launchers} | known.keys()
    strangers = set(_launchers(table, _descend(children, seeds))) - seeds
    members = _descend(children, seeds, strangers) - ours
    roles: dict[int, Role] = {}
    # no process is older than its parent, whose role is needed first
    for pid in sorted(members & table.keys(), key=lambda pid: (table[pid].stat.start, pid)):
        if found := _role(table[pid], roles.get(table[pid].stat.ppid)) or known.get(pid):
            roles[pid] = found
    return roles


def _role(process: Process, parent: Role | None) -> Role | None:
    if process.stat.state == "Z" and not process.cmdline:
        # the command line dies with the process; of an env server's children only workers die before it does
        return "env_worker" if parent == "env_server" else None
    return role_of(process.cmdline, parent)


def _writers(table: Mapping[int, Process], logs: tuple[str, ...]) -> set[int]:
    """Return who writes below *logs*, also by way of `tee` or `sed`."""
    found = {pid for pid, process in table.items() if any(path.startswith(logs) for path in process.outputs)}
    new = found
    while new:
        pipes = {table[pid].stdin for pid in new if table[pid].stdin.startswith("pipe:")}
        new = {pid for pid, process in table.items() if pipes.intersection(process.outputs)} - found
        found = found | new
    return found


def _followers(table: Mapping[int, Process], logs: tuple[str, ...]) -> set[int]:
    """Return each `tail` of one of the run's logs; a launcher keeps one for its terminal."""
    tails = {pid for pid, process in table.items() if process.cmdline and process.cmdline[0].endswith("tail")}
    return {pid for pid in tails if any(argument.startswith(logs) for argument in table[pid].cmdline[1:])}


def _launchers(table: Mapping[int, Process], pids: Iterable[int]) -> list[int]:
    """Return which of *pids* are launchers, in their order."""
    return [pid for pid in pids if pid in table and role_of(table[pid].cmdline, None) == "launcher"]


def _ancestry(table: Mapping[int, Process], pid: int) -> Iterator[int]:
    """Yield *pid*, its parent and so on, as far as they can be seen."""
    passed: set[int] = set()
    while pid in table and pid not in passed:
        yield pid
        passed.add(pid)  # the table is no snapshot: a pid used again can close a circle
        pid = table[pid].stat.ppid


def _descend(children: Mapping[int, list[int]], roots: Iterable[int], barred: Collection[int] = ()) -> set[int]:
    """Return the *roots* and all below them, but nothing from *barred* on down."""
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        pid = waiting.pop()
        if pid not in found and pid not in barred:
            found.add(pid)
            waiting.extend(children.get(pid, ()))
    return found


class ProcessTable:
    """Every process of the host, read anew only where that can matter: most are old, and none of our business."""

    def __init__(self) -> None:
        self._processes: dict[int, Process] = {}
        self._look_at_s: dict[int, float] = {}

    def read(self, members: Iterable[int]) -> Mapping[int, Process]:
        """
        Return the processes, the *members* as they are now.

        Raises:
            OSError: There is no /proc.

        """
        pids = {int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()}
        for pid in self._processes.keys() - pids:
            del self._processes[pid], self._look_at_s[pid]
        uptime_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        watched = set(members)
        for pid in pids:
            if uptime_s >= self._look_at_s.get(pid, 0.0) or pid in watched:
                self._look(pid, uptime_s)
        return self._processes

    def _look(self, pid: int, uptime_s: float) -> None:
        old = self._processes.pop(pid, None)
        process = read_process(pid)
        if process is None:
            self._look_at_s.pop(pid, None)
            return
        if process.stat.state == "Z" and old is not None and old.stat.start == process.stat.start:
            process = msgspec.structs.replace(old, stat=process.stat)
        self._processes[pid] = process
        is_young = uptime_s < process.stat.start / TICKS_PER_S + SETTLED_S
        self._look_at_s[pid] = 0.0 if is_young else uptime_s + SETTLED_S


def scan(table: ProcessTable, logs: tuple[str, ...], known: Mapping[tuple[int, int], Role]) -> Scan:
    """
    Find the processes of the run with these *logs*; *known* ones, by pid and birth, stay the run's.

    Raises:
        OSError: There is no /proc.

    """
    processes = table.read(pid for pid, _ in known)
    births = {pid: process.stat.start for pid, process in processes.items()}
    alive = {pid: role for (pid, start), role in known.items() if births.get(pid) == start}
    roles = run_roles(processes, logs, os.getpid(), alive)
    state, reason = _sight(roles, processes, logs)
    return Scan(processes={pid: processes[pid] for pid in roles}, roles=roles, state=state, reason=reason)


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
        self._reports = {event.pid: _Report(event=event, start=None) for event in known if event.state != "exited"}
        self._has_seen = bool(self._reports)

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
                known = {(pid, said.start): said.event.role for pid, said in self._reports.items() if said.start}
                found = await self._thread.call(partial(scan, table, self._logs, known))
                for event in sight.change(*self._sight(found)):
                    await emit(event)
                await self._compare(found, exits, emit)
                while (left_s := due_s - anyio.current_time()) > 0:
                    for death in await exits.wait(left_s):
                        await self._bury(death, emit)

    def _sight(self, found: Scan) -> tuple[Seeing, str]:
        """Say what is seen: that a run's processes are gone is seen too, once one of them was."""
        self._has_seen = self._has_seen or bool(found.roles)
        return ("seeing", "") if found.state == "absent" and self._has_seen else (found.state, found.reason)

    async def _compare(self, found: Scan, exits: ExitWatch, emit: Emit) -> None:
        """Emit what differs from what was last said, but leave deaths to the watch, which knows the exit code."""
        for pid, report in list(self._reports.items()):
            if found.state != "blind" and _is_gone(report, found, exits):
                await self._bury(Exit(pid=pid, start=report.start, state="exited", code=None), emit)
        for pid, role in found.roles.items():
            process = found.processes[pid]
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


def _is_gone(report: _Report, found: Scan, exits: ExitWatch) -> bool:
    """Say whether the process of *report* is certainly gone, and nobody else will say so."""
    pid, start = report.event.pid, report.start
    if (process := found.processes.get(pid)) is None:
        return start is None or not exits.holds(pid, start)
    return found.roles[pid] != report.event.role if start is None else process.stat.start != start
