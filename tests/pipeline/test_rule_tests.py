"""Rule tests: what is written shortly is what happens, and every difference is found."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.events import Metrics, Rollout
from pipeline.rule_tests.events import Unreachable, events_of
from pipeline.rule_tests.file import Expectation, RuleTest
from pipeline.rule_tests.given import GivenMetric, GivenRollouts, GivenSeries
from pipeline.rule_tests.running import Loaded, Result, cases, judge_case, load_tests, rules_tested, shipped
from rules.load import BadFile
from rules.rulebook import Rulebook

START = datetime(2026, 8, 19, 12, tzinfo=UTC)
EXAMPLE = Path(__file__).parents[2] / "example"
Run: TypeAlias = Callable[[str], list[Result]]

OOM = """
[[test]]
name = "a trainer without memory"
log = [{ at = "5m", file = "trainer.log", level = "ERROR", text = "CUDA out of memory. Tried to allocate 2 GiB" }]
expect = [
  { at = "4m", firing = [], health = "Healthy", phase = "running" },
"""
RIGHT = '{ firing = [{ rule = "cuda-out-of-memory", severity = "critical", component = "trainer" }], health = "Down" },'


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run the tests of a text."""

    def run_text(text: str) -> list[Result]:
        loaded = load_text(tmp_path, text)
        return [judge_case(loaded, case) for case in cases(loaded)]

    return run_text


def load_text(folder: Path, text: str) -> Loaded:
    """Load a file of tests that holds *text*."""
    file = folder / "tests.toml"
    file.write_text(text, "utf-8")
    return load_tests(file)


def faults(folder: Path, text: str) -> list[str]:
    """Return what is wrong with a file of tests, without its name."""
    with pytest.raises(BadFile) as caught:
        load_text(folder, text)
    return [message.removeprefix(f"{folder}/tests.toml") for message in caught.value.messages]


@pytest.mark.parametrize(
    ("values", "numbers"),
    [
        ("0.5", [0.5]),
        ("0.5x3 2", [0.5, 0.5, 0.5, 2.0]),
        ("1+0.5x4", [1.0, 1.5, 2.0, 2.5]),
        ("1-0.5x3", [1.0, 0.5, 0.0]),
        ("-1e-3+1x2", [-0.001, 0.999]),
        ("_ 1 _x2", [None, 1.0, None, None]),
    ],
)
def test_the_short_notation_of_series(values: str, numbers: list[float | None]) -> None:
    """A value, so many of them, a slope, none at that time."""
    assert GivenSeries(values=values).numbers() == numbers


@pytest.mark.parametrize("values", ["x3", "1x0", "1y2", "1+x3", "1x9999999", "inf", "1,2", "\x00"])
def test_what_is_no_series(values: str) -> None:
    """What does not follow the notation is refused, and the message shows how to write it."""
    with pytest.raises(ValueError, match="is no part of a series: write"):
        GivenSeries(values=values)


@given(st.text(max_size=40))
def test_a_series_of_anything(values: str) -> None:
    """Whatever is written is a series or is refused."""
    with suppress(ValueError):
        assert isinstance(GivenSeries(values=values).numbers(), list)


@given(ok=st.integers(0, 40), failed=st.integers(0, 40), cancelled=st.integers(0, 10))
def test_rollouts_are_mixed_evenly(ok: int, failed: int, cancelled: int) -> None:
    """There are as many of each kind as is said, and failures are never far from their share."""
    mixed = GivenRollouts(ok=ok, failed=failed, cancelled=cancelled)
    test = RuleTest(name="t", phase="starting", rollout=[mixed], expect=[Expectation(firing=[])])
    rollouts = [event for event in events_of(test, Rulebook([]), None) if isinstance(event, Rollout)]
    seen = [one.ok for one in rollouts if not one.cancelled]
    assert (seen.count(True), seen.count(False), len(rollouts)) == (ok, failed, ok + failed + cancelled)
    for i in range(len(seen)):
        assert abs(seen[: i + 1].count(False) - (i + 1) * failed / len(seen)) <= 1


def test_series_of_one_step_are_one_row() -> None:
    """What several series say of the same step is one row, as the run would have written it."""
    series = [GivenMetric(name="a", values="1 2"), GivenMetric(name="b", values="3 _")]
    test = RuleTest(name="t", phase="starting", metric=series, expect=[Expectation(firing=[])])
    rows = [event for event in events_of(test, Rulebook([]), None) if isinstance(event, Metrics)]
    assert [(row.step, row.values, row.time) for row in rows] == [
        (1, {"a": 1.0, "b": 3.0}, START),
        (2, {"a": 2.0}, START + timedelta(minutes=1)),
    ]


def test_what_is_expected_is_there(run: Run) -> None:
    """A test passes that says what fires, and when nothing did yet."""
    (result,) = run(f"{OOM}{RIGHT}]")
    assert result.passed
    assert (result.line, result.name) == (2, "a trainer without memory")


@pytest.mark.parametrize(
    ("expected", "difference"),
    [
        ("firing = []", "+ firing cuda-out-of-memory (critical, trainer)"),
        ('firing = [{ rule = "stall" }]', "- firing stall"),
        ('firing = [{ rule = "cuda-out-of-memory", severity = "warning" }]', "- firing cuda-out-of-memory (warning)"),
        ('firing = [{ rule = "cuda-out-of-memory", summary = "engine" }]', '- firing cuda-out-of-memory "…engine…"'),
        ('firing = [{ rule = "cuda-out-of-memory", subject = { env = "x" } }], only = false', "(env=x)"),
        ('firing = [{ rule = "stall" }], only = false', "- firing stall"),
        ('quiet = ["cuda-out-of-memory"]', "- quiet cuda-out-of-memory"),
        ('shows = ["reward/mean 0.5"]', '+ shows "reward/mean not yet'),
        ('incident = { failure_mode = "stall" }', "- incident stall"),
        (
            'incident = { failure_mode = "cuda-oom", restart = true }',
            "cuda-oom, trainer, critical, proposes no",
        ),
        ('incident = { failure_mode = "cuda-oom", symptoms = ["stall"] }', ", with stall"),
        ('health = "Healthy"', "+ health Down"),
        ('phase = "failed"', "+ phase running"),
    ],
)
def test_a_difference_is_shown(run: Run, expected: str, difference: str) -> None:
    """Each kind of difference is one line, what was expected and what there is."""
    (result,) = run(f"{OOM}{{ {expected} }}]")
    assert result.differences[0] == "at 5m:"
    assert any(difference in line for line in result.differences)


def test_an_incident_that_is_none(run: Run) -> None:
    """Where an incident is expected and there is none, that is said."""
    (result,) = run('[[test]]\nname = "t"\nexpect = [{ at = "1m", incident = { failure_mode = "stall" } }]')
    assert result.differences == ["at 1m:", "- incident stall", "+ no incident"]


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        ('firing = [{ rule = "cuda-out-of-memry" }]', ':7: no rule is named "cuda-out-of-memry"; did you mean'),
        ('quiet = ["stal"]', ':7: no rule is named "stal"; did you mean "stall"?'),
        ('incident = { failure_mode = "cuda-om" }', ':7: no rule has the failure mode "cuda-om"; did you mean'),
        ('incident = { failure_mode = "stall", symptoms = ["x"] }', ':7: no rule has the failure mode "x"'),
        ("firng = []", ':7: $.test[0].expect[1]: unknown key "firng"; did you mean "firing"?'),
    ],
)
def test_what_no_rule_has(tmp_path: Path, expected: str, message: str) -> None:
    """A misspelt rule, failure mode or key is an error with its line, never a test that passes."""
    (found,) = faults(tmp_path, f"{OOM}{{ {expected} }}]")
    assert found.startswith(message)


