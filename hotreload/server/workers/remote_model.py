"""The model over a wire: a worker's end sends requests, the engine's end answers them.

Of a growing answer only the step from its last piece is sent: whole pieces would cost bytes that
grow with the square of the answer's length.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from hotreload.errors import EngineLost, HotReloadError
from hotreload.json_fields import Fields
from hotreload.server.model import (
    EncodedBy,
    EncoderMismatch,
    EngineAnswer,
    Model,
    ModelRequest,
    StartedAnswer,
)
from hotreload.server.ports import AnswerTexts, Encoder, Metrics
from hotreload.server.workers.messages import Message, MessageKind, Wire
from hotreload.types import Generation

log = logging.getLogger("hotreload.server")

MOST_UNREAD = 64
"""Pieces that may wait for a slow reader; beyond that only the newest of each answer is kept."""
PROCESS_ENDED = "the engine's process has ended; ask again"
SEE_ITS_LOG = "the engine's process failed to answer; its log says why"


class EngineProcessFault(Exception):
    """An unexpected exception in the engine's process; the log of that process has it."""


class RemoteModel:
    """Sends requests to the engine's process and receives the answers."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._names = count()
        self._pending: dict[int, _PendingAnswer] = {}
        self.encoder: Encoder | None = None
        """Encodes prompts in this worker; None while the engine's process encodes them."""

    @asynccontextmanager
    async def open_answer(self, request: ModelRequest) -> AsyncIterator[StartedAnswer]:
        """Send the request; yield when the first token is there. Leaving the block aborts it.

        The worker encodes the prompts. If the engine now encodes by another tokenizer, the request
        is sent once more with its texts.
        """
        for each, texts in (await self._encode_prompts(request), (request, None)):
            async with AsyncExitStack() as stack:
                try:
                    answer = await stack.enter_async_context(self._ask(each, texts))
                except EncoderMismatch:
                    continue
                yield answer
                return

    async def _encode_prompts(
        self, request: ModelRequest
    ) -> tuple[ModelRequest, AnswerTexts | None]:
        """Return the request with encoded prompts, and the maker of a stream's texts.

        A refusal is sent along and not raised here: the gate's own refusals come first.
        """
        if (encoder := self.encoder) is None:
            return request, None
        try:
            encoded_fields = await encoder.encode(request.fields)
        except HotReloadError as refusal:
            return replace(request, fields={}, encoded=EncodedBy(encoder.name, refusal)), None
        if encoded_fields is None:
            return request, None
        fields, texts = dict(encoded_fields), None
        if fields.get("stream"):
            fields["text_at_end"] = True
            texts = encoder.make_texts(fields)
        return replace(request, fields=fields, encoded=EncodedBy(encoder.name)), texts

    @asynccontextmanager
    async def _ask(
        self, request: ModelRequest, texts: AnswerTexts | None
    ) -> AsyncIterator[StartedAnswer]:
        if self._wire.is_over:
            raise EngineLost(PROCESS_ENDED)
        name = next(self._names)
        answer = self._pending[name] = _PendingAnswer(texts)
        self._wire.send(MessageKind.ASK, name, request)
        try:
            generation = await answer.wait_for_start()
            async with aclosing(answer.items()) as items:
                yield StartedAnswer(generation, items)
        finally:
            del self._pending[name]
            if not answer.is_over:
                self._wire.send(MessageKind.LEAVE, name)

    def receive(self, message: Message) -> None:
        """Pass a message to the answer it names; drop it if that request has ended here."""
        kind, name, *parts = message
        if (answer := self._pending.get(name)) is not None:
            answer.receive(kind, parts)

    def fail_all(self) -> None:
        """Fail every answer with EngineLost, because the engine's process has ended."""
        for answer in self._pending.values():
            answer.fail(EngineLost(PROCESS_ENDED))


@dataclass(slots=True)
class _PendingAnswer:
    """The received pieces of one request's answers that the client has not read yet."""

    texts: AnswerTexts | None
    is_over: bool = False
    """True once no more messages come for this answer."""
    _generation: Generation | None = None
    _unread: deque[tuple[str, Any, Any]] = field(default_factory=deque)
    """Unread messages: the kind, the index of the answer, and the content."""
    _last: dict[Any, Fields] = field(default_factory=dict)
    """The last piece of each answer that was read; the next step applies to it."""
    _fault: Exception | None = None
    _message_came: asyncio.Event = field(default_factory=asyncio.Event)

    def receive(self, kind: str, parts: Message) -> None:
        match kind:
            case MessageKind.STEP | MessageKind.WHOLE:
                self._unread.append((kind, *parts))
                if len(self._unread) > MOST_UNREAD:
                    self._keep_newest_only()
            case MessageKind.BATCH:
                self._unread.append((kind, None, parts[0]))
            case MessageKind.BEGUN:
                self._generation = parts[0]
            case MessageKind.OVER:
                self.is_over = True
            case MessageKind.FAILED:
                self.fail(parts[0] or EngineProcessFault(SEE_ITS_LOG))
        self._message_came.set()

    def fail(self, fault: Exception) -> None:
        self._fault, self.is_over = fault, True
        self._message_came.set()

    async def wait_for_start(self) -> Generation:
        while self._generation is None:
            if self._fault is not None:
                raise self._fault
            await self._wait_for_message()
        return self._generation

    async def items(self) -> AsyncGenerator[EngineAnswer, None]:
        while True:
            while self._unread:
                item = self._take(*self._unread.popleft())
                if self.texts is not None and isinstance(item, dict):
                    item = self.texts.add_text(item)
                yield item
            if self._fault is not None:
                raise self._fault
            if self.is_over:
                return
            await self._wait_for_message()

    async def _wait_for_message(self) -> None:
        self._message_came.clear()
        await self._message_came.wait()

    def _take(self, kind: str, index: Any, content: Any) -> EngineAnswer:
        if kind == MessageKind.BATCH:
            batch: EngineAnswer = content
            return batch
        piece = content if kind == MessageKind.WHOLE else apply_step(self._last[index], content)
        self._last[index] = piece
        # A copy: the reader adds fields to it, and the next step applies to the original piece.
        return dict(piece)

    def _keep_newest_only(self) -> None:
        """Drop all but each answer's newest piece: a piece contains all earlier ones."""
        newest = {index: self._take(kind, index, content) for kind, index, content in self._unread}
        self._unread.clear()
        self._unread.extend((MessageKind.WHOLE, index, piece) for index, piece in newest.items())


