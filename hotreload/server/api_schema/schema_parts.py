"""Building blocks of the JSON schemas of answers."""

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
    """Return the schema of an object that has at least these properties."""
    known = {**properties, **(more or {})}
    return {"type": "object", "required": sorted(known), "properties": known}


def extend(known: Schema, more: Mapping[str, Schema]) -> Schema:
    """Return the schema of an object with more properties."""
    return an_object({**known["properties"], **more})


def a_list(of: Schema) -> Schema:
    """Return the schema of a list of these."""
    return {"type": "array", "items": of}


def ref_to(name: str) -> Schema:
    """Return a reference to one of SHAPES."""
    return {"$ref": f"#/components/schemas/{name}"}


def either(*schemas: Schema) -> Schema:
    """Return the schema of any of these."""
    return {"anyOf": list(schemas)}


MAYBE_INTEGER: Schema = {"type": ["integer", "null"]}
