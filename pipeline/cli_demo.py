"""`runwatch demo`: see in a minute what runwatch is for."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from pipeline.demo import DURATION_S
from pipeline.simulator.plan import Fault

DEFAULT = Fault.ENGINE_DEATH
LEAST_S = 10.0


@click.command()
@click.option(
    "--fault",
    "name",
    type=click.Choice([str(fault) for fault in Fault]),
    default=DEFAULT.value,
    metavar="NAME",
    help=f"What goes wrong; --list shows what can ({DEFAULT}).",
)
@click.option("--duration", type=click.FloatRange(LEAST_S), help=f"Seconds that the run takes ({DURATION_S:g}).")
@click.option("--speed", type=click.FloatRange(0.01, 1000.0), help="Times faster than real, rather than fitted.")
@click.option("--list", "lists", is_flag=True, help="Show the faults and exit.")
@click.option("--keep", is_flag=True, help="Keep the files, and say where they are.")
@click.option(
    "--run-only",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Only simulate the run, below DIR: for tests of your own.",
)
def demo(  # noqa: PLR0913 - one for each option
    name: str, duration: float | None, speed: float | None, *, lists: bool, keep: bool, run_only: Path | None
) -> None:
    """See in a minute what runwatch is for: a simulated run fails, and runwatch watches it."""
    if lists:
        for fault in Fault:
            click.echo(f"{fault:<18} {fault.story}{' (the default)' if fault is DEFAULT else ''}")
        return
    from pipeline.demo.session import present, simulate_only  # noqa: PLC0415 - the other commands start sooner
    from pipeline.demo.show import planned  # noqa: PLC0415 - see above

    show = planned(Fault(name), duration, speed)
    if run_only is not None:
        simulate_only(show, run_only)
    sys.exit(present(show, keep=keep))


COMMANDS: list[click.Command] = [demo]
