"""How the demo is shown: a screen that is drawn again and again, or lines, one after the other."""

from __future__ import annotations

import contextlib
import os
import sys
import textwrap
from typing import TYPE_CHECKING, Protocol

import click
from rich.console import Console
from rich.live import Live

from pipeline.alerts import AlertChanged, CheckIn, HealthChanged, IncidentChanged, Notification
from pipeline.demo.frame import HEIGHT, WIDTH, frame
from pipeline.demo.sight import begins_record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pipeline.alerts import Decision
    from pipeline.demo.charset import Charset
    from pipeline.demo.sight import Line, Sight

_LOUD = (" SUCCESS ", " ERROR ")


class View(Protocol):
    """Shows what is new."""

    def show(self, sight: Sight) -> None:
        """Show it."""
        ...


@contextlib.contextmanager
def opened(charset: Charset) -> Iterator[View]:
    """Give the screen, or lines where there is none, or none that is large enough."""
    console = Console()
    size = console.size
    is_screen = sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in {"dumb", "unknown"}
    if not is_screen or size.width < WIDTH or size.height < HEIGHT:
        say("A simulated training run, and `runwatch run`, which watches it. Time since its launch, who, and what:")
        yield Lines(charset)
        return
    live = Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
    live.start()
    try:
        yield Screen(live, charset)
    finally:
        with contextlib.suppress(OSError):  # the terminal is gone
            live.stop()


class Screen:
    """The whole terminal."""

    def __init__(self, live: Live, charset: Charset) -> None:
        self._live, self._charset = live, charset

    def show(self, sight: Sight) -> None:
        """Draw everything again."""
        size = self._live.console.size
        width, height = max(WIDTH, size.width), max(HEIGHT, size.height)
        self._live.update(frame(sight, self._charset, width, height), refresh=True)


class Lines:
    """Lines of a time since the launch, who says it, and what."""

    def __init__(self, charset: Charset) -> None:
        self._charset = charset
        self._said = 0
        self._alerts: set[tuple[str, str, str]] = set()
        self._has_struck = False

    def show(self, sight: Sight) -> None:
        """Print what is new, what the run did before what runwatch said of it."""
        self._strike(sight)
        for line in sight.new_lines:
            if begins_record(line):
                self._run(line)
        for said in sight.said[self._said :]:
            self._decision(said.after_s, said.decision)
        self._said = len(sight.said)

    def _strike(self, sight: Sight) -> None:
        if not self._has_struck and sight.after_s >= sight.show.strikes_s:
            self._has_struck = True
            self._print(sight.show.strikes_s, "FAULT", sight.show.fault.story)

    def _run(self, line: Line) -> None:
        text = self._charset.text(line.text)
        if line.is_launchers or any(level in text for level in _LOUD):
            self._print(line.after_s, "run", " ".join(text.split()))

    def _decision(self, after_s: float, said: Decision) -> None:
        match said:
            case AlertChanged(state="firing"):
                subject = (said.rule, said.incident, said.severity)
                if subject not in self._alerts:
                    self._alerts.add(subject)
                    self._print(after_s, "runwatch", f"{said.severity}, {said.failure_mode}: {said.summary}")
            case AlertChanged():
                pass
            case IncidentChanged(state="open"):
                symptoms = f", and what followed: {', '.join(said.symptoms)}" if said.symptoms else ""
                root = f"{said.failure_mode} in {said.component}"
                self._print(after_s, "runwatch", f"incident {said.id}, root cause: {root}{symptoms}")
            case IncidentChanged():
                self._print(after_s, "runwatch", f"incident {said.id} is over")
            case HealthChanged():
                self._print(after_s, "runwatch", f"the run is {said.health}, {said.phase}")
            case Notification():
                self._print(after_s, "runwatch", "tells a person:", f"{said.title}\n{said.body}")
            case CheckIn():
                self._print(after_s, "runwatch", "writes into STATUS.md:", said.text)

    def _print(self, after_s: float, who: str, text: str, quoted: str = "") -> None:
        say(f"{after_s:6.1f} s  {who:<9} {self._charset.text(text)}")
        for line in filter(None, quoted.splitlines()):
            say(textwrap.indent(self._charset.text(line), " " * 20 + "| "))


def say(line: str) -> None:
    """Print a line, at once: who reads a pipe should not have to wait."""
    click.echo(line, color=False)
    sys.stdout.flush()
