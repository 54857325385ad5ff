"""The journal: one transaction, durable when it says so, bounded."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.alerts import CheckIn, HealthChanged, Notification
from pipeline.events import Event, HostLine, Mark, Receipt, Sample, Tick
from pipeline.journal import Batch, JournalError, Restored, open_journal
from pipeline.journal_file import read_history, read_recording
from sinks.base import OutboxItem

ROOT = Path(__file__).parents[2]
T0 = datetime(2026, 8, 19, 12, tzinfo=UTC)


def check_in(number: int) -> CheckIn:
    return CheckIn(time=T0, id=f"checkin-{number}", text=f"## entry {number}\n")


def item(number: int, sink: str = "STATUS.md", created: datetime = T0) -> OutboxItem:
    return OutboxItem(sink=sink, created=created, content=check_in(number))


def delivered(number: int, sink: str = "STATUS.md") -> Receipt:
    return Receipt(time=T0, item=f"checkin-{number}", sink=sink, outcome="delivered")


async def reopened(path: Path) -> Restored:
    async with open_journal(path) as journal:
        return await journal.load()


async def test_a_committed_batch_is_found_again(tmp_path: Path) -> None:
    """Positions, state, events, decisions and the outbox of a batch are all there after reopening."""
    path = tmp_path / "journal.db"
    mark = Mark(time=T0, positions={"logs/a": 7}, floor=T0)
    health = HealthChanged(time=T0, health="Down", phase="failed")
    batch = Batch(
        positions={"logs/a": b"7"}, kept=[Tick(time=T0), mark], rows={"r": b"1"}, decisions=[health], outbox=[item(1)]
    )
    async with open_journal(path, run="/data/run") as journal:
        await journal.commit(batch)
    restored = await reopened(path)
    assert (restored.positions, restored.rows, restored.mark) == ({"logs/a": b"7"}, {"r": b"1"}, mark)
    assert [(entry.item, entry.attempts) for entry in restored.pending] == [(item(1), 0)]
    assert list(read_recording(path)) == [Tick(time=T0), mark]
    assert list(read_history(path)) == [health]


async def test_none_removes(tmp_path: Path) -> None:
    """A value of `None` removes the position or the row."""
    path = tmp_path / "journal.db"
    async with open_journal(path) as journal:
        await journal.commit(Batch(positions={"a": b"1", "b": b"2"}, rows={"x": b"1", "y": b"2"}))
        await journal.commit(Batch(positions={"a": None}, rows={"x": None, "never": None}))
        restored = await journal.load()
    assert (restored.positions, restored.rows) == ({"b": b"2"}, {"y": b"2"})


async def test_a_receipt_settles_its_delivery(tmp_path: Path) -> None:
    """A receipt in a batch takes its item from the outbox and stands in the history; `failing` leaves it."""
    path = tmp_path / "journal.db"
    failing = Receipt(time=T0, item="checkin-2", sink="STATUS.md", outcome="failing", reason="disk full")
    async with open_journal(path) as journal:
        await journal.commit(Batch(outbox=[item(1), item(1, "mail"), item(2)]))
        await journal.commit(Batch(kept=[delivered(1), failing]))
        assert [entry.item for entry in await journal.pending()] == [item(1, "mail"), item(2)]
        assert [entry.item for entry in await journal.pending("mail")] == [item(1, "mail")]
    assert list(read_history(path)) == [delivered(1), failing]
    assert list(read_recording(path)) == [delivered(1), failing]


async def test_an_item_is_decided_once(tmp_path: Path) -> None:
    """An id that is in the outbox, delivered or not, is not put there again."""
    async with open_journal(tmp_path / "journal.db") as journal:
        await journal.commit(Batch(outbox=[item(1)]))
        await journal.commit(Batch(outbox=[item(1)], kept=[delivered(1)]))
        await journal.commit(Batch(outbox=[item(1)]))
        assert await journal.pending() == []


async def test_attempts_are_counted_across_restarts(tmp_path: Path) -> None:
    """A failed attempt is counted on disk, with the time of the next one."""
    path = tmp_path / "journal.db"
    later = T0 + timedelta(seconds=4, milliseconds=5)
    async with open_journal(path) as journal:
        await journal.commit(Batch(outbox=[item(1)]))
        await journal.note_attempt(item(1), T0, "refused")
        await journal.note_attempt(item(1), later, "refused")
    (entry,) = (await reopened(path)).pending
    assert (entry.attempts, entry.next_try) == (2, later)


async def test_batches_committed_at_once_keep_their_order(tmp_path: Path) -> None:
    """Batches that wait together are committed in the order in which they came."""
    path = tmp_path / "journal.db"
    async with open_journal(path) as journal, anyio.create_task_group() as tasks:
        for number in range(200):
            tasks.start_soon(
                journal.commit, Batch(kept=[HostLine(time=T0, node="n", origin="kernel", text=str(number))])
            )
    assert [event.text for event in read_recording(path) if isinstance(event, HostLine)] == [str(n) for n in range(200)]


async def test_a_commit_of_items_wakes_who_waits(tmp_path: Path) -> None:
    """Whoever took `committed` before the commit is woken by it and finds the item."""
    async with open_journal(tmp_path / "journal.db") as journal:
        committed = journal.committed
        await journal.commit(Batch(rows={"a": b"1"}))
        assert not committed.is_set()
        await journal.commit(Batch(outbox=[item(1)]))
        assert committed.is_set()
        assert not journal.committed.is_set()


async def test_a_cancelled_commit_is_whole_or_absent(tmp_path: Path) -> None:
    """A caller that is cancelled leaves no part of a batch, and the order of the others as it was."""
    async with open_journal(tmp_path / "journal.db") as journal:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await journal.commit(Batch(rows={"a": b"1"}, positions={"a": b"1"}))
        await journal.commit(Batch(rows={"b": b"1"}))
        restored = await journal.load()
    assert set(restored.rows) == {"a", "b"}
    assert set(restored.positions) == {"a"}


async def test_readable_while_it_is_written(tmp_path: Path) -> None:
    """Another process reads the recording of a journal that is open for writing."""
    path = tmp_path / "journal.db"
    program = "import sys; from pathlib import Path; from pipeline.journal_file import read_recording as r; "
    program += "print(len(list(r(Path(sys.argv[1])))))"
    async with open_journal(path) as journal:
        await journal.commit(Batch(kept=[Tick(time=T0 + timedelta(seconds=n)) for n in range(2500)]))
        result = await anyio.run_process([sys.executable, "-c", program, str(path)], cwd=ROOT)
        await journal.commit(Batch(kept=[Tick(time=T0)]))
    assert int(result.stdout) == 2500


async def test_a_reader_does_not_see_half_a_page(tmp_path: Path) -> None:
    """A reader that stops between pages goes on where it was, whatever is added or removed meanwhile."""
    path = tmp_path / "journal.db"
    async with open_journal(path) as journal:
        await journal.commit(Batch(kept=[Tick(time=T0)] * 1500))
        reader = read_recording(path)
        next(reader)
        await journal.commit(Batch(kept=[Tick(time=T0)] * 10))
        assert len(list(reader)) == 1509


async def test_a_missing_journal_cannot_be_read(tmp_path: Path) -> None:
    """Reading a journal that is not there says so and makes none."""
    path = tmp_path / "journal.db"
    with pytest.raises(JournalError, match="cannot be read"):
        list(read_recording(path))
    assert not path.exists()


async def test_old_entries_go(tmp_path: Path) -> None:
    """Entries older than the limit, counted from the newest, and settled deliveries of that age are removed."""
    path = tmp_path / "journal.db"
    async with open_journal(path, keep_s=3600) as journal:
        await journal.commit(
            Batch(kept=[Tick(time=T0), delivered(1)], outbox=[item(1), item(2)], decisions=[check_in(1)])
        )
        await journal.commit(Batch(kept=[Tick(time=T0 + timedelta(hours=2))]))
        assert [entry.item for entry in await journal.pending()] == [item(2)]
    assert list(read_recording(path)) == [Tick(time=T0 + timedelta(hours=2))]
    assert list(read_history(path)) == []
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT item FROM outbox").fetchall() == [("checkin-2",)]
    connection.close()


async def test_size_is_bounded(tmp_path: Path) -> None:
    """The recording's oldest entries go when it is too large, also after reopening, and the file stops growing."""
    path = tmp_path / "journal.db"
    line = HostLine(time=T0, node="n", origin="kernel", text="x" * 1000)
    for _ in range(3):
        async with open_journal(path, keep_bytes=400_000) as journal:
            for _ in range(20):
                await journal.commit(Batch(kept=[line] * 100, rows={"r": b"1"}))
    assert 200 <= len(list(read_recording(path))) <= 500
    assert path.stat().st_size < 3_000_000


