"""Every route to the model: POST /generate, in the engine's own schema, and those of other APIs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypedDict

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from hotreload.errors import BadRequest, HotReloadError
from hotreload.json_fields import Fields
from hotreload.server import text_generation
from hotreload.server.answerer import (
    GENERATION_NUMBER,
    GIVEN,
    MIN_GENERATION_HEADER,
    NO_REPLAY_HEADER,
    SESSION_HEADERS,
    WEIGHT_VERSION_HEADER,
    Answerer,
    AnswerFormatter,
    ModelRoute,
    NameOf,
    ParsedRequest,
    check_batch,
    check_model,
    take_min_generation,
)
from hotreload.server.api_schema import known_fields
from hotreload.server.api_schema.kinds import STRING
from hotreload.server.api_schema.operation import (
    EVENTS,
    Operation,
    Parameter,
    check_required,
    read_object,
)
from hotreload.server.http.problems import TEXT_GENERATION_PATH, Json, check_live, problem_fields
from hotreload.server.http.request_log import FINGERPRINT_HEADER, GENERATION_HEADER
from hotreload.server.model import EngineAnswer, answers_in, count_prompts
from hotreload.server.openai import answers, requests, response_answers, response_requests
from hotreload.types import Generation, StampFields


class AnswerFields(TypedDict):
    """An answer in the engine's schema, and the generation that made it."""

    text: str
    meta_info: StampFields


@dataclass(frozen=True, slots=True)
class Dialect:
    """One route to the model: its fields, its translation, and its format of answers."""

    words: str
    known: known_fields.KnownFields
    answer: Any
    to_engine: Callable[[Fields], Fields]
    make_formatter: Callable[[Fields, str], AnswerFormatter]
    """Makes the formatter from the request's fields and the model's name."""
    required: tuple[str, ...] = ()
    name_of: NameOf = requests.openai_name
    copies: str = "n"
    """The name of the number of answers to each prompt."""

    async def read(self, request: Request, answerer: Answerer, model: str) -> ParsedRequest:
        """Read a request to the model of this name, or to one of the answerer's others."""
        limits = answerer.limits
        given = self.known.check(await read_object(request, nesting=limits.nesting), limits)
        request.scope[GIVEN] = frozenset(given)
        asked = given.pop("model", "")
        if asked in answerer.others:
            model = asked
        check_model(asked, model)
        check_required(given, self.required)
        at_least = take_min_generation(request, given)
        to_engine = self.to_engine(given)
        prompts = count_prompts(to_engine.get("text", to_engine.get("input_ids")))
        copies = to_engine.get("copies", 1)
        prompt = next((name for name in known_fields.PROMPTS if name in given), "prompt")
        check_batch(prompts * copies, limits, self.copies if copies > 1 else prompt)
        return ParsedRequest(to_engine, self.make_formatter(given, model), at_least, model)

    @property
    def operation(self) -> Operation:
        """The description of the route."""
        return Operation(
            self.words,
            self.answer,
            (404, 408, 409, 503, 504),
            [EVENTS],
            body=self.known.accepted_kinds,
            required=self.required,
            one_of=() if self.required else known_fields.PROMPTS,
            parameters=_PARAMETERS,
        )

    def route(self, path: str, answerer: Answerer, model: str) -> Route:
        """Build the route at this path to a model of this name."""
        read = partial(self.read, answerer=answerer, model=model)
        app = ModelRoute(answerer, read, self.name_of, self.operation)
        return Route(path, app, methods=["POST"])


def _generate_request(given: Fields) -> Fields:
    """Return a request in the engine's own schema, whose fields go to the engine unchanged."""
    if len([name for name in known_fields.PROMPTS if name in given]) != 1:
        raise BadRequest("give text or input_ids, one of them", code="bad_field")
    return given | _copies(given.get("sampling_params", {}))


def _copies(sampling: Fields | list[Fields]) -> Fields:
    """Remove `n` from the sampling parameters; return it as `copies` if above 1."""
    each = sampling if isinstance(sampling, list) else [sampling]
    asked = {one.pop("n", 1) for one in each} or {1}
    if len(asked) > 1:
        path = "sampling_params.n"
        raise BadRequest(f"{path}: must be the same for each prompt", code="bad_field", param=path)
    n = asked.pop()
    return {"copies": n} if n > 1 else {}


class EngineFormatter(AnswerFormatter):
    """Sends answers in the engine's own schema, with their generation in `meta_info`."""

    _stamp: StampFields | None = None
    """The stamp of the answer's generation, which one answer never changes."""

    def format_whole(self, item: EngineAnswer, generation: Generation) -> Any:
        """Return the answer, or the list of a batch."""
        for answer in answers_in(item):
            self.format_piece(answer, generation)
        return item

    def format_piece(self, answer: Fields, generation: Generation) -> list[Any]:
        """Return the piece with its stamp."""
        if self._stamp is None:
            self._stamp = generation.stamp
        answer["meta_info"] = {**answer.get("meta_info", {}), **self._stamp}
        return [answer]

    def format_error(self, error: HotReloadError) -> Any:
        """Return the problem, which takes the place of a piece."""
        return {"error": problem_fields(error)}


