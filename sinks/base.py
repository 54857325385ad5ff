"""What every sink promises, and what it is given."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

import msgspec

from pipeline.alerts import CheckIn, Notification


class TryAgain(Exception):  # noqa: N818 - a verdict of the sink, as `StopIteration` is one
    """
    The receiver may take it later.

    The reason is shown to people and kept: no secret, URL path or body in it.
    """

    def __init__(self, reason: str, after_s: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.after_s = after_s
        """Not earlier than this many seconds from now, where the receiver says so."""


class Rejected(Exception):  # noqa: N818
    """The receiver will never take it. For the reason the same holds as for `TryAgain`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class OutboxItem(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to deliver to one sink."""

    sink: str
    created: datetime
    """When it was decided to deliver it, by the wall clock."""
    content: CheckIn | Notification

    @property
    def id(self) -> str:
        """The stable id by which a receiver can drop a repeat."""
        return self.content.id


class Sink(Protocol):
    """Delivers to one receiver."""

    @property
    def timeout_s(self) -> float:
        """How long one delivery may take; the caller ends it then."""

    @property
    def ordered(self) -> bool:
        """Whether a later item waits until the earlier ones are settled."""

    async def deliver(self, item: OutboxItem) -> None:
        """
        Return once the receiver has *item*.

        May be called again with an item it has delivered already: at least once,
        never exactly once.

        Raises:
            TryAgain: The receiver may take it later.
            Rejected: The receiver will never take it.

        """
