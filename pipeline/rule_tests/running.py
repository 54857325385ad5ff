"""Rule tests, run with the engine that watches: what is expected against what is decided."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import cache
from pathlib import Path as FilePath
from typing import TYPE_CHECKING

import msgspec

import rules
from pipeline import recording
from pipeline.config import Config, find_zone, load_rules, read_text, unknown_disabled
from pipeline.events import Event, Tick
from pipeline.rule_tests.events import Unreachable, events_of, path_of
from pipeline.rule_tests.examples import tried
from pipeline.rule_tests.file import Expectation, RuleTest, RuleTestFile
from pipeline.rule_tests.verdicts import Standing, differences
from pipeline.run_directory import NotARunDirectory, RunDirectory
from pipeline.sources.replay import replay
from rules.engine import Engine
from rules.load import BadFile, decode
from rules.pattern import printable, quoted
from rules.rule_file import RuleFile
from rules.rulebook import Rulebook
from rules.toml_lines import Lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rules.toml_lines import Path

SHIPPED = FilePath(rules.__file__).parent / "tests"
_NO_EVENTS = "nothing happens in it: it holds no events"


class Loaded(msgspec.Struct, frozen=True):
    """A file of tests, with the rules that they are about."""

    path: FilePath
    text: str
    file: RuleTestFile
    book: Rulebook


class Case(msgspec.Struct, frozen=True):
    """One test of a file, and where it stands there."""

    test: RuleTest
    line: int


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a test: every difference is one line, and there are none if it passed."""

    file: str
    line: int
    name: str
    differences: list[str]

    @property
    def passed(self) -> bool:
        """Whether everything is as expected."""
        return not self.differences


def load_tests(path: FilePath) -> Loaded:
    """
    Return the tests of a file and the rules they are about: those that ship, those it names, its own.

    Raises:
        BadFile: A file cannot be read, something in it is wrong, or a test names what no rule has.

    """
    text = read_text(path)
    file = decode(text, printable(str(path)), RuleTestFile)
    own = RuleFile(**{name: getattr(file, name) for name in RuleFile.__struct_fields__})
    files = [*_others(path, file), own]
    loaded = Loaded(path, text, file, Rulebook(files, file.disable))
    if messages := unknown_disabled(file.disable, files, text, printable(str(path))) or _unknown_names(loaded):
        raise BadFile(messages)
    return loaded


def _others(path: FilePath, file: RuleTestFile) -> list[RuleFile]:
    """Return the rules that a file of tests does not hold itself."""
    if not file.rule_files:
        return _built_in()
    return load_rules(Config(rule_files=[str(path.parent / name) for name in file.rule_files]))


@cache
def _built_in() -> list[RuleFile]:
    """Read the rules that ship, once for many files of tests."""
    return load_rules(Config())


def cases(loaded: Loaded) -> Iterator[Case]:
    """Yield the tests of a file; each text of an example is one in each of its places."""
    lines = Lines(loaded.text)
    for i, test in enumerate(loaded.file.test):
        yield Case(test, lines.of(("test", i)))
    for i, example in enumerate(loaded.file.example):
        for key, texts in (("fires", example.fires), ("quiet", example.quiet)):
            for j, text in enumerate(texts):
                line = lines.of(("example", i, key, j))
                yield from (Case(test, line) for test in tried(example, text, fires=key == "fires"))


def judge_case(loaded: Loaded, case: Case, book: Rulebook | None = None) -> Result:
    """Run a test with the rules of its file, or with those of *book*."""
    test = case.test
    try:
        found = _differences(loaded, test, book or loaded.book)
    except (Unreachable, NotARunDirectory, OSError, OverflowError) as error:
        found = [str(error)]
    return Result(file=str(loaded.path), line=case.line, name=test.name, differences=found)


def _differences(loaded: Loaded, test: RuleTest, book: Rulebook) -> list[str]:
    last = max((e.at for e in test.expect if e.at is not None), default=None)
    if test.run is None:
        events, start = events_of(test, book, last), test.begins().astimezone(UTC)
    else:
        events = _recorded(loaded, test)
        start = events[0].time if events else test.begins()
    if not events:
        return [_NO_EVENTS]
    expected = sorted(test.expect, key=lambda e: float("inf") if e.at is None else e.at)
    standings = _stand(Engine(book), book, events, [_until(e, start) for e in expected])
    return [line for e, standing in zip(expected, standings, strict=True) for line in differences(e, standing, start)]


