"""The demo shows the right incident, wherever it is shown, and leaves nothing behind, however it ends."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.live.running import wait_until

DEMO = [sys.executable, "-P", "-c", "from pipeline.cli_demo import demo; demo(prog_name='runwatch demo')"]
INCIDENTS = {
    "engine-death": ("engine-dead in inference (critical)", "rollout-error-spike"),
    "cuda-oom": ("cuda-oom in trainer (critical)", "process-exited"),
    "one-env-of-three": ("env-exception in env", "rollout-error-spike"),
}
COLUMNS, ROWS = 80, 24
BORDERS = {"C.UTF-8": ("╭╰│", "╮╯│"), "C": ("+|", "+|")}


def start(place: Path, *options: object, lang: str = "C.UTF-8") -> subprocess.Popen[str]:
    """Start a demo whose output is a pipe and whose files lie below *place*."""
    place.mkdir(exist_ok=True)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("LC_")}
    environment |= {"TMPDIR": str(place), "LANG": lang}
    words = [*DEMO, *map(str, options)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True)


def processes_of(place: Path) -> list[str]:
    """Return the command lines of all processes with a file below *place* open: each of a demo has one."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(str(fd.readlink()).startswith(f"{place}/") for fd in (process / "fd").iterdir()):
                found.append((process / "cmdline").read_text(errors="replace"))
        except OSError:
            continue  # it has just ended, or is not ours
    return found


def is_empty(place: Path) -> bool:
    """Tell whether nothing is in a directory."""
    return not any(place.iterdir())


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[int, str]]]:
    """Give what each fault shows in a pipe; one where nothing but ASCII is understood, and one whose files are kept."""
    place = tmp_path_factory.mktemp("demos")
    langs, options = {"cuda-oom": "C"}, {"none": ["--keep"]}
    demos = {
        fault: start(
            place / fault,
            *("--fault", fault, "--duration", 20, *options.get(fault, [])),
            lang=langs.get(fault, "C.UTF-8"),
        )
        for fault in (*INCIDENTS, "none")
    }
    outputs = {fault: demo.communicate(timeout=90) for fault, demo in demos.items()}
    yield {fault: (demos[fault].returncode, out + error) for fault, (out, error) in outputs.items()}
    assert not [left for fault in INCIDENTS for left in (place / fault).iterdir()]
    assert not processes_of(place)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("fault", INCIDENTS)
def test_each_fault_ends_with_its_incident(shown: dict[str, tuple[int, str]], fault: str) -> None:
    """From nothing but what the service saw, the summary names root cause, cascade and message."""
    status, output = shown[fault]
    root, followed = INCIDENTS[fault]
    assert status == 0, output
    summary = output[output.index("WHAT HAPPENED") :]
    assert f"{fault} was injected" in summary
    found = re.search(r"([\d.]+) s after +root cause: (.+)\n", summary)
    assert found, output
    assert found[2].startswith(root)
    assert float(found[1]) < 15
    assert followed in summary
    assert "told a person" in summary
    assert f"[critical] {fault}" not in summary
    assert "THE MESSAGE" in output
    assert "Root cause: " + root.split(" (")[0] in output


@pytest.mark.timeout(120)
@pytest.mark.parametrize("fault", INCIDENTS)
def test_a_pipe_gets_plain_lines_in_order(shown: dict[str, tuple[int, str]], fault: str) -> None:
    """What is piped has no colours, is never drawn again, and tells what happens in the order of time."""
    _, output = shown[fault]
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", output)
    times = [float(time_s) for time_s in re.findall(r"^ *([\d.]+) s  (?:run|runwatch)\b", output, re.MULTILINE)]
    assert len(times) > 10
    assert times == sorted(times)
    assert output.index(" FAULT ") < output.index("root cause")


@pytest.mark.timeout(120)
def test_without_unicode_everything_is_ascii(shown: dict[str, tuple[int, str]]) -> None:
    """In the locale C nothing is printed that it does not know."""
    assert shown["cuda-oom"][1].isascii()


@pytest.mark.timeout(120)
def test_a_run_without_a_fault_disturbs_nobody_and_its_files_can_be_kept(shown: dict[str, tuple[int, str]]) -> None:
    """No incident is made up; with `--keep` the summary names the files, and they are there."""
    status, output = shown["none"]
    assert status == 0, output
    assert "No incident, and no message to anybody." in output
    named = re.findall(r"^    (/.+)$", output[output.index("FILES") :], re.MULTILINE)
    assert len(named) == 4
    assert all(Path(path).exists() for path in named)


