"""The wiring of the live service: the only place that knows everything."""

from __future__ import annotations

import socket
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Literal

import anyio
import msgspec
import structlog

from pipeline.alerts import CheckIn, Notification
from pipeline.config import CHECK_IN_SINK, RunOptions
from pipeline.delivery import deliver
from pipeline.events import Asked, Event, Gap, SourceState
from pipeline.journal import Journal, open_journal
from pipeline.run_directory import RunDirectory
from pipeline.sources.base import SideThread, SourceError, now
from pipeline.sources.cgroup import Cgroup
from pipeline.sources.disk import DiskSource
from pipeline.sources.endpoints import Endpoints
from pipeline.sources.files import Files, Taken
from pipeline.sources.gpus import Gpus
from pipeline.sources.kernel_log import KernelLog
from pipeline.sources.launcher_pane import LauncherPane
from pipeline.sources.positions import FilePosition
from pipeline.sources.processes import ProcessSource
from pipeline.sources.watch import hints
from pipeline.state_directory import lock, network_filesystem, run_id, state_directory
from pipeline.supervision import supervise
from pipeline.watcher import Waiting, Watcher
from rules.engine import Engine
from sinks import Sinks
from sinks.status_md import status_file

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from anyio.streams.memory import MemoryObjectReceiveStream

    from pipeline.alerts import Decision
    from pipeline.config import Config
    from pipeline.sources.base import Source
    from rules.rulebook import Rulebook
    from sinks import SinkOptions
    from sinks.base import Sink

log = structlog.get_logger()

