"""
One file of a run, read on and on: whatever becomes of it, and however much is unread.

A file is opened for each read and never held open. Whether it is still the one that
was read is asked each time: its device, inode and first bytes say so.
"""

from __future__ import annotations

from collections import deque
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import msgspec

from pipeline.events import Event, LogRecord, Metrics, Rollout
from pipeline.formats.clock import ClockState
from pipeline.sources.pieces import Key, Piece, entry, is_gone, key, read_piece
from pipeline.sources.positions import FilePosition, hash_head
from pipeline.times import EPOCH, cut, from_epoch

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from pipeline.run_directory import LogFile
    from pipeline.sources.log_reader import Reading
    from pipeline.sources.parsers import Parser

Read: TypeAlias = tuple[Event, FilePosition | None]
"""An event with the position after its record; `None` if more events of the record follow."""

QUIET_S: Final = 0.5
"""A last record is taken to be whole when its file has not grown for as long."""
AT_REST_S: Final = 5.0
"""So is that of a file last modified as long ago: on a first look nothing else tells."""
CAREFUL_BYTES: Final = 4096
"""Read at once where a parser has failed, so that little is skipped."""


class Moment:
    """What holds for the reads of one call: the time, how much to read at once, and how much has been read."""

    def __init__(self, now: datetime = EPOCH, floor: datetime | None = None) -> None:
        self.now, self.floor = now, floor
        self.piece_bytes = 1 << 18
        self.read_bytes = 0


class Trouble(NamedTuple):
    """Why a file is not seen; *failed* if that is our own parser's fault."""

    reason: str
    failed: bool = False