def _stand(engine: Engine, book: Rulebook, events: Iterable[Event], stops: list[datetime | None]) -> Iterator[Standing]:
    """Yield how the run stands at each of *stops*, which are in order; `None` is when all has happened."""
    rows: dict[str, bytes] = {}
    stream = iter(events)
    ahead = next(stream, None)
    for stop in stops:
        batch: list[Event] = []
        while ahead is not None and (stop is None or ahead.time <= stop):
            batch.append(ahead)
            ahead = next(stream, None)
        if stop is not None:
            batch.append(Tick(time=stop))
        for key, row in engine.apply(batch).changed.items():
            if row is None:
                rows.pop(key, None)
            else:
                rows[key] = row
        yield Standing.of(engine.summary(), book, rows)


def _until(expectation: Expectation, start: datetime) -> datetime | None:
    return None if expectation.at is None else start + timedelta(seconds=expectation.at)


def _recorded(loaded: Loaded, test: RuleTest) -> list[Event]:
    """Return the events of a run directory and its recording."""
    folder = loaded.path.parent
    recorded = recording.read(folder / test.recording) if test.recording else ()
    return list(replay(RunDirectory(folder / (test.run or "")), find_zone(test.timezone), recorded))


def _unknown_names(loaded: Loaded) -> list[str]:
    """Return a message for each rule, failure mode or log that a test names and nothing has."""
    named, lines = list(loaded.book.rules), Lines(loaded.text)
    modes = sorted({rule.failure_mode for rule in loaded.book.rules.values()})
    messages: list[tuple[int, str]] = []
    for path, kind, name in _names(loaded.file):
        if kind == "log":
            known = loaded.book.origin(path_of(name)) is not None
            reason = f"no [[file]] says whose log {quoted(name)} is"
        else:
            names = named if kind == "rule" else modes
            known = name in names
            near = get_close_matches(name, names, n=1)
            reason = f"no rule {'is named' if kind == 'rule' else 'has the failure mode'} {quoted(name)}"
            reason += f'; did you mean "{near[0]}"?' if near else ""
        if not known:
            line = lines.of(path)
            messages.append((line, f"{printable(str(loaded.path))}:{line}: {reason}"))
    return [message for _, message in sorted(messages)]


def _names(file: RuleTestFile) -> Iterator[tuple[Path, str, str]]:
    """Yield what tests name: where, of what kind, and the name."""
    for i, example in enumerate(file.example):
        yield ("example", i, "rule"), "rule", example.rule
        for j, log in enumerate(example.files):
            yield ("example", i, "files", j), "log", log
    for i, test in enumerate(file.test):
        for j, record in enumerate(test.log):
            yield ("test", i, "log", j, "file"), "log", record.file
        for j, expectation in enumerate(test.expect):
            yield from _expected_names(("test", i, "expect", j), expectation)


def _expected_names(path: Path, expectation: Expectation) -> Iterator[tuple[Path, str, str]]:
    for k, alert in enumerate(expectation.firing or ()):
        yield (*path, "firing", k, "rule"), "rule", alert.rule
    for k, name in enumerate(expectation.quiet):
        yield (*path, "quiet", k), "rule", name
    if expectation.incident is not None:
        yield (*path, "incident", "failure_mode"), "mode", expectation.incident.failure_mode
        for k, name in enumerate(expectation.incident.symptoms or ()):
            yield (*path, "incident", "symptoms", k), "mode", name


def shipped() -> list[FilePath]:
    """Return the files of tests that ship with the rules."""
    return sorted(SHIPPED.glob("*.toml"))


def rules_tested(files: Iterable[RuleTestFile]) -> dict[str, list[str]]:
    """Return the rules that tests expect to fire, each with the texts that those tests bring."""
    found: dict[str, list[str]] = {}
    for file in files:
        for example in file.example:
            if example.fires:
                found.setdefault(example.rule, []).extend(example.fires)
        for test in file.test:
            texts = [record.text for record in test.log] + [line.text for line in test.host]
            for name in {alert.rule for expectation in test.expect for alert in expectation.firing or ()}:
                found.setdefault(name, []).extend(texts)
    return found
