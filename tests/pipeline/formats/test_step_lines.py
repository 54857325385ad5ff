"""Step lines of the console."""

from __future__ import annotations

from math import inf, isnan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.formats.step_lines import StepLine, dropped, parse

TRAINER = (
    "Step 17 |   48.2s | Loss 0.0031 | Entropy 0.4120 | Mismatch KL 0.0007 | Grad. Norm 0.2150 | LR 1.00e-06"
    " | Throughput 18234 tokens/s | MFU 33.4% | Peak Mem. 61.2 GiB"
)
ORCHESTRATOR = (
    "Step 18 |   51.7s | Reward 0.4375 | Trainable 112/128 (87.5%) | Turns 3.4 | Branches 1.0 | Max Off-Policy 2"
    " | Error 1.6% | Cancelled 0.0% | Truncation 4.7%"
)
REWARD = "train/agg/effective/agent/reward/mean"


def values(text: str) -> dict[str, float]:
    line = parse(text)
    assert line is not None
    return line.values


def test_a_trainer_line_has_the_keys_of_the_metrics_file() -> None:
    """The trainer's cells become metric keys, in their units."""
    assert parse(TRAINER) == StepLine(
        writer="trainer",
        step=17,
        values={
            "time/step": 48.2,
            "loss/mean": 0.0031,
            "entropy/all/mean": 0.4120,
            "mismatch_kl/all/mean": 0.0007,
            "optim/grad_norm": 0.2150,
            "perf/throughput": 18234.0,
        },
    )


def test_an_orchestrator_line_gives_shares_as_fractions() -> None:
    """Percentages of the orchestrator become fractions, and what follows the first line is not read."""
    line = parse(ORCHESTRATOR + "\n\t\t ╰─ math | Ratio 50.0% | Reward 0.9 | Error 90.0%")
    assert line is not None
    assert (line.writer, line.step) == ("orchestrator", 18)
    assert line.values == pytest.approx(
        {
            "time/step": 51.7,
            REWARD: 0.4375,
            "train/agg/all/agent/has_error/mean": 0.016,
            "train/agg/effective/agent/is_truncated/mean": 0.047,
        }
    )


def test_an_evaluation_belongs_to_its_env() -> None:
    """An evaluation's figures stand under its env, and its duration is no step time."""
    line = parse("Evaluated owner/aime@1 (Step 20) | Policy v20 |  3m 2s | Reward 0.5313 | Turns 1.0 | Error 0.0%")
    assert line == StepLine(
        writer="evaluator",
        step=20,
        values={
            "eval/owner/aime@1/effective/agent/reward/mean": 0.5313,
            "eval/owner/aime@1/all/agent/has_error/mean": 0.0,
        },
        env="owner/aime@1",
    )


def test_the_colon_style_of_old_releases_is_read() -> None:
    """Lines of v0.5 and before give the same keys."""
    assert values("Step 17 | Time: 48.20s | Loss: 0.0031 | Grad. Norm: 2.5e-1") == {
        "time/step": 48.2,
        "loss/mean": 0.0031,
        "optim/grad_norm": 0.25,
    }
    assert values("Step 3 | Time: 48.20s | Reward: 0.41 | Seq. Length: 10 tokens/sample")[REWARD] == 0.41


def test_what_is_no_number_stays_so() -> None:
    """Not-a-number and infinities of the console are values."""
    found = values("Step 3 |  9.5s | Loss nan | Entropy NaN | Mismatch KL -inf | Grad. Norm inf")
    assert isnan(found["loss/mean"])
    assert isnan(found["entropy/all/mean"])
    assert (found["mismatch_kl/all/mean"], found["optim/grad_norm"]) == (-inf, inf)


@pytest.mark.parametrize(
    ("shown", "seconds"),
    [("640ms", 0.64), ("12.3s", 12.3), ("1m 5s", 65), ("1h 2m", 3720), ("1d 1h", 90_000), (" 9.5s", 9.5)],
)
def test_durations_become_seconds(shown: str, seconds: float) -> None:
    """Every form in which a duration is printed is understood."""
    assert values(f"Step 1 | {shown} | Loss 1.0")["time/step"] == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    ["", "Step", "Step 3 produced 0 training samples", "Step 3", "Step x | 1s | Loss 1", "Micro Step 1/2 | Loss 1",
     "Step 3 | 1s | Turns 1.0", "Evaluated nothing", "Steps 1 | Loss 2", "Step 9999999999999 | 1s | Loss 1"],
)  # fmt: skip
def test_other_lines_are_no_step_lines(text: str) -> None:
    """What only looks alike is not read."""
    assert parse(text) is None


@given(st.text(), st.sampled_from(["", "Step 1 | ", "Step 1 | 1s | Loss ", "Evaluated a (Step 1) | ", "Dropping 1 "]))
def test_no_text_makes_the_parsers_fail(text: str, begin: str) -> None:
    """Whatever follows, the parsers return."""
    parse(begin + text)
    dropped(begin + text)


def test_dropped_keys_are_named() -> None:
    """The warning about non-finite values names their keys; another text names none."""
    text = "Dropping 2 non-finite value(s) from metrics.jsonl: loss/mean, optim/grad_norm"
    assert dropped(text) == ["loss/mean", "optim/grad_norm"]
    assert dropped("Dropping the ball") == []