class Tail:
    """
    Gives the events of one file in order, as far as it went when `look` was last called.

    Args:
        file: The file, of whatever kind.
        parser: Of its kind of file.
        at: Where to read on; another file in its place is read from its beginning.
        watched: Whether a floor holds for it: it was written while somebody watched.

    """

    def __init__(self, file: LogFile, parser: Parser, at: FilePosition | None, *, watched: bool) -> None:
        self.path, self.relative, self._attempt = file
        self.trouble: Trouble | None = None
        self.ending = False
        """Whether nothing more will be written: then a half line is the last."""
        self._parser, self._at, self._watched = parser, at, watched
        self._begun = self._caught_up = False
        self._fed = self._limit = at.offset if at else 0
        self._buffer: deque[Read] = deque()
        self.key: Key | None = None
        """What the last look saw."""
        self._modified_s, self._grown = 0.0, EPOCH
        self._stopped = self._suspect = self._rested = self._tripped = False
        self._stumbled: int | None = None

    @property
    def position(self) -> FilePosition | None:
        """How far the file has been read; `None` if nothing of it has."""
        offset = self._parser.offset if self._begun else 0
        if self._at is None or offset <= self._at.offset:
            return self._at
        return msgspec.structs.replace(self._at, offset=offset)

    @property
    def unknown(self) -> bool | None:
        """Whether its last records are of no known shape; `None` while it had none."""
        return self._parser.unknown

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to give out, now or when it has been quiet for long enough."""
        waits = self._begun and self._parser.offset < self._fed
        return not (self._buffer or waits or self._suspect or self.trouble) and self._fed >= self._limit

    def look(self, now: datetime) -> bool:
        """See how far the file goes now; tell whether it is still there."""
        self._stopped = self._rested = self._tripped = False
        self._caught_up = self._caught_up or (self._begun and self._fed >= self._limit and not self._buffer)
        try:
            stat = entry(self.path)
        except OSError as error:
            self._stop(error)
            return True
        if stat is None:
            self.leave()
            return False
        if self._at is not None and ((stat.st_dev, stat.st_ino) != self._place() or stat.st_size < self._fed):
            self._restart(now)
        self._note(stat, now)
        return True

    def leave(self) -> None:
        """Read no further; what has been read is given out whole."""
        self._rested = self._rested and self.ending
        self._limit, self.ending, self.trouble = self._fed, True, None

    def peek(self, moment: Moment) -> Event | None:
        """Return the next event; `None` at the end. Reads on as far as needed."""
        while not self._buffer and self._go_on(moment):
            pass
        return self._buffer[0][0] if self._buffer else None

    def take(self) -> Read:
        """Take the event that `peek` has returned."""
        return self._buffer.popleft()

    def _note(self, stat: os.stat_result, now: datetime) -> None:
        before, self.key = self.key, key(stat)
        if before is None or stat.st_size != self._limit:
            self._grown = now
        # the same size at another time: it may have been written anew
        self._suspect = self._begun and stat.st_size == self._fed and self.key != before
        self._limit, self._modified_s = stat.st_size, stat.st_mtime
        if self._fed >= self._limit:
            self.trouble = None

    def _go_on(self, moment: Moment) -> bool:
        """Read on, or give out the last record at the end; tell whether there was anything to do."""
        if not self._stopped and (self._fed < self._limit or self._suspect):
            self._read_on(moment)
            return True
        if not self._begun or self._rested or not (self.ending or self._is_quiet(moment.now)):
            return False
        self._rested = True
        self._take_in(lambda: self._rest(moment.now), 0)
        return True

    def _is_quiet(self, now: datetime) -> bool:
        return now - self._grown >= timedelta(seconds=QUIET_S) or self._is_at_rest(now)

    def _is_at_rest(self, now: datetime) -> bool:
        return now - self._modified(now) > timedelta(seconds=AT_REST_S)

    def _rest(self, now: datetime) -> Reading:
        if self.ending:
            return self._parser.finish(now, self._modified(now))
        return self._parser.settle(now, None if self._caught_up or not self._is_at_rest(now) else self._modified(now))

    def _read_on(self, moment: Moment) -> None:
        most = moment.piece_bytes if self._stumbled is None else CAREFUL_BYTES
        try:
            piece = read_piece(self.path, self._fed, min(most, self._limit - self._fed))
        except OSError as error:
            self._stop(error)
            return
        moment.read_bytes += len(piece.data)
        self._suspect = False
        if self._at is not None and not self._is_of_same(piece):
            self._restart(moment.now)
            self._note(piece.stat, moment.now)
        elif (self._begun or self._begin(piece)) and piece.data:
            self.trouble = self.trouble if self._tripped else None
            floor = moment.floor if self._watched or self._caught_up else None
            self._know_more_of(piece)
            self._take_in(lambda: self._parser.feed(piece.data, floor, moment.now), len(piece.data))
        else:
            self._limit = self._fed

    def _begin(self, piece: Piece) -> bool:
        """Begin to parse; tell whether that was possible."""
        try:
            clock = self._parser.begin(self._at)
        except Exception as error:  # noqa: BLE001 (a bug in a parser must not stop the other files)
            self.trouble = Trouble(f"cannot be read: {error!r}"[:200], failed=True)
            return False
        if self._at is None:
            self._at = FilePosition(
                path=self.relative,
                attempt=self._attempt,
                device=piece.stat.st_dev,
                inode=piece.stat.st_ino,
                head=hash_head(piece.head),
                head_bytes=len(piece.head),
                offset=0,
                clock=clock,
            )
        self._begun = True
        return True

    def _take_in(self, parse: Callable[[], Reading], size: int) -> None:
        """Keep what *parse* makes of the next *size* bytes."""
        try:
            events = parse()
        except Exception as error:  # noqa: BLE001 (a bug in a parser must not stop the other files)
            self._stumble(error, size)
            return
        self._fed += size
        for number, (event, end) in enumerate(events):
            self._at = self._after(event, end)
            is_last = number + 1 == len(events) or events[number + 1][1] != end
            self._buffer.append((event, self._at if is_last else None))

    def _after(self, event: Event, end: int) -> FilePosition:
        """Return the position after an event."""
        at = self._known()
        clock, step = at.clock, at.step
        match event:
            case LogRecord(dated=True) if event.time != self._parser.clamped_to:
                clock = ClockState(last=event.time)
            case Rollout():
                clock = ClockState(last=max(event.time, clock.last if clock else EPOCH))
            case Metrics(console=True, completes=True):
                step = event.step
            case _:
                pass
        return FilePosition(
            path=at.path,
            attempt=at.attempt,
            device=at.device,
            inode=at.inode,
            head=at.head,
            head_bytes=at.head_bytes,
            offset=end,
            clock=clock,
            step=step,
        )

    def _stumble(self, error: Exception, size: int) -> None:
        """Try once more from the last record that was read, in small pieces; then skip what cannot be parsed."""
        at = self._known()
        if self._stumbled == at.offset:
            self._at, self._stumbled, self._tripped = msgspec.structs.replace(at, offset=self._fed + size), None, True
            self.trouble = Trouble(f"skipped bytes {at.offset} to {self._fed + size}: {error!r}"[:200], failed=True)
        else:
            self._stumbled = at.offset
        self._parser.begin(self._at)
        self._fed = self._known().offset

    def _restart(self, now: datetime) -> None:
        """Read another file that is in the place of this one, after what is left of this one."""
        if self._begun:
            self._take_in(lambda: self._parser.finish(now, None), 0)
        self._at, self._begun, self._stumbled = None, False, None
        self._fed = self._limit = 0

    def _stop(self, error: OSError) -> None:
        """Read no further in this pass."""
        self._stopped = True
        if not is_gone(error):
            self.trouble = Trouble(error.strerror or repr(error))

    def _modified(self, now: datetime) -> datetime:
        """Return when the file was last modified, not later than *now*."""
        try:
            return min(from_epoch(self._modified_s), cut(now))
        except (ValueError, OverflowError, OSError):
            return EPOCH

    def _place(self) -> tuple[int, int]:
        return self._known().device, self._known().inode

    def _known(self) -> FilePosition:
        assert self._at is not None, "nothing has been read yet"
        return self._at

    def _is_of_same(self, piece: Piece) -> bool:
        stat = piece.stat
        same = self._known().is_in(device=stat.st_dev, inode=stat.st_ino, size=stat.st_size, head=piece.head)
        return same and stat.st_size >= self._fed

    def _know_more_of(self, piece: Piece) -> None:
        """Tell the file by more of its beginning, now that there is more."""
        at = self._known()
        if len(piece.head) > at.head_bytes:
            self._at = msgspec.structs.replace(at, head=hash_head(piece.head), head_bytes=len(piece.head))
