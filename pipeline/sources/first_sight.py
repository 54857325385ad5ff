"""What is found out about a run's logs when it is first looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pipeline.formats.clock import ClockState
from pipeline.sources.data_readers import MetricsReader
from pipeline.sources.dating import COPIED, Dating, chunks, rows_of, survey
from pipeline.sources.pieces import read_piece
from pipeline.sources.positions import FilePosition, hash_head
from pipeline.times import from_epoch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime
    from zoneinfo import ZoneInfo

    from pipeline.events import Metrics
    from pipeline.run_directory import Attempt, LogFile, RunDirectory

_LAST_BYTES: Final = 1 << 18


def first_dating(run: RunDirectory, attempts: Iterable[Attempt], zone: ZoneInfo) -> Dating:
    """
    Return how the logs of *attempts* are dated.

    A metrics file whose last row agrees with its modification time was not copied;
    then the logs need not be looked through.
    """
    if not _is_copied(run):
        return Dating(zone=zone)
    logs = [file for attempt in attempts for file in run.log_files(attempt)]
    return survey([*logs, *run.shared_logs()], rows_of(_rows(run)), zone)


def at_end(file: LogFile, *, before: datetime) -> FilePosition | None:
    """Return the end of a file that was last written *before* a time; `None` if it was later, or cannot be read."""
    try:
        piece = read_piece(file.path, 0, 0)
        modified = from_epoch(piece.stat.st_mtime)
    except (OSError, ValueError, OverflowError):
        return None
    if modified >= before:
        return None
    return FilePosition(
        path=file.relative,
        attempt=file.attempt,
        device=piece.stat.st_dev,
        inode=piece.stat.st_ino,
        head=hash_head(piece.head),
        head_bytes=len(piece.head),
        offset=piece.stat.st_size,
        clock=ClockState(last=modified),
    )


def _is_copied(run: RunDirectory) -> bool:
    path = run.metrics_file()
    try:
        size = path.stat().st_size
        piece = read_piece(path, max(size - _LAST_BYTES, 0), _LAST_BYTES)
        modified = from_epoch(piece.stat.st_mtime)
    except (OSError, ValueError, OverflowError):
        return False  # without rows nothing tells
    times = [row.time for row, _ in MetricsReader(path.name).feed(piece.data)]
    return bool(times) and abs(max(times) - modified) > COPIED


def _rows(run: RunDirectory) -> Iterator[Metrics]:
    reader = MetricsReader(run.metrics_file().name)
    for data in chunks(run.metrics_file()):
        yield from (row for row, _ in reader.feed(data))
