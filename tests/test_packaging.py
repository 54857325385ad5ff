"""What is shipped: three packages, one command, and a lock file that works on any machine."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = {"pipeline", "rules", "sinks"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel as an installer would."""
    pytest.importorskip("hatchling", reason="hatchling is a development dependency")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    (built,) = folder.glob("*.whl")
    return built


def project() -> dict[str, Any]:
    """Read pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def test_wheel_holds_the_three_packages(wheel: Path) -> None:
    """Nothing but the three packages lands in a user's site-packages: no tests, no example."""
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == PACKAGES


def test_wheel_holds_every_file_of_the_packages(wheel: Path) -> None:
    """Data such as the built-in rules is shipped with the code that reads it."""
    with zipfile.ZipFile(wheel) as archive:
        shipped = set(archive.namelist())
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.suffix in {".py", ".toml"}]
    assert not {path.relative_to(ROOT).as_posix() for path in files} - shipped


def test_command_starts_what_it_says() -> None:
    """The console script names a function that exists."""
    scripts = project()["project"]["scripts"]
    assert list(scripts) == ["runwatch"]
    module, function = scripts["runwatch"].split(":")
    assert callable(getattr(importlib.import_module(module), function))


def test_lock_knows_no_machine() -> None:
    """Every package of the lock file comes from the public index, none from a path of the machine that wrote it."""
    lock = (ROOT / "uv.lock").read_text("utf-8")
    sources = {value for package in tomllib.loads(lock)["package"] for value in package["source"].values()}
    assert sources == {"https://pypi.org/simple", "."}
    assert {urlsplit(url).hostname for url in re.findall(r'url = "([^"]+)"', lock)} == {"files.pythonhosted.org"}


def test_lock_holds_every_dependency() -> None:
    """The lock file was written after the last change of the dependencies."""
    lock = tomllib.loads((ROOT / "uv.lock").read_text("utf-8"))
    (ours,) = [package for package in lock["package"] if package["name"] == "runwatch"]
    wanted = {re.split(r"[<>=]", line)[0] for line in project()["project"]["dependencies"]}
    assert {dependency["name"] for dependency in ours["dependencies"]} == wanted
    development = {re.split(r"[<>=]", line)[0] for line in project()["dependency-groups"]["dev"]}
    assert {dependency["name"] for dependency in ours["dev-dependencies"]["dev"]} == development


def test_lock_satisfies_the_oldest_python() -> None:
    """The lock file and the project agree on the oldest Python."""
    lock = tomllib.loads((ROOT / "uv.lock").read_text("utf-8"))
    assert lock["requires-python"] == project()["project"]["requires-python"]
