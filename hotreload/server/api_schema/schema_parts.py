"""Parts that JSON schemas of answers are made of."""

from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]

PLAIN_TEXT: Schema = {"type": "string"}
MAYBE_TEXT: Schema = {"type": ["string", "null"]}
AN_INTEGER: Schema = {"type": "integer"}
A_NUMBER: Schema = {"type": "number"}
A_BOOLEAN: Schema = {"type": "boolean"}
ANY_OBJECT: Schema = {"type": "object"}


def an_object(more: Mapping[str, Schema] | None = None, /, **properties: Schema) -> Schema:
    """An object that has all of these, and may have more."""
    known = {**properties, **(more or {})}
    return {"type": "object", "required": sorted(known), "properties": known}


def extend(known: Schema, more: Mapping[str, Schema]) -> Schema:
    """An object that has more."""
    return an_object({**known["properties"], **more})


def a_list(of: Schema) -> Schema:
    """A list of these."""
    return {"type": "array", "items": of}


def ref_to(name: str) -> Schema:
    """One of SHAPES by its name."""
    return {"$ref": f"#/components/schemas/{name}"}


def either(*schemas: Schema) -> Schema:
    """Any of these."""
    return {"anyOf": list(schemas)}


MAYBE_INTEGER: Schema = {"type": ["integer", "null"]}