def test_a_log_of_nobody(tmp_path: Path) -> None:
    """A log that is no component's would never be read: it is an error."""
    text = OOM.replace("trainer.log", "trainr.log") + RIGHT + "]"
    assert faults(tmp_path, text) == [':4: no [[file]] says whose log "trainr.log" is']


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[test]]\nname = "t"\nstart = "noon"\nexpect = [{ firing = [] }]', "is not a time with a zone"),
        (
            '[[test]]\nname = "t"\nstart = "2026-08-19T12:00:00"\nexpect = [{ firing = [] }]',
            "is not a time with a zone",
        ),
        ('[[test]]\nname = "t"\nexpect = []', "is at least 1 long"),
        ('[[test]]\nname = "t"\ntimezone = "Mars"\nexpect = [{ firing = [] }]', "is not a time zone known here"),
        (
            '[[test]]\nname = "t"\nmetric = [{ name = "a", values = "1y" }]\nexpect = [{ firing = [] }]',
            "is no part of a series",
        ),
        (
            '[[test]]\nname = "t"\nsample = [{ name = "a", values = "" }]\nexpect = [{ firing = [] }]',
            "there is no value",
        ),
        ('[[test]]\nname = "t"\ndisk = [{ values = "nan" }]\nexpect = [{ firing = [] }]', "nan is no amount"),
        ('[[test]]\nname = "t"\ndisk = [{ values = "0.5 1e400" }]\nexpect = [{ firing = [] }]', "inf is no amount"),
        (
            '[[test]]\nname = "t"\nmemory = [{ role = "trainer", values = "1-2x2" }]\nexpect = [{ firing = [] }]',
            "-1 is no amount",
        ),
        ('[[test]]\nname = "t"\nexpect = [{}]', "it expects nothing: give firing, quiet"),
        (
            '[[test]]\nname = "t"\nconfig = { max_steps = 9999999999 }\nexpect = [{ quiet = ["stall"] }]',
            "9999999999 is not",
        ),
        ('[[example]]\nrule = "stall"\nfires = ["x"]', "give files, origins or env"),
        ('[[example]]\nrule = "stall"\nfiles = ["trainer.log"]', "give fires or quiet"),
        (
            '[[test]]\nname = "t"\nexpect = [{ firing = [] }]\n[[test]]\nname = "t"\nexpect = [{ firing = [] }]',
            "duplicate name",
        ),
    ],
)
def test_what_is_no_test(tmp_path: Path, text: str, message: str) -> None:
    """A file that says what cannot be is refused as a whole."""
    assert any(message in fault for fault in faults(tmp_path, text))


