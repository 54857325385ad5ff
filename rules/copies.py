"""Files that may repeat each other's records: a record that two of them bring is one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rules.rows import Copies, push

if TYPE_CHECKING:
    from rules.facts import Fact
    from rules.state import State


def is_copy(fact: Fact, state: State) -> bool:
    """Tell whether another file of its group has brought this record already; remember that this one has."""
    if fact.copies is None:
        return False
    key = f"copies|{fact.copies}"
    row = state.get(Copies, key) or Copies()
    record, file = fact.digests()
    others = [by for said, by in row.recent if said == record and by != file]
    known = max((others.count(by) for by in others), default=0)
    repeats = row.recent.count((record, file)) < known
    push(row.recent, (record, file))
    state.put(key, row)
    return repeats
