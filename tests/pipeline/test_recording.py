"""Events and decisions as JSON Lines."""

from __future__ import annotations

import io
import json
import math
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.alerts import AlertChanged, Evidence, IncidentSummary, Summary
from pipeline.events import (
    DiskSpace,
    Gap,
    HostLine,
    KeptEvent,
    Mark,
    ProcessState,
    Receipt,
    Sample,
    ScrapeFailed,
    SourceState,
    Tick,
)
from pipeline.formats.jsonl import LINE_BYTES
from pipeline.recording import read, to_json, write
from pipeline.times import cut

SCENARIOS = Path(__file__).parents[2].parent / "shared" / "scenarios"
TIME = datetime(2026, 8, 19, 12, 34, 56, 123000, UTC)
TEXT = '"2026-08-19T12:34:56.123Z"'


def events(text: str | bytes) -> list[KeptEvent]:
    """Read a recording that is given as what it holds."""
    return list(read(io.BytesIO(text.encode() if isinstance(text, str) else text)))


def skipped(text: str | bytes) -> dict[str, int]:
    """Read a recording to its end and say what was skipped."""
    reader = read(io.BytesIO(text.encode() if isinstance(text, str) else text))
    assert list(reader) == []
    return reader.skipped


def test_the_form_of_a_line() -> None:
    """A line begins with type and time, in UTC with three digits."""
    process = ProcessState(time=TIME, node="node-0", role="trainer", pid=4242, state="exited", exit_code=-9)
    line = write([process, Tick(time=TIME.replace(microsecond=0))]).decode().splitlines()
    assert line[0] == (
        f'{{"type":"process","time":{TEXT},"node":"node-0","role":"trainer","pid":4242,"state":"exited","exit_code":-9}}'
    )
    assert line[1] == '{"type":"tick","time":"2026-08-19T12:34:56.000Z"}'


def test_the_contract_is_read() -> None:
    """Every event that the contract shows is read, in either order of type and time."""
    found = events(f"""
        {{"type":"process","time":{TEXT},"node":"n","role":"trainer","title":"T","pid":1,"ppid":2,"state":"running","rss_bytes":3}}
        {{"time":{TEXT},"type":"sample","endpoint":"e","name":"a","labels":{{"engine":"0"}},"value":12}}
        {{"type":"scrape_failed","time":{TEXT},"endpoint":"e","error":"connection refused"}}
        {{"type":"host","time":{TEXT},"node":"n","origin":"kernel","text":"…","later":"field"}}
        {{"type":"disk","time":{TEXT},"node":"n","path":"/data","total_bytes":1,"free_bytes":1}}
        {{"type":"tick","time":{TEXT}}}
        {{"type":"mark","time":{TEXT},"positions":{{"logs/attempt_1/trainer.log":81920}}}}
    """)
    assert found == [
        ProcessState(time=TIME, node="n", role="trainer", title="T", pid=1, ppid=2, state="running", rss_bytes=3),
        Sample(time=TIME, endpoint="e", name="a", labels={"engine": "0"}, value=12.0),
        ScrapeFailed(time=TIME, endpoint="e", error="connection refused"),
        HostLine(time=TIME, node="n", origin="kernel", text="…"),
        DiskSpace(time=TIME, node="n", path="/data", total_bytes=1, free_bytes=1),
        Tick(time=TIME),
        Mark(time=TIME, positions={"logs/attempt_1/trainer.log": 81920}),
    ]


@pytest.mark.parametrize(
    "time", ["2026-08-19T12:34:56.123999Z", "2026-08-19T14:34:56.1234+02:00", "2026-08-19 07:34:56.123-05:00"]
)
def test_times_are_in_utc_and_cut(time: str) -> None:
    """A time of any zone and precision is taken as UTC in whole milliseconds."""
    (tick,) = events(f'{{"type":"tick","time":"{time}"}}')
    assert tick.time == TIME
    assert tick.time.utcoffset() == timedelta(0)


def test_further_times_of_an_event() -> None:
    """Not only an event's own time is in UTC and cut."""
    found = events(f'{{"type":"gap","time":{TEXT},"until":"2026-08-19T14:34:56.1234+02:00","cause":"downtime"}}')
    assert found == [Gap(time=TIME, until=TIME, cause="downtime")]


