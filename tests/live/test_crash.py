"""Killed at any point and started again, the service has decided and delivered what an uninterrupted one does."""

from __future__ import annotations

import json
import random
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from threading import Event, Thread

import pytest

from pipeline.alerts import CheckIn, Notification
from tests.live.running import DRIVER, Receiver, Site, end, entries_of, judged, replayed, wait_until

CONFIG = """
rule_files = ["fast.toml"]

[checkin]
every = "5s"

[[sink]]
type = "apprise"
name = "team"
url_file = "{url_file}"
timeout_s = 5.0
"""
FAST = """
[notify]
critical_wait = "1s"
group_wait = "1s"
group_interval = "2s"
repeat_interval = "8s"
most_per_hour = 60

[[rule]]
name = "steps-go-by"
failure_mode = "stale-weights"
component = "orchestrator"
summary = "steps go by"
on = { log = { pattern = 'Step \\d+ \\|' } }
escalate = [
  { severity = "warning", persistent = 2, within = "8s" },
  { severity = "critical", persistent = 6, within = "12s" },
]
clear = { quiet = "3s" }

[[rule]]
name = "step-is-late"
failure_mode = "stall"
component = "trainer"
summary = "no step for a while"
on = { absence = { of = ["trained"] } }
escalate = [{ severity = "warning", for = "3s" }]

[[rule]]
name = "gradients-grow"
failure_mode = "gradient-explosion"
component = "trainer"
summary = "the gradient's norm is {value}"
on = { metric = { name = ["optim/grad_norm"] } }
escalate = [{ severity = "warning", immediately = true, above = 0.33 }]
clear = { quiet = "4s" }

[[rule]]
name = "rollouts-end"
failure_mode = "rollout-error-spike"
component = "env"
summary = "{fraction:.0%} of the rollouts of {env} have ended"
on = { rollout = { scope = "train" }, per = ["env"] }
escalate = [{ severity = "warning", fraction = 0.5, over = "10s", at_least = 8 }]
clear = { fraction = 0.4, for = "2s" }
"""
POINTS = (
    ["positions:0", "positions:3", "positions:9", "rows:0", "rows:2", "rows:5", "recording:0", "recording:3"]
    + [
        "recording:12",
        "history:0",
        "history:1",
        "history:2",
        "outbox:0",
        "outbox:0",
        "outbox:1",
        "settle:0",
        "settle:1",
    ]
    + ["commit:0", "commit:1", "commit:2", "committed:0", "committed:1", "committed:2", "committed:3"]
    + ["before-status:0", "before-status:0", "before-message:0", "before-message:0", "before-message:1"]
    + ["after-status:0", "after-status:0", "after-message:0", "after-message:0", "after-message:1"]
    + ["torn:0", "torn:0", "torn:0", "written:0", "half-line-read:0", "half-line-read:0", "half-line-waits:0"]
    + ["time:800", "time:1000", "time:1300", "time:1700"]
    + [f"attempt-{number}-{what}:0" for number in (1, 2) for what in ("read", "recorded", "committed")]
)
"""At which point to die, and how often it is passed before."""
RARE = ("half", "torn", "written", "before", "after", "outbox", "settle")
"""Half of these are looked for by every one, and the attempts' by all: they do not come at once."""
LONGEST_S, PATIENCE_S = 120.0, 5.0
SPLITS = 4
"""Of these one at least is between what was read and what followed from it."""


@dataclass
class Killed:
    """What the kills came to."""

    at: list[str] = field(default_factory=list)
    """The points at which it died, in their order."""
    left: list[str] = field(default_factory=list)
    """Those that it has not come to."""
    took_s: float = 0.0


