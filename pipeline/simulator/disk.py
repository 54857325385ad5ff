"""Puts a run on disk at once, with the times that its files would have."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pipeline.simulator.attempts import simulate
from pipeline.simulator.files import apply
from pipeline.simulator.script import Write, compact

if TYPE_CHECKING:
    from pathlib import Path

    from pipeline.simulator.plan import Plan


def write_run(plan: Plan, out: Path) -> None:
    """
    Write the run directory *out*/run and *out*/recording.jsonl.

    Raises:
        FileExistsError: There is a run already.

    """
    attempts = simulate(plan)
    run = out / "run"
    run.mkdir(parents=True)
    modified_s: dict[Path, float] = {}
    for change in (change for attempt in attempts for change in attempt.script.changes()):
        apply(change, run)
        if isinstance(change, Write):
            modified_s[run / change.path] = plan.epoch_s(change.at_s)
    for file, time in modified_s.items():
        if file.exists():
            os.utime(file, (time, time))
    events = (event for attempt in attempts for event in attempt.script.events())
    (out / "recording.jsonl").write_text("".join(compact(event.fields) + "\n" for event in events), "utf-8")
