"""Answers one request to the model, from its body to the last byte of the answer.

Each route has its own reader of requests and format of answers: see model_routes.py and openai/.
"""

import asyncio
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Hashable,
    Iterator,
    Mapping,
)
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Protocol

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from hotreload.core.way_in.gate import ExactWeights
from hotreload.errors import BadRequest, HotReloadError, show_value
from hotreload.json_fields import Fields
from hotreload.server.api_schema.kinds import Kind, whole_number
from hotreload.server.api_schema.operation import Operation
from hotreload.server.http import request_log
from hotreload.server.http.keys import key_name
from hotreload.server.http.limits import SharedCounter
from hotreload.server.http.problems import Json, Refused, status_of
from hotreload.server.http.sse import EventWriter
from hotreload.server.model import (
    EngineAnswer,
    Model,
    ModelRequest,
    StartedAnswer,
    answers_in,
    count_tokens,
    finish_reason,
)
from hotreload.server.ports import Metrics
from hotreload.server_limits import Limits
from hotreload.types import AS_ASKED, Generation

WEIGHT_VERSION_HEADER = "X-Hotreload-Weight-Version"
NO_REPLAY_HEADER = "X-Hotreload-No-Replay"
"""With this header, whatever its value, a request is not kept for a comparison of weights."""
SESSION_HEADERS = (
    "X-Session-Affinity",
    "X-Multi-Turn-Session-Id",
    "X-Session-ID",
    "X-SMG-Routing-Key",
)
"""The headers that name a conversation.

Fireworks' clients and OpenCode send the first two, prime-rl and SkyRL the third, slime and miles
the last: a uuid for each sample.
"""


MIN_GENERATION_HEADER = "X-Hotreload-Min-Generation"
LARGEST_NUMBER = 2**53
GENERATION_NUMBER = whole_number(0, LARGEST_NUMBER)
MIN_GENERATION: Mapping[str, Kind] = {"min_generation": GENERATION_NUMBER}
"""The body's field that asks for an answer by this generation or a later one."""


def _number_in(scope: Scope, name: str, words: str, most: int) -> int | None:
    """Return the number in a header, None if there is none; BadRequest for anything else."""
    given = request_log.header_of(scope, name)
    if given is None:
        return None
    is_number = given.isascii() and given.isdigit() and len(given) < 20
    if not is_number or int(given) > most:
        said = f"{name} must be {words}, not {show_value(given)}"
        raise BadRequest(said, code="bad_field", param=name)
    return int(given)


def wanted_weights(scope: Scope) -> ExactWeights | None:
    """Return the weights that the request asks for; None if any will do."""
    words = "the number of a generation"
    number = _number_in(scope, request_log.GENERATION_HEADER, words, most=10**19)
    fingerprint = request_log.header_of(scope, request_log.FINGERPRINT_HEADER)
    version = request_log.header_of(scope, WEIGHT_VERSION_HEADER)
    if number is None and fingerprint is version is None:
        return None
    return ExactWeights(number, fingerprint, version)


def take_min_generation(request: Request, fields: Fields) -> int:
    """Remove `min_generation` from the fields; return the larger of that and the header."""
    wanted: int = fields.pop("min_generation", 0)
    words = GENERATION_NUMBER.words
    header = _number_in(request.scope, MIN_GENERATION_HEADER, words, LARGEST_NUMBER)
    return max(wanted, header or 0)


def session_of(scope: Scope) -> Hashable | None:
    """Return a digest of the conversation's name; None if the request has none.

    Thousands of sessions are remembered: a digest is short whatever the name's length.
    """
    for header in SESSION_HEADERS:
        if name := request_log.header_of(scope, header):
            return sha256(f"{header}: {name}".encode()).digest()
    return None


