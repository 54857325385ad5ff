"""The launcher's pane, of a real tmux server with a real shell in it, and what is new on a screen."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.events import HostLine, LogRecord
from pipeline.sources.launcher_pane import LauncherPane
from pipeline.sources.log_reader import LogReader
from pipeline.sources.screen_lines import Screen, first_of
from pipeline.times import cut
from tests.pipeline.sources.watch import Watch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT.parent / "shared" / "golden.tar.gz"
ZONE = ZoneInfo("UTC")
LAUNCHER = """
import os, sys, time
from pathlib import Path

folder = Path(sys.argv[1])
(folder / "pid").write_text(str(os.getpid()))
with open(folder / "words") as words:
    for line in words:
        print(line, end="", flush=True)
"""

needs_tmux = pytest.mark.skipif(which("tmux") is None, reason="tmux is not installed")


class Tmux:
    """A tmux server of its own, with a shell in a window that is called as in a run's session."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.launchers: list[Launcher] = []
        self.environment = {**os.environ, "TMUX_TMPDIR": str(folder)}
        self.environment.pop("TMUX", None)
        os.mkfifo(folder / "words")
        (folder / "launcher.py").write_text(LAUNCHER)
        start = ["-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "24", "-n", "Launcher", "env", "PS1=$ "]
        self("start-server", ";", "set-option", "-g", "history-limit", "6000", ";", *start[2:], "bash", "--norc")

    def __call__(self, *words: str) -> str:
        """Return what a command prints."""
        command = ["tmux", "-L", "private", "-f", "/dev/null", *words]
        return subprocess.run(
            command, env=self.environment, check=True, text=True, stdout=subprocess.PIPE, timeout=10
        ).stdout

    def type(self, text: str) -> None:
        """Type a command into the pane."""
        self("send-keys", "-l", text)
        self("send-keys", "Enter")

    def shows(self) -> str:
        """Return the contents of the pane."""
        return self("capture-pane", "-p", "-J", "-S", "-")

    def until_it_shows(self, text: str) -> None:
        """Return once *text* has come to the pane."""
        deadline = time.monotonic() + 10
        while text not in self.shows():
            assert time.monotonic() < deadline
            time.sleep(0.05)  # tmux tells nobody

    def launch(self) -> Launcher:
        """Start a launcher in the pane, which prints what it is told to."""
        (self._folder / "pid").unlink(missing_ok=True)
        self.type(shlex.join([sys.executable, str(self._folder / "launcher.py"), str(self._folder)]))
        deadline = time.monotonic() + 10
        while not (pid := _text(self._folder / "pid")):
            assert time.monotonic() < deadline
            time.sleep(0.02)  # until it has started
        self.launchers.append(Launcher(int(pid), self._folder / "words"))
        return self.launchers[-1]


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


class Launcher:
    """A launcher that runs in the pane."""

    def __init__(self, pid: int, words: Path) -> None:
        self.pid = pid
        self._words = words.open("w", buffering=1)

    def prints(self, *lines: str) -> None:
        """Have it print whole lines."""
        self._words.write("".join(f"{line}\n" for line in lines))

    def ends(self) -> None:
        """Have it exit."""
        with suppress(BrokenPipeError):  # it may have been killed
            self._words.close()


@pytest.fixture
def tmux(monkeypatch: pytest.MonkeyPatch) -> Iterator[Tmux]:
    """Start a server for one test; the source finds it as it would find the user's."""
    with TemporaryDirectory() as name:
        server = Tmux(Path(name))
        monkeypatch.setenv("TMUX_TMPDIR", name)
        monkeypatch.delenv("TMUX", raising=False)
        yield server
        for launcher in server.launchers:
            launcher.ends()
        server("kill-server")


@asynccontextmanager
async def watching(pids: Callable[[], Sequence[int]], since: datetime | None = None) -> AsyncIterator[Watch]:
    """Run a source for as long as the block lasts."""
    watch = Watch()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(LauncherPane("node-0", pids, ZONE, since=since, interval_s=0.1).run, watch.emit)
        yield watch
        tasks.cancel_scope.cancel()


def stamped(text: str, level: str = "INFO", ago_s: float = 0) -> str:
    """Return a line as the launcher prints it."""
    moment = datetime.now(UTC) - timedelta(seconds=ago_s)
    return f"\x1b[2m{moment:%H:%M:%S}\x1b[0m \x1b[1m{level:>7}\x1b[0m \x1b[1m\x1b[22m{text}\x1b[0m\x1b[0m"


def said(watch: Watch) -> list[str]:
    """Return the messages without time and level."""
    return [text[17:] if text[2:3] == ":" else text for text in watch.texts()]


@needs_tmux
async def test_the_launchers_lines_come_once_each_and_no_other(tmux: Tmux) -> None:
    """What a launcher prints is emitted, its last word too; what was in the pane before, and after, is not."""
    tmux.type("echo 23:59:59    ERROR of an earlier launch")
    launcher = tmux.launch()
    alive = [launcher.pid]
    launcher.prints(stamped("Starting RL run"), stamped("Starting trainer on GPU(s) 1 2"))
    async with watching(lambda: alive) as watch:
        await watch.until(lambda: len(watch.texts()) == 2)
        launcher.prints(*(stamped(f"Step {step}", "SUCCESS") for step in range(50)))
        launcher.prints(stamped("Error: Trainer failed with exit code 1", "ERROR"))
        launcher.ends()
        await anyio.sleep(0.2)  # for the shell to show its prompt
        alive.clear()
        await watch.until(lambda: "Error: Trainer failed with exit code 1" in said(watch))
        await anyio.sleep(0.5)  # for a few looks
        tmux.type("echo typed later")
        await anyio.sleep(0.5)  # for a few looks
        lines = [text for text in said(watch) if not text.startswith("$")]
    expected = [f"Step {step}" for step in range(50)]
    expected = [
        "Starting RL run",
        "Starting trainer on GPU(s) 1 2",
        *expected,
        "Error: Trainer failed with exit code 1",
    ]
    assert lines == expected
    assert watch.states() == [("seeing", "")]
    events = [event for event in watch.events if isinstance(event, HostLine)]
    assert {(event.node, event.origin) for event in events} == {("node-0", "launcher")}
    assert all(event.time == cut(event.time) for event in events)
    assert [event.time for event in events] == sorted(event.time for event in events)
    assert abs((events[0].time - datetime.now(UTC)).total_seconds()) < 60


@needs_tmux
async def test_a_line_carries_the_time_that_it_shows(tmux: Tmux) -> None:
    """A copy of the orchestrator's line has the time of the original, and a traceback is one with its line."""
    launcher = tmux.launch()
    async with watching(lambda: [launcher.pid]) as watch:
        launcher.prints(stamped("first"))
        await watch.until(lambda: said(watch) == ["first"])
        line = stamped("Fatal error in run_orchestrator", "ERROR", ago_s=7)
        launcher.prints(
            line, "Traceback (most recent call last):", '  File "a.py", line 1, in <module>', "KeyError: 'é'"
        )
        await watch.until(lambda: len(watch.texts()) == 2)
        event = watch.events[-1]
    assert isinstance(event, HostLine)
    shown = line[4:12]
    assert f"{event.time:%H:%M:%S}" == shown
    assert event.text == (
        f"{shown}   ERROR Fatal error in run_orchestrator\nTraceback (most recent call last):\n"
        "  File \"a.py\", line 1, in <module>\nKeyError: 'é'"
    )


@needs_tmux
@pytest.mark.parametrize(
    "name", ["episode-era/launcher/attempt_1.stdout", "scenarios/json-logging/capture/launcher.out"]
)
async def test_a_golden_terminal_has_the_records_of_its_bytes(tmux: Tmux, tmp_path: Path, name: str) -> None:
    """What a real launcher printed is read off the terminal as the same records that its bytes hold, but for spaces."""
    if not GOLDEN.is_file():
        pytest.skip("the golden data is not here")
    subprocess.run(["tar", "-xf", GOLDEN, "-C", tmp_path, "--wildcards", f"*/{name}"], check=True, timeout=60)
    (file,) = tmp_path.rglob(Path(name).name)
    reader = LogReader("launcher", None, None)
    reading = [*reader.feed(file.read_bytes()), *reader.finish(datetime.now(UTC))]
    records = [event for event, _ in reading if isinstance(event, LogRecord)]
    launcher = tmux.launch()
    async with watching(lambda: [launcher.pid]) as watch:
        launcher.prints(stamped("begin"))
        await watch.until(lambda: said(watch) == ["begin"])
        launcher.prints(*file.read_text().splitlines(), stamped("end"))
        await watch.until(lambda: said(watch)[-1] == "end")
    lines = watch.texts()[1:-1]
    assert [_words(text) for text in lines] == [
        _words(f"{text[:8]} {record.level} {record.text}" if record.level else record.text)
        for text, record in zip(lines, records, strict=True)
    ]


def _words(text: str) -> list[str]:
    return text.split()


@needs_tmux
async def test_a_scroll_back_of_thousands_of_lines_is_read_whole(tmux: Tmux) -> None:
    """Lines that went by between two looks are in the scroll-back, wrapped ones are one line, and none is lost."""
    launcher = tmux.launch()
    first = [f"backlog {number} {'x' * (number % 250)}." for number in range(5000)]
    second = [f"burst {number} {'y' * (number % 150)}." for number in range(2500)]
    launcher.prints(*(stamped(text) for text in first))
    tmux.until_it_shows("backlog 4999")
    shown = tmux.shows().count(" backlog ")
    async with watching(lambda: [launcher.pid]) as watch:
        await watch.until(lambda: first[-1] in said(watch))
        assert said(watch) == first[-shown:]
        launcher.prints(*(stamped(text) for text in second))
        await watch.until(lambda: second[-1] in said(watch))
        found = said(watch)[shown:]
        assert found == second
        launcher.prints(stamped("after"))
        await watch.until(lambda: said(watch)[-1] == "after")
        assert len(watch.texts()) == shown + len(second) + 1


@needs_tmux
@pytest.mark.parametrize("command", ["resize", "clear-screen", "clear-all", "copy-mode", "window", "clear-history"])
async def test_what_a_person_does_to_the_pane_repeats_and_loses_nothing(tmux: Tmux, command: str) -> None:
    """Neither another size, nor an empty screen, nor a look at the scroll-back changes what is new."""
    launcher = tmux.launch()
    texts = ["z", "中", "a   b"]
    lines = [f"line {number} {texts[number % 3] * (number * 7 % 90)}." for number in range(120)]
    async with watching(lambda: [launcher.pid]) as watch:
        launcher.prints(*(stamped(text) for text in lines[:60]))
        await watch.until(lambda: said(watch) == lines[:60])
        match command:
            case "resize":
                tmux("resize-window", "-x", "61", "-y", "11")
            case "clear-screen":
                launcher.prints("\x1b[H\x1b[2J")
            case "clear-all":
                launcher.prints("\x1b[H\x1b[2J\x1b[3J")
            case "copy-mode":
                tmux("copy-mode")
                tmux("send-keys", "-X", "history-top")
            case "window":
                tmux("split-window", "-h", "sleep 60")
            case "clear-history":
                tmux("clear-history")
        await anyio.sleep(0.3)  # for a few looks
        for text in lines[60:]:
            launcher.prints(stamped(text))
            await anyio.sleep(0.005)  # looks fall in between
        await watch.until(lambda: lines[-1] in said(watch))
        found = [text.replace(" ", "") for text in said(watch) if text]  # a narrow terminal loses some
        assert found == [text.replace(" ", "") for text in lines]


@needs_tmux
async def test_a_half_line_waits_for_its_end(tmux: Tmux) -> None:
    """A line that is being written is emitted once it is whole."""
    launcher = tmux.launch()
    async with watching(lambda: [launcher.pid]) as watch:
        launcher.prints(stamped("first"))
        await watch.until(lambda: said(watch) == ["first"])
        launcher.prints(stamped("same"), stamped("same"), stamped("same"))
        await watch.until(lambda: said(watch) == ["first", "same", "same", "same"])
        launcher.prints(stamped("last"))
        await watch.until(lambda: said(watch)[4:] == ["last"])


@needs_tmux
async def test_a_new_launch_in_the_same_pane_is_told_from_the_old_one(tmux: Tmux) -> None:
    """After a resume the lines of the new launcher come, and those of the one before do not come again."""
    first = tmux.launch()
    alive = [first.pid]
    async with watching(lambda: alive) as watch:
        first.prints(stamped("attempt one", ago_s=-1))
        await watch.until(lambda: said(watch) == ["attempt one"])
        first.ends()
        alive.clear()
        await anyio.sleep(2)  # so that the clock of the lines, of whole seconds, tells the launches apart
        second = tmux.launch()
        alive.append(second.pid)
        second.prints(stamped("attempt two"))
        await watch.until(lambda: "attempt two" in said(watch))
        assert [text for text in said(watch) if text.startswith("attempt")] == ["attempt one", "attempt two"]


@needs_tmux
async def test_what_was_read_before_a_restart_of_ours_is_not_read_again(tmux: Tmux) -> None:
    """Of a launcher's lines only those since the run was last watched are new."""
    launcher = tmux.launch()
    launcher.prints(stamped("known", ago_s=0))
    await anyio.sleep(1.1)  # lines show whole seconds
    since = datetime.now(UTC).replace(microsecond=0)
    launcher.prints(stamped("missed"))
    async with watching(lambda: [launcher.pid], since=since) as watch:
        await watch.until(lambda: bool(watch.texts()))
        assert said(watch) == ["missed"]


@needs_tmux
async def test_a_closed_pane_is_blindness_while_the_launcher_lives(tmux: Tmux) -> None:
    """A launcher that has lost its terminal is not seen any more, and the source lives on."""
    tmux("split-window", "-h", "sleep 60")
    tmux("select-pane", "-L")
    tmux.type("trap '' HUP")
    launcher = tmux.launch()
    launcher.prints(stamped("first"))
    async with watching(lambda: [launcher.pid]) as watch:
        await watch.until(lambda: said(watch) == ["first"])
        tmux("kill-pane")
        await watch.until(lambda: watch.states()[-1] == ("blind", "the pane of this run's launcher is closed"))


@needs_tmux
async def test_a_server_that_does_not_answer_is_blindness(tmux: Tmux, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tmux server that hangs is given up on in time, and read again when it answers."""
    monkeypatch.setattr("pipeline.sources.launcher_pane.ANSWER_S", 0.3)
    launcher = tmux.launch()
    launcher.prints(stamped("first"))
    server = int(tmux("display-message", "-p", "#{pid}"))
    async with watching(lambda: [launcher.pid]) as watch:
        await watch.until(lambda: said(watch) == ["first"])
        os.kill(server, signal.SIGSTOP)
        try:
            await watch.until(lambda: watch.states()[-1] == ("blind", "tmux does not answer"))
        finally:
            os.kill(server, signal.SIGCONT)
        launcher.prints(stamped("second"))
        await watch.until(lambda: said(watch) == ["first", "second"])
        assert watch.states()[-1] == ("seeing", "")


@needs_tmux
async def test_another_server_that_hangs_does_not_hide_the_pane(tmux: Tmux, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several servers the one that holds the launcher's pane is found, also behind one that does not answer."""
    monkeypatch.setattr("pipeline.sources.launcher_pane.ANSWER_S", 0.3)
    launcher = tmux.launch()
    launcher.prints(stamped("first"))
    other = ["tmux", "-L", "another", "-f", "/dev/null"]
    subprocess.run([*other, "new-session", "-d", "sleep 60"], env=tmux.environment, check=True, timeout=10)
    asked = [*other, "display-message", "-p", "#{pid}"]
    server = int(subprocess.run(asked, env=tmux.environment, check=True, capture_output=True, timeout=10).stdout)
    os.kill(server, signal.SIGSTOP)
    try:
        async with watching(lambda: [launcher.pid]) as watch:
            await watch.until(lambda: said(watch) == ["first"])
            assert watch.states() == [("seeing", "")]
    finally:
        os.kill(server, signal.SIGKILL)


async def test_a_launcher_without_a_pane_is_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without tmux, a pane or a launcher nothing is seen, and the reason says why."""
    monkeypatch.setenv("TMUX_TMPDIR", str(tmp_path))
    monkeypatch.setenv("TMUX", f"{tmp_path}/none,1,0")
    monkeypatch.setattr("pipeline.sources.launcher_pane.GRACE_S", 0.2)
    process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    async with watching(lambda: [process.pid]) as watch:
        await watch.until(lambda: bool(watch.states()))
        assert watch.states() == [("absent", "it is in no tmux pane here")]
    async with watching(list) as watch:
        await watch.until(lambda: bool(watch.states()))
        assert watch.states() == [("absent", "no launcher of this run on this host")]
    monkeypatch.setenv("PATH", str(tmp_path))
    async with watching(lambda: [process.pid]) as watch:
        await watch.until(lambda: bool(watch.states()))
        assert watch.states() == [("absent", "tmux cannot be run: No such file or directory")]
    process.kill()
    process.wait()


LINES = st.lists(st.sampled_from(["a", "b", "", "12:00:00    INFO c"]), max_size=40)


@given(st.lists(LINES, min_size=1, max_size=6))
def test_on_a_screen_that_only_grows_each_line_is_new_once(parts: list[list[str]]) -> None:
    """Whatever lines repeat, what comes out is what went in, in order, once the last line has been met twice."""
    screen, shown, found = Screen(), [], []
    for part in [*parts, ["the end"], []]:
        shown = [*shown, *part]
        while shown and not shown[-1]:  # empty lines at the end are not seen
            shown = shown[:-1]
        found += screen.take(shown, whole=True) or []
    assert found == shown


@given(st.lists(st.integers(0, 10**9).map(str), unique=True, max_size=60), st.data())
def test_lines_that_left_the_screen_at_its_top_are_not_missed(lines: list[str], data: st.DataObject) -> None:
    """A bounded scroll-back forgets its oldest lines; what is left is found again."""
    screen, found, read = Screen(), [], 0
    while read < len(lines):
        read = min(read + data.draw(st.integers(0, 6)) + 1, len(lines))
        found += screen.take(lines[max(read - 14, 0) : read], whole=True) or []
    found += screen.take(lines[max(read - 14, 0) :], whole=True) or []
    assert found == lines


@given(st.lists(st.text(st.characters(exclude_characters="\n")), max_size=30), st.floats(-1e6, 1e6))
def test_no_screen_breaks_the_search_for_the_first_line(lines: list[str], ago_s: float) -> None:
    """Any text is dated or not, and a place that is found is a line's."""
    now = datetime(2026, 3, 29, 12, tzinfo=UTC)
    found = first_of(lines, now - timedelta(seconds=ago_s), now, ZoneInfo("Europe/Berlin"))
    assert found is None or 0 <= found[0] < len(lines)


def test_lines_of_another_day_are_not_of_this_launch() -> None:
    """A line whose clock is ahead of the line after it was written on a day before."""
    lines = ["14:00:00    INFO yesterday", "$ rl", "13:00:05    INFO begun", "text", "13:00:09    INFO on"]
    now = datetime(2026, 3, 2, 14, 50, tzinfo=UTC)
    begun = datetime(2026, 3, 2, 13, 0, tzinfo=UTC)
    assert first_of(lines, begun, now, ZONE) == (2, begun + timedelta(seconds=5))
    assert first_of(lines, begun - timedelta(days=1), now, ZONE) == (0, now - timedelta(days=1, minutes=50))
    assert first_of(["$ rl"], begun, now, ZONE) is None