STREAM_EVENTS = 1000
"""How far sources may be ahead of the engine."""
BEHIND_S = 10.0
"""Files that are further behind are blind, and no longer hold up time."""
SWEEP_S, NETWORK_SWEEP_S = 1.0, 5.0
ATTACH = timedelta(seconds=3)
"""After so long each source has said what it sees, and the first entry can tell."""
GAP = timedelta(minutes=1)
"""A restart that takes no longer is not worth a word."""
DELIVERED_S = 20.0
"""How long a visit waits for its deliveries."""
COALESCE_S = 0.02
"""Changes so close to each other are read in one pass."""


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A run that is being watched: what is open for it."""

    run: RunDirectory
    engine: Engine
    journal: Journal
    watcher: Watcher
    files: Files
    sinks: Sinks
    options: RunOptions
    floor: datetime | None
    """How far the run had been watched before."""


@asynccontextmanager
async def open_session(run: RunDirectory, config: Config, book: Rulebook) -> AsyncGenerator[Session]:
    """
    Open all that is needed to watch *run*, going on from where the last one stopped.

    Raises:
        AlreadyWatched: Another process does.
        StateDirectoryError, JournalError: The state cannot be kept.
        Rejected: A sink cannot work as it is configured.

    """
    directory = state_directory(run.path)
    async with AsyncExitStack() as stack:
        stack.enter_context(lock(directory))
        journal = await stack.enter_async_context(open_journal(directory / "journal.db", run=run_id(run.path)))
        if journal.moved_aside:
            log.error(
                "journal.corrupt", moved_to=str(journal.moved_aside), consequence="what was watched so far is lost"
            )
        restored = await journal.load()
        engine = Engine(
            book,
            restored.rows,
            checkin_every_s=config.checkin.every,
            announce_from=None if restored.mark else now() + ATTACH,
        )
        sinks: dict[str, Sink] = {CHECK_IN_SINK: await stack.enter_async_context(status_file(run.path))}
        for options in config.sink:
            sinks[options.name] = await stack.enter_async_context(options.open())
        positions = {path: _decode(position) for path, position in restored.positions.items()}
        yield Session(
            run=run,
            engine=engine,
            journal=journal,
            watcher=Watcher(engine, journal, partial(route, config.sink), now),
            files=Files(run, config.run.zone, positions),
            sinks=sinks,
            options=config.run,
            floor=restored.mark.time if restored.mark else None,
        )


async def watch(session: Session, said: Callable[[list[Decision]], None], *, once: bool = False) -> None:
    """Watch the run until cancelled, or, with *once*, until everything has been looked at and delivered once."""
    send, receive = anyio.create_memory_object_stream[Event](STREAM_EVENTS)
    async with send, receive, anyio.create_task_group() as tasks:
        tasks.start_soon(deliver, session.journal, session.sinks, send.clone())
        follower = Follower(session, receive, said)
        async with anyio.create_task_group() as intake:
            for source in sources(session):
                intake.start_soon(supervise, source, send.send)
            intake.start_soon(_hinted, session.run, follower.wake)
            await follower.follow(once=once)
            intake.cancel_scope.cancel()
        tasks.cancel_scope.cancel()


def sources(session: Session) -> list[Source]:
    """Return what is watched beside the files of the run."""
    run, node = session.run, socket.gethostname()
    known = session.engine.processes()  # one that died while nobody watched is missed
    processes = ProcessSource(run.path, node, known=known)
    pane = LauncherPane(node, partial(processes.alive, "launcher"), session.options.zone, since=session.floor)
    host: list[Source] = [
        DiskSource([run.path], node),
        KernelLog(node, is_here=lambda: processes.has_seen),
        Cgroup(node, processes.alive),
        Gpus(),
    ]
    return [processes, pane, Endpoints(run, session.options.metrics_urls), *host]


def route(options: list[SinkOptions], decision: Decision) -> list[str]:
    """Return the names of the sinks that a decision goes to."""
    if isinstance(decision, CheckIn):
        return [CHECK_IN_SINK]
    if isinstance(decision, Notification):
        return [sink.name for sink in options if sink.wants(decision)]
    return []


class Follower:
    """Follows the run: a pass over its files each second or when something has changed, then a tick."""

    def __init__(
        self, session: Session, stream: MemoryObjectReceiveStream[Event], said: Callable[[list[Decision]], None]
    ) -> None:
        self._session, self._stream, self._said = session, stream, said
        self._waiting = Waiting()
        self._thread = SideThread(BEHIND_S)
        self._floor = session.floor
        self._taken: list[Taken] = []
        self._hung = False
        self._reported = False
        self._looked = session.floor
        self._passed = anyio.current_time()
        self._changed = anyio.Event()

    def wake(self) -> None:
        """Begin the next pass at once."""
        self._changed.set()

    async def follow(self, *, once: bool) -> None:
        """Follow until cancelled, or for as long as it takes to have looked at everything *once*."""
        interval_s = NETWORK_SWEEP_S if await _is_on_network(self._session.run) else SWEEP_S
        settled = anyio.current_time() + ATTACH.total_seconds() + interval_s
        await self._resume("visit" if once else "downtime")
        while True:
            self._changed = anyio.Event()
            await self._pass()
            if once and anyio.current_time() >= settled and await self._is_done(settled + DELIVERED_S):
                return
            with anyio.move_on_after(interval_s):
                await self._changed.wait()
                await anyio.sleep(COALESCE_S)

    async def _is_done(self, latest: float) -> bool:
        """Ask for a check-in unless one has been made; tell whether all is delivered, or has had its time."""
        if not self._reported:
            await self._apply([(Asked(time=now(), what="checkin"), None)], None)
        return anyio.current_time() >= latest or not await self._session.journal.pending(limit=1)

    async def _resume(self, cause: Literal["visit", "downtime", "suspension"], awake: timedelta = timedelta()) -> None:
        """Say since when nobody watched, before what happened meanwhile is read."""
        since, self._looked = self._looked, now()
        if since is not None and self._looked - since - awake > GAP:
            await self._apply([(Gap(time=since, until=self._looked, cause=cause), None)], None)

    async def _pass(self) -> None:
        """Read what is new, apply it in order, and let time pass up to when the pass began."""
        awake_s, self._passed = anyio.current_time() - self._passed, anyio.current_time()
        await self._resume("suspension", timedelta(seconds=awake_s))  # no clock but the wall's counts sleep
        tick = now().replace(microsecond=0)  # a line written later shows no earlier second
        while not await self._take(tick):
            pass
        while due := self._waiting.due(tick):
            await self._apply(due, None)
        await self._apply([], tick)
        self._floor = tick

    async def _take(self, tick: datetime) -> bool:
        """Take a part of what the files bring; tell whether that was the last one of this pass."""
        try:
            if not self._taken:  # an answer that came late is not lost: what it brings is not read again
                await self._thread.call(lambda: self._taken.append(self._session.files.take(now(), self._floor)))
            taken = self._taken.pop()
        except TimeoutError as error:
            self._see("blind", str(error))
            self._drain()
            return True
        self._see("seeing", "")
        self._drain()
        self._session.watcher.forget(taken.gone)
        self._waiting.forget(taken.gone)
        for state in taken.states:
            self._waiting.add(state)
        if taken.complete:
            for event, position in taken.events:
                self._waiting.add(event, position)
            return True
        await self._apply(self._waiting.sift(taken.events, tick), None)
        return False

    def _drain(self) -> None:
        """Take what the other sources have brought."""
        for _ in range(STREAM_EVENTS):
            try:
                self._waiting.add(self._stream.receive_nowait())
            except anyio.WouldBlock:
                return

    def _see(self, state: str, reason: str) -> None:
        hung = state == "blind"
        if hung != self._hung:
            self._hung = hung
            self._waiting.add(SourceState(time=now(), name="files", state="blind" if hung else "seeing", reason=reason))

    async def _apply(self, events: list[tuple[Event, FilePosition | None]], tick: datetime | None) -> None:
        decisions = await self._session.watcher.apply(events, floor=self._floor, tick=tick)
        if decisions:
            self._reported = self._reported or any(isinstance(decision, CheckIn) for decision in decisions)
            self._said(decisions)


async def _is_on_network(run: RunDirectory) -> bool:
    """Tell whether the run is on a network's file system; one that does not answer is taken for one."""
    try:
        return await SideThread(BEHIND_S).call(lambda: network_filesystem(run.path)) is not None
    except TimeoutError:
        return True


async def _hinted(run: RunDirectory, wake: Callable[[], None]) -> None:
    """Wake the follower when something changes; where that cannot be, its sweep is enough."""
    if await _is_on_network(run):
        return
    while True:
        try:
            await hints(run.path, wake)
        except SourceError as error:
            log.info("hints.stopped", reason=str(error), consequence="changes are seen a little later")
        await anyio.sleep(60)


def _decode(position: bytes) -> FilePosition:
    return msgspec.msgpack.decode(position, type=FilePosition)
