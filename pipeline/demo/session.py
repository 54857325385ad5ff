"""A demo from beginning to end."""

from __future__ import annotations

import errno
import os
import sys
from typing import TYPE_CHECKING

import click

from pipeline.demo.charset import charset_of_terminal
from pipeline.demo.ending import Interrupted, held_back
from pipeline.demo.play import ProgramFailed, play
from pipeline.demo.stage import set_up
from pipeline.demo.summary import summary
from pipeline.demo.views import opened, say

if TYPE_CHECKING:
    from pathlib import Path
    from typing import NoReturn

    from pipeline.demo.show import Show


def present(show: Show, *, keep: bool) -> int:
    """
    Show the run and what runwatch says of it, then a summary; return the exit status.

    Raises:
        BrokenPipeError: Whoever read the output has read enough.

    """
    charset = charset_of_terminal()
    try:
        with held_back(), set_up(keep=keep) as stage:
            with opened(charset) as view:
                sight = play(show, stage, view)
            stage.close()
            for line in summary(sight, charset, kept=stage.root if keep else None):
                say(line)
    except Interrupted as interrupted:
        return interrupted.status
    except ProgramFailed as error:
        click.echo(str(error), err=True)
        return 1
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise
        click.echo(f"the demo cannot go on: {error}", err=True)
        return 1
    return 0


def simulate_only(show: Show, out: Path) -> NoReturn:
    """Become the simulator, which lets the run happen below *out*."""
    arguments = [sys.executable, "-P", "-m", "pipeline.simulator", str(out), *show.options]
    os.execv(sys.executable, arguments)  # noqa: S606 - the program is ours
