"""SGLang's routes that do not change the weights: information, load, caches, tokenizer, aborts."""

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, TypedDict

from fastapi import APIRouter, FastAPI, Query
from starlette.requests import Request
from starlette.responses import Response

from hotreload.errors import BadRequest
from hotreload.json_fields import Fields
from hotreload.picture.status import Status
from hotreload.server.answerer import check_batch, rename_field
from hotreload.server.api_schema.kinds import STRING, whole_number
from hotreload.server.api_schema.operation import TEXT, Operation, Parameter, read_body
from hotreload.server.http.problems import (
    Json,
    OpenAIErrorFields,
    Refused,
    check_live,
    openai_fields,
)
from hotreload.server.openai.requests import chat_request, openai_name
from hotreload.server.orders import abort, flush_all
from hotreload.server.ports import Entrance
from hotreload.server.sglang import answers, bodies
from hotreload.server.sglang.update_routes import WeightsChecker
from hotreload.server_limits import Limits

TOKENIZED_CHAT_FIELDS = {"messages", "chat_template_kwargs"}
DEFAULT_ROWS = 100
"""The numbers, or rows, of a leaf that are returned by default."""


def add_info_routes[P](
    app: FastAPI,
    entrance: Entrance[P],
    status: Status,
    model: answers.ServedModel,
    last_token_at: Callable[[], float],
) -> None:
    """Add the routes that describe the model, the server, its load and its health."""
    picture, engines = status.picture, status.picture.readings.replicas
    health_probe = HealthProbe(entrance, last_token_at)

    def facts() -> answers.EngineFacts:
        with entrance.lend_engine() as engine:
            return engine.facts()

    @app.get("/get_model_info")
    @app.get("/model_info")
    @Operation("SGLang's: the model and its weights.", answers.ModelInfoFields, (503,))
    async def model_info() -> Response:
        return Json(answers.model_info(model, facts(), check_live(picture.live)))

    @app.get("/get_server_info")
    @app.get("/server_info")
    @Operation("SGLang's: the server's settings.", answers.ServerInfoFields, (503,))
    async def server_info() -> Response:
        return Json(answers.server_info(model, facts(), check_live(picture.live), engines()))

    @app.get("/get_load")
    @Operation("SGLang's: the load of each engine.", list[answers.ShortLoadFields], (503,))
    async def get_load() -> Response:
        check_live(picture.live)  # an engine that is not there yet must not look idle
        # A bare array, as SGLang's routers and TorchRL read it.
        return Json([answers.short_load(rank, each) for rank, each in enumerate(engines())])

    @app.get("/v1/loads")
    @Operation(
        "SGLang's: the full load report.",
        answers.LoadsFields,
        (503,),
        parameters=[
            Parameter(
                "include",
                STRING,
                "Sections, separated by commas: core, memory, queues, all; all.",
            ),
            Parameter("dp_rank", whole_number(0, 2**31 - 1), "The engine of this number alone."),
        ],
    )
    async def loads(
        dp_rank: int | None = None,
        include: str = "all",
        form: Annotated[str, Query(alias="format")] = "json",
    ) -> Response:
        if form != "json":
            words = "format: only json is supported; Prometheus reads GET /metrics"
            raise Refused(400, "bad_field", words, param="format")
        named = [each.strip() for each in include.split(",")]
        if unknown := sorted(set(named) - set(answers.SECTIONS)):
            words = f"Invalid include sections: {unknown}. Valid options: {[*answers.SECTIONS]}"
            raise Refused(400, "bad_field", words, param="include")
        return Json(answers.loads(engines(), facts(), include=named, rank=dp_rank))

    @app.get("/health_generate")
    @Operation("SGLang's: make one token.", None, (503,))
    async def health_generate() -> Response:
        await health_probe.wait_for_token()
        return Response(status_code=200)


class TokensFields(TypedDict):
    """The tokens of a text, or of each of several."""

    tokens: list[Any]
    count: int | list[int]
    max_model_len: int | None
    token_strs: None


class DetokenizedFields(TypedDict):
    """The text of tokens, or the texts, under SGLang's name and vLLM's."""

    text: str | list[str]
    prompt: str | list[str]


class CheckedFields(TypedDict):
    """Checksums, or the fault that was found."""

    success: bool
    message: str


def add_tokenizer_routes[P](app: FastAPI, limits: Limits, entrance: Entrance[P]) -> None:
    """Add the routes that encode and decode texts."""

    @app.post("/tokenize")
    @app.post("/v1/tokenize")
    @Operation(
        "SGLang's and vLLM's: the tokens of texts or of a chat.",
        TokensFields,
        (408, 503),
        body=bodies.TOKENIZE_FIELDS,
        one_of=("prompt", "messages"),
    )
    async def tokenize(request: Request) -> Response:
        given = await read_body(request, nesting=limits.nesting)
        asked = _tokenizer_input(given)
        check_batch(len(asked.get("text", ())), limits, "prompt")
        with rename_field(partial(openai_name, given=given)), entrance.lend_engine() as engine:
            tokens = await engine.answers.tokenize(asked)
            most = engine.facts().get("context_length")
        is_batch = isinstance(given.get("prompt"), list)
        counts = [len(each) for each in tokens]
        found = TokensFields(
            tokens=tokens if is_batch else tokens[0],
            count=counts if is_batch else counts[0],
            max_model_len=most,
            token_strs=None,
        )
        return Json(found)

    @app.post("/detokenize")
    @app.post("/v1/detokenize")
    @Operation(
        "SGLang's and vLLM's: the texts of tokens.",
        DetokenizedFields,
        (408, 503),
        body=bodies.DETOKENIZE_FIELDS,
        required=("tokens",),
    )
    async def detokenize(request: Request) -> Response:
        given = await read_body(request, nesting=limits.nesting)
        tokens = given["tokens"]
        is_batch = bool(tokens) and isinstance(tokens[0], list)
        check_batch(len(tokens) if is_batch else 1, limits, "tokens")
        skip = given.get("skip_special_tokens", True)
        with entrance.lend_engine() as engine:
            texts = await engine.answers.detokenize(
                tokens if is_batch else [tokens], skip_special=skip
            )
        text = texts if is_batch else texts[0]
        return Json(DetokenizedFields(text=text, prompt=text))


