"""`runwatch run`: the live service, in the foreground."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

import anyio
import structlog
from rich.console import Console
from rich.live import Live
from rich.text import Text

from pipeline.alerts import AlertChanged, HealthChanged, IncidentChanged
from pipeline.app import open_session, watch
from pipeline.timeline import Timeline, state_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from anyio import CancelScope

    from pipeline.alerts import Decision
    from pipeline.app import Session
    from pipeline.config import Config
    from pipeline.run_directory import RunDirectory
    from rules.rulebook import Rulebook

log = structlog.get_logger()

END_S = 4.0
"""After a signal the program ends by then, whatever hangs: all that counts is on disk at any moment."""
REFRESH_S = 1.0


def run_service(run: RunDirectory, config: Config, book: Rulebook, *, once: bool) -> None:
    """
    Watch *run* until SIGINT or SIGTERM, or, with *once*, look at everything once.

    Raises:
        AlreadyWatched, StateDirectoryError, JournalError, Rejected: As `open_session`.

    """
    anyio.run(_serve, run, config, book, once)


async def _serve(run: RunDirectory, config: Config, book: Rulebook, once: bool) -> None:  # noqa: FBT001 - from anyio.run
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_end_on_signal, tasks.cancel_scope)
        async with open_session(run, config, book) as session:
            log.info("watch.began", run=str(run.path), once=once)
            if sys.stdout.isatty() and not once:
                await _on_terminal(session, config)
            else:
                await watch(session, _log_all, once=once)
        tasks.cancel_scope.cancel()
    log.info("watch.ended", run=str(run.path))


async def _on_terminal(session: Session, config: Config) -> None:
    """Print what is decided, above one line with the state of the run."""
    console = Console()
    timeline = Timeline(console, config.run.zone)

    def said(decisions: list[Decision]) -> None:
        for decision in decisions:
            timeline.show(decision)

    with Live(console=console, refresh_per_second=4, transient=True) as live:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_refresh, session, live.update)
            await watch(session, said)
            tasks.cancel_scope.cancel()


async def _refresh(session: Session, update: Callable[[Text], None]) -> None:
    while True:
        update(Text.from_markup(state_line(session.engine.summary(), session.engine.clock)))
        await anyio.sleep(REFRESH_S)


def _log_all(decisions: list[Decision]) -> None:
    for decision in decisions:
        match decision:
            case AlertChanged():
                log.warning(
                    "alert.changed",
                    state=decision.state,
                    at=decision.time.isoformat(),
                    rule=decision.rule,
                    failure_mode=decision.failure_mode,
                    component=decision.component,
                    severity=decision.severity,
                    incident=decision.incident,
                    summary=decision.summary,
                )
            case IncidentChanged():
                log.warning(
                    "incident.changed",
                    state=decision.state,
                    at=decision.time.isoformat(),
                    incident=decision.id,
                    failure_mode=decision.failure_mode,
                    component=decision.component,
                    severity=decision.severity,
                    symptoms=decision.symptoms,
                )
            case HealthChanged():
                log.info("health.changed", at=decision.time.isoformat(), health=decision.health, phase=decision.phase)
            case _:
                pass  # delivered, and logged there if that fails


async def _end_on_signal(scope: CancelScope) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for number in signals:
            log.info("watch.ending", signal=signal.Signals(number).name)
            last = threading.Timer(END_S, os._exit, [0])
            last.daemon = True
            last.start()
            scope.cancel()
            return
