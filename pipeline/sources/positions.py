"""How far a file was read, and how to tell that it is still the same file."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

import msgspec

from pipeline.formats.clock import ClockState

HEAD_BYTES: Final = 256
"""Bytes at the beginning of a file that tell it from another one in its place."""


class FilePosition(msgspec.Struct, frozen=True, kw_only=True):
    """How far a file was read."""

    path: str
    """Relative to the run directory."""
    attempt: int | None
    device: int
    inode: int
    head: str
    """Hash of the first `head_bytes` bytes."""
    head_bytes: int
    offset: int
    """Bytes read."""
    clock: ClockState | None = None
    step: int = 0
    """The last step that a line of the file named."""

    def is_in(self, *, device: int, inode: int, size: int, head: bytes) -> bool:
        """Tell whether a file is the one that was read; *head* is its first `HEAD_BYTES` bytes."""
        same = (device, inode) == (self.device, self.inode) and size >= self.offset
        return same and hash_head(head[: self.head_bytes]) == self.head


def hash_head(head: bytes) -> str:
    """Return the hash of the beginning of a file."""
    return blake2b(head[:HEAD_BYTES], digest_size=16).hexdigest()