def test_examples_are_tried_one_by_one(run: Run) -> None:
    """Each text in each of its places is a test of its own, at the line where it stands."""
    results = run(
        '[[example]]\nrule = "cuda-out-of-memory"\nfiles = ["trainer.log", "inference.log"]\n'
        'fires = [\n  "CUDA out of memory",\n  "all is well",\n]\nquiet = ["to avoid CUDA out of memory"]\n'
    )
    assert [(one.line, one.passed) for one in results] == [
        (5, True), (5, True), (6, False), (6, False), (8, True), (8, True),
    ]  # fmt: skip
    assert results[2].name == "cuda-out-of-memory, trainer.log: all is well"


def test_rules_of_the_file_and_of_others(tmp_path: Path) -> None:
    """A file of tests has rules of its own and names further ones, in place of those that ship or beside them."""
    rule = '[[rule]]\nname = "{}"\nfailure_mode = "own"\nsummary = "s"\nescalate = [{{ severity = "info", immediately = true }}]\non = {{ log = {{ pattern = "{}" }} }}\n'  # noqa: E501
    (tmp_path / "others.toml").write_text(rule.format("other", "^one"))
    expected = 'expect = [{ firing = [{ rule = "other" }, { rule = "cuda-out-of-memory", severity = "info" }] }]'
    loaded = load_text(
        tmp_path,
        'rule_files = ["others.toml"]\ndisable = ["stall"]\n'
        + rule.format("cuda-out-of-memory", "^two")
        + '[[test]]\nname = "t"\n'
        + 'log = [{ file = "trainer.log", text = "one" }, { file = "trainer.log", text = "two" }]\n'
        + expected,
    )
    (case,) = cases(loaded)
    assert judge_case(loaded, case).differences == []
    assert "stall" not in loaded.book.rules


