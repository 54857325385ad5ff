"""STATUS.md: each entry once and whole, and nothing of a person's is touched."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.alerts import CheckIn, Notification
from sinks.base import OutboxItem, Rejected, TryAgain
from sinks.status_md import missing_part, status_file, write_entry

ROOT = Path(__file__).parents[2]
T0 = datetime(2026, 8, 19, 12, tzinfo=UTC)
ENTRY = "## 2026-08-19 14:00 UTC\n\n**Step**: 1 / 2\n**Health**: Healthy\n"
OTHER = "## 2026-08-19 15:00 UTC\n\n**Step**: 2 / 2\n**Health**: Healthy\n"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Return a run directory that its launcher has made its own."""
    (tmp_path / "run" / "logs").mkdir(parents=True)
    return tmp_path / "run"


async def test_entries_are_appended(run_dir: Path) -> None:
    """Entries stand one after the other with a blank line between, each once however often it comes."""
    async with status_file(run_dir) as sink:
        for text in (ENTRY, OTHER, OTHER, ENTRY):
            check_in = CheckIn(time=T0, id=text, text=text)
            await sink.deliver(OutboxItem(sink="STATUS.md", created=T0, content=check_in))
    assert (run_dir / "STATUS.md").read_text() == f"{ENTRY}\n{OTHER}"


async def test_notifications_do_not_belong_there(run_dir: Path) -> None:
    """Anything but a check-in is rejected."""
    note = Notification(time=T0, id="1", incident="1", severity="info", title="t", body="b")
    async with status_file(run_dir) as sink:
        with pytest.raises(Rejected):
            await sink.deliver(OutboxItem(sink="STATUS.md", created=T0, content=note))


@pytest.mark.parametrize("torn", range(1, len(ENTRY)))
def test_a_torn_entry_is_completed(torn: int, run_dir: Path) -> None:
    """An entry that was cut short at any byte is completed, not repeated."""
    status = run_dir / "STATUS.md"
    status.write_text(f"{OTHER}\n{ENTRY[:torn]}")
    write_entry(run_dir, ENTRY)
    assert status.read_text() == f"{OTHER}\n{ENTRY}"


def test_a_torn_separator(run_dir: Path) -> None:
    """A write cut within the blank line before an entry leaves no mess."""
    for rest in ("", "\n", "\n\n"):
        (run_dir / "STATUS.md").write_text(f"my note{rest}")
        write_entry(run_dir, ENTRY)
        assert (run_dir / "STATUS.md").read_text() == f"my note\n\n{ENTRY}"


def test_quoted_in_a_line_is_not_there(run_dir: Path) -> None:
    """An entry counts as written only where it begins a line."""
    (run_dir / "STATUS.md").write_text(f"> {ENTRY}")
    write_entry(run_dir, ENTRY)
    assert (run_dir / "STATUS.md").read_text() == f"> {ENTRY}\n{ENTRY}"


def test_a_long_file_is_read_from_its_end(run_dir: Path) -> None:
    """An entry followed by much else, within the part that is read, is found; the beginning is not read."""
    status = run_dir / "STATUS.md"
    status.write_text("x\n" * 1_000_000 + ENTRY + "y\n" * 100_000)
    before = status.read_bytes()
    write_entry(run_dir, ENTRY)
    assert status.read_bytes() == before


@given(
    before=st.text(alphabet="#a \n").map(str.encode),
    after=st.text(alphabet="#a \n").map(str.encode),
    entry=st.text(alphabet="#a \n", min_size=1).map(lambda text: f"# {text}\n".encode()),
)
def test_any_edits_are_left_alone(before: bytes, after: bytes, entry: bytes) -> None:
    """Whatever stands in the file, the entry is appended, begins a line, and is appended only once."""
    content = before + missing_part(before, entry)
    assert content.startswith(before)
    assert content.startswith(entry) or b"\n" + entry in content
    assert missing_part(content, entry) == b""
    assert missing_part(content + after, entry) == b""


@given(before=st.text(alphabet="#a \n").map(str.encode), data=st.data())
def test_any_crash_is_mended(before: bytes, data: st.DataObject) -> None:
    """A write cut at any byte and repeated ends in a file that holds the entry, and no more than one whole write."""
    entry = ENTRY.encode()
    whole = before + missing_part(before, entry)
    torn = whole[: data.draw(st.integers(len(before), len(whole)))]
    assert torn + missing_part(torn, entry) == whole


def test_not_before_the_launcher(tmp_path: Path) -> None:
    """Nothing is written into a directory that no launcher has begun to use."""
    with pytest.raises(TryAgain, match="no logs/ yet"):
        write_entry(tmp_path, ENTRY)
    with pytest.raises(TryAgain, match="no logs/ yet"):
        write_entry(tmp_path / "gone", ENTRY)
    assert list(tmp_path.iterdir()) == []


def test_a_link_is_not_followed(run_dir: Path, tmp_path: Path) -> None:
    """A link, a directory or a pipe in the file's place is refused, and what it leads to untouched."""
    status, victim = run_dir / "STATUS.md", tmp_path / "victim"
    victim.write_text("mine")
    makers: list[Callable[[], None]] = [lambda: status.symlink_to(victim), status.mkdir, lambda: os.mkfifo(status)]
    for make in makers:
        make()
        with pytest.raises(Rejected, match="not written"):
            write_entry(run_dir, ENTRY)
        status.rmdir() if stat.S_ISDIR(status.lstat().st_mode) else status.unlink()
    assert victim.read_text() == "mine"


FULL = """
import resource, signal, sys
from pathlib import Path
from sinks.base import TryAgain
from sinks.status_md import write_entry
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20, 20))
try:
    write_entry(Path(sys.argv[1]), sys.argv[2])
except TryAgain as verdict:
    print(verdict.reason)
"""


def test_a_disk_that_fills_up(run_dir: Path) -> None:
    """A write that stops half way is tried again, and then writes only the rest."""
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(run_dir), ENTRY], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert done.stdout == f"STATUS.md cannot be written: {os.strerror(errno.EFBIG)}\n"
    assert (run_dir / "STATUS.md").read_text() == ENTRY[:20]
    write_entry(run_dir, ENTRY)
    assert (run_dir / "STATUS.md").read_text() == ENTRY


async def test_a_hung_file_system_delays_nobody(run_dir: Path) -> None:
    """A delivery that hangs is given up at once when it is cancelled."""
    (run_dir / "STATUS.md").touch()
    async with status_file(run_dir) as sink:
        # the thread is busy, as it is while a file system does not answer
        busy = sink._thread.put(lambda: anyio.run(anyio.sleep, 0.5))
        with anyio.move_on_after(0.05) as scope:
            await sink.deliver(OutboxItem(sink="STATUS.md", created=T0, content=CheckIn(time=T0, id="1", text=ENTRY)))
        assert scope.cancelled_caught
        await busy.outcome()
    assert (run_dir / "STATUS.md").read_text() == ""


def test_an_entry_is_not_taken_for_the_beginning_of_another() -> None:
    """An entry without notes is not there because one of the same minute, with notes, begins alike."""
    first = b"## 2026-08-19 14:00 UTC\n\n**Step**: 4 / 30\n"
    with_notes = first + b"\n**Notes**:\n\n- it began\n"
    assert missing_part(with_notes, first) == b"\n" + first
    assert missing_part(with_notes + b"\n" + first, first) == b""
    assert missing_part(first + b"\nmine, by hand\n", first) == b""
