"""The JSON schema of a ledger's lines, made from the events themselves; `schema.json` beside this file is its copy.

A ledger is a text file of one JSON object a line: the header, two counters, and a step for each run of equal steps
(`tacit.ledger.contents`). The schema says which fields a line has. That the hashes fit, that numbers are in range and
that steps are of the header's unit is checked by reading the file: ``tacit account LEDGER``.
"""

from __future__ import annotations

import types
from dataclasses import MISSING, fields
from enum import StrEnum
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from tacit.ledger import events as ev

_HASH = {"type": "string", "pattern": "^[0-9a-f]{64}$"}


def ledger_schema() -> dict[str, Any]:
    """The schema (draft 2020-12) of one line of a ledger."""
    kinds = {kind: cls for cls, kind in ev.kinds().items()}
    own = {kind: _event(kind, cls) for kind, cls in kinds.items()}
    names = {cls: kind for kind, cls in kinds.items()}
    own["step"] = _object(
        "step",
        {
            "sampling": {"oneOf": [_reference(names[cls]) for cls in get_args(ev.Sampling)]},
            "queries": {"type": "array", "items": {"oneOf": [_reference(names[cls]) for cls in get_args(ev.Query)]}},
        },
        ["sampling", "queries"],
    )
    count = {"type": "integer", "minimum": 0}
    counter = _object(
        "count", {"steps": count, "lines": count, "tail": _HASH, "hash": _HASH}, ["steps", "lines", "tail", "hash"]
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A line of a Tacit ledger",
        "oneOf": [
            _line(own["header"], {}),
            counter,
            _line(own["step"], {"previous_count": count}),
        ],
        "$defs": {kind: made for kind, made in own.items() if kind != "header"},
    }


def _line(event: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Return an event's schema as a line of its own, with the fields that seal it."""
    return event | {
        "properties": event["properties"] | more | {"hash": _HASH},
        "required": [*event["required"], *more, "hash"],
    }


def _event(kind: str, cls: type) -> dict[str, Any]:
    hints = get_type_hints(cls)
    properties = {item.name: _type(hints[item.name]) for item in fields(cls)}
    needed = [item.name for item in fields(cls) if item.default is MISSING and item.default_factory is MISSING]
    return _object(kind, properties, needed)


def _object(kind: str, properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"kind": {"const": kind}} | properties,
        "required": ["kind", *required],
        "additionalProperties": False,
    }


def _reference(kind: str) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{kind}"}


_PLAIN = {int: "integer", float: "number", str: "string", bool: "boolean"}


def _type(hint: Any) -> dict[str, Any]:
    """The schema of a field's type; a field that is None is left out of the file."""
    if hint in _PLAIN:
        return {"type": _PLAIN[hint]}
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return {"enum": [each.value for each in hint]}
    if hint is ev.Step:
        return _reference("step")
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return {"enum": list(parts)}
    if origin in (Union, types.UnionType):
        (one,) = (part for part in parts if part is not type(None))
        return _type(one)
    if origin is tuple and parts[-1] is Ellipsis:
        return {"type": "array", "items": _type(parts[0])}
    if origin is tuple:
        return {
            "type": "array",
            "prefixItems": [_type(part) for part in parts],
            "minItems": len(parts),
            "maxItems": len(parts),
        }
    raise TypeError(f"a ledger's field has the type {hint!r}; say in tacit.ledger.schema how it is written.")
