"""What no rule knows: kept by template, bounded, folded, and told of once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.alerts import CheckIn
from pipeline.events import Asked
from rules.unknown import EXAMPLE_BYTES, MOST

LOGS = "logs/attempt_1"
START = datetime(2026, 8, 19, 12, tzinfo=UTC)
RULES = r"""
[[rule]]
name = "boom"
failure_mode = "cuda-error"
summary = "boom"
on = { log = { pattern = "^boom", component = ["trainer"] } }
escalate = [{ severity = "warning", immediately = true }]

[[milestone]]
name = "end"
pattern = "^Error: the end"

[[milestone]]
name = "died"
pattern = "^dying"

[[phase]]
name = "failed"
from = ["starting", "running"]
when = [["died"]]

[[known]]
why = "a test says so"
pattern = "^never mind"
"""


def at(seconds: float) -> datetime:
    """Return the time so many seconds after the start."""
    return START + timedelta(seconds=seconds)


def found(run: Any) -> list[tuple[int, str, str]]:
    """Return count, component and example of what no rule knows."""
    return [(one.count, one.component, one.example) for one in run.engine.unknown()]


def notes(run: Any, at_s: float) -> list[str]:
    """Ask for a check-in; return what it says of records that match no rule."""
    said = run.apply(Asked(time=at(at_s), what="checkin"))
    texts = [one.text for one in said if isinstance(one, CheckIn)]
    return [line for text in texts for line in text.splitlines() if "no rule" in line]


@pytest.fixture
def small(watch: Callable[..., Any]) -> Any:
    """Watch a run with a rule, a milestone and a harmless line."""
    return watch(RULES)


def test_what_differs_in_numbers_is_one_template(small: Any) -> None:
    """Numbers and ids are folded; the first record stands for all, with when it came first and last."""
    small.log(1, "worker 3 lost 0badc0ffee", level="WARNING")
    small.log(5, "worker 4 lost deadbeef01", level="WARNING")
    assert found(small) == [(2, "trainer", "worker 3 lost 0badc0ffee")]
    [one] = small.engine.unknown()
    assert (one.first, one.last, one.level, one.source) == (at(1), at(5), "WARNING", "trainer.log")


@pytest.mark.parametrize(
    ("level", "text", "counts"),
    [
        ("WARNING", "odd", True),
        ("ERROR", "odd", True),
        ("CRITICAL", "odd", True),
        ("INFO", "an error has occurred", False),
        ("SUCCESS", "failed", False),
        (None, "ValueError: odd", True),
        (None, "thread 7 panicked at x", True),
        (None, "all is well", False),
        (None, "0 failures-free", True),
        (None, "terrorists", False),
    ],
)
def test_the_level_tells_and_without_one_the_words(small: Any, level: Any, text: str, counts: bool) -> None:
    """A warning or worse counts; of a record without a level, what it says does."""
    small.log(1, text, level=level)
    assert bool(small.engine.unknown()) is counts


def test_what_is_known_is_not_unknown(small: Any) -> None:
    """A record that a rule, a milestone or a harmless line matches is not shown, unless it is another component's."""
    small.log(1, "boom", level="ERROR")
    small.log(2, "Error: the end", level="ERROR")
    small.log(3, "never mind that error", level="ERROR")
    assert found(small) == []
    small.log(4, "boom", "inference.log", level="ERROR")
    assert found(small) == [(1, "inference", "boom")]


def test_a_rule_out_of_its_phase_knows_its_lines_all_the_same(watch: Callable[..., Any]) -> None:
    """What a rule would look for in another phase is not unknown."""
    run = watch(RULES.replace('summary = "boom"', 'summary = "boom"\nduring = ["finishing"]'))
    run.log(1, "boom", level="ERROR")
    assert (run.alerts, found(run)) == ([], [])


def test_ranks_and_copies_are_one(small: Any) -> None:
    """Eight ranks that say the same within a second, and a terminal that repeats a log, count once."""
    for rank in range(8):
        small.log(1 + rank / 10, "odd thing", level="ERROR", rank=rank)
    small.log(5, "odd too", "orchestrator.log", level="WARNING")
    small.log(5, "odd too", "job.log", level="WARNING")
    assert found(small) == [(1, "orchestrator", "odd too"), (1, "trainer", "odd thing")]


def test_teardown_is_not_counted(small: Any) -> None:
    """What is said once the run has failed tells of its end only."""
    small.log(1, "odd", level="ERROR")
    small.log(2, "dying")
    small.log(3, "odd", level="ERROR")
    small.log(4, "odder", level="ERROR")
    assert found(small) == [(1, "trainer", "odd")]


