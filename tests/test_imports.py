"""Holds what keeps the code easy to find one's way in: imports go one way, modules and functions stay small."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULE_LINES = 300
FUNCTION_LINES = 40
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

FACTS = {"pipeline.events", "pipeline.times"}
DECISIONS = FACTS | {"pipeline.alerts"}
FORMATS = DECISIONS | {"pipeline.formats", "pipeline.recording", "pipeline.run_directory"}
PARTS = FORMATS | {"pipeline.own_thread", "pipeline.sources", "rules", "sinks"}
STORAGE = {"pipeline.journal", "pipeline.journal_file", "pipeline.retention"}
SERVICE = PARTS | STORAGE | {"pipeline.config", "pipeline.delivery", "pipeline.state_directory"}

RULE_TESTS = {"pipeline.config", "pipeline.rule_tests"}

COMMANDS = {
    "pipeline.check",
    "pipeline.choice",
    "pipeline.cli_demo",
    "pipeline.cli_read",
    "pipeline.cli_run",
    "pipeline.cli_test",
    "pipeline.judge",
    "pipeline.printing",
    "pipeline.reading",
    "pipeline.log",
    "pipeline.timeline",
}

# Each package or module of ours, and what of ours it may import; of itself, anything.
MAY_IMPORT: dict[str, set[str]] = {
    "pipeline.times": set(),
    "pipeline.events": set(),
    "pipeline.alerts": FACTS,
    "pipeline.formats": DECISIONS,
    "pipeline.own_thread": set(),
    "pipeline.recording": FORMATS,
    "pipeline.run_directory": FORMATS | {"pipeline.birth"},
    "pipeline.birth": set(),
    "pipeline.sources": FORMATS | {"pipeline.own_thread"},
    "rules": DECISIONS | {"pipeline.formats"},
    "sinks": DECISIONS | {"pipeline.own_thread"},
    "pipeline.config": PARTS,
    "pipeline.check": PARTS | RULE_TESTS | {"pipeline.lint"},
    "pipeline.cli_test": PARTS | RULE_TESTS | {"pipeline.check", "pipeline.schema"},
    "pipeline.lint": DECISIONS | {"pipeline.lint_tables", "rules"},
    "pipeline.lint_tables": DECISIONS | {"rules"},
    "pipeline.rule_tests": PARTS | {"pipeline.config"},
    "pipeline.schema": PARTS | RULE_TESTS,
    "pipeline.delivery": PARTS | STORAGE,
    "pipeline.journal": PARTS | STORAGE,
    "pipeline.journal_file": DECISIONS,
    "pipeline.retention": DECISIONS | {"pipeline.journal_file"},
    "pipeline.state_directory": DECISIONS,
    "pipeline.judge": PARTS | {"pipeline.config"},
    "pipeline.timeline": DECISIONS | {"pipeline.judge"},
    "pipeline.choice": FORMATS,
    "pipeline.log": set(),
    "pipeline.supervision": PARTS,
    "pipeline.watcher": PARTS | STORAGE,
    "pipeline.app": SERVICE | {"pipeline.supervision", "pipeline.watcher"},
    "pipeline.cli_run": SERVICE | {"pipeline.app", "pipeline.timeline"},
    "pipeline.reading": PARTS | STORAGE | {"pipeline.state_directory"},
    "pipeline.printing": PARTS | {"pipeline.journal_file", "pipeline.reading", "pipeline.timeline"},
    "pipeline.cli_read": SERVICE | {"pipeline.choice", "pipeline.log", "pipeline.printing", "pipeline.reading"},
    "pipeline.cli": SERVICE | COMMANDS,
    "pipeline.simulator": set(),
    # nothing of the engine: the demo watches a service as anybody could
    "pipeline.demo": DECISIONS
    | {"pipeline.journal_file", "pipeline.simulator", "pipeline.state_directory", "pipeline.timeline"},
    "pipeline.cli_demo": {"pipeline.demo", "pipeline.simulator"},
}

ASYNC = {"aiohttp", "anyio", "asyncio", "watchfiles"}
FILES = {"glob", "io", "os", "pathlib", "shutil", "socket", "sqlite3", "subprocess", "tempfile"}
# What would let the clock, the disk or the network into code that must be a pure function of its arguments.
PURE_FORBIDS = ASYNC | FILES | {"psutil", "random", "structlog", "threading", "time", "zmq"}
FORBIDDEN: dict[str, set[str]] = {"rules": PURE_FORBIDS, "pipeline.formats": PURE_FORBIDS}


@dataclass(frozen=True)
class Module:
    """A module of ours, parsed."""

    name: str
    path: Path
    text: str

    @property
    def unit(self) -> str | None:
        """The row of the table that it belongs to; the packages' own docstrings belong to none."""
        rows = [row for row in MAY_IMPORT if self.name == row or self.name.startswith(row + ".")]
        return max(rows, key=len, default=None)

    def tree(self) -> ast.Module:
        """Parse the text."""
        return ast.parse(self.text, self.path)

    def imports(self) -> set[str]:
        """Name everything it imports, wherever the statement stands."""
        names: set[str] = set()
        for node in ast.walk(self.tree()):
            if isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{self.path}:{node.lineno}: relative import; write the whole name"
                module = node.module or ""
                names.update(f"{module}.{alias.name}" for alias in node.names)
        return names


