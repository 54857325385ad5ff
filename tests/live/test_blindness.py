"""What cannot be observed is neither failure nor health: nothing resolves, nothing of another kind fires."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread

import pytest

from pipeline.alerts import AlertChanged, CheckIn
from pipeline.simulator.attempts import simulate
from pipeline.simulator.files import apply
from pipeline.simulator.plan import Fault, Plan
from tests.live.running import PROGRAM, Site, wait_until

CONFIG = """
[checkin]
every = "2s"

[[rule]]
name = "telemetry-lost"
failure_mode = "telemetry-missing"
component = "host"
summary = "{source} can no longer be read: {reason}"
on = { per = ["source"], blind = { failed = false } }
escalate = [{ severity = "warning", for = "1s" }]

[[rule]]
name = "trouble-in-log"
failure_mode = "nccl-error"
component = "trainer"
summary = "trouble"
on = { log = { pattern = 'there is trouble' } }
escalate = [{ severity = "warning", immediately = true }]
clear = { quiet = "10s" }

[[rule]]
name = "trouble-in-metric"
failure_mode = "nccl-error"
component = "trainer"
summary = "trouble"
on = { metric = { name = ["trouble"] } }
escalate = [{ severity = "warning", immediately = true, above = 5.0 }]
clear = { quiet = "10s" }

[[rule]]
name = "trouble-in-rollout"
failure_mode = "nccl-error"
component = "trainer"
summary = "trouble"
on = { rollout = { scope = "train" } }
escalate = [{ severity = "warning", immediately = true }]
clear = { quiet = "10s" }

