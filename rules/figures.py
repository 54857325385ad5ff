"""The figures that check-ins show: the last value of each, and whether it has spiked."""

from __future__ import annotations

import math
import re
from collections import Counter
from statistics import median
from typing import TYPE_CHECKING

from rules.facts import clip
from rules.pattern import Pattern
from rules.rows import Figure, Line, Source

if TYPE_CHECKING:
    from pipeline.events import Metrics, Sample
    from rules.rule_file import CheckInLine, Compared
    from rules.rulebook import Rulebook
    from rules.state import State

SECTIONS = ("Progress", "Stability", "Performance")
USUAL = 20
"""Values whose median is what is usual."""
WARM_UP = 5
_METRICS, _ENGINES = 32, 100
"""Values of a line that are kept: its row stays below 16 KiB."""
_NAME_CHARS, _ENGINE_CHARS = 200, 120
_NAMES_KEPT = 20_000
_VALUE_CHARS = 24


class Figures:
    """The last values of what a rulebook's check-in lines name."""

    def __init__(self, state: State, book: Rulebook) -> None:
        self._state, self._lines, self._clauses = state, book.checkin_lines, book.checkin_clauses
        self._globs = {line.name: [_glob(name) for name in line.metric] for line in self._lines}
        self._without = {line.name: [_glob(name) for name in line.not_] for line in self._lines}
        self._of: dict[tuple[str, str], list[CheckInLine]] = {}

    def begin(self) -> None:
        """Begin an attempt: nothing is known yet."""
        for line in self._lines:
            self._state.drop(_key(line.name))

    def metrics(self, event: Metrics) -> None:
        """Note the values of a step."""
        for name, value in event.values.items():
            for line in self._lines_of(event.writer, name):
                self._value(line, name, value, event)

    def sample(self, event: Sample) -> None:
        """Note a value of a Prometheus page."""
        if not math.isfinite(event.value):
            return
        for line in self._lines:
            if event.name in line.sample:
                labels = ",".join(f"{name}={value}" for name, value in sorted(event.labels.items()))
                engine = f"{event.endpoint}\n{labels}"[:_ENGINE_CHARS]
                self._keep(line, engine, Figure(event.value), _ENGINES)

    def forget_spikes(self) -> None:
        """Note that the spikes so far have been shown."""
        for line in self._lines:
            row = self._state.get(Line, _key(line.name)) if line.spike else None
            if row is not None and any(figure.spike for figure in row.figures.values()):
                for figure in row.figures.values():
                    figure.spike = None
                self._state.put(_key(line.name), row)

    def shown(self, section: str) -> list[str]:
        """Return what is known of a section, in the order of the rulebook. Names in it are the run's."""
        lines = [line for line in self._lines if line.section == section]
        parts = [part for line in lines for part in (self._samples(line) if line.sample else self._values(line))]
        return [*self._clause(section), *parts]

    def _clause(self, section: str) -> list[str]:
        """Return what the figures of a section mean, if they tell."""
        known = {line.name: value for line in self._lines if (value := self._value_of(line)) is not None}
        said = {line.name: _number(line, known[line.name]) for line in self._lines if line.name in known}
        clauses = (one for one in self._clauses if one.section == section)
        fitting = (one for one in clauses if all(_holds(compared, known) for compared in one.when))
        return [one.text.format_map(_Said(said)) for one in fitting][:1]

    def _value_of(self, line: CheckInLine) -> float | None:
        """Return the figure of a line; `None` if it has none, of metrics also if it has several."""
        row = self._state.get(Line, _key(line.name))
        if row is None:
            return None
        if not line.sample:
            values = [figure.value for figure in row.figures.values() if math.isfinite(figure.value)]
            return values[0] if len(values) == 1 else None
        seen = [figure.value for engine, figure in row.figures.items() if self._is_seen(engine.partition("\n")[0])]
        return None if not seen else sum(seen) if line.over == "sum" else max(seen)

    def _lines_of(self, writer: str, name: str) -> list[CheckInLine]:
        key = writer, name
        if key not in self._of:
            if len(self._of) >= _NAMES_KEPT:
                self._of.clear()
            named = [line for line in self._lines if len(name) <= _NAME_CHARS and self._shows(line, name)]
            self._of[key] = [line for line in named if line.writer in (None, writer)]
        return self._of[key]

    def _shows(self, line: CheckInLine, name: str) -> bool:
        return _stars(self._globs[line.name], name) is not None and _stars(self._without[line.name], name) is None

    def _value(self, line: CheckInLine, name: str, value: float, event: Metrics) -> None:
        row = self._state.get(Line, _key(line.name))
        known = row.figures.get(name) if row else None
        if known is not None and known.step is not None and event.console and event.step <= known.step:
            return  # rounded; the exact value is there already
        figure = Figure(value, event.step)
        if line.spike is not None and known is not None:
            figure.recent, figure.spike = known.recent, known.spike
            if known.step != event.step and math.isfinite(known.value):
                figure.recent = [*known.recent, known.value][-USUAL:]
        times = _times(figure)
        if line.spike is not None and times > max(line.spike, figure.spike[2] if figure.spike else 0.0):
            figure.spike = event.step, value, times
        self._keep(line, name, figure, _METRICS)

    def _keep(self, line: CheckInLine, name: str, figure: Figure, most: int) -> None:
        row = self._state.get(Line, _key(line.name)) or Line()
        if name not in row.figures and len(row.figures) >= most:
            self._state.leave_out("figures")
            return
        row.figures[name] = figure
        self._state.put(_key(line.name), row)

    def _samples(self, line: CheckInLine) -> list[str]:
        if self._state.get(Line, _key(line.name)) is None:
            return _not_yet(line)
        value = self._value_of(line)
        return [f"{line.label} not seen" if value is None else f"{line.label} {_number(line, value)}"]

    def _is_seen(self, endpoint: str) -> bool:
        source = self._state.get(Source, f"source|{clip(f'metrics:{endpoint}')}")
        return source is None or source.state == "seeing"

    def _values(self, line: CheckInLine) -> list[str]:
        row = self._state.get(Line, _key(line.name))
        if row is None:
            return _not_yet(line)
        shown = sorted(row.figures.items())
        labels = self._labels(line, [name for name, _ in shown])
        parts = [f"{label} {self._said(line, figure)}" for label, (_, figure) in zip(labels, shown, strict=True)]
        more = len(parts) - line.most
        return parts[: line.most] + ([f"{more} more"] if more > 0 else [])

    def _labels(self, line: CheckInLine, names: list[str]) -> list[str]:
        """Return a label for each name; where two would be the same, with all that sets them apart."""
        stars = [_stars(self._globs[line.name], name) or [] for name in names]
        labels = [_filled(line.label, found) for found in stars]
        again = Counter(labels)
        return [
            f"{label} ({_unnamed(line.label, found)})" if again[label] > 1 else label
            for label, found in zip(labels, stars, strict=True)
        ]

    def _said(self, line: CheckInLine, figure: Figure) -> str:
        notes = []
        if figure.spike is not None:
            step, value, times = figure.spike
            where = "" if step == figure.step else f" at step {step}: {_number(line, value)},"
            notes.append(f"spike{where or ':'} {times:.1f}x median")
        if line.share_of is not None and (share := self._share(line.share_of, figure)) is not None:
            notes.append(f"{share:.0%}")
        if line.step and figure.step is not None:
            notes.append(f"step {figure.step}")
        return _number(line, figure.value) + (f" ({', '.join(notes)})" if notes else "")

    def _share(self, of: str, figure: Figure) -> float | None:
        row = self._state.get(Line, _key(of))
        whole = next((figure.value for figure in row.figures.values()), 0.0) if row else 0.0
        return _divided(figure.value, whole)


