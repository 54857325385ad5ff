"""When a directory was made, which Python's `stat` cannot say on Linux."""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def birth_ns(path: Path) -> int | None:
    """
    Return when *path* was made, in nanoseconds since 1970; `None` where the file system does not tell.

    Neither time that it can say will do: both change with every file made within.
    """
    try:
        statx = ctypes.CDLL(None, use_errno=True).statx
    except (AttributeError, OSError):
        return None
    current_directory, wanted, birth_at = -100, 0x800, 80
    buffer = ctypes.create_string_buffer(256)
    if statx(current_directory, os.fsencode(path), 0, wanted, buffer) != 0:
        return None
    if not int.from_bytes(buffer.raw[:4], "little") & wanted:
        return None
    seconds = int.from_bytes(buffer.raw[birth_at : birth_at + 8], "little", signed=True)
    nanoseconds = int.from_bytes(buffer.raw[birth_at + 8 : birth_at + 12], "little")
    return seconds * 10**9 + nanoseconds
