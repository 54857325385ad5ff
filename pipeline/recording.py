"""
Events and decisions to and from JSON Lines (`contracts`: *Recording*).

JSON has no NaN: a value that is not finite is written as Prometheus writes it, as the
string `NaN`, `+Inf` or `-Inf`. Times are written in UTC with three digits and `Z`.
"""

from __future__ import annotations

import itertools
import math
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias, get_args

import msgspec

from pipeline.events import KeptEvent
from pipeline.formats.jsonl import MALFORMED, JsonLines
from pipeline.times import cut, in_era

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Source: TypeAlias = "str | Path | IO[bytes]"

UNREADABLE = "unreadable"
"""The key under which lines are counted that are no event at all."""
_DECODER: msgspec.json.Decoder[KeptEvent] = msgspec.json.Decoder(KeptEvent)
_KNOWN = {kind.__struct_config__.tag for kind in get_args(KeptEvent)}
_NOT_FINITE = {"NaN", "Inf", "+Inf", "-Inf", "Infinity", "-Infinity"}
_CHUNK_BYTES = 2**20
_TYPE_CHARACTERS = 100
_TYPES = 100


class RecordingReader:
    """
    Reads a recording, in the order of its lines.

    `skipped` counts, by type, what is no event that this version keeps, and under
    `unreadable` what is none at all: so far, while it is being read. A file that was
    opened by the caller is left open.

    Raises:
        OSError: Once it is iterated over: it cannot be opened or read.

    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self.skipped: dict[str, int] = {}

    def __iter__(self) -> Iterator[KeptEvent]:
        self.skipped = {}
        with _opened(self._source) as file:
            for line in self._lines(file):
                if (event := self._event(line)) is not None:
                    yield event

    def _lines(self, file: IO[bytes]) -> Iterator[bytes]:
        """Yield the lines, the last one also without its newline."""
        cutter = JsonLines()
        for chunk in itertools.chain(iter(lambda: file.read(_CHUNK_BYTES), b""), [b"\n"]):
            yield from (line.data for line in cutter.feed(chunk))
        for _ in range(cutter.skipped):
            self._skip(None)

    def _event(self, line: bytes) -> KeptEvent | None:
        try:
            return _in_utc(_decode(line))
        except (*MALFORMED, OverflowError):
            self._skip(_type(line))
            return None

    def _skip(self, kind: str | None) -> None:
        new = kind not in self.skipped
        reason = UNREADABLE if kind is None or kind in _KNOWN or (new and len(self.skipped) >= _TYPES) else kind
        self.skipped[reason] = self.skipped.get(reason, 0) + 1


def read(source: Source) -> RecordingReader:
    """Return the events of a recording, to be iterated over; it is not opened before."""
    return RecordingReader(source)


def write(events: Iterable[KeptEvent]) -> bytes:
    """Return *events* as lines of a recording."""
    return b"".join(to_json(event) + b"\n" for event in events)


def to_json(struct: msgspec.Struct) -> bytes:
    """Return an event or a decision as one JSON object, without a newline."""
    return msgspec.json.encode(_plain(msgspec.to_builtins(struct, builtin_types=(datetime,))))


def format_time(time: datetime) -> str:
    """Return *time* as RFC 3339 in UTC with milliseconds."""
    return time.astimezone(UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def _plain(value: Any) -> Any:
    match value:
        case datetime():
            return format_time(value)
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else f"{'+' if value > 0 else '-'}Inf"
        case str() if not value.isascii():
            return value.encode(errors="replace").decode()  # what the kernel says need not be UTF-8
        case dict():
            return {_plain(key): _plain(item) for key, item in value.items()}
        case list():
            return [_plain(item) for item in value]
        case _:
            return value


@contextmanager
def _opened(source: Source) -> Iterator[IO[bytes]]:
    if isinstance(source, str | Path):
        with Path(source).open("rb") as file:
            yield file
    else:
        yield source


def _decode(line: bytes) -> KeptEvent:
    try:
        return _DECODER.decode(line)
    except msgspec.ValidationError:
        fields = msgspec.json.decode(line)
        value = fields.get("value") if isinstance(fields, dict) else None
        if not isinstance(value, str) or value not in _NOT_FINITE:
            raise
        event: KeptEvent = msgspec.convert(fields | {"value": float(value)}, KeptEvent)
        return event


def _in_utc(event: KeptEvent) -> KeptEvent:
    """Return *event* with its times in UTC and cut; one without a zone, or of another era, is refused."""
    times = {name: value for name in event.__struct_fields__ if isinstance(value := getattr(event, name), datetime)}
    if any(time.tzinfo is None for time in times.values()):
        message = "a time without a zone"
        raise ValueError(message)
    return msgspec.structs.replace(event, **{name: cut(in_era(time.astimezone(UTC))) for name, time in times.items()})


def _type(line: bytes) -> str | None:
    """Return the type that an object names, `None` if there is none."""
    try:
        fields = msgspec.json.decode(line)
    except MALFORMED:
        return None
    kind = fields.get("type") if isinstance(fields, dict) else None
    return kind[:_TYPE_CHARACTERS] if isinstance(kind, str) else None
