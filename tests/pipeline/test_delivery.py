"""Delivery: at least once, in order, each sink on its own."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import msgspec
import pytest
from aiohttp import web
from anyio.streams.memory import MemoryObjectReceiveStream

from pipeline import delivery
from pipeline.alerts import CheckIn, Notification
from pipeline.delivery import deliver, wait_s
from pipeline.events import Receipt
from pipeline.journal import Batch, Journal, open_journal
from sinks.apprise_sink import AppriseOptions
from sinks.base import OutboxItem, Rejected, TryAgain
from sinks.status_md import status_file


def item(name: str, sink: str = "s", age: timedelta = timedelta()) -> OutboxItem:
    now = datetime.now(UTC)
    return OutboxItem(sink=sink, created=now - age, content=CheckIn(time=now, id=name, text=f"## {name}\n"))


class Scripted:
    """A receiver that answers as the test says: by item, one verdict an attempt, then accepts."""

    def __init__(self, *, ordered: bool = False, timeout_s: float = 5, **verdicts: list[Exception]) -> None:
        self.ordered = ordered
        self.timeout_s = timeout_s
        self.verdicts = verdicts
        self.asked: list[str] = []

    async def deliver(self, item: OutboxItem) -> None:
        self.asked.append(item.id)
        if verdicts := self.verdicts.get(item.id):
            raise verdicts.pop(0)


class Hung:
    """A receiver that never answers."""

    ordered = False

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.asked = 0

    async def deliver(self, item: OutboxItem) -> None:
        self.asked += 1
        await anyio.sleep_forever()


@asynccontextmanager
async def delivering(journal: Journal, **sinks: Scripted | Hung) -> AsyncGenerator[MemoryObjectReceiveStream[Receipt]]:
    """Deliver to *sinks* meanwhile; give the receipts."""
    send, receive = anyio.create_memory_object_stream[Receipt](100)
    with send, receive, anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(deliver, journal, sinks, send)
            yield receive
            tasks.cancel_scope.cancel()


@pytest.fixture
async def journal(tmp_path: Path) -> AsyncGenerator[Journal]:
    """Open a journal."""
    async with open_journal(tmp_path / "journal.db") as opened:
        yield opened


@pytest.fixture
def hung_port() -> Iterator[int]:
    """Give a port on which connections are taken and never answered."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def mailbox() -> list[str]:
    """Keep what is posted to `mailbox_port`."""
    return []


