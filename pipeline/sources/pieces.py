"""A part of a file, read without holding the file open."""

from __future__ import annotations

import errno
import os
from stat import S_ISREG
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from pipeline.sources.positions import HEAD_BYTES

if TYPE_CHECKING:
    from pathlib import Path

Key: TypeAlias = tuple[int, int, int, int]
"""Device, inode, size and time of modification: as long as they are the same, there is nothing new."""

# a link that has taken the file's place is not followed, a pipe there not waited for
_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


class Piece(NamedTuple):
    """What stands somewhere in a file, with what tells which file that is."""

    stat: os.stat_result
    head: bytes
    data: bytes


def read_piece(path: Path, offset: int, most: int) -> Piece:
    """
    Return at most so many bytes.

    Raises:
        OSError: They cannot be read; there is no regular file.

    """
    descriptor = os.open(path, _FLAGS)
    try:
        stat = os.fstat(descriptor)
        if not S_ISREG(stat.st_mode):
            raise FileNotFoundError(errno.ENOENT, "not a regular file", str(path))
        return Piece(stat, os.pread(descriptor, HEAD_BYTES, 0), os.pread(descriptor, max(most, 0), offset))
    finally:
        os.close(descriptor)


def is_gone(error: OSError) -> bool:
    """Tell whether there is no such file any more, which is not the same as not being let to read it."""
    return error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


def entry(path: Path) -> os.stat_result | None:
    """
    Return what is known of a regular file; `None` if there is none.

    Raises:
        OSError: That cannot be told.

    """
    try:
        stat = os.lstat(path)
    except OSError as error:
        if is_gone(error):
            return None
        raise
    return stat if S_ISREG(stat.st_mode) else None


def key(stat: os.stat_result) -> Key:
    """Return what changes with a file."""
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns
