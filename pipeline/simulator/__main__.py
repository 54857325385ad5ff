"""`python -m pipeline.simulator OUT --fault NAME`: write a simulated run to disk."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pipeline.simulator.disk import write_run
from pipeline.simulator.plan import Fault, Plan


def main(arguments: list[str] | None = None) -> int:
    """Write OUT/run and OUT/recording.jsonl; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.simulator", description=__doc__)
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder that gets `run` and `recording.jsonl`")
    parser.add_argument("--fault", type=Fault, choices=list(Fault), default=Fault.NONE, metavar="NAME", help=_faults())
    parser.add_argument("--seed", type=int, default=1, help="another seed, another run")
    parser.add_argument("--steps", type=int, default=12, help="steps trained before the fault, or before the end")
    parser.add_argument("--batch-size", type=int, default=16, help="rollouts that make a step")
    given = parser.parse_args(arguments)
    try:
        write_run(Plan(fault=given.fault, seed=given.seed, steps=given.steps, batch_size=given.batch_size), given.out)
    except (ValueError, OSError) as error:
        sys.stderr.write(f"{parser.prog}: {error}\n")
        return 2
    return 0


def _faults() -> str:
    return "what goes wrong: " + ", ".join(Fault)


if __name__ == "__main__":
    sys.exit(main())
