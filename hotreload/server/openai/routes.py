"""The routes under /v1."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypedDict

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from hotreload.json_fields import Fields
from hotreload.server.answerer import (
    Answerer,
    AnswerFormatter,
    ModelRoute,
    ParsedRequest,
    check_batch,
    check_model,
    take_min_generation,
)
from hotreload.server.api_schema.known_fields import CHAT, COMPLETION, KnownFields
from hotreload.server.api_schema.operation import Operation, Parameter
from hotreload.server.http.problems import Json, check_live
from hotreload.server.http.request_body import STRING, is_integer, read_object
from hotreload.server.openai.answers import CHAT_SHAPE, COMPLETION_SHAPE, AnswerShape, OpenAIAnswer
from hotreload.server.openai.echo import read_echoes
from hotreload.server.openai.requests import (
    chat_request,
    completion_request,
    read_stream_options,
    rename_to_openai,
)
from hotreload.server.openai.response_answers import ResponseAnswer
from hotreload.server.openai.response_requests import RESPONSES, response_request
from hotreload.server_limits import Limits
from hotreload.types import Generation, StampFields

LiveNow = Callable[[], Generation | None]


@dataclass(frozen=True, slots=True)
class Dialect:
    """One route to the model: its fields, its translation, and its format of answers."""

    known: KnownFields
    to_engine: Callable[[Fields], Fields]
    make_formatter: Callable[[Fields, Fields, str], AnswerFormatter]
    """Makes the formatter from the request's fields, the stream's options and the model."""


def _choices_of(shape: AnswerShape, given: Fields, options: Fields, model: str) -> OpenAIAnswer:
    return OpenAIAnswer(
        shape,
        model=model,
        copies=given.get("n", 1),
        has_usage=options.get("include_usage", False),
        has_usage_so_far=options.get("continuous_usage_stats", False),
        echoes=read_echoes(given),
    )


def _response_of(given: Fields, options: Fields, model: str) -> ResponseAnswer:
    return ResponseAnswer(given, model=model)


_GIVEN = "hotreload.given"
"""The key in a request's scope for the names of its fields, which later refusals use."""

DIALECTS = {
    "/v1/completions": Dialect(
        COMPLETION, completion_request, partial(_choices_of, COMPLETION_SHAPE)
    ),
    "/v1/chat/completions": Dialect(CHAT, chat_request, partial(_choices_of, CHAT_SHAPE)),
    "/v1/responses": Dialect(RESPONSES, response_request, _response_of),
}


def models_routes(model: str, live: LiveNow) -> APIRouter:
    """Build the routes that describe the model; `model` is its name to clients."""
    router = APIRouter()

    @router.get("/v1/models")
    @Operation("The one model there is.", ModelListFields, (503,))
    async def models() -> Response:
        return Json(ModelListFields(object="list", data=[model_fields(model, live())]))

    @router.get("/v1/models/{name:path}")
    @Operation(
        "The model, by its name.",
        ModelFields,
        (404, 503),
        parameters=[Parameter("name", STRING, "The name in [server] model_name.", "path")],
    )
    async def one_model(name: str) -> Response:
        check_model(name, model)
        return Json(model_fields(model, live()))

    return router


def route_to_model(path: str, answerer: Answerer, model: str) -> "OpenAIRoute":
    """Build the route at this path to a model of this name."""
    return OpenAIRoute(answerer, partial(_read, answerer.limits, model, DIALECTS[path]))


class OpenAIRoute(ModelRoute):
    """A route to the model; its refusals name fields as OpenAI does."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with rename_to_openai(lambda: scope.get(_GIVEN, ())):
            await super().__call__(scope, receive, send)


async def _read(limits: Limits, model: str, dialect: Dialect, request: Request) -> ParsedRequest:
    given = dialect.known.check(await read_object(request, nesting=limits.nesting), limits)
    request.scope[_GIVEN] = frozenset(given)
    check_model(given.get("model", ""), model)
    options = read_stream_options(given, limits)
    at_least = take_min_generation(request, given)
    engine_request = dialect.to_engine(given)
    copies = given.get("n", 1)
    _check_size(given, copies, limits)
    return ParsedRequest(engine_request, dialect.make_formatter(given, options, model), at_least)


def _check_size(given: Fields, copies: int, limits: Limits) -> None:
    prompts = _prompts(given.get("prompt"))
    check_batch(prompts * copies, limits, "n" if copies > 1 else "prompt")


def _prompts(prompt: str | Sequence[object] | None) -> int:
    if isinstance(prompt, list) and not is_integer(prompt[0]):
        return len(prompt)
    return 1


class ModelFields(TypedDict):
    """A model, and the generation that answers."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    hotreload: StampFields


class ModelListFields(TypedDict):
    """All models."""

    object: Literal["list"]
    data: list[ModelFields]


def model_fields(name: str, live: Generation | None) -> ModelFields:
    """Return the description of a model; NotServing while the engine starts."""
    live = check_live(live)
    return {
        "id": name,
        "object": "model",
        "created": int(live.since),
        "owned_by": "hotreload",
        "hotreload": live.stamp,
    }
