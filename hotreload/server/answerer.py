"""One request to the model, from its body to its answer's last byte: the only way through the gate.

How a request is read and an answer told is its route's own matter: see generate.py and openai/.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from hotreload.errors import BadRequest, EngineLost, HotReloadError, shown
from hotreload.json_fields import Fields
from hotreload.server.bounds import Limits
from hotreload.server.conversations import exactly_wanted, forbids_replay, session_of
from hotreload.server.exchange import CUT_SHORT, ended_as, generation_header, while_connected
from hotreload.server.ports import AnsweringEngine, Conducts, HeardBy, Hearing, Metrics, WayIn
from hotreload.server.problems import Json, Refused, status_of
from hotreload.server.request_body import Kind, is_integer, whole_number
from hotreload.server.sse import EventWriter
from hotreload.types import AS_ASKED, FOR_A_SWAP, Generation

EngineAnswer = Fields | list[Fields]

REPLAYS = 2
"""The most replays of a request: swaps in close succession must not keep it from its answer."""

MIN_GENERATION_HEADER = "X-Hotreload-Min-Generation"
GENERATION_NUMBER = whole_number(0, 2**53)
MIN_GENERATION: Mapping[str, Kind] = {"min_generation": GENERATION_NUMBER}
"""The field by which a body asks for an answer of this generation or a later one."""


class AnswerForm(Protocol):
    """Puts what the engine answers to one request into the words of one API."""

    def whole(self, item: EngineAnswer, generation: Generation) -> Any:
        """The whole answer."""
        ...

    def piece(self, answer: Fields, generation: Generation) -> list[Any]:
        """The events to send when this much of a streamed answer is known."""
        ...

    def end(self, generation: Generation) -> list[Any]:
        """The events to send after the last piece."""
        ...

    def failed(self, error: HotReloadError) -> Any:
        """The event to send when a stream that has begun cannot go on."""
        ...


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One client's request, in the engine's schema, and how the answer is told."""

    request: Fields
    form: AnswerForm
    at_least: int = 0

    @property
    def streams(self) -> bool:
        """True if the answer is told piece by piece."""
        return bool(self.request.get("stream"))

    @property
    def prompts(self) -> int:
        """Count of the prompts, which may have several answers each."""
        return count_prompts(self.request.get("text", self.request.get("input_ids")))


Read = Callable[[Request], Awaitable[ModelRequest]]