async def test_the_log_stays_short(tmp_path: Path) -> None:
    """The write-ahead log is emptied as it grows."""
    path = tmp_path / "journal.db"
    async with open_journal(path) as journal:
        for number in range(60):
            await journal.commit(Batch(rows={f"{number}-{n}": bytes(10_000) for n in range(50)}))
        assert Path(f"{path}-wal").stat().st_size < 16 * 1024 * 1024


async def test_a_corrupt_file_is_moved_aside(tmp_path: Path) -> None:
    """A file that is no sound database is kept under another name, and an empty journal made."""
    path = tmp_path / "journal.db"
    path.write_bytes(b"not a database" * 1000)
    Path(f"{path}-wal").write_bytes(b"stale")
    async with open_journal(path) as journal:
        aside = journal.moved_aside
        assert (await journal.load()).rows == {}
    assert aside is not None
    assert aside.name.startswith("journal.db.corrupt-")
    assert aside.read_bytes().startswith(b"not a database")


async def test_a_damaged_page_is_noticed(tmp_path: Path) -> None:
    """Damage within the file is found when it is opened."""
    path = tmp_path / "journal.db"
    async with open_journal(path) as journal:
        await journal.commit(Batch(rows={str(n): bytes(500) for n in range(2000)}))
        assert journal.moved_aside is None
    with path.open("r+b") as file:
        file.seek(20 * 4096)
        file.write(random.Random(1).randbytes(40 * 4096))
    async with open_journal(path) as journal:
        assert journal.moved_aside is not None


