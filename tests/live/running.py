"""A simulated run that is being written, the installed program that watches it, and a receiver of its messages."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from pipeline.alerts import AlertChanged, CheckIn, HealthChanged, IncidentChanged, Notification
from pipeline.journal_file import Entry, JournalError, read_history
from pipeline.recording import to_json

PROGRAM = Path(sys.executable).with_name("runwatch")
DRIVER = Path(__file__).with_name("crash_driver.py")
_MESSAGE_ID = re.compile(r"^runwatch (\S+)$", re.MULTILINE)


class Receiver:
    """A service on this machine that takes notifications, or takes them and never answers."""

    def __init__(self, *, answers: bool = True) -> None:
        self.ids: list[str] = []
        """Of the messages that came, in their order, repeats included."""
        receiver = self

        class Taking(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                receiver.ids += _MESSAGE_ID.findall(body["message"])
                if answers:
                    self.send_response(200)
                    self.end_headers()
                else:
                    time.sleep(60)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Taking)
        self._server.daemon_threads = True
        Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        """As apprise wants it."""
        return f"json://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        """Take no more."""
        self._server.shutdown()
        self._server.server_close()


class Site:
    """An output directory with a run, and everything that runwatch keeps, below one directory."""

    def __init__(self, root: Path) -> None:
        self.root, self.output = root, root / "outputs"
        self.output.mkdir(parents=True)
        self.environment = os.environ | {
            "XDG_STATE_HOME": str(root / "state"),
            "XDG_CONFIG_HOME": str(root / "config"),
            "HOME": str(root),
            "TZ": "UTC",
            "NO_PROXY": "*",
        }
        self._started: list[subprocess.Popen[bytes] | subprocess.Popen[str]] = []

    @property
    def run(self) -> Path:
        """The directory of the one run."""
        return next(path for path in self.output.iterdir() if path.is_dir() and path.name[0] != ".")

    @property
    def log(self) -> str:
        """What the programs have said."""
        return "".join(path.read_text(errors="replace") for path in sorted(self.root.glob("*.out")))

    def configure(self, text: str, **files: str) -> None:
        """Write the config of the runs here, and more files of rules beside it."""
        (self.output / "runwatch.toml").write_text(text)
        for name, content in files.items():
            (self.output / f"{name}.toml").write_text(content)

    def start(self, *command: object, name: str = "program") -> subprocess.Popen[bytes]:
        """Start a program; it is killed at the end of the test."""
        with (self.root / f"{name}-{len(self._started):03}.out").open("wb") as out:
            started = subprocess.Popen([str(part) for part in command], stdout=out, stderr=out, env=self.environment)
        self._started.append(started)
        return started

    def converse(self, *command: object) -> subprocess.Popen[str]:
        """Start a program that is spoken to, a line at a time."""
        words = [str(part) for part in command]
        with (self.root / f"driver-{len(self._started):03}.out").open("wb") as out:
            started = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=out, text=True, env=self.environment
            )
        self._started.append(started)
        return started

    def simulate(self, *options: object) -> subprocess.Popen[bytes]:
        """Let a run be written from now on; return when there is a log to read."""
        module = [sys.executable, "-m", "pipeline.simulator", self.output, "--live", "--batch-size", 8]
        simulator = self.start(*module, *options, name="simulator")
        wait_until(lambda: any(self.output.glob("*/logs/latest/*.log")), 20, "the run never began")
        return simulator

    def watch(self, *options: object, run: Path | None = None) -> subprocess.Popen[bytes]:
        """Start the installed program on the run."""
        return self.start(PROGRAM, "run", *options, run or self.run)

    def ask(self, *command: object) -> subprocess.CompletedProcess[bytes]:
        """Run a command of the installed program to its end."""
        words = [str(part) for part in (PROGRAM, *command)]
        return subprocess.run(words, capture_output=True, env=self.environment, timeout=60, check=False)

    def journal(self) -> Path:
        """Return the journal of the run, if there is one."""
        return next((self.root / "state").glob("runwatch/*/journal.db"))

    def history(self) -> list[Entry]:
        """Return what was decided, and the receipts."""
        try:
            return list(read_history(self.journal()))
        except (StopIteration, JournalError):  # it is being made
            return []

    def settled(self) -> bool:
        """Tell whether all that was decided to deliver has a receipt."""
        history = self.history()
        decided = {entry.id for entry in history if isinstance(entry, CheckIn | Notification)}
        receipts = {entry.item for entry in history if not isinstance(entry, _DECISIONS)}
        return decided <= receipts

    def close(self) -> None:
        """End what still runs."""
        for started in self._started:
            with started:  # closes its pipes, and waits
                started.kill()


_DECISIONS = AlertChanged | IncidentChanged | HealthChanged | CheckIn | Notification


def wait_until(condition: Callable[[], object], timeout_s: float, otherwise: str) -> None:
    """Wait for a condition of something that runs beside the test."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.05)


def end(program: subprocess.Popen[bytes], number: signal.Signals = signal.SIGTERM) -> tuple[int, float]:
    """Ask a program to end; return its exit status and how long that took, in seconds."""
    began = time.monotonic()
    program.send_signal(number)
    status = program.wait(20)
    return status, time.monotonic() - began


def judged(entries: list[Entry]) -> list[str]:
    """Return the alerts, incidents and health of a history as a replay prints them."""
    shown = [entry for entry in entries if isinstance(entry, AlertChanged | IncidentChanged | HealthChanged)]
    return [to_json(entry).decode() for entry in shown]


def replayed(site: Site) -> list[str]:
    """Return the alerts, incidents and health that a replay finds in the run and the surviving recording."""
    recording = site.root / "recording.jsonl"
    recorded = site.ask("record", site.run, recording)
    assert recorded.returncode == 0, recorded.stderr
    replay = site.ask("replay", site.run, "--recording", recording, "--json")
    assert replay.returncode == 0, replay.stderr
    return [line for line in replay.stdout.decode().splitlines() if not line.startswith('{"type":"summary"')]


def entries_of(status: str) -> list[str]:
    """Return the entries of a STATUS.md."""
    return [f"## {part}".rstrip("\n") for part in re.split(r"^## ", status, flags=re.MULTILINE) if part]


@contextmanager
def receiving(*, answers: bool) -> Iterator[Receiver]:
    """Give a service that may never answer."""
    made = Receiver(answers=answers)
    try:
        yield made
    finally:
        made.close()