class _Said(dict[str, str]):
    """Figures in words; what is not known is shown as a question mark."""

    def __missing__(self, key: str) -> str:
        return "?"


def _holds(compared: Compared, known: dict[str, float]) -> bool:
    value = known.get(compared.line)
    if value is not None and compared.share_of is not None:
        value = _divided(value, known.get(compared.share_of, 0.0))
    return compared.has(value)


def _divided(value: float, whole: float) -> float | None:
    share = value / whole if whole > 0 else math.nan
    return share if math.isfinite(share) else None


def _key(line: str) -> str:
    return f"line|{line}"


def _glob(name: str) -> Pattern:
    """Return the pattern of a name in which each star, a group of its own, stands for anything."""
    parts = [re.escape(part) for part in name.split("*")]
    groups = [f"(?P<star{number}>.+?)" for number in range(1, len(parts))]
    return Pattern(r"(?s)\A" + "".join(a + b for a, b in zip(parts, [*groups, ""], strict=True)) + r"\z")


def _stars(globs: list[Pattern], name: str) -> list[str] | None:
    """Return what the stars of the first fitting glob stand for; `None` if none fits."""
    found = next((found for glob in globs if (found := glob.search(name)) is not None), None)
    return None if found is None else list(found.values())


def _filled(label: str, stars: list[str]) -> str:
    for number, star in enumerate(stars, start=1):
        label = label.replace(f"{{{number}}}", star)
    return label


def _unnamed(label: str, stars: list[str]) -> str:
    return "/".join(star for number, star in enumerate(stars, start=1) if f"{{{number}}}" not in label)


def _not_yet(line: CheckInLine) -> list[str]:
    label = " ".join(re.sub(r"\{\d\}", "", line.label).split())
    return [] if line.optional else [f"{label} not yet"]


def _times(figure: Figure) -> float:
    """Return how many times the usual value it is; 0 where nothing is usual yet."""
    if len(figure.recent) < WARM_UP or not math.isfinite(figure.value):
        return 0.0
    usual = median(figure.recent)
    return figure.value / usual if usual > 0 else 0.0


def _number(line: CheckInLine, value: float) -> str:
    shown = line.format.format(value)
    return shown if len(shown) <= _VALUE_CHARS else f"{value:.3g}"
