"""What the demo has shown, in plain words."""

from __future__ import annotations

import textwrap
from datetime import timedelta
from math import isinf
from typing import TYPE_CHECKING

from pipeline.alerts import CheckIn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pipeline.alerts import IncidentChanged
    from pipeline.demo.charset import Charset
    from pipeline.demo.sight import Sight

WIDTH = 80


def summary(sight: Sight, charset: Charset, *, kept: Path | None) -> list[str]:
    """
    Return the lines of the summary; *kept* is where the files stay, if they do.

    The longest part comes first: of a screen of 24 lines the end is what is seen.
    """
    parts = ["", *_message(sight), *_happened(sight), "", *_said(sight), "", *_files(sight, kept)]
    return [line for part in parts for line in _wrapped(charset.text(part))]


def _happened(sight: Sight) -> Iterator[str]:
    yield "WHAT HAPPENED"
    show = sight.show
    if isinf(show.strikes_s):
        yield f"  No fault was injected: {show.fault.story}."
        return
    at = sight.began + timedelta(seconds=show.strikes_s)
    yield f"  {at:%H:%M:%S} UTC, {show.strikes_s:.0f} s after the launch: {show.fault.value} was injected."
    yield f"  {show.fault.story[0].upper()}{show.fault.story[1:]}."


def _said(sight: Sight) -> Iterator[str]:
    yield "WHAT RUNWATCH SAID (it was told nothing: it read logs, metrics, processes)"
    incidents = [one for one in sight.incidents if one.severity != "info"]
    for incident in incidents:
        yield from _incident(sight, incident)
    for number, (at_s, message) in enumerate(sight.messages):
        title = message.title if number else "the message above"
        yield f"  {_when(sight, at_s)}  told a person: {title}"
    if not incidents:
        yield "  No incident, and no message to anybody."
    if sight.health is not None:
        yield f"  In the end: {sight.health.health}, {sight.health.phase}, step {sight.step}."
    entries = sum(isinstance(one.decision, CheckIn) for one in sight.said)
    yield f"  Meanwhile: {entries} check-ins in STATUS.md, as a person on watch would write them."


def _incident(sight: Sight, incident: IncidentChanged) -> Iterator[str]:
    root = f"{incident.failure_mode} in {incident.component}"
    yield f"  {_when(sight, sight.root_said_s(incident))}  root cause: {root} ({incident.severity})"
    indent = " " * 17
    if told := sight.root_summary(incident):
        yield f"{indent}{told}"
    if incident.symptoms:
        yield f"{indent}what followed from it: {', '.join(incident.symptoms)}"
    yield f"{indent}starting it again: {'may well help' if incident.proposes_restart else 'no help, or not needed'}"


def _message(sight: Sight) -> Iterator[str]:
    if sight.messages:
        _, message = sight.messages[0]
        yield "THE MESSAGE, AS IT WOULD ARRIVE"
        yield from (f"  | {line}" for line in [message.title, *message.body.splitlines()])
        yield ""


def _files(sight: Sight, kept: Path | None) -> Iterator[str]:
    yield "FILES"
    if kept is None:
        yield "  Nothing is left of the demo; with --keep its files stay."
    else:
        run = sight.stage.run or kept
        yield "  The run, with the check-ins in its STATUS.md; what runwatch saw and decided; and what both printed:"
        for path in (run, sight.stage.journal(run), sight.stage.terminal, sight.stage.log):
            yield f"    {path}"
    yield "  Other faults: runwatch demo --list"
    yield "  A run of yours: runwatch run RUN_DIR"


def _when(sight: Sight, at_s: float) -> str:
    """Say when something was seen, from the fault on; before it from the launch on."""
    late_s = sight.late_s(at_s)
    return f"{at_s:5.1f} s in   " if late_s is None else f"{late_s:5.1f} s after"


def _wrapped(line: str) -> list[str]:
    """Break a line at words, not in paths; what follows is indented as the line was, and a bit more."""
    text = line.lstrip(" |")
    indent = line.removesuffix(text)
    wrapper = textwrap.TextWrapper(WIDTH, indent, f"{indent}  ", break_on_hyphens=False, break_long_words=False)
    return wrapper.wrap(text) or [""]