@pytest.mark.parametrize(
    "line",
    [
        "x",
        "[]",
        "{}",
        '{"type":1}',
        '{"type":"tick"}',
        '{"type":"tick","time":"2026-08-19T12:34:56"}',
        '{"type":"tick","time":"yesterday"}',
        '{"type":"tick","time":1787140000}',
        '{"type":"tick","time":"0001-01-01T00:00:00+14:00"}',
        f'{{"type":"gap","time":{TEXT},"until":"2026-08-19T12:34:56","cause":"downtime"}}',
        f'{{"type":"host","time":{TEXT},"node":"n","origin":"rumour","text":""}}',
        f'{{"type":"sample","time":{TEXT},"endpoint":"e","name":"a","value":"12"}}',
        f'{{"type":"sample","time":{TEXT},"endpoint":"e","name":"a","value":["NaN"]}}',
        f'{{"type":"sample","time":{TEXT},"endpoint":"e","name":["a"],"value":"NaN"}}',
        f'{{"type":"sample","time":{TEXT},"endpoint":"e","name":"a","value":1e999}}',
        '{"type":"tick","time":"2100-01-01T00:00:00Z"}',
        '{"type":"tick","time":' + "[" * 100_000,
        '{"a":' * 100_000,
    ],
    ids=range(18),
)
def test_what_is_no_event_is_counted(line: str) -> None:
    """A line that is no event is skipped and counted, and the next one is read."""
    assert skipped(line) == {"unreadable": 1}
    assert events(f'{line}\n{{"type":"tick","time":{TEXT}}}\n') == [Tick(time=TIME)]


def test_unknown_types_are_counted_by_type() -> None:
    """What a later version has written is skipped, and said by its type."""
    later = f'{{"type":"fan_speed","time":{TEXT}}}\n'
    assert skipped(later * 2 + '{"type":"fog"}\n{"no":1}\n') == {"fan_speed": 2, "fog": 1, "unreadable": 1}


def test_the_count_has_a_bound() -> None:
    """A recording of nothing but new types fills no memory."""
    counted = skipped("".join(f'{{"type":"{number}"}}\n' for number in range(1000)) + '{"type":"0"}\n')
    assert len(counted) <= 101
    assert sum(counted.values()) == 1001
    assert counted["0"] == 2


def test_a_torn_end() -> None:
    """A last line without a newline is read if it is whole, and counted if not."""
    tick = f'{{"type":"tick","time":{TEXT}}}'
    assert events(tick) == [Tick(time=TIME)]
    assert skipped(tick[:-3]) == {"unreadable": 1}
    assert skipped(b"\xff\x00\n\n  \n") == {"unreadable": 1}


@pytest.mark.parametrize(("value", "text"), [(math.inf, "+Inf"), (-math.inf, "-Inf"), (math.nan, "NaN")])
def test_values_that_json_does_not_have(value: float, text: str) -> None:
    """A value that is not finite is written as Prometheus does, and read again."""
    line = write([Sample(time=TIME, endpoint="e", name="a", value=value)])
    assert json.loads(line)["value"] == text
    (sample,) = events(line)
    assert isinstance(sample, Sample)
    assert repr(sample.value) == repr(value)


def test_text_that_is_not_unicode() -> None:
    """Bytes that are no UTF-8 in a process title do not stop the recording."""
    line = write([HostLine(time=TIME, node="n", origin="kernel", text="a\udcffµ\0")])
    assert events(line) == [HostLine(time=TIME, node="n", origin="kernel", text="a?µ\0")]


def test_a_decision_has_all_fields() -> None:
    """A decision is written with every field and every time in the same form, nested ones too."""
    summary = Summary(
        time=TIME,
        health="Down",
        phase="failed",
        step=41,
        max_steps=None,
        incidents=[
            IncidentSummary(
                id="1",
                failure_mode="cuda-oom",
                component="trainer",
                severity="critical",
                opened=TIME.astimezone(timezone(timedelta(hours=2))),
                closed=None,
                symptoms=[],
                proposes_restart=False,
            )
        ],
    )
    assert to_json(summary).decode() == (
        f'{{"type":"summary","time":{TEXT},"health":"Down","phase":"failed","step":41,"max_steps":null,"incidents":'
        f'[{{"id":"1","failure_mode":"cuda-oom","component":"trainer","severity":"critical","opened":{TEXT},'
        f'"closed":null,"symptoms":[],"proposes_restart":false}}]}}'
    )
    alert = AlertChanged(
        time=TIME,
        rule="r",
        failure_mode="cuda-oom",
        component="trainer",
        severity="critical",
        state="firing",
        incident="1",
        summary="…",
        evidence=[Evidence(source="s", offset=None, text="2026-08-19T12:34:56.123000Z")],
    )
    assert json.loads(to_json(alert))["evidence"] == [
        {"source": "s", "offset": None, "text": "2026-08-19T12:34:56.123000Z"}
    ]