async def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    """A journal that a newer version wrote is left alone, with a message that says so."""
    path = tmp_path / "journal.db"
    await reopened(path)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE meta SET value = 2 WHERE key = 'schema'")
    connection.close()
    with pytest.raises(JournalError, match="newer runwatch wrote it: its schema is 2, this one knows 1"):
        await reopened(path)
    assert [entry.name for entry in tmp_path.glob("*corrupt*")] == []


async def test_a_full_disk_is_an_error(tmp_path: Path) -> None:
    """What cannot be written raises, for this batch and all later ones, and leaves none of it."""
    path = tmp_path / "journal.db"
    async with open_journal(path) as journal:
        await journal.commit(Batch(rows={"a": b"1"}))
        await journal._thread.run(lambda: journal._writer.connection.execute("PRAGMA max_page_count = 20"))
        with pytest.raises(JournalError, match="cannot be written: database or disk is full"):
            await journal.commit(Batch(positions={"p": b"1"}, rows={str(n): bytes(4000) for n in range(100)}))
        with pytest.raises(JournalError, match="full"):
            await journal.commit(Batch(rows={"b": b"1"}))
    restored = await reopened(path)
    assert (restored.rows, restored.positions) == ({"a": b"1"}, {})


async def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    """A journal that cannot be opened says which and why."""
    with pytest.raises(JournalError, match=r"journal .*gone/journal\.db cannot be opened"):
        await reopened(tmp_path / "gone" / "journal.db")


