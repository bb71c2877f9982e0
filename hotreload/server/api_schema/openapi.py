"""GET /openapi.json: the app's routes as OpenAPI 3.1, from the descriptions at their handlers."""

from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, TypedDict

from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from hotreload import __version__
from hotreload.json_fields import Fields
from hotreload.server.api_schema.kinds import Kind
from hotreload.server.api_schema.operation import EVENTS, Operation, Parameter, Security
from hotreload.server.http.keys import AdminCheck
from hotreload.server.http.problems import OPENAI_PATHS, Json, OpenAIErrorFields, ProblemFields
from hotreload.server.http.request_log import GENERATION_HEADER, REQUEST_ID_HEADER
from hotreload.server.ports import FeatureRoutes
from hotreload.threads import in_thread

ANY = (400, 401, 413, 421, 431, 500)
"""Statuses that any request may get.

They stand for: no HTTP, no API key over TCP, too long a body, a browser by an unknown host name,
too long headers, an unexpected exception.
"""
JSON_TYPE = "application/json"
PROBLEM = "application/problem+json"
ANSWER_HEADERS: Fields = {
    GENERATION_HEADER: {
        "description": "The generation that answered.",
        "schema": {"type": "integer"},
    },
    REQUEST_ID_HEADER: {"description": "The request's id.", "schema": {"type": "string"}},
    "Retry-After": {"description": "Seconds until a retry.", "schema": {"type": "integer"}},
}

SCHEMES: Mapping[str, Mapping[str, str]] = {
    "ApiKey": {
        "type": "http",
        "scheme": "bearer",
        "description": "One of the keys in [server] api_keys_file, for requests over TCP. None is "
        "needed where the setting is empty, nor on the unix socket: there the kernel names the "
        "client (SO_PEERCRED), and the mode and group of the socket say which users may connect.",
    },
    "AdminKey": {
        "type": "http",
        "scheme": "bearer",
        "description": "One of the keys in [server] admin_keys_file, for requests over TCP. It "
        "counts as an API key, too. Where the setting is empty, these requests get 403. On the "
        "unix socket the kernel names the client (SO_PEERCRED).",
    },
    "WebhookSecret": {
        "type": "apiKey",
        "in": "header",
        "name": "X-Webhook-Secret",
        "description": "The secret in the file of [source] webhook.",
    },
}
KEY_OVER_TCP: Security = ({"ApiKey": ()}, {})
ADMIN_KEY_OVER_TCP: Security = ({"AdminKey": ()}, {})
ADMINISTRATORS = (
    "On the unix socket for root, the daemon's own user and members of [server] admin_group: the "
    "kernel names the client (SO_PEERCRED). Over TCP for requests with an admin key."
)


ABOUT = (
    "Any other path is answered 404 and any other method of a path 405: under /v1 in OpenAI's "
    "shape of errors, elsewhere as RFC 9457 problem details. Each route that answers GET answers "
    "HEAD. Unknown fields are refused. A null field counts as left out. A field of other servers "
    "is accepted with a value that asks for nothing."
)


def add_schema_route(app: FastAPI, of_features: Sequence[FeatureRoutes]) -> None:
    """Add the route; `of_features` adds the features' own routes and fields."""
    made: list[Fields] = []

    @app.get("/openapi.json")
    @Operation("This document.", Fields)
    async def openapi() -> Response:
        if not made:
            work = in_thread(lambda cancel: describe(app.routes, of_features), is_read=False)
            made.append(await work)
        return Json(made[0])