class Driver:
    """What starts the program again and again, to be killed."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._driver = site.converse(sys.executable, DRIVER)

    def kill(self, armed: dict[str, int], within_s: float) -> str | None:
        """Let the program die at the first of the points that it comes to; return which one, if any."""
        told = self._site.root / "died-at"
        told.unlink(missing_ok=True)
        points = [f"{name}:{count}" for name, count in armed.items()]
        self._driver.stdin.write(json.dumps([within_s, str(told), *points, "--", "run", str(self._site.run)]) + "\n")
        self._driver.stdin.flush()
        status = int(self._driver.stdout.readline())
        assert status == -signal.SIGKILL, f"it ended by itself:\n{self._site.log[-3000:]}"
        return told.read_text() if told.exists() else None

    def kill_at_all(self) -> Killed:
        """Kill the program at every point, mixed."""
        killed, began, dice = Killed(left=list(POINTS)), time.monotonic(), random.Random(3)
        while killed.left and (rest_s := began + LONGEST_S - time.monotonic()) > 0:
            common = [point for point in killed.left if not point.startswith(RARE)]
            rare = [point for point in killed.left if point.startswith(RARE)]
            # with all of them looked for, the first that it comes to would always be the same
            chosen = dice.sample(rare, (len(rare) + 1) // 2) + dice.sample(common, min(len(common), 2))
            chosen += [point for point in killed.left if point.startswith("attempt")]
            armed = {name: int(count) for name, _, count in (point.partition(":") for point in chosen)}
            if (reached := self.kill(armed, min(rest_s, PATIENCE_S))) is not None:
                killed.left.remove(f"{reached}:{armed[reached]}")
                killed.at.append(f"{reached}:{armed[reached]}")
        killed.took_s = time.monotonic() - began
        return killed


@contextmanager
def stuttering(run: Path) -> Iterator[None]:
    """Let something write into a log of the attempt there is, always half a line first."""
    done = Event()

    def write() -> None:
        for number in count():
            line = f"{datetime.now(UTC):%H:%M:%S}    INFO Step {number} | of something else\n"
            for part in (line[:30], line[30:]):
                with suppress(OSError), (run / "logs" / "latest" / "envs" / "train" / "notes.log").open("a") as file:
                    file.write(part)
                if done.wait(0.2):
                    return

    thread = Thread(target=write, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def configure(site: Site, receiver: Receiver) -> None:
    """Tell runwatch of rules with which much happens, and of a receiver."""
    url_file = site.root / "team.url"
    url_file.write_text(receiver.url)
    site.configure(CONFIG.format(url_file=url_file), fast=FAST)


def watch_to_the_end(site: Site) -> tuple[int, float]:
    """Watch what is left of the run until everything is delivered; return the exit status and the seconds it took."""
    program = site.watch()
    time.sleep(4)  # what the last lines lead to is decided within a second or two of the start
    wait_until(site.settled, 20, "not everything was delivered")
    return end(program)


@pytest.mark.timeout(260)
def test_killed_fifty_times_it_comes_to_the_same(site: Site, receiver: Receiver) -> None:
    """The history is what a replay decides, STATUS.md has each entry once, and every message has arrived."""
    configure(site, receiver)
    simulator = site.simulate("--fault", "second-attempt", "--duration", 75, "--steps", 6, "--no-processes")
    with stuttering(site.run):
        killed = Driver(site).kill_at_all()
        simulator.wait(90)
    status, took_s = watch_to_the_end(site)
    assert status == 0
    assert took_s < 5

    history = site.history()
    assert judged(history) == replayed(site)
    decided = [entry.text.rstrip("\n") for entry in history if isinstance(entry, CheckIn)]
    assert entries_of((site.run / "STATUS.md").read_text()) == decided
    messages = [entry.id for entry in history if isinstance(entry, Notification)]
    assert len(messages) == len(set(messages))
    assert set(receiver.ids) == set(messages)
    assert not killed.left, f"{len(killed.at)} points in {killed.took_s:.0f} s"
    assert len(killed.at) >= 50


@pytest.mark.timeout(120)
def test_a_transaction_split_in_two_is_found_out(site: Site, receiver: Receiver) -> None:
    """Positions committed before the rest, and killed in between: the history is no longer what a replay decides."""
    configure(site, receiver)
    simulator = site.simulate("--fault", "second-attempt", "--duration", 15, "--steps", 4, "--no-processes")
    driver = Driver(site)
    for _ in range(SPLITS):
        assert driver.kill({"split": 0}, 20) == "split"
    simulator.wait(90)
    watch_to_the_end(site)
    assert judged(site.history()) != replayed(site)