def test_a_disabled_rule_that_there_is_not(tmp_path: Path) -> None:
    """A misspelt name is an error with its place, as everywhere."""
    with pytest.raises(BadFile, match=r':2: \$\.disable\[1\]: no rule is named "stal"; did you mean "stall"\?'):
        load_text(tmp_path, 'disable = ["nan-loss",\n  "stal"]\n[[test]]\nname = "t"\nexpect = [{ firing = [] }]\n')


def test_an_attempt_that_begins_anew(run: Run) -> None:
    """After a further launch, logs are that launch's, and what fired is resolved."""
    (result,) = run("""
[[test]]
name = "two launches"
attempt = [{ at = "10m", number = 2 }]
log = [
  { at = "5m", file = "trainer.log", text = "CUDA out of memory" },
  { at = "15m", file = "trainer.log", text = "an illegal memory access was encountered" },
]
expect = [
  { at = "9m", firing = [{ rule = "cuda-out-of-memory" }] },
  { at = "11m", firing = [], phase = "starting" },
  { firing = [{ rule = "illegal-memory-access" }] },
]
""")
    assert result.differences == []


def test_a_recorded_run(tmp_path: Path) -> None:
    """A run directory with its recording is tested like an invented run; times count from its first event."""
    loaded = load_text(
        tmp_path,
        f'[[test]]\nname = "the example"\nrun = "{EXAMPLE / "run"}"\nrecording = "{EXAMPLE / "recording.jsonl"}"\n'
        'expect = [{ at = "1m", firing = [] }, { incident = { failure_mode = "cuda-oom", component = "trainer" } }]\n',
    )
    (case,) = cases(loaded)
    assert judge_case(loaded, case).differences == []


def test_a_run_that_is_not_there(run: Run) -> None:
    """A missing run directory fails the test and says so; it does not end the others."""
    (result,) = run('[[test]]\nname = "t"\nrun = "nowhere"\nexpect = [{ firing = [] }]')
    assert "nowhere" in result.differences[0]


def test_times_beyond_the_calendar(run: Run) -> None:
    """A test that goes on for longer than dates do fails; it does not end the others."""
    log = '{ file = "trainer.log", text = "x", repeat = 100000, every = "3000d" }'
    (result,) = run(f'[[test]]\nname = "t"\nlog = [{log}]\nexpect = [{{ firing = [] }}]')
    assert result.differences == ["date value out of range"]


def test_ticks_change_nothing(run: Run) -> None:
    """More ticks between the events lead to the same."""
    ticks = ", ".join(f'{{ at = "{minute}m" }}' for minute in range(1, 6))
    (result,) = run(OOM.replace("expect", f"tick = [{ticks}]\nexpect") + RIGHT + "]")
    assert result.passed


@pytest.mark.parametrize("path", shipped(), ids=lambda path: path.stem)
def test_the_rules_that_ship(path: Path) -> None:
    """Every test that ships passes."""
    loaded = load_tests(path)
    failed = [result for case in cases(loaded) if not (result := judge_case(loaded, case)).passed]
    assert failed == []


def test_every_rule_that_ships_has_a_test(builtin_names: set[str]) -> None:
    """Each built-in rule is expected to fire in a test that ships."""
    assert builtin_names - rules_tested(load_tests(path).file for path in shipped()).keys() == set()


@pytest.fixture
def builtin_names() -> set[str]:
    """Give the names of the rules that ship."""
    return set(load_tests(shipped()[0]).book.rules)


def test_a_phase_that_nothing_leads_to() -> None:
    """A test that cannot begin where it says fails with what to do."""
    with pytest.raises(Unreachable, match='phase = "starting"'):
        events_of(RuleTest(name="t", expect=[Expectation(firing=[])]), Rulebook([]), None)