async def test_not_a_number_is_kept(tmp_path: Path) -> None:
    """A sample without a finite value comes back as it went in."""
    path = tmp_path / "journal.db"
    values = [float("inf"), float("-inf"), float("nan")]
    async with open_journal(path) as journal:
        await journal.commit(Batch(kept=[Sample(time=T0, endpoint="e", name="n", value=value) for value in values]))
    assert [repr(event.value) for event in read_recording(path) if isinstance(event, Sample)] == ["inf", "-inf", "nan"]


@settings(max_examples=40)
@given(text=st.text(st.characters(codec=None)) | st.just("\udc80\x00"))
def test_any_text_is_kept(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever text a name or an event holds, the journal takes it; names come back exactly."""
    path = tmp_path_factory.mktemp("any") / "journal.db"
    event = HostLine(time=T0, node="n", origin="kernel", text=text)
    mark = Mark(time=T0, positions={text: 1})
    notification = Notification(time=T0, id="1", incident="1", severity="info", title=text, body=text)
    sent = OutboxItem(sink="s", created=T0, content=notification)

    async def write() -> Restored:
        async with open_journal(path) as journal:
            await journal.commit(Batch(positions={text: b"1"}, rows={text: b"2"}, kept=[event, mark], outbox=[sent]))
            return await journal.load()

    restored = anyio.run(write)
    assert (restored.positions, restored.rows) == ({text: b"1"}, {text: b"2"})
    kept: list[Event] = list(read_recording(path))
    assert isinstance(kept[0], HostLine)
    assert kept[0].text == text.encode("utf-8", "replace").decode()


WRITER = """
import os, sys, anyio
from datetime import datetime, timedelta, UTC
from pathlib import Path
from pipeline.events import HostLine, Mark, Receipt
from pipeline.alerts import CheckIn
from pipeline.journal import Batch, open_journal
from sinks.base import OutboxItem

T0 = datetime(2026, 8, 19, 12, tzinfo=UTC)

async def write(journal, lane):
    for number in range(100000):
        name = f"{lane}-{number}"
        line = HostLine(time=T0, node="n", origin="kernel", text=name)
        entry = CheckIn(time=T0, id=name, text="x" * 500)
        item = OutboxItem(sink="s", created=T0, content=entry)
        await journal.commit(Batch(positions={lane: str(number).encode()}, rows={lane: str(number).encode()},
                                   kept=[line], decisions=[entry], outbox=[item]))
        os.write(1, (name + "\\n").encode())

async def main():
    async with open_journal(Path(sys.argv[1])) as journal, anyio.create_task_group() as tasks:
        for lane in ("a", "b", "c"):
            tasks.start_soon(write, journal, lane)

anyio.run(main)
"""


def last_of_each_lane(names: list[str]) -> dict[str, int]:
    last: dict[str, int] = {}
    for name in names:
        lane, _, number = name.partition("-")
        assert int(number) == last.get(lane, -1) + 1, "a batch is missing or out of order"
        last[lane] = int(number)
    return last


@pytest.mark.parametrize("seed", range(20))
async def test_killed_at_any_time(seed: int, tmp_path: Path) -> None:
    """After SIGKILL every acknowledged batch is there, and none is there in part."""
    path = tmp_path / "journal.db"
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as writer:
        assert writer.stdout is not None
        first = writer.stdout.readline()
        # a random instant is the point of this test
        time.sleep(random.Random(seed).uniform(0, 0.15))
        writer.send_signal(signal.SIGKILL)
        acknowledged = [line for line in (first + writer.stdout.read()).decode().split("\n") if line]
    # read as it was left, as a person would who looks before the service is started again
    left = [event.text for event in read_recording(path) if isinstance(event, HostLine)]
    restored = await reopened(path)
    texts = [event.text for event in read_recording(path) if isinstance(event, HostLine)]
    last = last_of_each_lane(texts)
    assert left == texts
    assert set(acknowledged) <= set(texts)
    wanted = {lane: str(number).encode() for lane, number in last.items()}
    assert restored.positions == restored.rows == wanted
    assert [entry.item.id for entry in restored.pending] == texts
    assert [entry.id for entry in read_history(path) if isinstance(entry, CheckIn)] == texts
