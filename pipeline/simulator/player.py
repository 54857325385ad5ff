"""When things happen: a planned run is played by the clock, as if it were one."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING

from pipeline.simulator.attempts import Attempt, simulate
from pipeline.simulator.files import apply, halved
from pipeline.simulator.page import metrics_page
from pipeline.simulator.timeline import ENGINES_READY_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import TextIO

    from pipeline.simulator.cast import Cast
    from pipeline.simulator.page import EnginePage
    from pipeline.simulator.plan import Plan
    from pipeline.simulator.processes import Process

COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Moment:
    """Something that is done at a moment of the plan."""

    at_s: float
    act: Callable[[], object]


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Where a run is played."""

    run: Path
    """Its directory, which the play makes."""
    terminal: TextIO
    page: EnginePage
    cast: Cast | None
    """Nobody plays the processes of a run without."""


def paced(plan: Plan, duration_s: float) -> Plan:
    """Return *plan* with the speed at which all of it takes *duration_s*."""
    return replace(plan, speed=simulate(plan)[-1].ends_s / duration_s)


def play(plan: Plan, stage: Stage, until_s: float = inf) -> None:
    """
    Let the run of *plan* happen, from its start until its end, or until *until_s* of the clock have passed.

    Must be called from the main thread: the processes die with the one that started them.

    Raises:
        FileExistsError: There is such a run already.
        OSError: The disk does not take what is written.

    """
    stage.run.mkdir(parents=True)
    attempts = simulate(plan)
    ends_s = min(attempts[-1].ends_s, until_s * plan.speed)
    moments = [moment for attempt in attempts for moment in _moments(attempt, stage)]
    for moment in sorted(moments, key=lambda moment: moment.at_s):
        if moment.at_s > ends_s:
            break
        _wait(plan.epoch_s(moment.at_s))
        moment.act()
    _wait(plan.epoch_s(ends_s))


def _wait(until: float) -> None:
    time.sleep(max(0.0, until - time.time()))


def _moments(attempt: Attempt, stage: Stage) -> Iterator[Moment]:
    """Yield everything that an attempt does, in no order, but in order of time for each file."""
    plan = attempt.plan
    for change in halved(attempt.script.changes(), plan.dice("halves"), plan.speed):
        yield Moment(min(change.at_s, attempt.ends_s), partial(apply, change, stage.run))
    for said in attempt.script.said():
        yield Moment(said.at_s, partial(_say, stage.terminal, said.line))
    launcher, server = (_titled(attempt, title) for title in ("PRIME-RL::Launcher", "PRIME-RL::Inference"))
    yield Moment(plan.begins_s + ENGINES_READY_S, partial(stage.page.open, partial(_page, attempt)))
    if server.ends_s < inf:
        yield Moment(plan.begins_s + server.ends_s, stage.page.close)
    if stage.cast:
        yield Moment(plan.begins_s + launcher.begins_s, partial(stage.cast.launch, attempt, stage.run))


def _titled(attempt: Attempt, title: str) -> Process:
    return next(process for process in attempt.processes if process.title == title)


def _page(attempt: Attempt) -> str:
    plan = attempt.plan
    return metrics_page(attempt.rollouts, (time.time() - plan.epoch_s(0.0)) * plan.speed)


def _say(terminal: TextIO, line: str) -> None:
    terminal.write((line if terminal.isatty() else COLOUR.sub("", line)) + "\n")
    terminal.flush()
