"""Sources that fail are said to, and come back."""

from __future__ import annotations

import anyio
import pytest

from pipeline.events import Event, SourceState, Tick
from pipeline.sources.base import Emit, Source, SourceError, now
from pipeline.supervision import supervise


class Flaky:
    """Fails as often as it is told to, then emits."""

    name = "flaky"

    def __init__(self, *errors: Exception) -> None:
        self._errors = list(errors)

    async def run(self, emit: Emit) -> None:
        if self._errors:
            raise self._errors.pop(0)
        await emit(Tick(time=now()))
        await anyio.sleep_forever()


async def states_of(source: Source) -> list[tuple[str, str, bool]]:
    seen: list[Event] = []
    back = anyio.Event()

    async def emit(event: Event) -> None:
        seen.append(event)
        if isinstance(event, Tick):
            back.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervise, source, emit)
        with anyio.fail_after(10):
            await back.wait()
        tasks.cancel_scope.cancel()
    return [(event.state, event.reason, event.failed) for event in seen if isinstance(event, SourceState)]


@pytest.mark.anyio
async def test_trouble_is_blindness_and_a_bug_is_a_failure() -> None:
    """A source in trouble is blind for its own reason; one that raises anything else is our fault."""
    assert await states_of(Flaky(SourceError("the mount is gone"))) == [
        ("blind", "the mount is gone", False),
        ("seeing", "", False),
    ]
    assert await states_of(Flaky(KeyError("secret"))) == [("blind", "KeyError", True), ("seeing", "", False)]


@pytest.mark.anyio
async def test_trouble_in_a_task_group_is_still_trouble() -> None:
    """A group that holds nothing but trouble is not a bug."""
    group = ExceptionGroup("", [SourceError("both"), ExceptionGroup("", [SourceError("pages hang")])])
    assert (await states_of(Flaky(group)))[0] == ("blind", "both", False)
    mixed = ExceptionGroup("", [SourceError("a"), ValueError("b")])
    assert (await states_of(Flaky(mixed)))[0] == ("blind", "ExceptionGroup", True)


class Recovering:
    """Fails once, then says itself what it sees."""

    name = "recovering"

    def __init__(self) -> None:
        self._failed = False

    async def run(self, emit: Emit) -> None:
        if not self._failed:
            self._failed = True
            raise SourceError(self.name)
        await emit(SourceState(time=now(), name=self.name, state="absent", reason="not here"))
        await emit(Tick(time=now()))
        await anyio.sleep_forever()


@pytest.mark.anyio
async def test_a_source_that_speaks_for_itself_is_not_spoken_for() -> None:
    """Of a source that comes back and says that it is absent nobody says that it sees."""
    assert [state for state, _, _ in await states_of(Recovering())] == ["blind", "absent"]
