"""Which of a host's processes are one run's: told by the files they write, and by who started whom."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from pipeline.formats.titles import role as role_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from pipeline.events import Role
    from pipeline.sources.process_table import Process


def run_roles(
    table: Mapping[int, Process],
    logs: tuple[str, ...],
    own: int,
    known: Mapping[int, Role],
    insiders: Collection[int] = (),
) -> dict[int, Role]:
    """
    Return the roles of one run's processes.

    To the run belong: who writes to a file below its *logs* (each ends in a slash), by another path as the *insiders*
    do, or into a pipe that such a process reads, the launcher above them, what descends from these, and who was *known*
    to. Titles alone say nothing: another run on the host has the same. Our *own* process, its ancestors and its
    descendants never belong to a run.
    """
    children: dict[int, list[int]] = defaultdict(list)
    for process in table.values():
        children[process.stat.ppid].append(process.pid)
    ours = {*_ancestry(table, own), *_descend(children, {own})}
    seeds = _writers(table, logs, insiders) - ours
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


def _writers(table: Mapping[int, Process], logs: tuple[str, ...], insiders: Collection[int]) -> set[int]:
    """Return who writes below *logs*, also by way of `tee` or `sed`."""
    found = {pid for pid, process in table.items() if any(path.startswith(logs) for path in process.outputs)}
    found.update(pid for pid in insiders if pid in table)
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