class Terminal:
    """A real terminal in tmux, of 80 columns."""

    def __init__(self, place: Path, lang: str) -> None:
        self._socket = str(place / "tmux")
        place.mkdir()
        (place / "files").mkdir()
        keep = [f"{name}={value}" for name, value in os.environ.items() if name in {"PATH", "PYTHONPATH", "HOME"}]
        size = ["-x", str(COLUMNS), "-y", str(ROWS)]
        self._tmux("-f", os.devnull, "new-session", "-d", *size, "env", "-i", *keep, f"LANG={lang}", *self._rest(place))

    @property
    def screen(self) -> list[str]:
        """The lines on it."""
        return self._tmux("capture-pane", "-p").rstrip("\n").split("\n")

    def shows(self, text: str) -> bool:
        """Tell whether there is *text* on it."""
        return text in "\n".join(self.screen)

    def press(self, key: str) -> None:
        """Press a key."""
        self._tmux("send-keys", key)

    def close(self) -> None:
        """End it and what runs in it, if that has not ended by itself."""
        subprocess.run(["tmux", "-S", self._socket, "kill-server"], capture_output=True, timeout=10, check=False)

    def _rest(self, place: Path) -> list[str]:
        return [f"TMPDIR={place / 'files'}", "TERM=screen-256color", "sh", "-c", f"{_quoted(DEMO)} --duration 20; cat"]

    def _tmux(self, *words: str) -> str:
        words = ("tmux", "-u", "-S", self._socket, *words)
        return subprocess.run(words, capture_output=True, text=True, timeout=10, check=True).stdout


def _quoted(words: list[str]) -> str:
    return " ".join(f'"{word}"' for word in words)


@pytest.mark.timeout(90)
@pytest.mark.skipif(not shutil.which("tmux"), reason="needs tmux, a real terminal")
def test_a_screen_of_eighty_columns_is_whole(tmp_path: Path) -> None:
    """On 80 by 24 no border is broken and nothing is cut off, with Unicode and without; Ctrl-C takes all away."""
    terminals = {lang: Terminal(tmp_path / lang, lang) for lang in BORDERS}
    try:
        for lang, terminal in terminals.items():
            wait_until(partial(terminal.shows, "Root cause: engine-dead"), 60, "no incident")
            _assert_whole(terminal.screen, lang)
            wait_until(partial(terminal.shows, "what a person is told, "), 30, "no message")
            _assert_whole(terminal.screen, lang)
            terminal.press("C-c")
        for lang in terminals:
            files = tmp_path / lang / "files"
            wait_until(partial(is_empty, files), 10, "files are left")
            assert not processes_of(files)
    finally:
        for terminal in terminals.values():
            terminal.close()


def _assert_whole(screen: list[str], lang: str) -> None:
    left, right = BORDERS[lang]
    assert len(screen) == ROWS
    assert {len(line) for line in screen[1:]} == {COLUMNS}, "\n".join(screen)
    assert all(line[0] in left and line[-1] in right for line in screen[1:]), "\n".join(screen)
    assert lang != "C" or all(line.isascii() for line in screen)


@pytest.mark.timeout(90)
def test_whenever_it_is_told_to_end_nothing_is_left(tmp_path: Path) -> None:
    """Ten demos, ended at random moments by Ctrl-C, SIGTERM or a closed terminal, leave no process and no file."""
    dice = random.Random(7)
    ends = [(tmp_path / str(n), dice.choice(ENDS), dice.choice((0.8, 8.0)) * dice.random()) for n in range(10)]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda end: _end_and_look(*end), ends))


ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _end_and_look(place: Path, number: signal.Signals, after_s: float) -> None:
    demo = start(place, "--duration", 20)
    assert demo.stdout
    demo.stdout.readline()  # earlier there is only Python, which starts
    time.sleep(after_s)
    demo.send_signal(number)
    _, error = demo.communicate(timeout=20)
    assert demo.returncode == 128 + number
    assert "Traceback" not in error
    assert not list(place.iterdir())
    assert not processes_of(place)


@pytest.mark.timeout(60)
def test_a_demo_that_is_killed_takes_its_programs_along(tmp_path: Path) -> None:
    """After SIGKILL no process is left, and the next demo removes the files."""
    place = tmp_path / "demo"
    demo = start(place, "--duration", 20)
    wait_until(lambda: len(processes_of(place)) > 5, 20, "it never began")
    demo.kill()
    demo.communicate(timeout=10)
    wait_until(lambda: not processes_of(place), 5, "processes are left")
    (left,) = place.iterdir()
    following = start(place, "--duration", 20)
    wait_until(lambda: not left.exists(), 10, "the files are left")
    following.send_signal(signal.SIGINT)
    following.communicate(timeout=20)
    assert not list(place.iterdir())


@pytest.mark.timeout(60)
def test_the_run_alone_is_simulated_for_tests_of_ones_own(tmp_path: Path) -> None:
    """With `--run-only` there is a run, in the directory that is named, and it ends by itself."""
    out = tmp_path / "outputs"
    demo = start(tmp_path / "demo", "--run-only", out, "--fault", "cuda-oom", "--duration", 10)
    output, _ = demo.communicate(timeout=30)
    assert demo.returncode == 0
    assert "Trainer failed with exit code 1" in output
    assert list(out.glob("*/logs/latest/trainer.log"))
    assert not list((tmp_path / "demo").iterdir())


def test_every_fault_is_listed() -> None:
    """`--list` names each fault and what happens then, in a line."""
    words = [*DEMO, "--list"]
    listed = subprocess.run(words, capture_output=True, text=True, timeout=20, check=True).stdout
    assert set(INCIDENTS) <= {line.split()[0] for line in listed.splitlines()}
    assert listed.count("(the default)") == 1
