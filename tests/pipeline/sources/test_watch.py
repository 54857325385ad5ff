"""Hints that something has changed, from a real kernel."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import anyio
import pytest

from pipeline.sources.base import SourceError
from pipeline.sources.watch import hints

pytestmark = pytest.mark.anyio


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    (path / "logs/attempt_1").mkdir(parents=True)
    return path


class Woken:
    """Counts hints."""

    def __init__(self) -> None:
        self.count = 0
        self._again = anyio.Event()

    def __call__(self) -> None:
        self.count += 1
        self._again.set()
        self._again = anyio.Event()

    async def once_more(self, within_s: float) -> bool:
        """Tell whether there is a hint in time."""
        again = self._again
        with anyio.move_on_after(within_s):
            await again.wait()
        return again.is_set()


async def wakes(run_dir: Path, change: Callable[[], object]) -> bool:
    """Tell whether a change wakes, once the watch has begun."""
    woken = Woken()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hints, run_dir, woken)
        await began(run_dir, woken)
        change()
        has_woken = await woken.once_more(2)
        tasks.cancel_scope.cancel()
    return has_woken


async def began(run_dir: Path, woken: Woken) -> None:
    """Return when changes are told, and those made to find that out are over."""
    with anyio.fail_after(10):
        while not woken.count:
            (run_dir / "probe").write_text("x", "utf-8")
            await woken.once_more(0.1)
    while await woken.once_more(0.4):  # longer than changes are collected
        pass


async def ends(run_dir: Path, change: Callable[[], object]) -> None:
    """Watch until that fails of a change."""
    woken = Woken()

    async def make() -> None:
        await began(run_dir, woken)
        change()

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(make)
            await hints(run_dir, woken)


async def test_a_change_anywhere_wakes(run_dir: Path) -> None:
    """A file that grows in a directory of the run is told at once."""
    assert await wakes(run_dir, partial((run_dir / "logs/attempt_1/trainer.log").write_text, "x", "utf-8"))


async def test_a_new_attempt_wakes(run_dir: Path) -> None:
    """So is the link that moves to a new attempt."""
    assert await wakes(run_dir, partial((run_dir / "logs/latest").symlink_to, "attempt_1"))


async def test_our_own_check_in_does_not_wake(run_dir: Path) -> None:
    """What is written into STATUS.md is no change of the run."""
    assert not await wakes(run_dir, partial((run_dir / "STATUS.md").write_text, "## x\n", "utf-8"))


async def test_a_deleted_directory_is_an_error(run_dir: Path) -> None:
    """When the run directory goes, nothing would ever be told again; it is said instead."""
    with pytest.raises(ExceptionGroup) as error:
        await ends(run_dir, partial(shutil.rmtree, run_dir))
    assert error.group_contains(SourceError)


async def test_a_replaced_directory_is_an_error(run_dir: Path) -> None:
    """A run directory that another one has taken the place of is watched no more."""

    def replace() -> None:
        run_dir.rename(run_dir.with_name("away"))
        run_dir.mkdir()

    with pytest.raises(ExceptionGroup) as error:
        await ends(run_dir, replace)
    assert error.group_contains(SourceError)


async def test_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    """Without a directory there is nothing to watch."""
    with pytest.raises(SourceError, match="missing"):
        await hints(tmp_path / "missing", Woken())


async def test_it_ends_soon_after_a_cancel(run_dir: Path) -> None:
    """Whoever watches must be able to stop."""
    begun = anyio.current_time()
    with anyio.move_on_after(0.5):
        await hints(run_dir, Woken())
    assert anyio.current_time() - begun < 2
