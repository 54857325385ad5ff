"""
How many events a second the engine takes, with the built-in rules and with 400 more, and what its state weighs.

A later event should cost no more than an early one, and the state not grow: so the last tenth of the events is
compared with the second, in which all subjects are known.

    python benchmarks/engine.py [EVENTS] [SUBJECTS]

Figures are of one machine and one run: compare the lines with each other.
"""

from __future__ import annotations

import resource
import sys
import time
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING

from pipeline.config import Config, load_rules
from pipeline.events import Event, LogRecord, Metrics, Rollout, Sample
from rules.engine import Engine
from rules.escalation import Escalation
from rules.model import LogTrigger, Rule, Trigger
from rules.pattern import Duration, Pattern
from rules.rule_file import RuleFile
from rules.rulebook import Rulebook

if TYPE_CHECKING:
    from collections.abc import Iterator

BATCH = 2000
START = datetime(2026, 8, 19, 12, tzinfo=UTC)


def events(subjects: int) -> Iterator[Event]:
    """Yield the mix of a busy run, for ever: mostly lines of logs, then rollouts, samples and metrics."""
    number = 0
    while True:
        number += 1
        at, env = START + timedelta(milliseconds=20 * number), f"env-{number % subjects}"
        log = f"logs/attempt_1/envs/train/{env}.log"
        text = f"rollout done: id={number:x} task={number % 97} reward=0.500 turns=3 stop=agent_completed"
        yield LogRecord(time=at, source=log, offset=number, attempt=1, text=text, level="INFO")
        if number % 3 == 0:
            ok = number % 60 != 0
            error = None if ok else "SandboxError"
            yield Rollout(
                time=at, source="r", offset=number, kind="train", step=number // 500, env=env, ok=ok, error=error
            )
        if number % 20 == 0:
            engine = {"engine": str(number % 8)}
            yield Sample(time=at, endpoint="e", name="vllm:num_requests_waiting", labels=engine, value=number % 7)
        if number % 500 == 0:
            values = {"loss/mean": 0.01, "entropy/all/mean": 0.5, "optim/grad_norm": 0.2, "time/step": 10.0}
            yield Metrics(
                time=at,
                source="metrics.jsonl",
                offset=number,
                writer="trainer",
                step=number // 500,
                values=values,
                completes=True,
            )


def many_rules(number: int) -> RuleFile:
    """Return that many rules about logs, none of which is met."""
    escalate = [Escalation(severity="warning", persistent=3, within=Duration("10m"))]
    made = [
        Rule(
            name=f"made-{i}",
            failure_mode="made",
            summary="made",
            on=Trigger(log=LogTrigger(pattern=Pattern(rf"component {i} (failed|gave up) after \d+ tries"))),
            escalate=escalate,
        )
        for i in range(number)
    ]
    return RuleFile(rule=made)


def measure(book: Rulebook, total: int, subjects: int) -> tuple[float, float, int, int]:
    """Return events a second, how much slower than early ones the last are, rows of state, and bytes in them."""
    engine, stream, rows = Engine(book), events(subjects), dict[str, int]()
    spent_s: list[float] = []
    for _ in range(total // BATCH):
        batch = list(islice(stream, BATCH))
        begun = time.process_time()
        changed = engine.apply(batch).changed
        spent_s.append(time.process_time() - begun)
        for key, row in changed.items():
            rows[key] = len(row or b"")
    tenth = len(spent_s) // 10
    slower = sum(spent_s[-tenth:]) / sum(spent_s[tenth : 2 * tenth]) if tenth else 1.0
    return len(spent_s) * BATCH / sum(spent_s), slower, len(rows), sum(rows.values())


def main() -> None:
    """Print a line for each set of rules."""
    total, subjects = (int(given) for given in [*sys.argv[1:], *("200000", "1000")[len(sys.argv) - 1 :]])
    builtin = load_rules(Config())
    for name, files in (("built-in rules", builtin), ("and 400 more", [*builtin, many_rules(400)])):
        per_s, slower, rows, size = measure(Rulebook(files), total, subjects)
        state = f"{rows:>6} rows  {size / 2**20:>6.1f} MiB of state"
        print(f"{name:<15} {per_s:>9,.0f} events/s  {state}  last tenth {slower:.2f} times an early one", flush=True)
    print(f"{'most memory':<15} {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:>9,.0f} MiB")


if __name__ == "__main__":
    main()