@pytest.fixture
async def mailbox_port(mailbox: list[str]) -> AsyncGenerator[int]:
    """Give a port of a server that takes everything."""

    async def answer(request: web.Request) -> web.Response:
        mailbox.append(await request.text())
        return web.Response()

    app = web.Application()
    app.router.add_post("/", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield runner.addresses[0][1]
    await runner.cleanup()


def told(receipt: Receipt) -> tuple[str, str, str]:
    return receipt.item, receipt.outcome, receipt.reason


async def test_a_new_item_is_delivered_at_once(journal: Journal) -> None:
    """An item that is committed while nothing is to be done is delivered without delay."""
    async with delivering(journal, s=Scripted()) as receipts:
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(5):
            await journal.commit(Batch(outbox=[item("a")]))
            assert told(await receipts.receive()) == ("a", "delivered", "")


async def test_not_again_while_the_receipt_is_under_way(journal: Journal) -> None:
    """An item is not delivered again in the same process before its receipt is committed."""
    sink = Scripted()
    async with delivering(journal, s=sink) as receipts:
        await journal.commit(Batch(outbox=[item("a")]))
        receipt = await receipts.receive()
        await journal.commit(Batch(outbox=[item("b")]))
        await receipts.receive()
        await journal.commit(Batch(kept=[receipt], outbox=[item("c")]))
        await receipts.receive()
    assert sink.asked == ["a", "b", "c"]


async def test_again_after_a_crash_before_the_receipt(journal: Journal) -> None:
    """A delivery whose receipt was never committed is made again, with the same id; one whose was, is not."""
    await journal.commit(Batch(outbox=[item("a"), item("b")]))
    async with delivering(journal, s=Scripted()) as receipts:
        await journal.commit(Batch(kept=[await receipts.receive()]))
        await receipts.receive()
    sink = Scripted()
    async with delivering(journal, s=sink) as receipts:
        await receipts.receive()
    assert sink.asked == ["b"]


async def test_refused_then_taken(journal: Journal) -> None:
    """A refused item is tried again after a second; `failing` is told once, not at every attempt."""
    sink = Scripted(a=[TryAgain("busy"), TryAgain("busy")])
    async with delivering(journal, s=sink) as receipts:
        start = anyio.current_time()
        await journal.commit(Batch(outbox=[item("a")]))
        assert told(await receipts.receive()) == ("a", "failing", "busy")
        (entry,) = await journal.pending()
        assert entry.attempts == 1
        assert told(await receipts.receive()) == ("a", "delivered", "")
    assert 2.9 < anyio.current_time() - start < 15
    assert sink.asked == ["a", "a", "a"]


async def test_rejected_for_good(journal: Journal) -> None:
    """A rejected item is told and not tried again."""
    sink = Scripted(a=[Rejected("unknown channel")])
    async with delivering(journal, s=sink) as receipts:
        await journal.commit(Batch(outbox=[item("a")]))
        receipt = await receipts.receive()
        await journal.commit(Batch(kept=[receipt]))
    assert told(receipt) == ("a", "rejected", "unknown channel")
    assert await journal.pending() == []


async def test_one_item_does_not_hold_up_the_next(journal: Journal) -> None:
    """Where order does not matter, an item that is refused lets the next one pass."""
    sink = Scripted(a=[TryAgain("busy", after_s=100)])
    async with delivering(journal, s=sink) as receipts:
        await journal.commit(Batch(outbox=[item("a"), item("b")]))
        assert [told(await receipts.receive())[:2] for _ in range(2)] == [("a", "failing"), ("b", "delivered")]


async def test_order_is_kept_where_it_matters(journal: Journal) -> None:
    """An ordered sink gets a later item only when the earlier ones are settled."""
    sink = Scripted(ordered=True, a=[TryAgain("busy")])
    async with delivering(journal, s=sink) as receipts:
        await journal.commit(Batch(outbox=[item("a"), item("b")]))
        for _ in range(3):
            await receipts.receive()
    assert sink.asked == ["a", "a", "b"]


async def test_a_hung_sink_delays_no_other(journal: Journal) -> None:
    """While one sink hangs, another's items are delivered at once, and the hung one is given up in its time."""
    hung = Hung(timeout_s=1.5)
    async with delivering(journal, hung=hung, s=Scripted()) as receipts:
        await journal.commit(Batch(outbox=[item(str(n), sink) for n in range(5) for sink in ("hung", "s")]))
        assert {told(await receipts.receive())[1] for _ in range(5)} == {"delivered"}
        assert told(await receipts.receive()) == ("0", "failing", "no answer within 1.5 s")


async def test_a_bug_in_a_sink(journal: Journal) -> None:
    """A sink that breaks in its own code counts as failing, its words are not repeated, and it is tried again."""
    sink = Scripted(a=[KeyError("https://secret")])
    async with delivering(journal, s=sink) as receipts:
        await journal.commit(Batch(outbox=[item("a")]))
        assert told(await receipts.receive()) == ("a", "failing", "the sink itself failed: KeyError")
        assert told(await receipts.receive()) == ("a", "delivered", "")


async def test_a_day_is_enough(journal: Journal) -> None:
    """An item that is a day old is tried once more and then given up."""
    sink = Scripted(a=[TryAgain("busy")])
    async with delivering(journal, s=sink) as receipts:
        await journal.commit(Batch(outbox=[item("a", age=timedelta(hours=25)), item("b", age=timedelta(hours=25))]))
        assert [told(await receipts.receive()) for _ in range(2)] == [
            ("a", "rejected", "expired: busy"),
            ("b", "delivered", ""),
        ]


async def test_a_sink_that_is_gone(journal: Journal) -> None:
    """What is left for a sink that the config no longer names is rejected."""
    await journal.commit(Batch(outbox=[item("a", "old")]))
    async with delivering(journal, s=Scripted()) as receipts:
        assert told(await receipts.receive()) == ("a", "rejected", "the sink is no longer configured")


async def test_a_clock_that_was_set_back(journal: Journal) -> None:
    """An item whose next attempt lies further ahead than any wait is tried now."""
    await journal.commit(Batch(outbox=[item("a")]))
    await journal.note_attempt(item("a"), datetime.now(UTC) + timedelta(days=1), "busy")
    async with delivering(journal, s=Scripted()) as receipts:
        assert told(await receipts.receive()) == ("a", "delivered", "")


@pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")
async def test_a_hung_server_delays_no_other(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, hung_port: int, mailbox: list[str], mailbox_port: int
) -> None:
    """While one service never answers, the messages to another arrive at once."""
    monkeypatch.setenv("HUNG", f"json://127.0.0.1:{hung_port}/?rto=30")
    monkeypatch.setenv("WELL", f"json://127.0.0.1:{mailbox_port}/")
    note = Notification(time=datetime.now(UTC), id="n", incident="1", severity="info", title="t", body="b")
    send, receive = anyio.create_memory_object_stream[Receipt](100)
    async with (
        AppriseOptions(name="hung", url_env="HUNG").open() as hung,
        AppriseOptions(name="well", url_env="WELL").open() as well,
        send,
        receive,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(deliver, journal, {"hung": hung, "well": well}, send)
        items = [
            OutboxItem(sink=sink, created=note.time, content=msgspec.structs.replace(note, id=str(number)))
            for number in range(10)
            for sink in ("hung", "well")
        ]
        with anyio.fail_after(15):
            await journal.commit(Batch(outbox=items))
            assert [told(await receive.receive()) for _ in range(10)] == [(str(n), "delivered", "") for n in range(10)]
        tasks.cancel_scope.cancel()
    assert len(mailbox) == 10


async def test_into_status_md(journal: Journal, tmp_path: Path) -> None:
    """Check-ins wait until the launcher has made the run directory, then arrive in order."""
    send, receive = anyio.create_memory_object_stream[Receipt](100)
    async with status_file(tmp_path / "run") as sink, anyio.create_task_group() as tasks:
        tasks.start_soon(deliver, journal, {"STATUS.md": sink}, send)
        await journal.commit(Batch(outbox=[item("one", "STATUS.md"), item("two", "STATUS.md")]))
        with send, receive, anyio.fail_after(10):
            assert told(await receive.receive()) == ("one", "failing", "the run directory has no logs/ yet")
            (tmp_path / "run" / "logs").mkdir(parents=True)
            assert [told(await receive.receive())[:2] for _ in range(2)] == [("one", "delivered"), ("two", "delivered")]
            tasks.cancel_scope.cancel()
    assert (tmp_path / "run" / "STATUS.md").read_text() == "## one\n\n## two\n"


def test_waits() -> None:
    """Waits double from a second to ten minutes; a receiver may ask for more, up to an hour."""
    assert [wait_s(attempts) for attempts in (1, 2, 3, 7, 10, 11, 10_000)] == [1, 2, 4, 64, 512, 600, 600]
    assert [wait_s(1, asked) for asked in (0.5, 30, 1e9)] == [1, 30, delivery.LONGEST_ASKED_S]
