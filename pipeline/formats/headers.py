"""
The first line of a log record: when, how grave, from whom, and the message.

A run's logs mix a dozen ways to write it. The first character tells which of
them can be meant, so that a line is tried against few patterns; each pattern is
anchored and reads its text once.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from string import ascii_letters, digits
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from pipeline.events import Level
from pipeline.formats.lines import visible

if TYPE_CHECKING:
    from collections.abc import Callable


class TimeOfDay(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A local time without a date."""

    seconds: int
    """Since midnight."""


class LocalTime(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A local date and time, often without a year."""

    month: int
    day: int
    seconds: float
    """Since midnight."""
    year: int | None = None


Clock: TypeAlias = TimeOfDay | LocalTime | datetime
"""What a line says of its time; a `datetime` is UTC."""


class Prefix(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Who wrote a line, as far as its beginning tells."""

    process: str | None = None
    pid: int | None = None
    rank: int | None = None


class Header(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The first line of a record, taken apart."""

    message: str
    clock: Clock | None = None
    level: Level | None = None
    process: str | None = None
    pid: int | None = None
    rank: int | None = None
    place: str | None = None
    """File and line, where the writer repeats the header on each line of a record."""


NOBODY: Final = Prefix()
_Parser: TypeAlias = "Callable[[str, Prefix], Header | None]"

_LEVELS: Final[dict[str, Level]] = {
    "TRACE": "DEBUG", "DEBUG": "DEBUG", "INFO": "INFO", "SUCCESS": "SUCCESS", "WARN": "WARNING", "WARNING": "WARNING",
    "ERROR": "ERROR", "FATAL": "CRITICAL", "CRITICAL": "CRITICAL", "I": "INFO", "W": "WARNING", "E": "ERROR",
    "F": "CRITICAL",
}  # fmt: skip
_NAMES = "TRACE|DEBUG|INFO|SUCCESS|WARNING|WARN|ERROR|FATAL|CRITICAL"
_DATE = r"(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)"
_TIME = r"(?P<h>[0-2]\d):(?P<m>[0-5]\d):(?P<s>[0-5]\d(?:[.,]\d{1,9})?)"

_RANK = re.compile(r"\[(?:rank(?P<global>\d{1,6})\]: ?|[a-z_]{1,32}(?P<local>\d{1,6})\]:)", re.ASCII)
_PROCESS = re.compile(r"\((?P<process>[A-Za-z]\w{0,63}) pid=(?P<pid>\d{1,9})\) ?", re.ASCII)
_LOGURU = re.compile(rf"([0-2]\d):([0-5]\d):([0-5]\d) {{1,8}}({_NAMES}) (.*)", re.ASCII)
_SOURCE = re.compile(r" \[[^\]:\[]{1,200}::\d+\]$", re.ASCII)

_YEARS: Final = range(1970, 2200)
_OPENING: Final = frozenset("([")


class _JsonLine(msgspec.Struct, frozen=True, kw_only=True):
    timestamp: str
    level: str = ""
    message: str = ""
    exception: str | None = None


_decode_json = msgspec.json.Decoder(_JsonLine).decode


def parse(text: str) -> Header | None:
    """Return the header in *text*, a line without colours; `None` if it begins no record."""
    prefix, text = unprefixed(text) if text[:1] in _OPENING else (NOBODY, text)
    if text[2:3] == ":" and (match := _LOGURU.match(text)):
        hours, minutes, seconds, level, message = match.groups()
        return Header(
            clock=TimeOfDay(seconds=int(hours) * 3600 + int(minutes) * 60 + int(seconds)),
            level=_LEVELS[level],
            message=without_source(message),
            process=prefix.process,
            pid=prefix.pid,
            rank=prefix.rank,
        )
    for parser in _PARSERS.get(text[:1], ()):
        if header := parser(text, prefix):
            return header
    return None


def unprefixed(text: str) -> tuple[Prefix, str]:
    """Return who wrote the line *text*, and the line without that."""
    rank, start = None, 0
    while text.startswith("[", start) and (match := _RANK.match(text, start)):
        rank, start = int(match["global"] or match["local"]), match.end()
    if process := _PROCESS.match(text, start):
        return Prefix(process=process["process"], pid=int(process["pid"]), rank=rank), text[process.end() :]
    return (NOBODY if rank is None else Prefix(rank=rank)), text[start:]


def without_source(text: str) -> str:
    """Return *text* without the ` [file.py::12]` that the debug level appends."""
    source = _SOURCE.search(text, max(len(text) - 300, 0)) if text.endswith("]") else None
    return text[: source.start()] if source else text


def _parse_json(text: str, prefix: Prefix) -> Header | None:
    try:
        line = _decode_json(text)
        clock = _utc(datetime.fromisoformat(line.timestamp))
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return None
    message = line.message.rstrip("\n")
    if line.exception:
        message = f"{message}\n{line.exception.rstrip()}"
    level = _LEVELS.get(line.level.upper())
    process, pid, rank = prefix.process, prefix.pid, prefix.rank
    return Header(clock=clock, level=level, message=visible(message), process=process, pid=pid, rank=rank)


def _pattern(pattern: str, zone: str | None = None) -> _Parser:
    """Return a parser for *pattern*, whose groups are named after what they hold; its times are of *zone*."""
    match_it = re.compile(pattern, re.ASCII).match

    def parse_it(text: str, prefix: Prefix) -> Header | None:
        match = match_it(text)
        if match is None:
            return None
        groups = match.groupdict()
        level = groups.get("level") or groups.get("named")
        pid = groups.get("pid")
        return Header(
            clock=_clock(groups, zone) if "h" in groups else None,
            level=_LEVELS.get(level.upper()) if level else None,
            message=without_source(groups["message"]),
            process=prefix.process,
            pid=int(pid) if pid else prefix.pid,
            rank=prefix.rank,
            place=groups.get("place"),
        )

    return parse_it


def _clock(groups: dict[str, str], zone: str | None) -> Clock | None:
    """Return the time in the named *groups*; `None` where it cannot be one."""
    of_day = int(groups["h"]) * 3600 + int(groups["m"]) * 60 + float(groups["s"].replace(",", "."))
    if "month" not in groups:
        return TimeOfDay(seconds=int(of_day))
    year = groups.get("year")
    local = LocalTime(
        month=int(groups["month"]), day=int(groups["day"]), seconds=of_day, year=int(year) if year else None
    )
    zone = groups.get("zone") or zone
    return local if zone is None else _at(local, zone)


def _at(local: LocalTime, zone: str) -> datetime | None:
    """Return a *local* time in *zone*, `Z` or an offset, as UTC."""
    try:
        midnight = datetime.fromisoformat(f"{local.year:04}-{local.month:02}-{local.day:02}T00:00{zone}")
        return _utc(midnight + timedelta(seconds=local.seconds))
    except (ValueError, OverflowError):
        return None


def _utc(time: datetime) -> datetime | None:
    return time.astimezone(UTC) if time.tzinfo is not None and time.year in _YEARS else None


_SINK = _pattern(rf"{_DATE} {_TIME} \| (?P<level>{_NAMES}) *\| \S+ - (?P<message>.*)")
_ROUTER = _pattern(rf"{_DATE}[ T]{_TIME}Z? +(?P<level>{_NAMES}) (?P<message>[\w:]+: .*)", "Z")
_DATED = _pattern(
    rf"\[?{_DATE}[ T]{_TIME}(?P<zone>Z|[+-]\d\d:?\d\d)?\]?"
    rf"(?: - [^\s-]\S* - (?P<named>{_NAMES}) - | ?[-|]? ?\[?(?P<level>{_NAMES})\b\]?:?(?: ?[-|])? ?| - | )"
    r"(?P<message>.*)"
)
_TIMED = _pattern(rf"\[?{_TIME}\]? \[?(?P<level>{_NAMES}|[a-z]{{4,8}})\]?:? (?P<message>.*)")
_TIME_ONLY = _pattern(rf"\[{_TIME}\] (?P<message>.*)")
_VLLM = _pattern(
    rf"(?P<level>{_NAMES}) (?P<month>\d\d)-(?P<day>\d\d) {_TIME} \[(?P<place>[^\]]+:\d+)\] ?(?P<message>.*)"
)
_ACCESS = _pattern(rf"(?P<level>{_NAMES}): +(?P<message>.*)")
_STDLIB = _pattern(rf"(?P<level>{_NAMES}):(?P<message>(?![\d-]+ [\d:]).+)")
_STDLIB_DATED = _pattern(rf"(?P<level>{_NAMES}):{_DATE} {_TIME}:(?P<message>.*)")
_LEVEL_ONLY = _pattern(rf"(?P<level>{_NAMES}) +(?P<message>\S.*)")
_GLOG = _pattern(
    rf"(?P<level>[IWEF])(?P<month>\d\d)(?P<day>\d\d) {_TIME} +(?P<pid>\d{{1,9}}) [^\]\s]+:\d+\] ?(?P<message>.*)"
)
_CPP = _pattern(rf"\[(?P<level>[IWEF])(?P<month>\d{{1,2}})(?P<day>\d\d) {_TIME} [^\]\s]+:\d+\] ?(?P<message>.*)")
_NCCL = _pattern(r"[\w.-]{1,255}:(?P<pid>\d{1,9}):\d+ \[\d+\] (?P<message>.*?NCCL (?P<level>WARN|INFO)\b.*)")
# the name of the tool stays: it is what tells these lines from the run's own
_TOOL = _pattern(
    rf"(?P<message>(?:wandb|slurmstepd|srun|sbatch)(?:-[\w.-]+)?: (?:(?P<level>{_NAMES}|error|warning)\b)?.*)"
)
_SUBMITIT = _pattern(rf"submitit (?P<level>{_NAMES}) \({_DATE} {_TIME}\) - (?P<message>.*)")

_PARSERS: Final[dict[str, tuple[_Parser, ...]]] = {
    **dict.fromkeys(ascii_letters, (_NCCL,)),
    **dict.fromkeys(digits, (_ROUTER, _SINK, _DATED, _TIMED, _NCCL)),
    **dict.fromkeys("TDISWEFC", (_ACCESS, _VLLM, _GLOG, _STDLIB, _STDLIB_DATED, _LEVEL_ONLY, _NCCL)),
    **dict.fromkeys("sw", (_TOOL, _SUBMITIT, _NCCL)),
    "{": (_parse_json,),
    "[": (_CPP, _DATED, _TIMED, _TIME_ONLY),
}
