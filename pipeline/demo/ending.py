"""
The signals that end the demo.

They wait until they are asked for, so none of them can come between making
something and remembering to remove it.
"""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):  # noqa: N818 - a person's wish, not a fault
    """The demo was told to end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.status = 128 + number


@contextmanager
def held_back() -> Iterator[None]:
    """Let the signals wait for `pause`; those that come on the way out are dropped, for the program ends anyway."""
    # one that is ignored, as under nohup, would wait like the others once it is blocked
    held = {number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        yield
    finally:
        while signal.sigtimedwait(held, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def pause(seconds: float) -> None:
    """
    Wait.

    Raises:
        Interrupted: A signal came, now or before.

    """
    held = signal.pthread_sigmask(signal.SIG_BLOCK, ()) & set(ENDING)
    came = signal.sigtimedwait(held, seconds)
    if came is not None:
        raise Interrupted(came.si_signo)


def let_through() -> None:
    """Take the signals as usual: what a program does that the demo has just started."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
