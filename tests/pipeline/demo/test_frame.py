"""The screen keeps its shape, whatever is on it."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from pipeline.alerts import AlertChanged, CheckIn, Decision, HealthChanged, IncidentChanged, Notification
from pipeline.demo.charset import Charset
from pipeline.demo.frame import HEIGHT, WIDTH, frame
from pipeline.demo.show import Show, planned
from pipeline.demo.sight import Line, Said, Sight
from pipeline.demo.stage import Stage
from pipeline.simulator.plan import Fault

NOW = datetime(2026, 8, 19, 14, tzinfo=UTC)
CHECK_IN = "## 2026-08-19 14:00 UTC\n\n**Step**: 128 / 400\n**Health**: Healthy\n\n**Progress**: reward/mean 0.3\n"
HOSTILE = st.text(st.characters(codec="latin-1", exclude_characters="\n"), max_size=300)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(tmp_path_factory.mktemp("stage"))


def seen(stage: Stage, text: str, count: int) -> Sight:
    """Return a sight with an incident and a message that quote *text*."""
    sight = Sight(show=planned(Fault.ENGINE_DEATH, None, None), stage=stage)
    sight.lines.extend(Line(1.0, f"14:00:00    INFO {text}", is_launchers=True) for _ in range(count))
    decisions: list[Decision] = [
        HealthChanged(time=NOW, health="Down", phase="running"),
        CheckIn(time=NOW, id="c", text=CHECK_IN + text),
        _alert(text),
        _incident(["stall"] * count),
        Notification(time=NOW, id="n", incident="1", severity="critical", title=text, body="\n".join([text] * count)),
    ]
    sight.said = [Said(40.0 + number, decision) for number, decision in enumerate(decisions[: count % 6])]
    sight.figures["reward"] = [0.1 * number for number in range(count)]
    return sight


def _alert(text: str) -> AlertChanged:
    return AlertChanged(
        time=NOW,
        rule="engine-died",
        failure_mode="engine-dead",
        component="inference",
        severity="critical",
        state="firing",
        incident="1",
        summary=text,
        evidence=[],
    )


def _incident(symptoms: list[str]) -> IncidentChanged:
    return IncidentChanged(
        time=NOW,
        id="1",
        state="open",
        failure_mode="engine-dead",
        component="inference",
        severity="critical",
        symptoms=symptoms,
        proposes_restart=True,
    )


@settings(max_examples=40)
@given(
    text=HOSTILE,
    count=st.integers(0, 40),
    width=st.integers(WIDTH, 200),
    height=st.integers(HEIGHT, 70),
    uni=st.booleans(),
)
def test_every_line_is_as_wide_as_the_screen(
    stage: Stage, text: str, count: int, width: int, height: int, uni: bool
) -> None:
    """Whatever the run prints, and however large the terminal is, each border is where it belongs."""
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    lines = console.render_lines(frame(seen(stage, text, count), Charset(is_unicode=uni), width, height))
    drawn = ["".join(segment.text for segment in line) for line in lines]
    assert len(drawn) == height
    assert {cell_len(line) for line in drawn} == {width}
    borders = "╭╮╰╯│" if uni else "+|"
    assert all(line[0] in borders and line[-1] in borders for line in drawn[1:])
    assert uni or all(line.isascii() for line in drawn)


@given(text=st.text(), width=st.integers(0, 100), uni=st.booleans())
def test_what_is_cut_is_not_too_long(text: str, width: int, uni: bool) -> None:
    """A text that is cut fits, and has no control characters."""
    cut = Charset(is_unicode=uni).cut(text, width)
    assert len(cut) <= width
    assert not any(char < " " or "\x7f" <= char <= "\x9f" for char in cut)


@given(values=st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=80), width=st.integers(1, 60))
def test_a_plot_has_a_bar_for_each_of_the_last_values(values: list[float], width: int) -> None:
    """The greatest value has the highest bar, the least one the lowest."""
    charset = Charset(is_unicode=True)
    plot, shown = charset.plot(values, width), values[-width:]
    assert len(plot) == len(shown)
    if shown and 0 < max(shown) - min(shown) < inf:
        assert plot[shown.index(max(shown))] == charset.bars[-1]
        assert plot[shown.index(min(shown))] == charset.bars[0]


@pytest.mark.parametrize("fault", Fault)
def test_a_play_of_the_default_length_strikes_within_it(fault: Fault) -> None:
    """Every fault comes early enough to be seen, in less than 90 seconds in all."""
    show: Show = planned(fault, None, None)
    assert show.lasts_s <= 80
    assert fault is Fault.NONE or 10 < show.strikes_s < show.lasts_s - 8


def test_a_speed_alone_leaves_the_run_its_whole_length() -> None:
    """At twice the speed the run takes half the time; with a duration it is cut there."""
    whole, cut = planned(Fault.CUDA_OOM, None, 2.0), planned(Fault.CUDA_OOM, 20.0, 2.0)
    assert whole.lasts_s == pytest.approx(planned(Fault.CUDA_OOM, None, 1.0).lasts_s / 2)
    assert cut.lasts_s == 20
    assert cut.strikes_s > 1e9


def test_the_delay_is_counted_from_the_fault(stage: Stage) -> None:
    """Delays are rounded up and never zero; what came before the fault has none."""
    sight = seen(stage, "", 0)
    strikes_s = sight.show.strikes_s
    delays = [sight.late_s(strikes_s + after_s) for after_s in (-5.0, -0.05, 0.0, 1.23)]
    assert delays == [None, 0.1, 0.1, 1.3]
    calm = Sight(show=planned(Fault.NONE, None, None), stage=stage)
    assert calm.late_s(30.0) is None
