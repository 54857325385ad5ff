"""Pages in Prometheus' exposition format."""

from __future__ import annotations

import math
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from pipeline.formats.prometheus import Value, parse

ARCHIVE = Path(__file__).parents[3].parent / "shared" / "golden.tar.gz"


def every(_: str) -> bool:
    """Want every name."""
    return True


def read(text: str) -> list[Value]:
    """Parse all of a page."""
    return parse(text.encode(), every, 1000)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Unpack the pages of real servers."""
    if not ARCHIVE.exists():
        pytest.skip("the golden data is not beside the project")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(path := tmp_path_factory.mktemp("golden"), filter="data")
    return sorted((path / "golden" / "metrics").glob("*.prom"))


def comparable(values: list[Value]) -> list[tuple[str, list[tuple[str, str]], str]]:
    """Make values comparable, those that are not numbers too."""
    return sorted((value.name, sorted(value.labels.items()), repr(value.value)) for value in values)


def test_golden_pages_are_read_as_the_reference_does(pages: list[Path]) -> None:
    """Of every real page the same comes as from Prometheus' own client."""
    assert len(pages) >= 12
    for page in pages:
        text = page.read_bytes()
        families = text_string_to_metric_families(text.decode())
        reference = [
            Value(sample.name, sample.labels, float(sample.value)) for family in families for sample in family.samples
        ]
        assert comparable(parse(text, every, 10_000)) == comparable(reference), page.name


def test_only_what_is_wanted(pages: list[Path]) -> None:
    """Of a busy engine's page only the wanted names come, each asked for once."""
    page = next(page for page in pages if page.name == "vllm-0.26.0-dp4.prom")
    asked: list[str] = []

    def wanted(name: str) -> bool:
        asked.append(name)
        return name == "vllm:num_requests_running"

    values = parse(page.read_bytes(), wanted, 4)
    assert [value.labels["engine"] for value in values] == ["0", "1", "2", "3"]
    assert len(asked) == len(set(asked))


@pytest.mark.parametrize(
    ("line", "labels", "value"),
    [
        ("a 1", {}, 1.0),
        ("a\t1", {}, 1.0),
        ("  a 1", {}, 1.0),
        ("a 1 1395066363000", {}, 1.0),
        ("a 1.5e+08\r", {}, 1.5e8),
        ("a +Inf", {}, math.inf),
        ("a -Inf", {}, -math.inf),
        ("a{} 1", {}, 1.0),
        ('a{b="c"} 1', {"b": "c"}, 1.0),
        ('a {b="c"} 1', {"b": "c"}, 1.0),
        ('a{b="c",} 1', {"b": "c"}, 1.0),
        ('a{ b = "c" , d="e" } 1 123', {"b": "c", "d": "e"}, 1.0),
        ('a{b="",c="d"} 1', {"b": "", "c": "d"}, 1.0),
        (r'a{b="x\"y\\z\n"} 1', {"b": 'x"y\\z\n'}, 1.0),
        ('a{b="}"} 1', {"b": "}"}, 1.0),
        ('a{b="} # {",c="d e"} 1', {"b": "} # {", "c": "d e"}, 1.0),
        ('a{b="c#"} 1', {"b": "c#"}, 1.0),
        ('a{b="c"} 1 # {trace_id="}x"} 0.5 123', {"b": "c"}, 1.0),
        ('a 1 # {trace_id="x"} 0.5', {}, 1.0),
        ('a{b="µ"} 1', {"b": "µ"}, 1.0),
    ],
)
def test_lines(line: str, labels: dict[str, str], value: float) -> None:
    """Every way to write a line is understood: spaces, escapes, timestamps, exemplars."""
    assert read(line) == [Value("a", labels, value)]


def test_not_a_number() -> None:
    """NaN is a value: a trainer reports it."""
    assert math.isnan(read("trainer_loss NaN")[0].value)


@pytest.mark.parametrize("text", ["", "\n\n", "# HELP a b\n# TYPE a gauge\n", "# EOF\n"])
def test_a_page_without_values(text: str) -> None:
    """A page with comments alone is a page."""
    assert read(text) == []


@pytest.mark.parametrize(
    "line",
    ["ok", "<html><body>502</body></html>", '{"detail": "Not Found"}', "a", "a b", 'a{b="c" 1', 'a{b="c"}', "a{b} 1",
     'a{b="c} 1', 'a{b="c"} x', "9a 1", "a-b 1", 'a{b="c"d="e"} 1', "\0", "a{", "a }1"],
)  # fmt: skip
def test_what_is_no_page_is_refused(line: str) -> None:
    """Something else that a server answers is refused, with the line and what stands there."""
    with pytest.raises(ValueError, match=r"line 2 is not in Prometheus' exposition format: '"):
        read(f"good 1\n{line}")


def test_too_much_is_refused() -> None:
    """A page with more wanted values than allowed is refused."""
    text = b"".join(b'a{i="%d"} 1\n' % number for number in range(11))
    assert len(parse(text, every, 11)) == 11
    with pytest.raises(ValueError, match="more than 10 wanted values"):
        parse(text, every, 10)


@pytest.mark.parametrize(
    "text", ['a{b="' + "\\" * 100_000, "a{" + '"' * 100_001, "a{" + 'b="c",' * 50_000, "a{" + "#" * 100_000]
)
def test_hostile_lines_take_no_time(text: str) -> None:
    """A line made to take long is refused like another."""
    with pytest.raises(ValueError, match="line 1"):
        read(text)


LABELS = st.dictionaries(
    st.from_regex(r"[a-z_][a-z0-9_]{0,5}", fullmatch=True), st.text(st.characters(codec="utf-8")), max_size=4
)


@given(LABELS, st.floats(allow_nan=False))
def test_what_is_written_is_read(labels: dict[str, str], value: float) -> None:
    """Any labels and value come back as they were written."""
    escaped = {
        name: text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"") for name, text in labels.items()
    }
    inner = ",".join(f'{name}="{text}"' for name, text in escaped.items())
    assert read(f"a{{{inner}}} {value!r}\n") == [Value("a", labels, value)]


@given(st.binary(max_size=60))
def test_no_bytes_raise_anything_else(data: bytes) -> None:
    """Whatever a server answers, it is a page or refused as none."""
    try:
        parse(b'a{b="c"} ' + data, every, 10)
        parse(data, every, 10)
    except ValueError as error:
        assert str(error)  # noqa: PT017 (either way is right)
