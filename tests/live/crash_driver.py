"""
The installed program, made to die by SIGKILL at one of many points.

What it is to be is read from its input, a line each: how many seconds to live at most, a
file that gets the name of the point, the points at which to die with how often each is
passed before (`rows:2`), `--`, and the arguments of runwatch. It is imported once and
forked for each, which saves most of a start. Nothing in the program knows of it: sqlite3,
os and a few functions are wrapped here.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial, wraps
from pathlib import Path
from threading import Lock, Timer
from typing import Any, NoReturn

import apprise  # noqa: F401 - loaded once, as is the next
import msgspec

import pipeline.cli_run  # noqa: F401
from pipeline import cli, journal
from pipeline.sources import files, tails
from sinks.apprise_sink import AppriseSink
from sinks.status_md import StatusFile

_STATEMENTS = {
    "INSERT OR REPLACE INTO positions": "positions",
    "INSERT OR REPLACE INTO rows": "rows",
    "INSERT INTO recording": "recording",
    "INSERT INTO history": "history",
    "INSERT OR IGNORE INTO outbox": "outbox",
    "UPDATE outbox SET state": "settle",
}


class Points:
    """The points that are still to be passed before it dies."""

    def __init__(self, told: Path, armed: dict[str, int]) -> None:
        self._told, self._left, self._passed = told, armed, Counter[str]()
        self._lock = Lock()

    def arrive(self, point: str) -> None:
        """Die here if it is time."""
        with self._lock:  # of two threads that arrive together one tells
            self._passed[point] += 1
            if point in self._left and self._passed[point] > self._left[point]:
                self._told.write_text(point)
                os.kill(os.getpid(), signal.SIGKILL)

    def die_after(self, milliseconds: int) -> None:
        """Die at a time that nothing in the program decides."""
        timer = Timer(milliseconds / 1000, lambda: self.arrive("time"))
        timer.daemon = True
        timer.start()


class Dying(sqlite3.Connection):
    """A connection that may not survive a statement."""

    points: Points
    _batch: set[str]
    half_line = False
    """Whether a file was read that ended in half a line."""

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        """Execute a statement; before and after a batch is committed there is a point."""
        if sql.startswith("BEGIN"):
            self._batch = set()
        is_batch = sql == "COMMIT" and "recording" in self._batch
        if is_batch:
            self.points.arrive("commit")
        cursor = super().execute(sql, *values)
        if is_batch:
            for kind in sorted(self._batch & {"attempt-1", "attempt-2"}):
                self.points.arrive(f"{kind}-committed")
            if Dying.half_line:
                self.points.arrive("half-line-waits")
            self.points.arrive("committed")
        return cursor

    def executemany(self, sql: str, rows: Iterable[Any]) -> sqlite3.Cursor:  # type: ignore[override]
        """Execute a statement for each row; before each there is a point."""
        return super().executemany(sql, self._each(sql, rows))

    def _each(self, sql: str, rows: Iterable[Any]) -> Iterator[Any]:
        name = next((name for begins, name in _STATEMENTS.items() if sql.startswith(begins)), "other")
        for row in rows:
            self._batch.add(name)
            self.points.arrive(name)
            yield row
            if name == "recording" and (event := msgspec.msgpack.decode(row[1]))["type"] == "attempt":
                self._batch.add(f"attempt-{event['number']}")
                self.points.arrive(f"attempt-{event['number']}-recorded")


def arm(points: Points) -> None:
    """Put the points into the program."""
    Dying.points = points
    sqlite3.connect = partial(sqlite3.connect, factory=Dying)  # type: ignore[assignment]
    os.write = _torn(os.write, points)
    os.fsync = _after_status(os.fsync, points)
    files.AttemptBegun = _before(files.AttemptBegun, points)  # type: ignore[assignment, misc]
    tails.read_piece = _half(tails.read_piece, points)
    StatusFile.deliver = _delivery(StatusFile.deliver, points, "status")  # type: ignore[method-assign]
    AppriseSink.deliver = _delivery(AppriseSink.deliver, points, "message")  # type: ignore[method-assign]


def split(points: Points) -> None:
    """Let a batch be written in two transactions, as it must not be; where it decided something there is a point."""

    def write(writer: Any, prepared: Any) -> None:
        connection = writer.connection
        for statement, values in prepared.statements[:2]:
            connection.executemany(statement, values)
        connection.execute("COMMIT")
        decided = {msgspec.msgpack.decode(body)["type"] for _, body in prepared.entries}
        if prepared.statements[0][1] and decided & {"alert", "health"}:
            points.arrive("split")
        connection.execute("BEGIN IMMEDIATE")
        for statement, values in prepared.statements[2:]:
            connection.executemany(statement, values)

    journal._Writer.write = write  # type: ignore[method-assign]


def _torn(write: Callable[[int, bytes], int], points: Points) -> Callable[[int, bytes], int]:
    @wraps(write)
    def torn(descriptor: int, data: bytes) -> int:
        if len(data) > 1 and _is_status(descriptor):
            written = write(descriptor, data[: len(data) // 2])
            points.arrive("torn")
            return written
        return write(descriptor, data)

    return torn


def _after_status(fsync: Callable[[int], None], points: Points) -> Callable[[int], None]:
    @wraps(fsync)
    def synced(descriptor: int) -> None:
        if _is_status(descriptor):
            points.arrive("written")
        fsync(descriptor)

    return synced


def _is_status(descriptor: int) -> bool:
    try:
        return Path(f"/proc/self/fd/{descriptor}").readlink().name == "STATUS.md"
    except OSError:
        return False


def _before(begun: Any, points: Points) -> Callable[..., Any]:
    def made(**fields: Any) -> Any:
        points.arrive(f"attempt-{fields['number']}-read")
        return begun(**fields)

    return made


def _half(read: Callable[..., Any], points: Points) -> Callable[..., Any]:
    def read_half(*place: Any) -> Any:
        piece = read(*place)
        if piece.data and not piece.data.endswith(b"\n"):
            Dying.half_line = True
            points.arrive("half-line-read")
        return piece

    return read_half


def _delivery(deliver: Callable[..., Awaitable[None]], points: Points, kind: str) -> Callable[..., Awaitable[None]]:
    async def delivered(sink: Any, item: Any) -> None:
        points.arrive(f"before-{kind}")
        await deliver(sink, item)
        points.arrive(f"after-{kind}")

    return delivered


def be(words: list[str]) -> NoReturn:
    """Be runwatch with the points armed."""
    place = words.index("--")
    armed = {name: int(count) for name, count in (word.split(":") for word in words[1:place])}
    after_ms = armed.get("time")
    points = Points(Path(words[0]), armed | ({} if after_ms is None else {"time": 0}))
    arm(points)
    if after_ms is not None:
        points.die_after(after_ms)
    if "split" in armed:
        split(points)
    try:
        cli.main(words[place + 1 :])
    except SystemExit as ended:
        os._exit(ended.code if isinstance(ended.code, int) else 1)


def wait(pid: int, within_s: float) -> int:
    """Return how a process ended; kill it if it does not in time."""
    deadline = time.monotonic() + within_s
    while (ended := os.waitpid(pid, os.WNOHANG)) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    return os.waitstatus_to_exitcode(ended[1])


def main() -> None:
    """Do for each line of the input, a list of seconds and arguments, what it says; answer with the exit status."""
    for line in sys.stdin:
        within_s, *words = json.loads(line)
        if (pid := os.fork()) == 0:
            os.dup2(2, 1)  # what it says is no answer
            be(words)
        sys.stdout.write(f"{wait(pid, within_s)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
