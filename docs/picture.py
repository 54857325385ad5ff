"""
Draw what a command shows in a terminal: `python docs/picture.py OUT.svg replay example/run …`.

The command runs in a real pseudo-terminal, so it shows the colours and the
width that a person would see.
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import struct
import sys
import termios
from pathlib import Path

from rich.console import Console
from rich.text import Text

COLUMNS = 110
ROWS = 50


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


def draw(command: list[str], out: Path) -> None:
    """Write a picture of a terminal with *command* and what it showed."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text("$ " + " ".join(command), style="bold"))
    console.print(Text.from_ansi(shown(command)))
    out.write_text(console.export_svg(title="runwatch", unique_id="runwatch"), "utf-8")


if __name__ == "__main__":
    draw(["runwatch", *sys.argv[2:]], Path(sys.argv[1]))
