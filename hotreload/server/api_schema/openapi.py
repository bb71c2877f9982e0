"""GET /openapi.json: the app's routes as OpenAPI 3.1, from their descriptions in `operations`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from hotreload import __version__
from hotreload.json_fields import Fields
from hotreload.server.api_schema.answer_schemas import SHAPES
from hotreload.server.api_schema.operation import (
    JSON_TYPE,
    SCHEMES,
    Media,
    Operation,
    Operations,
    Parameter,
)
from hotreload.server.api_schema.operations import OPERATIONS
from hotreload.server.api_schema.schema_parts import Schema, extend, ref_to
from hotreload.server.feature_routes import FeatureRoutes
from hotreload.server.http.problems import OPENAI_PATHS, Json
from hotreload.server.http.request_body import Kind
from hotreload.server.http.request_log import GENERATION_HEADER, REQUEST_ID_HEADER

ANY = (400, 401, 413, 421, 431, 500)
"""Statuses that any request may get.

They stand for: no HTTP, no API key over TCP, too long a body, a browser by an unknown host name,
too long headers, an unexpected exception.
"""
PROBLEM = "application/problem+json"

ABOUT = (
    "Any other path is answered 404 and any other method of a path 405: under /v1 in OpenAI's "
    "shape of errors, elsewhere as RFC 9457 problem details. Each route that answers GET answers "
    "HEAD. Unknown fields are refused. A null field counts as left out. A field of other servers "
    "is accepted with a value that asks for nothing."
)


def schema_routes(of_features: Sequence[FeatureRoutes]) -> APIRouter:
    """Build the route; `of_features` adds the features' own routes and fields."""
    router = APIRouter()
    operations, shapes = dict(OPERATIONS), dict(SHAPES)
    for each in of_features:
        operations |= each.operations
        shapes |= each.shapes
        shapes |= {name: extend(shapes[name], more) for name, more in each.adds.items()}

    @router.get("/openapi.json")
    async def openapi(request: Request) -> Response:
        return Json(document(request.app, operations, shapes))

    return router


def document(app: FastAPI, operations: Operations, shapes: Mapping[str, Schema]) -> Fields:
    """Return the whole document."""
    paths: dict[str, Fields] = {}
    for path, method, operation in _operations(app.routes, operations):
        paths.setdefault(path, {})[method.lower()] = _operation(path, method, operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "hotreload", "version": __version__, "description": ABOUT},
        "paths": paths,
        "components": {"schemas": shapes, "securitySchemes": SCHEMES},
    }


def _operations(
    routes: Iterable[BaseRoute], operations: Operations
) -> Iterator[tuple[str, str, Operation]]:
    for route in routes:
        assert isinstance(route, Route)
        for method in sorted(route.methods or ()):
            operation = operations.get((method, route.path_format))
            if operation is not None:
                yield route.path_format, method, operation


def _operation(path: str, method: str, operation: Operation) -> Fields:
    fields: Fields = {
        "summary": operation.words,
        "operationId": f"{method.lower()}_{path.strip('/').replace('/', '_') or 'front'}",
        "responses": _answers(path, operation),
        "security": operation.security,
    }
    if operation.permission:
        fields["description"] = operation.permission
    if operation.parameters:
        fields["parameters"] = [_parameter(each) for each in operation.parameters]
    if operation.body is not None:
        fields["requestBody"] = _body(operation.body, operation)
    return fields


def _body(body: Mapping[str, Kind], operation: Operation) -> Fields:
    schema: Fields = {
        "type": "object",
        "properties": {
            name: _field(kind, may_be_null=name not in operation.required + operation.one_of)
            for name, kind in body.items()
        },
        "additionalProperties": False,
    }
    if operation.required:
        schema["required"] = list(operation.required)
    if operation.one_of:
        schema["oneOf"] = [{"required": [name]} for name in operation.one_of]
    return {"required": not operation.may_be_empty, "content": {JSON_TYPE: {"schema": schema}}}


def _field(kind: Kind, *, may_be_null: bool) -> Fields:
    schemas = [dict(kind.schema), {"type": "null"}]
    return {"anyOf": schemas[: 1 + may_be_null], "description": kind.words}


def _parameter(parameter: Parameter) -> Fields:
    return {
        "name": parameter.name,
        "in": parameter.where,
        "description": parameter.words,
        "required": parameter.where == "path",
        "schema": dict(parameter.kind.schema),
    }


def _answers(path: str, operation: Operation) -> Fields:
    refusal = _refusal(path)
    answers: dict[int, Media] = dict.fromkeys((*ANY, *operation.refusals), refusal)
    for status, content in operation.others.items():
        answers[status] = {**content, **answers.get(status, {})}
    answers[operation.success] = operation.answer
    return {str(status): _answer(status, answers[status]) for status in sorted(answers)}


def _refusal(path: str) -> Media:
    is_openai = path.startswith(OPENAI_PATHS)
    return {JSON_TYPE: ref_to("OpenAIError")} if is_openai else {PROBLEM: ref_to("Problem")}


def _answer(status: int, content: Media) -> Fields:
    number: Any = {"description": "The generation that answered.", "schema": {"type": "integer"}}
    name: Any = {"description": "The request's id.", "schema": {"type": "string"}}
    fields: Fields = {
        "description": HTTPStatus(status).phrase,
        "headers": {GENERATION_HEADER: number, REQUEST_ID_HEADER: name},
    }
    if status in (409, 503):
        seconds = {"description": "Seconds until a retry.", "schema": {"type": "integer"}}
        fields["headers"] = {**fields["headers"], "Retry-After": seconds}
    if content:
        fields["content"] = {media: {"schema": schema} for media, schema in content.items()}
    return fields