def test_there_is_room_for_so_many(small: Any) -> None:
    """Beyond the room there is, records are counted together; what is there still counts for itself."""
    for number in range(MOST + 5):
        small.log(number * 2, f"odd {'x' * number}", level="ERROR")
    small.log(900, "odd ", level="ERROR")
    kinds = small.engine.unknown()
    assert len(kinds) == MOST + 1
    assert (kinds[0].count, kinds[0].example) == (2, "odd ")
    assert (kinds[-1].count, kinds[-1].is_rest) == (5, True)
    assert sum(map(len, (row for key, row in small.rows.items() if key.startswith("unknown|")))) < 32 * 1024


def test_an_earlier_attempt_is_remembered(small: Any) -> None:
    """A new attempt counts anew, and says what has been seen before."""
    small.attempt(0, 1)
    small.log(1, "old one", level="ERROR")
    small.attempt(10, 2)
    assert found(small) == []
    small.log(11, "old one", level="ERROR", attempt=2)
    small.log(12, "new one", level="ERROR", attempt=2)
    assert [(one.example, one.is_new, one.count) for one in small.engine.unknown()] == [
        ("new one", True, 1),
        ("old one", False, 1),
    ]


def test_what_is_remembered_is_bounded(small: Any) -> None:
    """However many attempts bring however much, the rows stay few."""
    for attempt in range(1, 6):
        small.attempt(attempt * 1000, attempt)
        for number in range(MOST):
            small.log(attempt * 1000 + number, f"odd {'x' * attempt} {'y' * number}", level="ERROR", attempt=attempt)
    assert sum(key.startswith("unknown|") for key in small.rows) <= 2 * MOST
    assert len(small.engine.unknown()) == MOST


def test_a_check_in_tells_of_three_and_only_of_what_is_new(small: Any) -> None:
    """An entry names the most frequent since the last entry; what it has told of it does not repeat."""
    for number, words in enumerate(["odd", "odd", "odd", "rare", "rare", "seldom", "once"]):
        small.log(10 * number, words, level="ERROR")
    [note] = notes(small, 100)
    assert note.startswith("- 7 records match no rule: 3x in trainer `odd`; 2x in trainer `rare`; 1x in trainer `once`")
    assert note.endswith("and 1 more kinds")
    assert notes(small, 110) == []
    small.log(120, "once", level="ERROR")
    assert notes(small, 130) == ["- 1 record matches no rule: 1x in trainer `once`"]


def test_a_restart_changes_nothing(small: Any) -> None:
    """The rows hold all of it."""
    for number in range(MOST + 5):
        small.log(number * 2, f"odd {'x' * number}", level="ERROR")
    before = small.engine.unknown()
    small.restart()
    assert small.engine.unknown() == before
    small.log(900, f"odd {'x' * 99}", level="ERROR")
    assert small.engine.unknown()[-1].count == 6


@given(st.lists(st.tuples(st.integers(0, 3), st.text(max_size=400)), max_size=40))
def test_hostile_text_is_kept_small_and_counted_right(watch: Callable[..., Any], lines: list[tuple[int, str]]) -> None:
    """Whatever a log says, what is kept of it is cut and the counts add up."""
    run = watch()
    for number, (source, text) in enumerate(lines):
        run.log(2 * number, text, f"trainer.{source}.log", level="ERROR")
    kinds = run.engine.unknown()
    assert sum(one.count for one in kinds) == len(lines)
    assert all(len(one.example.encode()) <= EXAMPLE_BYTES for one in kinds)
    run.restart()
    assert run.engine.unknown() == kinds


HARMLESS = [
    ("trainer.log", "Model uses tied word embeddings, so skipping the last-layer no-reshard optimization."),
    ("orchestrator.log", "Inference server was not reached after 10 seconds (Error: x) on http://localhost:8000"),
    ("orchestrator.log", "Trace failed in group 0000000a-5e1f (swe) — HarnessError: agent exited with code 1"),
    ("envs/train/swe.log", "model call failed: id=b91e680e3b22cbbd ProviderError: Request timed out."),
    ("inference.log", "Using default MoE config. Performance might be sub-optimal! Config file not found."),
]


@pytest.mark.parametrize(("file", "text"), HARMLESS)
def test_lines_known_to_be_harmless_ship(run: Any, file: str, text: str) -> None:
    """Warnings that every run prints are not shown as unknown."""
    run.log(1, text, f"{LOGS}/{file}", level="WARNING")
    assert found(run) == []


@pytest.mark.parametrize(
    ("keys", "counts"),
    [
        ("masked_mismatch_kl/mean, masked_mismatch_kl/max", False),
        ("loss/mean, loss/max", True),
        ("masked_mismatch_kl/mean, optim/grad_norm", True),
    ],
)
def test_what_is_not_a_number_counts_where_it_matters(run: Any, keys: str, counts: bool) -> None:
    """A figure of nothing is harmless; one key that matters among them is enough."""
    run.log(1, f"Dropping 2 non-finite value(s) from metrics.jsonl: {keys}", f"{LOGS}/trainer.log", level="WARNING")
    assert bool(found(run)) is counts
