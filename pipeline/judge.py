"""A finished run, judged as if it had been watched from its first line to its last."""

from __future__ import annotations

from itertools import islice, takewhile
from typing import TYPE_CHECKING, TypeAlias

from pipeline.alerts import Decision, Summary
from pipeline.events import Tick

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

    from pipeline.events import Event
    from rules.engine import Engine

Said: TypeAlias = Decision | Summary

_BATCH = 500


def judge(engine: Engine, events: Iterable[Event], until: datetime | None = None) -> Iterator[Said]:
    """
    Yield what a new *engine* decides on *events*, in the order of time, then how the run stands.

    With *until* the stream ends at the first event later than that, which is
    then "now": what has been absent by then is absent.
    """
    stream = iter(events if until is None else takewhile(lambda event: event.time <= until, events))
    while batch := list(islice(stream, _BATCH)):
        yield from engine.apply(batch).decisions
    if until is not None and until > engine.clock and engine.has_begun:
        yield from engine.apply([Tick(time=until)]).decisions
    yield engine.summary()
