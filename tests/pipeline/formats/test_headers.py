"""Headers of log lines."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.formats.headers import Header, LocalTime, Prefix, TimeOfDay, parse, unprefixed, without_source

if TYPE_CHECKING:
    from pipeline.formats.headers import Clock

NOON = TimeOfDay(seconds=43_200)


def utc(hour: int, minute: int = 0, second: int = 0, microsecond: int = 0) -> datetime:
    return datetime(2026, 8, 19, hour, minute, second, microsecond, UTC)


def local(seconds: float = 43_200, *, year: int | None = None) -> LocalTime:
    return LocalTime(month=8, day=19, seconds=seconds, year=year)


@pytest.mark.parametrize(
    ("text", "header"),
    [
        ("12:00:00    INFO a  b", Header(clock=NOON, level="INFO", message="a  b")),
        ("12:00:00   TRACE a", Header(clock=NOON, level="DEBUG", message="a")),
        ("12:00:00 SUCCESS Step 1 | 1s [train.py::12]", Header(clock=NOON, level="SUCCESS", message="Step 1 | 1s")),
        ("12:00:00 CRITICAL a", Header(clock=NOON, level="CRITICAL", message="a")),
        ("[trainer3]:12:00:00 WARNING a", Header(clock=NOON, level="WARNING", message="a", rank=3)),
        ("[default0]:12:00:00   ERROR a", Header(clock=NOON, level="ERROR", message="a", rank=0)),
        (
            '{"timestamp": "2026-08-19T12:04:02.123456-07:00", "level": "SUCCESS", "message": "a\\n\\t b", "x": [1]}',
            Header(clock=utc(19, 4, 2, 123_456), level="SUCCESS", message="a\n\t b"),
        ),
        (
            '[trainer0]:{"timestamp": "2026-08-19T12:00:00Z", "level": "ERROR", "message": "a", "exception": "T\\nE"}',
            Header(clock=utc(12), level="ERROR", message="a\nT\nE", rank=0),
        ),
        (
            '(APIServer pid=7) {"timestamp": "2026-08-19T12:00:00Z", "level": "INFO", "message": "\\u001b[1ma\\u0000"}',
            Header(clock=utc(12), level="INFO", message="a", process="APIServer", pid=7),
        ),
        (
            "2026-08-19 12:00:00.873 | INFO     | prime_rl.utils.metrics_server:start:148 - up",
            Header(clock=local(43_200.873, year=2026), level="INFO", message="up"),
        ),
        (
            "(EngineCore_DP0 pid=4) ERROR 08-19 12:00:00 [core.py:11] a [b]",
            Header(clock=local(), level="ERROR", message="a [b]", process="EngineCore_DP0", pid=4, place="core.py:11"),
        ),
        ("INFO 08-19 12:00:00 [v1/a.py:8] b", Header(clock=local(), level="INFO", message="b", place="v1/a.py:8")),
        (
            '(APIServer pid=4) INFO:     127.0.0.1:1 - "GET /x HTTP/1.1" 500 Oh',
            Header(level="INFO", message='127.0.0.1:1 - "GET /x HTTP/1.1" 500 Oh', process="APIServer", pid=4),
        ),
        ("DEBUG: Creating HTTP client", Header(level="DEBUG", message="Creating HTTP client")),
        (
            "2026-08-19 12:00:00  WARN vllm_router_rs::worker: src/w.rs:210: unhealthy",
            Header(clock=utc(12), level="WARNING", message="vllm_router_rs::worker: src/w.rs:210: unhealthy"),
        ),
        (
            "W0819 12:00:00.773000 28478 torch/distributed/elastic/api.py:1028] Sending process",
            Header(clock=local(43_200.773), level="WARNING", message="Sending process", pid=28_478),
        ),
        (
            "[rank1]:[E819 12:00:00.123456789 ProcessGroupNCCL.cpp:685] [Rank 1] Watchdog caught",
            Header(clock=local(43_200.123456789), level="ERROR", message="[Rank 1] Watchdog caught", rank=1),
        ),
        ("[W0819 12:00:00.1 socket.cpp:7] a", Header(clock=local(43_200.1), level="WARNING", message="a")),
        (
            "node-a:1001:1002 [0] misc/socket.cc:49 NCCL WARN closed by peer b<5>",
            Header(level="WARNING", message="misc/socket.cc:49 NCCL WARN closed by peer b<5>", pid=1001),
        ),
        ("10-0-0-1:1:2 [3] NCCL INFO a", Header(level="INFO", message="NCCL INFO a", pid=1)),
        (
            "2026-08-19 12:00:00,123 - a.b - WARNING - c",
            Header(clock=local(43_200.123, year=2026), level="WARNING", message="c"),
        ),
        ("2026-08-19 12:00:00,5 [ERROR] c", Header(clock=local(43_200.5, year=2026), level="ERROR", message="c")),
        ("[2026-08-19 12:00:00] a:1:2 b", Header(clock=local(year=2026), message="a:1:2 b")),
        ("2026-08-19T12:00:00.123+02:00 INFO c", Header(clock=utc(10, 0, 0, 123_000), level="INFO", message="c")),
        ("ERROR:2026-08-19 12:00:00,188:c", Header(clock=local(43_200.188, year=2026), level="ERROR", message="c")),
        ("WARNING:root:c", Header(level="WARNING", message="root:c")),
        ("ERROR [__main__] main failed", Header(level="ERROR", message="[__main__] main failed")),
        ("[12:00:00.000] [warn] a.cpp:1  b", Header(clock=NOON, level="WARNING", message="a.cpp:1  b")),
        ("12:00:00 [INFO] Train batch", Header(clock=NOON, level="INFO", message="Train batch")),
        ("wandb: WARNING a", Header(level="WARNING", message="wandb: WARNING a")),
        ("wandb: Network error", Header(message="wandb: Network error")),
        ("slurmstepd: error: *** JOB 1", Header(level="ERROR", message="slurmstepd: error: *** JOB 1")),
        ("srun: error: node-a: task 0: Killed", Header(level="ERROR", message="srun: error: node-a: task 0: Killed")),
        (
            "submitit WARNING (2026-08-19 12:00:00,453) - a",
            Header(clock=local(43_200.453, year=2026), level="WARNING", message="a"),
        ),
        ("(Worker pid=1) WARN: a", Header(level="WARNING", message="a", process="Worker", pid=1)),
    ],
)  # fmt: skip
def test_every_form_of_header_is_taken_apart(text: str, header: Header) -> None:
    """Each way of writing a log line gives its time, level, writer and message."""
    assert parse(text) == header


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Killed",
        "Errno 116: Stale file handle",
        "Traceback (most recent call last):",
        "torch.OutOfMemoryError: CUDA",
        "[rank0]: RuntimeError: a",
        "  12:00:00 INFO indented",
        "ERRORS are many",
        "Inference server was not reached",
        "INFER_NODE_RANK=0 LOCAL_IP=10.0.0.1",
        "[node-3] component exited with code 1",
        "(EngineCore pid=1) Process EngineCore:",
        "{}",
        '{"timestamp": 5}',
        "12:00:00",
        "12:61:00 INFO a",
        "99:00:00 INFO a",
        "\N{DEVANAGARI DIGIT ONE}2:00:00 INFO a",
    ],
)
def test_other_lines_have_no_header(text: str) -> None:
    """What begins no record is not taken for a header."""
    assert parse(text) is None


@pytest.mark.parametrize(
    ("text", "clock"),
    [
        ("2026-02-30T12:00:00Z INFO a", None),
        ("9999-12-31T23:59:59-14:00 INFO a", None),
        ('{"timestamp": "0001-01-01T00:00:00+14:00", "message": "a"}', None),
        ('{"timestamp": "2026-08-19T12:00:00", "message": "a"}', None),
        ("2026-13-45 12:00:00,1 - a - INFO - b", LocalTime(month=13, day=45, seconds=43_200.1, year=2026)),
    ],
)
def test_a_time_that_cannot_be_leaves_the_rest_of_the_header(text: str, clock: Clock | None) -> None:
    """An impossible date costs the time, or is left to whoever dates the line, but not the record."""
    header = parse(text)
    assert header is not None
    assert header.clock == clock


@pytest.mark.parametrize(
    "text",
    ['{"timestamp":' + "[" * 100_000, '{"timestamp":"2026-08-19T12:00:00Z","x":' + "[" * 100_000,
     '{"timestamp":"2026-08-19T12:00:00Z","message":"\\ud800"}', "[a1]:" * 200_000, "(" * 500_000, "[" * 500_000,
     "a" * 500_000 + ":1:2 [0]", "12:00:00 INFO " + "[a::" * 100_000 + "]", "2026-08-19 12:00:00 " + "- " * 200_000],
)  # fmt: skip
@pytest.mark.timeout(5)
def test_hostile_lines_are_read_in_linear_time(text: str) -> None:
    """Depth, repetition and broken escapes neither fail nor take long."""
    parse(text)


@given(st.text(), st.sampled_from(["", "12:00:00 INFO ", "[trainer0]:", "(A pid=1) ", '{"timestamp":"', "2026-08-19 "]))
def test_no_text_makes_the_parser_fail(text: str, begin: str) -> None:
    """Whatever a line holds, the parser returns."""
    parse(begin + text)


def test_prefixes_tell_the_writer_of_a_line_without_header() -> None:
    """Ranks and processes are told, and the indentation after torchrun's prefix stays."""
    assert unprefixed("[trainer2]:  File") == (Prefix(rank=2), "  File")
    assert unprefixed("[rank1]:   File") == (Prefix(rank=1), "  File")
    assert unprefixed("[trainer0]:[rank7]: a") == (Prefix(rank=7), "a")
    assert unprefixed("(EngineCore pid=4)   File") == (Prefix(process="EngineCore", pid=4), "  File")
    assert unprefixed("[node-3] a") == (Prefix(), "[node-3] a")


def test_only_a_source_at_the_end_is_removed() -> None:
    """The suffix of the debug level goes, other brackets stay."""
    assert without_source("a [b.py::12]") == "a"
    assert without_source("a [b.py:12]") == "a [b.py:12]"
    assert without_source("a [b.py::12] c") == "a [b.py::12] c"