class AnswerFormatter(Protocol):
    """Formats the engine's answer to one request for one API."""

    def format_whole(self, item: EngineAnswer, generation: Generation) -> Any:
        """Return the whole answer."""

    def format_piece(self, answer: Fields, generation: Generation) -> list[Any]:
        """Return the events to send for the next piece of a stream."""

    def format_end(self, generation: Generation) -> list[Any]:
        """Return the events to send after the last piece; as it is, none."""
        return []

    def format_error(self, error: HotReloadError) -> Any:
        """Return the event to send when a stream that has begun fails."""


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A client's request in the engine's schema, and the format of its answer."""

    fields: Fields
    formatter: AnswerFormatter
    at_least: int = 0
    model: str = ""
    """The name of the model that the request means."""

    @property
    def streams(self) -> bool:
        """True if the answer is a stream."""
        return bool(self.fields.get("stream"))


Read = Callable[[Request], Awaitable[ParsedRequest]]


@dataclass(frozen=True, slots=True)
class Answerer:
    """Reads requests, sends them to the model, and sends the answers to the clients."""

    model: Model
    metrics: Metrics
    limits: Limits
    running: SharedCounter = field(default_factory=SharedCounter)
    """Counts the requests in all processes that serve the same model."""
    others: Mapping[str, Model] = field(default_factory=dict)
    """Further models, by their names."""

    async def answer(self, read: Read, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; `read` is its route's reader."""
        if (running := self.running.total) >= self.limits.concurrent:
            words = f"{running} requests are running ([server.limits] concurrent)"
            raise Refused(503, "too_many_requests", words, retry_after=1)
        self.running.add(1)
        try:
            parsed = await read(Request(scope, receive))
            answer = self._answer_stream if parsed.streams else self._answer_whole
            until = asyncio.get_running_loop().time() + self.limits.request_seconds
            await answer(parsed, _Client(scope, receive, send, until))
        finally:
            self.running.add(-1)

    async def _answer_whole(self, parsed: ParsedRequest, client: "_Client") -> None:
        async with self._open_answer(parsed, client) as opened:
            item = await anext(opened.items)
            for index, answer in enumerate(answers_in(item)):
                client.note(index, answer)
        content = parsed.formatter.format_whole(item, opened.generation)
        whole = Json(content, headers=request_log.generation_header(opened.generation))
        await whole(client.scope, client.receive, client.send)

    async def _answer_stream(self, parsed: ParsedRequest, client: "_Client") -> None:
        began = time.perf_counter()
        out = EventWriter(client.scope, client.send)
        try:
            async with self._open_answer(parsed, client) as opened:
                out.add_headers(request_log.generation_header(opened.generation))
                seconds = time.perf_counter() - began
                self.metrics.first_token(seconds)
                request_log.add_to_access_log(client.scope, first_token=round(seconds, 4))
                async for piece in opened.items:
                    assert isinstance(piece, dict)
                    client.note(piece.get("index", 0), piece)
                    for event in parsed.formatter.format_piece(piece, opened.generation):
                        await out.write(event)
                for event in parsed.formatter.format_end(opened.generation):
                    await out.write(event)
        except HotReloadError as error:
            if not out.is_started:
                raise
            request_log.count_as(client.scope, status_of(error))
            await out.write(parsed.formatter.format_error(error))
        await out.end_with_done()

    @asynccontextmanager
    async def _open_answer(
        self, parsed: ParsedRequest, client: "_Client"
    ) -> AsyncIterator[StartedAnswer]:
        """Send the request to the model, until the deadline and while the client is connected."""
        model = self.others.get(parsed.model, self.model)
        try:
            async with (
                asyncio.timeout_at(client.until) as deadline,
                request_log.while_connected(client.receive),
                model.open_answer(client.to_model_request(parsed)) as opened,
            ):
                yield opened
        except TimeoutError:
            if not deadline.expired():
                raise
            limit = self.limits.request_seconds
            words = f"not answered within {limit:g} s ([server.limits] request_seconds)"
            raise Refused(504, "timed_out", words) from None
        finally:
            request_log.add_to_access_log(client.scope, tokens=client.tokens)


@dataclass(frozen=True, slots=True)
class _Client:
    """One request's connection, its deadline, and its answers so far."""

    scope: Scope
    receive: Receive
    send: Send
    until: float
    answers: dict[int, Fields] = field(default_factory=dict)
    """Each answer so far, by its index."""

    @property
    def tokens(self) -> int:
        """The number of tokens that were made for this request so far."""
        return sum(map(count_tokens, self.answers.values()))

    def to_model_request(self, parsed: ParsedRequest) -> ModelRequest:
        """Return the model's request, with the wishes of the headers."""
        return ModelRequest(
            parsed.fields,
            self.until,
            parsed.at_least,
            wanted_weights(self.scope),
            session_of(self.scope),
            request_log.header_of(self.scope, NO_REPLAY_HEADER) is None,
            origin=request_log.origin_of(self.scope),
            key=key_name(self.scope),
        )

    def note(self, index: int, answer: Fields) -> None:
        """Keep the answer so far; count the request as cut short if the server aborted it."""
        self.answers[index] = answer
        ended = finish_reason(answer)
        if ended.get("type") == "abort" and ended.get("code") != AS_ASKED:
            request_log.count_as(self.scope, int(ended.get("status_code") or request_log.CUT_SHORT))


NameOf = Callable[[str, Collection[str]], str | None]
"""Returns the client's name of a field of the engine's, by the names that the client has sent; None
where it is the same."""
GIVEN = "hotreload.given"
"""The key in a request's scope for the names of its fields, once they are read."""


@dataclass(frozen=True, slots=True)
class ModelRoute:
    """A route to the model, as an ASGI app; its refusals name fields as its clients do."""

    answerer: Answerer
    read: Read
    name_of: NameOf
    operation: Operation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with rename_field(lambda theirs: self.name_of(theirs, scope.get(GIVEN, ()))):
            await self.answerer.answer(self.read, scope, receive, send)


@contextmanager
def rename_field(name_of: Callable[[str], str | None]) -> Iterator[None]:
    """Rename the field in a BadRequest of the block by `name_of`."""
    try:
        yield
    except BadRequest as error:
        name = name_of(error.param or "")
        if name is None:
            raise
        words = str(error).removeprefix(f"{error.param}: ")
        raise BadRequest(f"{name}: {words}", code=error.code, param=name) from error


def check_batch(size: int, limits: Limits, param: str) -> None:
    """Raise BadRequest for more prompts, or answers, than one request may have."""
    if size > limits.batch:
        raise BadRequest(
            f"{size} prompts in one request; {limits.batch} are allowed ([server.limits] batch)",
            code="batch_too_big",
            param=param,
        )


NO_NAME = frozenset({"", "default", "dummy", "tgi", "unknown"})
"""Names that clients send when they know no name: SGLang's default, and the placeholders of
sglang-router and huggingface_hub. They mean the one model there is.
"""


def check_model(asked: str, model: str) -> None:
    """Raise Refused with 404 if a request names another model."""
    if asked != model and asked not in NO_NAME:
        words = f"there is no model {show_value(asked)} here; this server's model is {model!r}"
        raise Refused(404, "model_not_found", words, param="model")
