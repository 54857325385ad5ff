"""The types of fields, taken apart and put into words."""

from __future__ import annotations

from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

from rules.pattern import Duration, Pattern, quoted

_WORDS: dict[Any, str] = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    dict: "a table",
    Pattern: "a pattern or a list of them",
    Duration: 'a duration such as "15m"',
}
_BOUNDS = {
    "gt": "is above {}",
    "ge": "is at least {}",
    "lt": "is below {}",
    "le": "is at most {}",
    "pattern": "matches {}",
    "min_length": "is at least {} long",
    "max_length": "is at most {} long",
}


def bare(wanted: Any) -> Any:
    """Return *wanted* without its bounds."""
    return get_args(wanted)[0] if get_origin(wanted) is Annotated else wanted


def kind(wanted: Any) -> Any:
    """Return the class or the form of *wanted*: `list` of a `list[str]`."""
    return get_origin(bare(wanted)) or bare(wanted)


def options(wanted: Any) -> list[Any]:
    """Return the types that a value may have; TOML has no null, so `None` is not among them."""
    if kind(wanted) in (Union, UnionType):
        return [option for member in get_args(bare(wanted)) if member is not NoneType for option in options(member)]
    return [wanted]


def is_table(wanted: Any) -> bool:
    """Tell whether *wanted* is a struct."""
    return isinstance(kind(wanted), type) and issubclass(kind(wanted), msgspec.Struct)


def row_of(wanted: Any) -> Any:
    """Return the type of the entries of a list that may stand for *wanted*; a pattern may be a list of patterns."""
    return Pattern if kind(wanted) is Pattern else get_args(bare(wanted))[0]


def describe(wanted: Any) -> str:
    """Return what *wanted* is, as in "a whole number that is at least 2"."""
    choices = options(wanted)
    words = [
        "a list of such" if kind(one) is list and row_of(one) in choices else _describe_one(one) for one in choices
    ]
    return " or ".join(dict.fromkeys(words))


def show(value: Any) -> str:
    """Return *value* as a message shows it; of tables and lists only what they are, as they may hold secrets."""
    return "a table" if isinstance(value, dict) else "a list" if isinstance(value, list) else quoted(value)


def _describe_one(wanted: Any) -> str:
    if kind(wanted) is Literal:
        choices = get_args(bare(wanted))
        return "true (else leave it out)" if choices == (True,) else f"one of {', '.join(map(str, choices))}"
    if kind(wanted) is list and all(map(is_table, options(row_of(wanted)))):
        words = "a list of tables (double brackets)"
    elif kind(wanted) is list:
        words = f"a list in brackets, each entry {describe(row_of(wanted))}"
    else:
        words = "a table" if is_table(wanted) else _WORDS[kind(wanted)]
    limits = _limits(wanted)
    return f"{words} that {' and '.join(limits)}" if limits else words


def _limits(wanted: Any) -> list[str]:
    metas = [meta for meta in getattr(wanted, "__metadata__", ()) if isinstance(meta, msgspec.Meta)]
    return [
        words.format(getattr(meta, name))
        for meta in metas
        for name, words in _BOUNDS.items()
        if getattr(meta, name) is not None
    ]
