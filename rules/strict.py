"""Everything that is wrong with a decoded TOML file, by the struct that it should become."""

from __future__ import annotations

import math
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import msgspec

from rules.pattern import Duration, Pattern, decode_hook, quoted
from rules.toml_lines import Path
from rules.wanted import bare, describe, is_table, kind, options, row_of, show

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Table: TypeAlias = dict[str, Any]

_SECRET_WORDS = ("url", "token", "password", "secret", "webhook", "key", "auth")


class Fault(msgspec.Struct, frozen=True):
    """One thing that is wrong."""

    path: Path
    reason: str
    key: str | None = None
    """The key within `path` that it is about, if that has no value to speak of."""


def find_faults(value: Any, wanted: Any, path: Path = ()) -> Iterator[Fault]:
    """Yield what keeps *value* from becoming *wanted*: a struct, or what a field of one may be."""
    fitting = [option for option in options(wanted) if _has_shape_of(value, option)]
    if not fitting:
        yield Fault(path, _mismatch(value, wanted))
    elif isinstance(value, list):
        yield from _in_list(value, fitting[0], path)
    elif isinstance(value, dict) and is_table(fitting[0]):
        yield from _in_tagged_table(value, fitting, path)
    elif isinstance(value, dict):
        yield from _in_mapping(value, fitting[0], path)
    elif not any(_converts(value, option) for option in fitting):
        yield Fault(path, _refusal(value, wanted))


def find_infinite(value: Any, path: Path = ()) -> Iterator[Fault]:
    """Yield the numbers that are none, or infinite: nothing compares with them as anybody means it."""
    if isinstance(value, float) and not math.isfinite(value):
        yield Fault(path, f"{value} is not a finite number")
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        yield from find_infinite(part, (*path, key))


def find_repeats(document: Table, wanted: type[msgspec.Struct]) -> Iterator[Fault]:
    """Yield the names that are given twice within one of the lists of tables of *document*, a sound *wanted*."""
    for field in msgspec.structs.fields(wanted):
        first: dict[str, int] = {}
        rows = document.get(field.encode_name, []) if _is_named(field.type) else []
        for index, name in enumerate(row.get("name") for row in rows):
            if name is not None and first.setdefault(name, index) != index:
                reason = f"duplicate name {quoted(name)}: $.{field.encode_name}[{first[name]}] has it"
                yield Fault((field.encode_name, index), reason, "name")


def _in_list(rows: list[Any], wanted: Any, path: Path) -> Iterator[Fault]:
    is_sound = True
    for index, row in enumerate(rows):
        for fault in find_faults(row, row_of(wanted), (*path, index)):
            is_sound = False
            yield fault
    if is_sound and not _converts(rows, wanted):
        yield Fault(path, f"{len(rows)} {'entry is' if len(rows) == 1 else 'entries are'} not {describe(wanted)}")


def _in_mapping(table: Table, wanted: Any, path: Path) -> Iterator[Fault]:
    key_type, value_type = get_args(bare(wanted))
    for key, value in table.items():
        if not _converts(key, key_type):
            yield Fault(path, f"key {_mismatch(key, key_type)}", key)
        yield from find_faults(value, value_type, (*path, key))


def _in_tagged_table(table: Table, structs: list[Any], path: Path) -> Iterator[Fault]:
    """Look into *table* as the one of *structs* that its tag names."""
    by_tag = {struct.__struct_config__.tag: struct for struct in structs}
    tag_field = structs[0].__struct_config__.tag_field
    if tag_field is None or (tag_field not in table and len(structs) == 1):
        yield from _in_table(table, structs[0], path)
    elif tag_field not in table:
        yield Fault(path, f'missing key "{tag_field}", one of {", ".join(by_tag)}')
    elif not isinstance(table[tag_field], str) or table[tag_field] not in by_tag:
        yield Fault((*path, tag_field), f"{show(table[tag_field])} is not one of {', '.join(by_tag)}")
    else:
        yield from _in_table(table, by_tag[table[tag_field]], path)


def _in_table(table: Table, struct: Any, path: Path) -> Iterator[Fault]:
    is_sound = True
    for fault in _in_keys(table, struct, path):
        is_sound = False
        yield fault
    if is_sound:
        yield from _in_whole(table, struct, path)


def _in_keys(table: Table, struct: Any, path: Path) -> Iterator[Fault]:
    fields = {field.encode_name: field for field in msgspec.structs.fields(struct)}
    known = [*filter(None, [struct.__struct_config__.tag_field]), *fields]
    meant: set[str] = set()
    for key, value in table.items():
        if key in fields:
            yield from find_faults(value, fields[key].type, (*path, key))
        elif key not in known:
            near = get_close_matches(key, known, n=1)
            meant.update(near)
            yield Fault(path, _unknown(key, near, known), key)
    for key, field in fields.items():
        if field.required and key not in table and key not in meant:
            yield Fault(path, f'missing key "{key}"')


def _in_whole(table: Table, struct: Any, path: Path) -> Iterator[Fault]:
    """Ask the struct itself, which knows what goes together; only worth it where each part is sound."""
    try:
        msgspec.convert(table, struct, dec_hook=decode_hook)
    except msgspec.ValidationError as error:
        yield Fault(path, str(error).rpartition(" - at `")[0] or str(error))


def _unknown(key: str, near: Iterable[str], known: list[str]) -> str:
    places = [name for name in known if name.endswith(("_file", "_env"))]
    if places and any(word in key.lower() for word in _SECRET_WORDS) and not key.endswith(("_file", "_env")):
        return f"{quoted(key)} would put a secret into this file: give {' or '.join(places)}, which says where it is"
    for name in near:
        return f'unknown key {quoted(key)}; did you mean "{name}"?'
    return f"unknown key {quoted(key)}; known are {', '.join(known) or 'none: this table is empty'}"


def _refusal(value: Any, wanted: Any) -> str:
    """Return why *value*, which is neither table nor list, is not *wanted*."""
    for option in options(wanted):
        if kind(option) in (Pattern, Duration):
            try:
                decode_hook(kind(option), value)
            except ValueError as error:
                return str(error)
    return _mismatch(value, wanted)


def _mismatch(value: Any, wanted: Any) -> str:
    return f"{show(value)} is not {describe(wanted)}"


def _has_shape_of(value: Any, wanted: Any) -> bool:
    if isinstance(value, dict):
        return is_table(wanted) or kind(wanted) is dict
    if isinstance(value, list):
        return kind(wanted) in (list, Pattern)
    return not is_table(wanted) and kind(wanted) not in (list, dict)


def _converts(value: Any, wanted: Any) -> bool:
    try:
        msgspec.convert(value, wanted, dec_hook=decode_hook)
    except msgspec.ValidationError:
        return False
    return True


def _is_named(wanted: Any) -> bool:
    """Tell whether *wanted* is a list of tables with a name that somebody chose."""
    if kind(wanted) is not list:
        return False
    structs = [option for option in options(row_of(wanted)) if is_table(option)]
    fields = [field for struct in structs for field in msgspec.structs.fields(struct)]
    return any(field.encode_name == "name" and kind(field.type) is not Literal for field in fields)