def describe(routes: Iterable[BaseRoute], of_features: Sequence[FeatureRoutes]) -> Fields:
    """Return the whole document."""
    page = _Page()
    paths: dict[str, Fields] = {}
    for route in routes:
        assert isinstance(route, Route)
        for method in sorted((route.methods or set()) - {"HEAD"}):
            paths.setdefault(route.path_format, {})[method.lower()] = page.operation(route, method)
    more = [
        (name, field, page.add(kind))
        for each in of_features
        for name, fields in each.adds.items()
        for field, kind in fields.items()
    ]
    schemas = page.fill()
    for name, field, schema in more:
        schemas[name]["properties"][field] = schema
        schemas[name]["required"].append(field)
    return {
        "openapi": "3.1.0",
        "info": {"title": "hotreload", "version": __version__, "description": ABOUT},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "headers": ANSWER_HEADERS,
            "securitySchemes": SCHEMES,
        },
    }


class _Page:
    """Writes the operations, and makes the schemas of all their types at once."""

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

    def operation(self, route: Route, method: str) -> Fields:
        path, on = route.path_format, route.dependencies if isinstance(route, APIRoute) else []
        is_admin = any(isinstance(each.dependency, AdminCheck) for each in on)
        operation: Operation = route.endpoint.operation  # type: ignore[attr-defined]
        usual = ADMIN_KEY_OVER_TCP if is_admin else KEY_OVER_TCP
        fields: Fields = {
            "summary": operation.words,
            "operationId": f"{method.lower()}_{path.strip('/').replace('/', '_') or 'front'}",
            "responses": self._answers(path, operation, [403] * is_admin),
            "security": usual if operation.security is None else operation.security,
        }
        if is_admin:
            fields["description"] = ADMINISTRATORS
        if operation.parameters:
            fields["parameters"] = [self._parameter(each) for each in operation.parameters]
        if operation.body is not None:
            fields["requestBody"] = self._body(operation.body, operation)
        return fields

    def _body(self, body: Mapping[str, Kind], operation: Operation) -> Fields:
        schema: Fields = {
            "type": "object",
            "properties": {
                name: self._field(kind, name not in operation.required + operation.one_of)
                for name, kind in body.items()
            },
            "additionalProperties": False,
        }
        if operation.required:
            schema["required"] = list(operation.required)
        if operation.one_of:
            schema["oneOf"] = [{"required": [name]} for name in operation.one_of]
        return {"required": not operation.may_be_empty, "content": {JSON_TYPE: {"schema": schema}}}

    def _field(self, kind: Kind, may_be_null: bool) -> Fields:
        schemas = [self.add(kind.type), {"type": "null"}]
        return {"anyOf": schemas[: 1 + may_be_null], "description": kind.words}

    def _parameter(self, parameter: Parameter) -> Fields:
        return {
            "name": parameter.name,
            "in": parameter.where,
            "description": parameter.words,
            "required": parameter.where == "path",
            "schema": self.add(parameter.kind.type),
        }

    def _answers(self, path: str, operation: Operation, more: Sequence[int]) -> Fields:
        is_openai = path.startswith(OPENAI_PATHS)
        refusal = {JSON_TYPE: OpenAIErrorFields} if is_openai else {PROBLEM: ProblemFields}
        answers: dict[int, Fields] = dict.fromkeys((*ANY, *operation.refusals, *more), refusal)
        for status, answer in operation.others.items():
            answers[status] = {JSON_TYPE: answer, **answers.get(status, {})}
        whole = {} if operation.answer is None else {JSON_TYPE: operation.answer}
        # Of a stream of events there is none: some tools take it for each event's, some for all.
        more_kinds = {media: Any if media == EVENTS else str for media in operation.media}
        answers[operation.success] = whole | more_kinds
        return {str(status): self._answer(status, answers[status]) for status in sorted(answers)}

    def _answer(self, status: int, content: Fields) -> Fields:
        headers = [GENERATION_HEADER, REQUEST_ID_HEADER]
        if status in (409, 503):
            headers.append("Retry-After")
        fields: Fields = {
            "description": HTTPStatus(status).phrase,
            "headers": {name: {"$ref": f"#/components/headers/{name}"} for name in headers},
        }
        if content:
            fields["content"] = {
                media: {"schema": self.add(kind)} for media, kind in content.items()
            }
        return fields


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
