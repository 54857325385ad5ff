"""Bounds of numbers, as rules and check-ins write them."""

from __future__ import annotations

from rules.table import Table


def is_within(value: float, above: float | None, below: float | None) -> bool:
    """Tell whether *value* is within the bounds that are given; what is not a number is within none."""
    return (above is None or value > above) and (below is None or value < below)


def refuse_empty(above: float | None, below: float | None) -> None:
    """
    Refuse bounds that nothing is within.

    Raises:
        ValueError: They exclude each other.

    """
    if above is not None and below is not None and above >= below:
        message = f"no value is above {above:g} and below {below:g}"
        raise ValueError(message)


class Bounds(Table, frozen=True, kw_only=True):
    """A number within bounds; one that is not known is in none."""

    above: float | None = None
    below: float | None = None

    def __post_init__(self) -> None:
        """Refuse none, within which every number is, and those within which no number is."""
        if self.above is None and self.below is None:
            message = "give above, below, or both"
            raise ValueError(message)
        refuse_empty(self.above, self.below)

    def has(self, value: float | None) -> bool:
        """Tell whether *value* is known, and within them."""
        return value is not None and is_within(value, self.above, self.below)