def test_a_line_without_an_end_fills_no_memory() -> None:
    """A line that is too long to be kept is counted like one that cannot be read."""
    assert skipped(b"x" * (LINE_BYTES + 1) + b"\n") == {"unreadable": 1}


def test_a_missing_file(tmp_path: Path) -> None:
    """A recording that is not there is an error once it is read."""
    with pytest.raises(FileNotFoundError):
        list(read(tmp_path / "missing.jsonl"))


def test_a_file_is_read_again(tmp_path: Path) -> None:
    """A recording that is given by its path can be read more than once."""
    path = tmp_path / "recording.jsonl"
    path.write_bytes(write([Tick(time=TIME)]))
    reader = read(path)
    assert list(reader) == list(reader) == [Tick(time=TIME)]


TIMES = st.datetimes(datetime(1990, 1, 1), datetime(2099, 1, 1), timezones=st.just(UTC)).map(cut)  # noqa: DTZ001
WORDS = st.text(max_size=6)
NUMBERS = st.integers(0, 2**62)
EVENTS: st.SearchStrategy[KeptEvent] = st.one_of(
    st.builds(Tick, time=TIMES),
    st.builds(Mark, time=TIMES, positions=st.dictionaries(WORDS, NUMBERS, max_size=3), floor=st.none() | TIMES),
    st.builds(Sample, time=TIMES, endpoint=WORDS, name=WORDS, labels=st.dictionaries(WORDS, WORDS, max_size=3),
              value=st.floats(allow_nan=False)),
    st.builds(ScrapeFailed, time=TIMES, endpoint=WORDS, error=WORDS),
    st.builds(ProcessState, time=TIMES, node=WORDS, role=st.sampled_from(["trainer", "launcher"]), pid=NUMBERS,
              state=st.sampled_from(["running", "zombie"]), title=WORDS, ppid=st.none() | NUMBERS,
              exit_code=st.none() | st.integers(-64, 255)),
    st.builds(HostLine, time=TIMES, node=WORDS, origin=st.sampled_from(["kernel", "cgroup"]), text=WORDS),
    st.builds(DiskSpace, time=TIMES, node=WORDS, path=WORDS, total_bytes=NUMBERS, free_bytes=NUMBERS),
    st.builds(SourceState, time=TIMES, name=WORDS, state=st.sampled_from(["seeing", "blind"]), failed=st.booleans()),
    st.builds(Gap, time=TIMES, until=TIMES, cause=st.sampled_from(["downtime", "suspension"])),
    st.builds(Receipt, time=TIMES, item=WORDS, sink=WORDS, outcome=st.sampled_from(["delivered", "failing"])),
)  # fmt: skip


@given(st.lists(EVENTS, max_size=5))
def test_what_is_written_is_read(written: list[KeptEvent]) -> None:
    """Events come back as they were written, and are written alike again."""
    lines = write(written)
    assert events(lines) == written
    assert write(events(lines)) == lines


@given(st.binary(max_size=80))
def test_no_bytes_raise(data: bytes) -> None:
    """Whatever a recording holds, reading it does not raise."""
    events(data)
    events(b'{"type":"sample","time":' + TEXT.encode() + b',"value":' + data)


def test_a_scenarios_recording_is_read_whole(tmp_path: Path) -> None:
    """Of a recording that another program wrote every line is an event, in the order of time."""
    generator = SCENARIOS / "make_run.py"
    if not generator.exists():
        pytest.skip("the scenarios are not beside the project")
    scenario = min(SCENARIOS.glob("dev/037-*.toml"))
    subprocess.run([sys.executable, generator, scenario, tmp_path], check=True, capture_output=True)
    path = tmp_path / "recording.jsonl"
    reader = read(path)
    found = list(reader)
    assert reader.skipped == {}
    assert len(found) == path.read_bytes().count(b"\n") > 0
    assert [event.time for event in found] == sorted(event.time for event in found)
    assert events(write(found)) == found
