"""Every route to the model: POST /generate, in the engine's own schema, and those of other APIs."""

from collections.abc import Mapping
from functools import partial
from typing import Any, TypedDict

from starlette.requests import Request
from starlette.routing import BaseRoute, Route

from hotreload.errors import BadRequest, HotReloadError
from hotreload.json_fields import Fields
from hotreload.server.answerer import (
    GENERATION_NUMBER,
    MIN_GENERATION_HEADER,
    NO_REPLAY_HEADER,
    SESSION_HEADERS,
    WEIGHT_VERSION_HEADER,
    Answerer,
    ModelRoute,
    ParsedRequest,
    check_batch,
    check_model,
    take_min_generation,
)
from hotreload.server.api_schema.known_fields import (
    CHAT,
    COMPLETION,
    GENERATE,
    PROMPTS,
    SAMPLING_PARAMS,
    KnownFields,
)
from hotreload.server.api_schema.operation import EVENTS, Operation, Parameter
from hotreload.server.http.problems import TEXT_GENERATION_PATH, problem_fields
from hotreload.server.http.request_body import STRING, read_object
from hotreload.server.http.request_log import FINGERPRINT_HEADER, GENERATION_HEADER
from hotreload.server.model import EngineAnswer, count_prompts
from hotreload.server.openai.answers import ChatCompletionFields, CompletionFields
from hotreload.server.openai.response_answers import ResponseFields
from hotreload.server.openai.response_requests import RESPONSES
from hotreload.server.openai.routes import DIALECTS, route_to_model
from hotreload.server.text_generation import (
    TEXT_GENERATION,
    TextGenerationFields,
    text_generation_route,
)
from hotreload.server_limits import Limits
from hotreload.types import Generation, StampFields


class AnswerFields(TypedDict):
    """An answer in the engine's schema, and the generation that made it."""

    text: str
    meta_info: StampFields


async def read_generate(request: Request, limits: Limits, model: str) -> ParsedRequest:
    """Read a request; its fields go to the engine unchanged."""
    wish = GENERATE.check(await read_object(request, nesting=limits.nesting), limits)
    given = [name for name in PROMPTS if name in wish]
    if len(given) != 1:
        raise BadRequest("give text or input_ids, one of them", code="bad_field")
    check_model(wish.pop("model", ""), model)
    if "sampling_params" in wish:
        wish["sampling_params"] = _sampling_params(wish["sampling_params"], limits)
        wish |= _copies(wish["sampling_params"])
    answers = count_prompts(wish[given[0]]) * wish.get("copies", 1)
    check_batch(answers, limits, "sampling_params.n" if "copies" in wish else given[0])
    at_least = take_min_generation(request, wish)
    return ParsedRequest(wish, EngineFormatter(), at_least)


def _sampling_params(wanted: Fields | list[Fields], limits: Limits) -> Fields | list[Fields]:
    if isinstance(wanted, list):
        return [SAMPLING_PARAMS.check(each, limits) for each in wanted]
    return SAMPLING_PARAMS.check(wanted, limits)


def _copies(sampling: Fields | list[Fields]) -> Fields:
    """Remove `n` from the sampling parameters; return it as `copies` if above 1."""
    each = sampling if isinstance(sampling, list) else [sampling]
    asked = {one.pop("n", 1) for one in each} or {1}
    if len(asked) > 1:
        path = "sampling_params.n"
        raise BadRequest(f"{path}: must be the same for each prompt", code="bad_field", param=path)
    n = asked.pop()
    return {"copies": n} if n > 1 else {}


class EngineFormatter:
    """Sends answers in the engine's own schema, with their generation in `meta_info`."""

    def __init__(self) -> None:
        self._stamp: StampFields | None = None
        """The stamp of the answer's generation, which one answer never changes."""

    def format_whole(self, item: EngineAnswer, generation: Generation) -> Any:
        """Return the answer, or the list of a batch."""
        for answer in item if isinstance(item, list) else [item]:
            self.format_piece(answer, generation)
        return item

    def format_piece(self, answer: Fields, generation: Generation) -> list[Any]:
        """Return the piece with its stamp."""
        if self._stamp is None:
            self._stamp = generation.stamp
        answer["meta_info"] = {**answer.get("meta_info", {}), **self._stamp}
        return [answer]

    def format_end(self, generation: Generation) -> list[Any]:
        """Return no events."""
        return []

    def format_error(self, error: HotReloadError) -> Any:
        """Return the problem, which takes the place of a piece."""
        return {"error": problem_fields(error)}


_PARAMETERS = (
    Parameter(
        MIN_GENERATION_HEADER,
        GENERATION_NUMBER,
        "Wait for this generation or a later one; 409 if it does not come in time.",
        "header",
    ),
    *(
        Parameter(name, kind, "Answer by exactly these weights; 409 if they are gone.", "header")
        for name, kind in (
            (GENERATION_HEADER, GENERATION_NUMBER),
            (FINGERPRINT_HEADER, STRING),
            (WEIGHT_VERSION_HEADER, STRING),
        )
    ),
    *(
        Parameter(
            name, STRING, "Answer by the weights of this conversation's first answer.", "header"
        )
        for name in SESSION_HEADERS
    ),
    Parameter(NO_REPLAY_HEADER, STRING, "Do not keep this request; any value.", "header"),
)


def _asks(
    words: str, answer: Any, known: KnownFields, required: str = "", one_of: tuple[str, ...] = ()
) -> Operation:
    return Operation(
        words,
        answer,
        (404, 408, 409, 503, 504),
        [EVENTS],
        body=known.accepted_kinds,
        required=(required,) if required else (),
        one_of=one_of,
        parameters=_PARAMETERS,
    )


GENERATE_PATH = "/generate"
MODEL_OPERATIONS: Mapping[str, Operation] = {
    GENERATE_PATH: _asks(
        "Ask in the engine's own schema.",
        AnswerFields | list[AnswerFields],
        GENERATE,
        one_of=PROMPTS,
    ),
    TEXT_GENERATION_PATH: _asks(
        "Ask in the schema of huggingface_hub's client.",
        list[TextGenerationFields],
        TEXT_GENERATION,
        "inputs",
    ),
    "/v1/completions": _asks("OpenAI's completions.", CompletionFields, COMPLETION, "prompt"),
    "/v1/chat/completions": _asks(
        "OpenAI's chat completions.", ChatCompletionFields, CHAT, "messages"
    ),
    "/v1/responses": _asks(
        "OpenAI's responses, of text and without state.", ResponseFields, RESPONSES, "input"
    ),
}
"""The description of each route to the model, by its path; each answers POST alone."""


def model_routes(answerer: Answerer, model: str) -> list[BaseRoute]:
    """Build the routes; `model` is the name by which clients know the model."""
    generate = partial(read_generate, limits=answerer.limits, model=model)
    routes = {
        GENERATE_PATH: ModelRoute(answerer, generate),
        TEXT_GENERATION_PATH: text_generation_route(answerer),
        **{path: route_to_model(path, answerer, model) for path in DIALECTS},
    }
    return [
        Route(path, MODEL_OPERATIONS[path](each), methods=["POST"]) for path, each in routes.items()
    ]


BLANKS = b"\r\n"
"""Lines that may stand before a request."""
ASKS_THE_MODEL = tuple(
    b"POST %b%b" % (path.encode(), end) for path in sorted(MODEL_OPERATIONS) for end in (b" ", b"?")
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
