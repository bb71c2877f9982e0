"""JSON schemas of types, as components of the described API."""

from typing import Any, TypedDict

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from hotreload.json_fields import Fields


class Schemas:
    """Collects types while a document is written, and makes their schemas all at once."""

    def __init__(self) -> None:
        self._places: dict[int, tuple[Any, Fields]] = {}

    def add(self, kind: Any) -> Fields:
        """Return an empty schema, which `fill` fills with that of this type."""
        return self._places.setdefault(id(kind), (kind, {}))[1]

    def fill(self) -> Fields:
        """Fill all schemas; return the named ones that they refer to."""
        kinds = {str(name): kind for name, (kind, _) in self._places.items()}
        whole = TypedDict("whole", kinds)  # type: ignore[misc]  # a type of all of them
        made = TypeAdapter(whole).json_schema(
            ref_template="#/components/schemas/{model}", schema_generator=_PlainSchema
        )
        made = _without_titles(made)
        for name, (_, place) in self._places.items():
            place.update(made["properties"][str(name)])
        return dict(made.get("$defs", {}))


class _PlainSchema(GenerateJsonSchema):
    """Says what a value in JSON may be, and not how Python makes it."""

    def normalize_name(self, name: str) -> str:
        return super().normalize_name(name).removesuffix("Fields")

    def nullable_schema(self, schema: core_schema.NullableSchema) -> Fields:
        inner = self.generate_inner(schema["schema"])
        if inner.keys() == {"type"}:
            return {"type": [inner["type"], "null"]}
        return self.get_flattened_anyof([inner, {"type": "null"}])

    def dict_schema(self, schema: core_schema.DictSchema) -> Fields:
        made = super().dict_schema(schema)
        return {"type": "object"} if made.get("additionalProperties") is True else made

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> Fields:
        return self.generate_inner(schema["schema"])

    def field_is_required(self, field: Any, total: bool) -> bool:
        """Say that a field is there, whether or not it has a default."""
        return bool(field.get("required", total))


def _without_titles(schema: Any) -> Any:
    """Leave out the names of Python's classes."""
    if isinstance(schema, list):
        return [_without_titles(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: _without_titles(each)
        for name, each in schema.items()
        if not (name == "title" and isinstance(each, str))
    }