[[rule]]
name = "trouble-in-sample"
failure_mode = "nccl-error"
component = "trainer"
summary = "trouble"
on = { metric = { name = ["vllm:num_requests_waiting"] } }
escalate = [{ severity = "warning", immediately = true, above = 5.0 }]
clear = { quiet = "20s" }
"""
BEFORE_S = 400.0
"""How far the run is when it is first looked at."""
STAYS_S = 13.0
"""After it has been seen to be blind: longer than its rule takes to clear."""


class Page:
    """An engine's metrics page, which can hang or be gone."""

    def __init__(self) -> None:
        page = self
        self.hangs, self.waiting = Event(), 0.0

        class Answering(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if page.hangs.is_set():
                    time.sleep(60)
                with suppress(OSError):
                    self.send_response(200)
                    self.end_headers()
                    self.wfile.write(b'vllm:num_requests_waiting{engine="0"} %f\n' % page.waiting)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
        self._server.daemon_threads = True
        self.port = self._server.server_port
        Thread(target=self._server.serve_forever, daemon=True).start()

    def refuse(self) -> None:
        """Answer no more: nobody listens at the port."""
        self._server.shutdown()
        self._server.server_close()


@dataclass
class Watched:
    """A run that stands still, and what watches it."""

    site: Site
    page: Page
    before: int = 0
    """Entries of the history when it was made blind."""

    @property
    def log(self) -> Path:
        """The trainer's log."""
        return self.site.run / "logs" / "attempt_1" / "trainer.log"

    @property
    def rollouts(self) -> Path:
        """The rollouts written last."""
        found = self.site.run.glob("rollouts/step_*/train/all/traces.jsonl")
        return max(found, key=lambda path: path.stat().st_mtime)

    def is_in_trouble(self) -> bool:
        """Tell whether an alert fires that the test has made."""
        changes = [entry for entry in self.site.history() if isinstance(entry, AlertChanged)]
        return [change.state for change in changes if change.rule.startswith("trouble-in")][-1:] == ["firing"]


def page_refuses(watched: Watched) -> str:
    """Let the engine's page be gone."""
    watched.page.refuse()
    return f"http://localhost:{watched.page.port}/metrics"


def page_hangs(watched: Watched) -> str:
    """Let the engine's page never answer."""
    watched.page.hangs.set()
    return f"http://localhost:{watched.page.port}/metrics"


def log_is_forbidden(watched: Watched) -> str:
    """Take the permission to read from the trainer's log, which goes on."""
    watched.log.chmod(0)
    _append(watched.log, f"{datetime.now(UTC):%H:%M:%S}    INFO more\n")
    return "files:logs/attempt_1/trainer.log"


def rollouts_are_unknown(watched: Watched) -> str:
    """Write rollouts of an unknown shape."""
    _append(watched.rollouts, '{"trajectory": {"of": "another era"}}\n' * 3)
    return "files:rollouts"


def metrics_are_unknown(watched: Watched) -> str:
    """Write rows of metrics of an unknown shape."""
    _append(watched.site.run / "metrics.jsonl", '[{"who": "knows"}]\n' * 3)
    return "files:metrics.jsonl"


def fail(watched: Watched, blind: Callable[[Watched], str]) -> None:
    """Let there be trouble in what will be blind."""
    match blind.__name__.split("_")[0]:
        case "page":
            watched.page.waiting = 9.0
        case "log":
            _append(watched.log, f"{datetime.now(UTC):%H:%M:%S}   ERROR there is trouble\n")
        case "rollouts":
            _append(watched.rollouts, watched.rollouts.read_text().splitlines()[-1] + "\n")
        case _:
            row = f'{{"step": 9, "time": {time.time()}, "trouble": 9.0}}\n'
            _append(watched.site.run / "metrics.jsonl", row)


def _append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


@contextmanager
def standing(root: Path) -> Iterator[Watched]:
    """Give a run that has been written up to now, and is alive."""
    site, page = Site(root), Page()
    site.configure(CONFIG)
    plan = Plan(
        fault=Fault.NONE,
        steps=40,
        batch_size=8,
        engine_port=page.port,
        home=str(site.output),
        start=datetime.now(UTC) - timedelta(seconds=BEFORE_S),
    )
    run = site.output / plan.name
    for change in simulate(plan)[0].script.changes():
        if change.at_s <= BEFORE_S:
            apply(change, run)
    watched = Watched(site, page)
    try:
        yield watched
    finally:
        site.close()


def watch(watched: Watched) -> None:
    """Begin to watch without root's right to read everything; return when the run has been looked at."""
    site = watched.site
    unprivileged = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
    site.start(*unprivileged, PROGRAM, "run", site.run)
    wait_until(lambda: any(isinstance(entry, CheckIn) for entry in site.history()), 30, "no entry was made")
    wait_until(lambda: not watched.is_in_trouble(), 20, "the alerts of before never cleared")


@pytest.mark.timeout(120)
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv, to watch without root's rights")
@pytest.mark.parametrize(
    "blind", [page_refuses, page_hangs, log_is_forbidden, rollouts_are_unknown, metrics_are_unknown]
)
def test_what_is_not_seen_is_neither_failure_nor_health(tmp_path: Path, blind: Callable[[Watched], str]) -> None:
    """A healthy and a failing run stay what they are, and the next entry's Health names what is not seen."""
    with standing(tmp_path / "healthy") as healthy, standing(tmp_path / "failing") as failing:
        for watched in (healthy, failing):
            watch(watched)
        fail(failing, blind)
        wait_until(failing.is_in_trouble, 20, "the trouble was not seen")
        names = {}
        for watched in (healthy, failing):
            watched.before = len(watched.site.history())
            names[watched.page.port] = blind(watched)
        for watched in (healthy, failing):
            said = f"not seen: {names[watched.page.port]}"
            wait_until(lambda w=watched, s=said: s in _health(w.site), 40, f"never {said}")
        time.sleep(STAYS_S)
        for watched in (healthy, failing):
            since = watched.site.history()[watched.before :]
            changed = [entry for entry in since if isinstance(entry, AlertChanged)]
            assert [(entry.failure_mode, entry.state) for entry in changed] == [("telemetry-missing", "firing")]
        assert failing.is_in_trouble()


def _health(site: Site) -> str:
    """Return the Health line of the last entry."""
    entries = [entry.text for entry in site.history() if isinstance(entry, CheckIn)]
    return next((line for line in entries[-1].splitlines() if line.startswith("**Health**")), "") if entries else ""
