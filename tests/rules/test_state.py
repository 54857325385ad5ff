"""The rows of the engine: found by kind, counted when there is no room, the same when they are read back."""

from __future__ import annotations

import pytest

from rules import state
from rules.rows import Moved, Process
from rules.state import State


def process(*, running: bool = True) -> Process:
    """Return a row."""
    return Process(role="trainer", running=running)


def reread(kept: State) -> State:
    """Return what the rows of a new state are when they have been written and read back."""
    return State({key: row for key, row in kept.changes().items() if row is not None})


def test_rows_of_a_kind_come_in_the_order_of_their_keys() -> None:
    """Others are passed over, dropped ones are gone, and a restart finds the same."""
    kept = State()
    for key in ("process|b", "process|a", "process|c"):
        kept.put(key, process())
    kept.put("clock|x", Moved())
    kept.drop("process|b")
    kept.put("process|c", process(running=False))
    found = [("process|a", process()), ("process|c", process(running=False))]
    assert kept.every(Process) == found
    assert reread(kept).every(Process) == found


def test_what_there_is_no_room_for_is_counted_and_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The count is a row like any other, for which there always is room."""
    monkeypatch.setattr(state, "KEYS", 10)
    kept = State()
    for number in range(20):
        kept.put(f"clock|{number}", Moved())
    assert not kept.has_room("cell|x")
    assert len(kept.rows) == 10
    assert reread(kept).dropped == {"keys": 11, "subjects": 1}
