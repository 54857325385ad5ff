"""
Draw what a command shows in a terminal: `python docs/picture.py OUT.svg replay example/run …`.

The command runs in a real terminal, so it shows the colours and the width that
a person would see. Of one that fills the screen, `--when TEXT` draws the screen
as it is a moment after TEXT has appeared on it, and needs tmux:
`python docs/picture.py --when "what a person is told, " OUT.svg demo`.
"""

from __future__ import annotations

import argparse
import fcntl
import io
import os
import pty
import shlex
import struct
import subprocess
import tempfile
import termios
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

COLUMNS = 110
ROWS = 50
SCREEN_ROWS = 30
MOMENT_S = 3.0
PATIENCE_S = 120.0


def shown(command: list[str]) -> str:
    """Run *command* in a terminal and return what it showed, colours included."""
    child, terminal = pty.fork()
    if child == 0:
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        os.environ |= {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
        os.execvp(command[0], command)
    parts = []
    try:
        while part := os.read(terminal, 65536):
            parts.append(part)
    except OSError:
        pass  # Linux reports the end of a terminal as an error
    os.waitpid(child, 0)
    return b"".join(parts).decode(errors="replace").replace("\r\n", "\n")


def screen(command: list[str], text: str) -> str:
    """Run *command* in tmux and return its screen, colours included, a moment after *text* has appeared on it."""
    with tempfile.TemporaryDirectory() as place:
        tmux = ["tmux", "-u", "-f", os.devnull, "-S", f"{place}/tmux"]
        size = ["-x", str(COLUMNS), "-y", str(SCREEN_ROWS)]
        subprocess.run([*tmux, "new-session", "-d", *size, f"LANG=C.UTF-8 {shlex.join(command)}"], check=True)
        capture = [*tmux, "capture-pane", "-p", "-e"]
        give_up_at = time.monotonic() + PATIENCE_S
        while text not in (seen := subprocess.run(capture, capture_output=True, text=True, check=True).stdout):
            if time.monotonic() > give_up_at:
                message = f"{text!r} did not appear; the screen was:\n{seen}"
                raise SystemExit(message)
            time.sleep(0.2)
        time.sleep(MOMENT_S)
        seen = subprocess.run(capture, capture_output=True, text=True, check=True).stdout
        subprocess.run([*tmux, "send-keys", "C-c"], check=True)
        while (
            Path(f"{place}/tmux").exists() and not subprocess.run(capture, capture_output=True, check=False).returncode
        ):
            time.sleep(0.1)
    return seen


def draw(command: list[str], out: Path, when: str | None) -> None:
    """Write a picture of a terminal with *command* and what it showed."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    if when is None:
        console.print(Text("$ " + " ".join(command), style="bold"))
    console.print(Text.from_ansi(screen(command, when) if when else shown(command)))
    title = " ".join(command) if when else "runwatch"
    out.write_text(console.export_svg(title=title, unique_id="runwatch"), "utf-8")


def main() -> None:
    """Draw what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--when", metavar="TEXT")
    parser.add_argument("out", type=Path, metavar="OUT.svg")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    draw(["runwatch", *given.command], given.out, given.when)


if __name__ == "__main__":
    main()