def add_engine_routes[P](guarded: APIRouter, entrance: Entrance[P]) -> None:
    """Add the routes to the engine, which require an administrator's rights."""

    checker = WeightsChecker(entrance)

    @guarded.api_route("/flush_cache", methods=["GET", "POST"])
    @Operation("SGLang's: drop cached prefixes that are not in use.", None, (408, 503), [TEXT])
    async def flush_cache() -> Response:
        tokens = await flush_all(entrance)
        return Response(answers.FLUSHED.format(tokens=tokens), media_type="text/plain")

    @guarded.post("/abort_request")
    @Operation(
        "SGLang's: abort a request, or all.",
        None,
        (408, 503),
        body=bodies.ABORT_FIELDS,
        may_be_empty=True,
    )
    async def abort_request(request: Request) -> Response:
        given = await read_body(request)
        rid = given.get("rid") or None
        if given.get("abort_all") or rid is not None:
            await abort(entrance, None if given.get("abort_all") else rid)
        return Response(status_code=200)

    @guarded.api_route("/get_weights_by_name", methods=["GET", "POST"])
    @Operation(
        "SGLang's: the first numbers of a leaf or a tensor.",
        list[float | list[Any] | None],
        (408, 503),
        body=bodies.WEIGHTS_BY_NAME_FIELDS,
        required=("name",),
        others={400: OpenAIErrorFields},
    )
    async def get_weights_by_name(request: Request) -> Response:
        given = await read_body(request)
        name, most = given["name"], given.get("truncate_size", DEFAULT_ROWS)
        try:
            async with entrance.inspect() as lease:  # no swap while they are read
                return Json(await lease.engine.weights.first_values(name, most))
        except BadRequest as fault:
            return Json({"error": openai_fields(fault)}, 400)

    @guarded.api_route("/weights_checker", methods=["GET", "POST"])
    @Operation(
        "SGLang's: compute checksums, or compare them with a snapshot.",
        CheckedFields,
        (408, 503),
        body=bodies.CHECK_FIELDS,
        others={400: CheckedFields},
        may_be_empty=True,
    )
    async def weights_checker(request: Request) -> Response:
        given = await read_body(request)
        action, skip = given.get("action", "checksum"), given.get("skip_tensor_list", ())
        try:
            found = await checker.run(action, skip)
        except BadRequest as fault:
            return Json(CheckedFields(success=False, message=str(fault)), 400)
        return Json({**CheckedFields(success=True, message="Success."), **found})


def _tokenizer_input(given: Fields) -> Fields:
    """Return the texts or the chat to encode, in the engine's form."""
    if ("prompt" in given) == ("messages" in given):
        words = "Exactly one of 'prompt' or 'messages' must be provided."
        raise BadRequest(words, code="bad_field", param="prompt")
    if "messages" in given:
        asked = chat_request({name: given[name] for name in given if name in TOKENIZED_CHAT_FIELDS})
        return {name: asked[name] for name in ("messages", "template_args") if name in asked}
    prompt = given["prompt"]
    texts = prompt if isinstance(prompt, list) else [prompt]
    return {"text": texts, "add_special_tokens": given.get("add_special_tokens", True)}


HEALTHY_SECONDS = 20.0
"""The longest wait for a token, the same as SGLang's."""
ONE_TOKEN_REQUEST = {"input_ids": [0], "sampling_params": {"max_new_tokens": 1, "temperature": 0}}


@dataclass(slots=True)
class HealthProbe[P]:
    """Requests one token from the engine for all callers; one such request runs at a time.

    It has no time limit, and goes on when a caller leaves: it may be waiting for a compilation.
    """

    entrance: Entrance[P]
    last_token_at: Callable[[], float]
    """Returns when a client was sent a token last, by the monotonic clock."""
    within: float = HEALTHY_SECONDS
    _probe: asyncio.Task[None] | None = None

    async def wait_for_token(self) -> None:
        """Return once a token is made; NotServing if there is no engine, Refused if none comes."""
        began = time.monotonic()
        if self._probe is None or self._probe.done():
            self._probe = asyncio.create_task(self._make_token(), name="one token")
            # The error is read even if all callers have left: asyncio logs unread errors.
            self._probe.add_done_callback(lambda done: done.cancelled() or done.exception())
        done, _ = await asyncio.wait({self._probe}, timeout=self.within)
        if done:
            return self._probe.result()
        if self.last_token_at() < began:
            words = f"no token was made within {self.within:g} s; the engine may be compiling"
            raise Refused(503, "no_token", words, retry_after=5)

    async def _make_token(self) -> None:
        with self.entrance.lend_engine() as engine:
            prepared = await engine.answers.prepare(ONE_TOKEN_REQUEST)
        async with (
            self.entrance.inspect() as lease,
            aclosing(lease.engine.answers.generate(prepared, lease.weights)) as answers,
        ):
            await anext(answers)