@cache
def modules() -> list[Module]:
    """Read every module of the three packages."""
    found = []
    for package in ("pipeline", "rules", "sinks"):
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found.append(Module(name, path, path.read_text("utf-8")))
    return found


def within(name: str, unit: str) -> bool:
    """Say whether the dotted *name* is *unit* or lies below it."""
    return name == unit or name.startswith(unit + ".")


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count the lines of a function, decorators and docstring left out."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function, clean=False) is not None:
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines


def each_module() -> pytest.MarkDecorator:
    """Run a test once for every module."""
    return pytest.mark.parametrize("module", modules(), ids=lambda module: module.name)


@each_module()
def test_every_module_has_a_row(module: Module) -> None:
    """A module that the table does not know fails until somebody has decided what it may import."""
    if module.name == "pipeline":
        assert not [name for name in module.imports() if name != "__future__.annotations"]
        return
    assert module.unit, f'add a row to MAY_IMPORT in {Path(__file__).name}: "{module.name}": what of ours it may import'


@each_module()
def test_imports_go_one_way(module: Module) -> None:
    """A module imports of ours only what its row names."""
    if module.unit is None:
        return
    allowed = MAY_IMPORT[module.unit] | {module.unit}
    ours = {name for name in module.imports() if name.split(".")[0] in {"pipeline", "rules", "sinks"}}
    wrong = {name for name in ours if not any(within(name, unit) for unit in allowed)}
    assert not wrong, f"{module.name} may import only {sorted(allowed)}"


@each_module()
def test_pure_code_stays_pure(module: Module) -> None:
    """Rules and formats import nothing that reads a clock, a disk or a network."""
    forbidden = FORBIDDEN.get(module.unit or "", set())
    assert not {name for name in module.imports() if name.split(".")[0] in forbidden}


@each_module()
def test_modules_and_functions_are_small(module: Module) -> None:
    """A module fits in a head, a function on a screen."""
    lines = len(module.text.splitlines())
    assert lines <= MODULE_LINES
    functions = [node for node in ast.walk(module.tree()) if isinstance(node, FUNCTIONS)]
    long = {f"{module.path}:{node.lineno} {node.name}": body_lines(node) for node in functions}
    assert not {where: lines for where, lines in long.items() if lines > FUNCTION_LINES}


@pytest.mark.parametrize(
    "path", sorted((ROOT / "tests").rglob("test_*.py")), ids=lambda path: str(path.relative_to(ROOT))
)
def test_every_test_states_a_behaviour(path: Path) -> None:
    """Each test says in a sentence what it holds."""
    functions = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, FUNCTIONS)]
    tests = [node for node in functions if node.name.startswith("test_")]
    assert not [node.name for node in tests if not (ast.get_docstring(node) or "").endswith(".")]


def test_every_package_is_a_package() -> None:
    """Each folder with modules has an `__init__.py`: without it, a user's folder of that name would join ours."""
    folders = {module.path.parent for module in modules()}
    assert not [folder for folder in folders if not (folder / "__init__.py").is_file()]