def _choices_of(shape: answers.AnswerShape, given: Fields, model: str) -> answers.OpenAIAnswer:
    options = given.get("stream_options", {})
    return answers.OpenAIAnswer(
        shape=shape,
        model=model,
        copies=given.get("n", 1),
        has_usage=options.get("include_usage", False),
        has_usage_so_far=options.get("continuous_usage_stats", False),
        echoes=requests.read_echoes(given),
    )


_EXACTLY = "Answer by exactly these weights; 409 if they are gone."
_SESSION = "Answer by the weights of this conversation's first answer."
_PARAMETERS = tuple(
    Parameter(name, kind, words, "header")
    for name, kind, words in (
        (
            MIN_GENERATION_HEADER,
            GENERATION_NUMBER,
            "Wait for this generation or a later one; 409 if it does not come in time.",
        ),
        (GENERATION_HEADER, GENERATION_NUMBER, _EXACTLY),
        (FINGERPRINT_HEADER, STRING, _EXACTLY),
        (WEIGHT_VERSION_HEADER, STRING, _EXACTLY),
        *((name, STRING, _SESSION) for name in SESSION_HEADERS),
        (NO_REPLAY_HEADER, STRING, "Do not keep this request; any value."),
    )
)
DIALECTS: Mapping[str, Dialect] = {
    "/generate": Dialect(
        "Ask in the engine's own schema.",
        known_fields.GENERATE,
        AnswerFields | list[AnswerFields],
        _generate_request,
        lambda given, model: EngineFormatter(),
        name_of=lambda theirs, given: None,
        copies="sampling_params.n",
    ),
    TEXT_GENERATION_PATH: Dialect(
        "Ask in the schema of huggingface_hub's client.",
        text_generation.TEXT_GENERATION,
        list[text_generation.TextGenerationFields],
        text_generation.generation_request,
        lambda given, model: text_generation.TextGenerationFormatter(given),
        required=("inputs",),
        name_of=lambda theirs, given: text_generation.ENGINE_NAMES.get(theirs),
    ),
    "/v1/completions": Dialect(
        "OpenAI's completions.",
        known_fields.COMPLETION,
        answers.CompletionFields,
        requests.completion_request,
        partial(_choices_of, answers.COMPLETION_SHAPE),
        required=("prompt",),
    ),
    "/v1/chat/completions": Dialect(
        "OpenAI's chat completions.",
        known_fields.CHAT,
        answers.ChatCompletionFields,
        requests.chat_request,
        partial(_choices_of, answers.CHAT_SHAPE),
        required=("messages",),
    ),
    "/v1/responses": Dialect(
        "OpenAI's responses, of text and without state.",
        response_requests.RESPONSES,
        response_answers.ResponseFields,
        response_requests.response_request,
        response_answers.ResponseAnswer,
        required=("input",),
    ),
}
"""Each route to the model, by its path; each answers POST alone."""


def model_routes(answerer: Answerer, model: str) -> list[BaseRoute]:
    """Build the routes; `model` is the name by which clients know the model."""
    return [dialect.route(path, answerer, model) for path, dialect in DIALECTS.items()]


BLANKS = b"\r\n"
"""Lines that may stand before a request."""
ASKS_THE_MODEL = tuple(
    b"POST %b%b" % (path.encode(), end) for path in sorted(DIALECTS) for end in (b" ", b"?")
)
LONGEST_START = max(map(len, ASKS_THE_MODEL))


def is_model_request(head: bytes) -> bool | None:
    """True if a request that begins with these bytes asks the model; None if more are needed."""
    head = head.lstrip(BLANKS)
    if head.startswith(ASKS_THE_MODEL):
        return True
    if len(head) < LONGEST_START and any(each.startswith(head) for each in ASKS_THE_MODEL):
        return None
    return False


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


def add_models_routes(app: FastAPI, model: str, live: Callable[[], Generation | None]) -> None:
    """Add the routes that describe the model; `model` is its name to clients."""

    @app.get("/v1/models")
    @Operation("The one model there is.", ModelListFields, (503,))
    async def models() -> Response:
        return Json(ModelListFields(object="list", data=[model_fields(model, live())]))

    @app.get("/v1/models/{name:path}")
    @Operation(
        "The model, by its name.",
        ModelFields,
        (404, 503),
        parameters=[Parameter("name", STRING, "The name in [server] model_name.", "path")],
    )
    async def one_model(name: str) -> Response:
        check_model(name, model)
        return Json(model_fields(model, live()))
