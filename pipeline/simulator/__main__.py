"""`python -m pipeline.simulator OUT --fault NAME`: a simulated run, on disk at once or live."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import NoReturn

from pipeline.simulator.actor import die_with
from pipeline.simulator.cast import Cast
from pipeline.simulator.disk import write_run
from pipeline.simulator.page import EnginePage
from pipeline.simulator.plan import Era, Fault, Plan
from pipeline.simulator.player import Stage, paced, play

DURATION_S = 75.0
LIVE_STEPS = 6
LIVE_PATIENCE_S = 300.0
SLOW_STEPS = {Fault.ENTROPY_COLLAPSE: 12}
SLOW_PATIENCE_S = {Fault.ENTROPY_COLLAPSE: 500.0}
"""What is slow to come shows only beside a longer past."""


def main(arguments: list[str] | None = None) -> int:
    """Write OUT/run and OUT/recording.jsonl, or play a run below OUT; return the exit status."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.list:
        width = max(map(len, Fault))
        sys.stdout.write("".join(f"{fault:<{width}}  {fault.story}\n" for fault in Fault))
        return 0
    if given.out is None:
        parser.error("OUT is missing")
    try:
        if given.live:
            _play(given)
        else:
            write_run(_plan(given, steps=12), given.out)
    except (ValueError, OSError) as error:
        sys.stderr.write(f"{parser.prog}: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pipeline.simulator", description=__doc__)
    parser.add_argument(
        "out", type=Path, nargs="?", metavar="OUT", help="gets `run` and `recording.jsonl`; live, the run"
    )
    parser.add_argument("--list", action="store_true", help="show the faults and exit")
    parser.add_argument("--fault", type=Fault, choices=list(Fault), default=Fault.NONE, metavar="NAME", help=_faults())
    parser.add_argument("--era", type=Era, choices=list(Era), default=Era.EPISODE, help="how rollouts are kept")
    parser.add_argument("--seed", type=int, default=1, help="another seed, another run")
    parser.add_argument("--steps", type=int, help="steps trained before the fault, or before the end (12, live 6)")
    parser.add_argument("--batch-size", type=int, default=16, help="rollouts that make a step")
    live = parser.add_argument_group("live")
    live.add_argument("--live", action="store_true", help="play the run by the clock, from now on")
    live.add_argument("--duration", type=_positive, metavar="S", help=f"seconds that it takes ({DURATION_S:g})")
    live.add_argument("--speed", type=_positive, metavar="X", help="times faster than real; with a duration, cut there")
    live.add_argument("--processes", action=argparse.BooleanOptionalAction, default=True, help="start real processes")
    live.add_argument("--port", type=int, default=0, help="of the engine's metrics page (a free one)")
    live.add_argument("--hold", action="store_true", help="let the processes live on at the end, until told to stop")
    live.add_argument("--die-with-parent", action="store_true", help="end when the process that started this one ends")
    return parser


def _faults() -> str:
    return "what goes wrong: " + ", ".join(Fault)


def _positive(text: str) -> float:
    number = float(text)
    if not 0 < number < inf:
        raise ValueError
    return number


def _plan(given: argparse.Namespace, steps: int) -> Plan:
    steps = steps if given.steps is None else given.steps
    return Plan(fault=given.fault, era=given.era, seed=given.seed, steps=steps, batch_size=given.batch_size)


def _play(given: argparse.Namespace) -> None:
    """Play the run from now on, and end it in good order when asked to."""
    if given.die_with_parent:
        die_with(os.getppid())
    signal.signal(signal.SIGTERM, _stop)
    with EnginePage(given.port) as page, Cast(given.out) if given.processes else nullcontext() as cast:
        plan = _plan(given, SLOW_STEPS.get(given.fault, LIVE_STEPS))
        patience_s = SLOW_PATIENCE_S.get(given.fault, LIVE_PATIENCE_S)
        plan = replace(plan, patience_s=patience_s, home=str(given.out.absolute()))
        plan = replace(plan, engine_port=page.port, speed=given.speed or 1.0)
        if not given.speed:
            plan = paced(plan, given.duration or DURATION_S)
        until_s = given.duration if given.speed and given.duration else inf
        stage = Stage(run=Path(plan.directory), terminal=sys.stdout, page=page, cast=cast)
        play(replace(plan, start=datetime.now(UTC)), stage, until_s)
        if given.hold:
            signal.pause()


def _stop(*_: object) -> NoReturn:
    raise SystemExit(128 + signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
