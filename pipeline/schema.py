"""
JSON Schema of what people write in TOML, for editors.

In draft 4, since editors such as Taplo know no more: `definitions`, bounds that are flags, single values as lists of
one. What goes together (exactly one kind of trigger) is beyond it: `runwatch check` tells.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, Literal, TypeAlias, get_args, get_origin

import msgspec

from pipeline.config import Config
from pipeline.rule_tests.file import RuleTestFile
from rules.pattern import Duration, Pattern
from rules.rule_file import RuleFile
from rules.wanted import bare, is_table, kind, options, row_of

Kind: TypeAlias = Literal["config", "rules", "tests"]
Schema: TypeAlias = dict[str, Any]

KINDS: dict[Kind, type[msgspec.Struct]] = {"config": Config, "rules": RuleFile, "tests": RuleTestFile}

_PLAIN: dict[Any, Schema] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    Duration: {
        "type": "string",
        "pattern": r"^(\d+d)?(\d+h)?(\d+m)?(\d+s)?(\d+ms)?$",
        "minLength": 2,
        "description": 'A duration: "250ms", "90s", "15m", "1h30m", "2d".',
    },
    Pattern: {
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}],
        "description": "A regular expression in RE2's syntax; a list means any of them.",
    },
}


def schema(wanted: Kind) -> Schema:
    """Return the schema of a config, a file of rules, or a file of rule tests."""
    definitions: dict[str, Schema] = {}
    _define(KINDS[wanted], definitions)
    whole = definitions.pop(KINDS[wanted].__name__)
    head = {"$schema": "http://json-schema.org/draft-04/schema#", "title": f"runwatch: {wanted}"}
    return head | whole | {"definitions": definitions}


def _define(struct: type[msgspec.Struct], definitions: dict[str, Schema]) -> None:
    """Add the schema of *struct*, and of all structs in it."""
    if struct.__name__ in definitions:
        return
    config, said = struct.__struct_config__, _said(struct)
    properties: dict[str, Schema] = {}
    required: list[str] = []
    found: Schema = {"type": "object", "description": _first_line(struct.__doc__)}
    definitions[struct.__name__] = found
    if config.tag_field is not None:
        properties[config.tag_field] = {"enum": [config.tag]}
        required.append(config.tag_field)
    for field in msgspec.structs.fields(struct):
        properties[field.encode_name] = _described(_of(field.type, definitions), said.get(field.name))
        required += [field.encode_name] if field.required else []
    found |= {"properties": properties, "additionalProperties": not config.forbid_unknown_fields}
    if required:  # draft 4 knows no empty list
        found["required"] = required


def _of(wanted: Any, definitions: dict[str, Schema]) -> Schema:
    """Return the schema of a type; TOML has no null."""
    choices = [_of_one(one, definitions) for one in options(wanted)]
    return choices[0] if len(choices) == 1 else {"anyOf": choices}


def _of_one(wanted: Any, definitions: dict[str, Schema]) -> Schema:
    if is_table(wanted):
        _define(kind(wanted), definitions)
        return {"$ref": f"#/definitions/{kind(wanted).__name__}"}
    if kind(wanted) is Literal:
        return {"enum": list(get_args(bare(wanted)))}
    if kind(wanted) is list:
        return {"type": "array", "items": _of(row_of(wanted), definitions)} | _bounds(wanted, "Items")
    if kind(wanted) is dict:
        return {"type": "object", "additionalProperties": _of(get_args(bare(wanted))[1], definitions)}
    return _PLAIN[kind(wanted)] | _bounds(wanted, "Length")


def _bounds(wanted: Any, size: str) -> Schema:
    """Return the bounds of a type; *size* is what its length is called."""
    metas = wanted.__metadata__ if get_origin(wanted) is Annotated else ()
    bounds: Schema = {}
    for meta in metas:
        words = {
            "minimum": meta.gt if meta.ge is None else meta.ge,
            "exclusiveMinimum": None if meta.gt is None else True,
            "maximum": meta.lt if meta.le is None else meta.le,
            "exclusiveMaximum": None if meta.lt is None else True,
            "pattern": meta.pattern,
            f"min{size}": meta.min_length,
            f"max{size}": meta.max_length,
        }
        bounds |= {word: value for word, value in words.items() if value is not None}
    return bounds


def _described(found: Schema, said: str | None) -> Schema:
    """Return a schema with what the field's docstring says; beside a reference draft 4 reads nothing."""
    if said is None:
        return found
    return {"description": said} | ({"allOf": [found]} if "$ref" in found else {**found, "description": said})


@cache
def _said(struct: type[msgspec.Struct]) -> dict[str, str]:
    """Return the docstrings below the fields of *struct*, which only its source has."""
    said: dict[str, str] = {}
    for base in reversed(struct.__mro__[: struct.__mro__.index(msgspec.Struct)]):
        tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
        for field, text in pairwise(body):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(line))):
                    said[name] = _first_line(line)
                case _:
                    pass  # a field without a docstring
    return said


def _first_line(text: str | None) -> str:
    return inspect.cleandoc(text or "").partition("\n")[0]
