"""The routes under /v1."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from hotreload.errors import NotServing, shown
from hotreload.json_fields import Fields
from hotreload.server.answerer import (
    Answerer,
    ModelRequest,
    ModelRoute,
    check_batch,
    oldest_wanted,
)
from hotreload.server.bounds import Limits
from hotreload.server.openai import fields
from hotreload.server.openai.answers import CHAT_SHAPE, COMPLETION_SHAPE, AnswerShape, OpenAIAnswer
from hotreload.server.openai.fields import ASKS_FOR_NOTHING, drop_unsupported
from hotreload.server.openai.requests import (
    chat_request,
    completion_request,
    in_openai_words,
    includes_usage,
)
from hotreload.server.problems import Json, Refused
from hotreload.server.request_body import Kind, is_integer, read_fields
from hotreload.types import Generation

LiveNow = Callable[[], Generation | None]


@dataclass(frozen=True, slots=True)
class Dialect:
    """One route to the model: how it reads a request and tells the answer."""

    kinds: Mapping[str, Kind]
    to_engine: Callable[[Fields], Fields]
    shape: AnswerShape


NO_NAME = frozenset({"dummy", "tgi"})
"""The model's name in requests of huggingface_hub's clients that know no more than an address: here
they mean the one there is."""
_GIVEN = "hotreload.given"
"""The key of a request's scope under which the names of its fields are kept, for later refusals."""

DIALECTS = {
    "/v1/completions": Dialect(fields.COMPLETION, completion_request, COMPLETION_SHAPE),
    "/v1/chat/completions": Dialect(fields.CHAT, chat_request, CHAT_SHAPE),
}


def openai_routes[P](answerer: Answerer[P], model: str, live: LiveNow) -> APIRouter:
    """Build the routes; the model is known by this one name."""
    router = APIRouter()
    for path, dialect in DIALECTS.items():
        route = OpenAIRoute(answerer, partial(_read, answerer.limits, model, dialect))
        router.routes.append(Route(path, route, methods=["POST"]))

    @router.get("/v1/models")
    async def models() -> Response:
        return Json({"object": "list", "data": [_model(model, live())]})

    @router.get("/v1/models/{name:path}")
    async def one_model(name: str) -> Response:
        _check_model(name, model)
        return Json(_model(model, live()))

    return router


class OpenAIRoute[P](ModelRoute[P]):
    """A route to the model whose refusals name fields as OpenAI does."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with in_openai_words(lambda: scope.get(_GIVEN, ())):
            await super().__call__(scope, receive, send)


async def _read(limits: Limits, model: str, dialect: Dialect, request: Request) -> ModelRequest:
    given = await read_fields(
        request, dialect.kinds, nesting=limits.nesting, unread=ASKS_FOR_NOTHING
    )
    drop_unsupported(given)
    request.scope[_GIVEN] = frozenset(given)
    if given.get("model") not in NO_NAME:
        _check_model(given.get("model", model), model)
    at_least = oldest_wanted(request, given)
    engine_request = dialect.to_engine(given)
    copies = given.get("n", 1)
    _check_size(given, copies, limits)
    form = OpenAIAnswer(
        dialect.shape,
        model=model,
        stops=[given["stop"]] if isinstance(given.get("stop"), str) else given.get("stop", []),
        copies=copies,
        has_usage=includes_usage(given),
    )
    return ModelRequest(engine_request, form, at_least)


def _check_size(given: Fields, copies: int, limits: Limits) -> None:
    prompts = _prompts(given.get("prompt"))
    check_batch(prompts * copies, limits, "n" if copies > 1 else "prompt")


def _prompts(prompt: str | Sequence[object] | None) -> int:
    if isinstance(prompt, list) and not is_integer(prompt[0]):
        return len(prompt)
    return 1


def _check_model(asked: str, model: str) -> None:
    if asked != model:
        words = f"there is no model {shown(asked)} here; this server's model is {model!r}"
        raise Refused(404, "model_not_found", words, param="model")


def _model(name: str, live: Generation | None) -> Fields:
    if live is None:
        raise NotServing("the engine is starting", code="booting", retry_after=2)
    return {
        "id": name,
        "object": "model",
        "created": int(live.since),
        "owned_by": "hotreload",
        "hotreload": live.stamp,
    }