class Answerer[P]:
    """Takes requests to the engine; an answer begins and ends inside the gate."""

    def __init__(
        self,
        *,
        gate: WayIn[P],
        conducts: Conducts,
        metrics: Metrics,
        limits: Limits,
        hearing: Hearing | None = None,
        replay: bool = False,
    ) -> None:
        """`conducts` is told of each answer, and of whose it is; `hearing` of what was asked."""
        self.limits = limits
        self._gate = gate
        self._conducts = conducts
        self._hearing = hearing
        self._metrics = metrics
        self._replay = replay
        self._running = 0
        self.answered_at = float("-inf")
        """The monotonic clock's time when a client was given a token last."""

    async def answer(self, read: Read, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, read by its route."""
        self._check_load()
        self._running += 1
        try:
            asked = await read(Request(scope, receive))
            answer = self._streamed if asked.streams else self._whole
            # One deadline for all replays, because the client waits for all of them.
            until = asyncio.get_running_loop().time() + self.limits.request_seconds
            client = _Client(scope, receive, send, until)
            for replays_left in reversed(range(REPLAYS + 1)):
                try:
                    # Ended for a swap before the client saw any of it: the new weights answer.
                    if await answer(asked, client, may_replay=replays_left > 0):
                        break
                except EngineLost:
                    # The client saw none of it, or it would hear of it there: another may answer.
                    if not (replays_left and self._gate.lets_in):
                        raise
        finally:
            self._running -= 1

    def _check_load(self) -> None:
        if self._running >= self.limits.concurrent:
            raise Refused(
                503,
                "too_many_requests",
                f"{self._running} requests are running ([server.limits] concurrent)",
                headers={"Retry-After": "1"},
            )

    async def _whole(self, asked: ModelRequest, client: "_Client", *, may_replay: bool) -> bool:
        async with self._answering(asked, client) as (generation, items, heard_by):
            item = await anext(items)
            if may_replay and self._is_to_replay(item):
                return False
            for index, answer in enumerate(_answers(item)):
                client.hear_of(answer, index, heard_by)
        self._count(sum(_tokens(answer) for answer in _answers(item)))
        told = asked.form.whole(item, generation)
        await client.send_json(told, generation)
        return True

    def _is_to_replay(self, item: EngineAnswer) -> bool:
        """True if a drain ended it ([reload] on_drain_timeout = 'replay')."""
        return self._replay and any(_was_ended_for_a_swap(answer) for answer in _answers(item))

    async def _streamed(self, asked: ModelRequest, client: "_Client", *, may_replay: bool) -> bool:
        began = time.perf_counter()
        out = EventWriter(client.scope, client.send)
        try:
            async with self._answering(asked, client) as (generation, items, heard_by):
                first = await anext(items)
                if may_replay and self._is_to_replay(first):
                    return False
                out.add_headers(generation_header(generation))
                self._metrics.first_token(time.perf_counter() - began)
                stream = _Stream(client, asked.form, generation, out, heard_by, self._count)
                await stream.tell(first)
                async for item in items:
                    await stream.tell(item)
                await stream.end()
        except HotReloadError as error:
            if not out.is_started:
                raise
            ended_as(client.scope, status_of(error))
            await out.write(asked.form.failed(error))
        await out.done()
        return True

    @asynccontextmanager
    async def _answering(
        self, asked: ModelRequest, client: "_Client"
    ) -> AsyncIterator[tuple[Generation, AsyncGenerator[EngineAnswer, None], HeardBy]]:
        """Be inside the gate while the engine answers, no longer than allowed or waited for."""
        try:
            async with (
                asyncio.timeout_at(client.until) as deadline,
                while_connected(client.receive),
            ):
                # Before the gate: a swap need not wait for a long text to be encoded. The gate
                # lends an engine for that, or says why it lets nobody in.
                with self._gate.preparing() as preparer:
                    prepared = await preparer.prepare(asked.request)
                headers = Headers(scope=client.scope)
                passing = self._gate.passing(
                    asked.at_least,
                    self.limits.generation_seconds,
                    exactly=exactly_wanted(headers),
                    session=session_of(headers),
                )
                async with (
                    passing as lease,
                    aclosing(lease.engine.generate(prepared, lease.weights)) as items,
                ):
                    copies = int(asked.request.get("copies", 1))
                    with self._conducts.answering(
                        lease.generation, prompts=asked.prompts, copies=copies, until=client.until
                    ) as begun:
                        also = self._also_heard_by(lease.engine, prepared, headers, copies)
                        yield lease.generation, items, (begun, *also)
        except TimeoutError:
            if not deadline.expired():
                raise
            limit = self.limits.request_seconds
            words = f"not answered within {limit:g} s ([server.limits] request_seconds)"
            raise Refused(504, "timed_out", words) from None

    def _also_heard_by(
        self, engine: AnsweringEngine[P], prepared: P, headers: Headers, copies: int
    ) -> HeardBy:
        """Those who keep what is asked, unless its client forbids it."""
        if not (self._hearing and self._hearing.listens) or forbids_replay(headers):
            return ()
        return (self._hearing.overhear(engine.askable(prepared), copies),)

    def _count(self, tokens: int) -> None:
        self._metrics.tokens(tokens)
        if tokens:
            self.answered_at = time.monotonic()


@dataclass(frozen=True, slots=True)
class _Client:
    """The client who asked, and until when an answer is of use."""

    scope: Scope
    receive: Receive
    send: Send
    until: float

    def hear_of(self, answer: Fields, index: int, heard_by: HeardBy) -> None:
        """Note how an answer ended, if it has: one that was cut short is counted as such."""
        if not (ended := _end_of(answer)):
            return
        for each in heard_by:
            each.hear(index, answer)
        if ended["type"] == "abort" and ended.get("code") != AS_ASKED:
            ended_as(self.scope, int(ended.get("status_code") or CUT_SHORT))

    async def send_json(self, content: Any, generation: Generation) -> None:
        answer = Json(content, headers=generation_header(generation))
        await answer(self.scope, self.receive, self.send)


@dataclass(frozen=True, slots=True)
class _Stream:
    """One answer as it is told piece by piece."""

    client: _Client
    form: AnswerForm
    generation: Generation
    out: EventWriter
    heard_by: HeardBy
    count: Callable[[int], None]
    tokens: dict[int, int] = field(default_factory=dict)
    """Counted so far, by the index of the answer."""

    async def tell(self, piece: EngineAnswer) -> None:
        """Send a piece, after a look at how it ends."""
        assert isinstance(piece, dict)
        index, made = piece.get("index", 0), _tokens(piece)
        self.client.hear_of(piece, index, self.heard_by)
        # As they come: a long answer counted at its end would be a peak, and zeros before.
        self.count(max(0, made - self.tokens.get(index, 0)))
        self.tokens[index] = made
        for event in self.form.piece(piece, self.generation):
            await self.out.write(event)

    async def end(self) -> None:
        """Send what follows the last piece."""
        for event in self.form.end(self.generation):
            await self.out.write(event)


class ModelRoute[P]:
    """A route to the model, as an ASGI app."""

    def __init__(self, answerer: Answerer[P], read: Read) -> None:
        self._answerer = answerer
        self._read = read

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._answerer.answer(self._read, scope, receive, send)


def count_prompts(prompts: Any) -> int:
    """Count the prompts in a text, in a list of texts or of ids, or in a list of such lists."""
    if isinstance(prompts, list) and not (prompts and is_integer(prompts[0])):
        return len(prompts)
    return 1


def check_batch(size: int, limits: Limits, param: str) -> None:
    """Refuse more prompts, or answers, in one request than is allowed."""
    if size > limits.batch:
        raise BadRequest(
            f"{size} prompts in one request; {limits.batch} are allowed ([server.limits] batch)",
            code="batch_too_big",
            param=param,
        )


def oldest_wanted(request: Request, fields: Fields) -> int:
    """Take `min_generation` out of the fields; with the header too, the newer of both counts."""
    wanted: int = fields.pop("min_generation", 0)
    header = request.headers.get(MIN_GENERATION_HEADER)
    if header is None:
        return wanted
    is_number = header.isascii() and header.isdigit() and len(header) < 20
    if not is_number or not GENERATION_NUMBER.fits(int(header)):
        said = f"{MIN_GENERATION_HEADER} must be {GENERATION_NUMBER.words}, not {shown(header)}"
        raise BadRequest(said, code="bad_field", param=MIN_GENERATION_HEADER)
    return max(wanted, int(header))


def _answers(item: EngineAnswer) -> list[Fields]:
    return item if isinstance(item, list) else [item]


def _was_ended_for_a_swap(answer: Fields) -> bool:
    return bool(_end_of(answer).get("code") == FOR_A_SWAP)


def _end_of(answer: Fields) -> Fields:
    ended: Fields | None = answer.get("meta_info", {}).get("finish_reason")
    return ended or {}


def _tokens(answer: Fields) -> int:
    return int(answer.get("meta_info", {}).get("completion_tokens", 0))