@dataclass(frozen=True, slots=True)
class RemoteMetrics:
    """A worker's metrics: sent to the engine's process, which has the page and counts tokens."""

    wire: Wire

    def request_finished(self, route: str, code: int, seconds: float) -> None:
        """Send the count to the engine's process."""
        self.wire.send(MessageKind.FINISHED, route, code, seconds)

    def first_token(self, seconds: float) -> None:
        """Send the time to the engine's process."""
        self.wire.send(MessageKind.FIRST_TOKEN, seconds)

    def tokens(self, count: int) -> None:
        """Count nothing: the engine's process counts tokens."""


@dataclass(frozen=True, slots=True)
class WorkerRequests:
    """The requests that one worker has sent, each answered here in a task of its own."""

    wire: Wire
    model: Model
    metrics: Metrics
    _tasks: dict[int, asyncio.Task[None]] = field(default_factory=dict, init=False)

    def receive(self, message: Message) -> None:
        """Handle one message of the worker."""
        match message:
            case [MessageKind.ASK, name, request]:
                task = asyncio.create_task(self._answer(name, request), name="asked by a worker")
                self._tasks[name] = task
                task.add_done_callback(lambda _: self._tasks.pop(name, None))
            case [MessageKind.LEAVE, name]:
                if name in self._tasks:
                    self._tasks[name].cancel()
            case [MessageKind.FINISHED, route, code, seconds]:
                self.metrics.request_finished(route, code, seconds)
            case [MessageKind.FIRST_TOKEN, seconds]:
                self.metrics.first_token(seconds)

    def cancel_all(self) -> None:
        """Abort every answer, because the worker has ended and its clients with it."""
        for task in self._tasks.values():
            task.cancel()

    async def _answer(self, name: int, request: ModelRequest) -> None:
        last: dict[Any, Fields] = {}
        try:
            async with self.model.open_answer(request) as answer:
                self.wire.send(MessageKind.BEGUN, name, answer.generation)
                async for item in answer.items:
                    self._send_item(name, item, last)
                    await self.wire.drain()
        except HotReloadError as fault:
            self.wire.send(MessageKind.FAILED, name, fault)
        except Exception as fault:
            log.error("request.failed", exc_info=fault)
            self.wire.send(MessageKind.FAILED, name, None)
        else:
            self.wire.send(MessageKind.OVER, name)

    def _send_item(self, name: int, item: EngineAnswer, last: dict[Any, Fields]) -> None:
        """Send a batch or a piece; `last` holds the last piece of each answer, by its index."""
        if isinstance(item, list):
            self.wire.send(MessageKind.BATCH, name, item)
            return
        index = item.get("index")
        step = step_between(last[index], item) if index in last else None
        last[index] = item
        if step is None:
            self.wire.send(MessageKind.WHOLE, name, index, item)
        else:
            self.wire.send(MessageKind.STEP, name, index, step)


PieceStep = list[Any]
"""Three objects: fields with a new value, what was appended to fields, steps of inner objects."""


def step_between(last: Fields, now: Fields) -> PieceStep | None:
    """Return the step that turns `last` into `now`; None if `now` lacks fields."""
    if not last.keys() <= now.keys():
        return None
    others: Fields = {}
    grown: Fields = {}
    within: Fields = {}
    for name, value in now.items():
        before = last.get(name)
        if value == before and name in last:
            continue
        are_objects = isinstance(before, dict) and isinstance(value, dict)
        if has_grown(before, value):
            grown[name] = value[len(last[name]) :]
        elif are_objects and (step := step_between(last[name], value)) is not None:
            within[name] = step
        else:
            others[name] = value
    return [others, grown, within]


def has_grown(before: Any, now: Any) -> bool:
    """True if `now` is `before` with something appended; compares of a list the last item alone."""
    match before, now:
        case str(), str():
            return bool(before) and now.startswith(before)
        case list(), list():
            return 0 < len(before) <= len(now) and before[-1] == now[len(before) - 1]
    return False


def apply_step(last: Fields, step: PieceStep) -> Fields:
    """Return the next piece. The lists of the last one are extended in place."""
    others, grown, within = step
    now = {**last, **others}
    for name, more in grown.items():
        if isinstance(more, str):
            now[name] += more
        else:
            now[name].extend(more)
    for name, inner in within.items():
        now[name] = apply_step(now[name], inner)
    return now
