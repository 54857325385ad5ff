"""
From the outbox to the sinks: at least once, in order, each sink on its own.

A delivery is settled by its receipt, which goes through the engine and is
committed like any event. Killed between the two, the service delivers again
with the same id.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal

import anyio
import structlog

from pipeline.events import Receipt
from pipeline.times import cut
from sinks.base import OutboxItem, Rejected, Sink, TryAgain

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectSendStream

    from pipeline.journal import Journal, Pending
    from sinks import Sinks

log = structlog.get_logger()

LONGEST_WAIT_S = 600.0
LONGEST_ASKED_S = 3600.0
"""How long a receiver may ask us to wait."""
AT_ONCE = 500
"""Deliveries looked at together, at most."""
EXPIRES = timedelta(hours=24)


async def deliver(journal: Journal, sinks: Sinks, receipts: MemoryObjectSendStream[Receipt]) -> None:
    """
    Deliver what is in the outbox to *sinks*, by name, until cancelled.

    Raises:
        JournalError: The outbox cannot be read or written.

    """
    for entry in await journal.pending():
        if entry.item.sink not in sinks:
            await receipts.send(_receipt(entry.item, "rejected", "the sink is no longer configured"))
    async with anyio.create_task_group() as tasks:
        for name, sink in sinks.items():
            tasks.start_soon(_Lane(name, sink, journal, receipts).run)


def wait_s(attempts: int, asked_s: float | None = None) -> float:
    """Return how long to wait after *attempts* failed ones: 1, 2, 4 … seconds, or longer if asked to."""
    backoff_s = min(2.0 ** min(attempts - 1, 16), LONGEST_WAIT_S)
    return max(backoff_s, min(asked_s or 0.0, LONGEST_ASKED_S))


class _Lane:
    """The deliveries to one sink."""

    def __init__(self, name: str, sink: Sink, journal: Journal, receipts: MemoryObjectSendStream[Receipt]) -> None:
        self._name = name
        self._sink = sink
        self._journal = journal
        self._receipts = receipts
        self._settled: set[str] = set()
        """Settled here, but the receipt is not committed yet."""
        self._failing: set[str] = set()
        """Reported as failing."""

    async def run(self) -> None:
        """Deliver one item after the other."""
        while True:
            # taken before the look, so that what is committed after it wakes us
            committed = self._journal.committed
            waiting = await self._waiting()
            now = datetime.now(UTC)
            if due := next((entry for entry in waiting if not _rest_s(entry, now)), None):
                await self._attempt(due)
                continue
            with anyio.move_on_after(min((_rest_s(entry, now) for entry in waiting), default=math.inf)):
                await committed.wait()

    async def _waiting(self) -> list[Pending]:
        pending = await self._journal.pending(self._name, AT_ONCE)
        ids = {entry.item.id for entry in pending}
        self._settled &= ids
        self._failing &= ids
        waiting = [entry for entry in pending if entry.item.id not in self._settled]
        return waiting[:1] if self._sink.ordered else waiting

    async def _attempt(self, entry: Pending) -> None:
        try:
            with anyio.fail_after(self._sink.timeout_s):
                await self._sink.deliver(entry.item)
        except TryAgain as verdict:
            await self._put_off(entry, verdict.reason, verdict.after_s)
        except Rejected as verdict:
            await self._settle(entry.item, "rejected", verdict.reason)
        except TimeoutError:
            await self._put_off(entry, f"no answer within {self._sink.timeout_s:g} s")
        except Exception as error:  # noqa: BLE001 - a bug in one sink must not end the others; its text may hold secrets
            await self._put_off(entry, f"the sink itself failed: {type(error).__name__}")
        else:
            await self._settle(entry.item, "delivered", "")

    async def _put_off(self, entry: Pending, reason: str, asked_s: float | None = None) -> None:
        item, attempts = entry.item, entry.attempts + 1
        now = datetime.now(UTC)
        if now - item.created >= EXPIRES:
            await self._settle(item, "rejected", f"expired: {reason}")
            return
        next_try = now + timedelta(seconds=wait_s(attempts, asked_s))
        await self._journal.note_attempt(item, cut(next_try), reason)
        if item.id not in self._failing:
            self._failing.add(item.id)
            log.warning("delivery.failed", sink=self._name, item=item.id, reason=reason)
            await self._receipts.send(_receipt(item, "failing", reason))

    async def _settle(self, item: OutboxItem, outcome: Literal["delivered", "rejected"], reason: str) -> None:
        self._settled.add(item.id)
        if outcome == "rejected":
            log.error("delivery.rejected", sink=self._name, item=item.id, reason=reason)
        await self._receipts.send(_receipt(item, outcome, reason))


def _rest_s(entry: Pending, now: datetime) -> float:
    """Return the seconds until *entry* may be tried."""
    rest_s = (entry.next_try - now).total_seconds()
    # nothing waits for longer than this: the clock has been set back since
    return rest_s if 0 < rest_s <= LONGEST_ASKED_S else 0


def _receipt(item: OutboxItem, outcome: Literal["delivered", "rejected", "failing"], reason: str) -> Receipt:
    return Receipt(time=cut(datetime.now(UTC)), item=item.id, sink=item.sink, outcome=outcome, reason=reason)
