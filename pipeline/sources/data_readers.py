"""Readers of the JSON Lines that a run writes: `metrics.jsonl` and the rollouts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pipeline.formats import metric_rows, rollouts
from pipeline.formats.jsonl import JsonLines
from pipeline.times import EPOCH

if TYPE_CHECKING:
    from datetime import datetime

    from pipeline.events import Metrics, Rollout


class MetricsReader:
    """Rows of `metrics.jsonl`, fed in any pieces."""

    def __init__(self, path: str, offset: int = 0) -> None:
        self._path, self._lines = path, JsonLines(offset)
        self.unreadable = 0
        """Lines that are not what they should be."""

    @property
    def offset(self) -> int:
        """Bytes up to the first line that was not given out."""
        return self._lines.offset

    def feed(self, data: bytes) -> list[tuple[Metrics, int]]:
        """Return the rows that *data* completes, each with the offset after its line."""
        read: list[tuple[Metrics, int]] = []
        for line in self._lines.feed(data):
            row = metric_rows.parse(line.data, line.offset, self._path)
            if row is None:
                self.unreadable += 1
            else:
                read.append((row, line.end))
        return read


class RolloutReader:
    """Records of one `traces.jsonl`, fed in any pieces."""

    def __init__(self, path: str, kind: Literal["train", "eval"], step: int, offset: int = 0) -> None:
        self._path, self._kind, self._step = path, kind, step
        self._lines = JsonLines(offset)
        self._previous: datetime = EPOCH
        self.unreadable = 0
        """Lines of no known shape: what they hold is not seen, which is not the same as no errors."""

    @property
    def offset(self) -> int:
        """Bytes up to the first line that was not given out."""
        return self._lines.offset

    def feed(self, data: bytes, floor: datetime = EPOCH) -> list[tuple[Rollout, int]]:
        """
        Return the rollouts of the lines that *data* completes, each with the offset after its line.

        A record without a time has that of the one before it; the first one *floor*.
        """
        read: list[tuple[Rollout, int]] = []
        for line in self._lines.feed(data):
            previous = max(self._previous, floor)
            found = rollouts.parse(
                line.data, source=self._path, offset=line.offset, kind=self._kind, step=self._step, previous=previous
            )
            if found is None:
                self.unreadable += 1
                continue
            read += [(rollout, line.end) for rollout in found]
            self._previous = max([previous, *(rollout.time for rollout in found)])
        return read
