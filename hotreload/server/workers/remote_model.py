"""The model, asked in another process: what a worker has in the place of a gate and an engine."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from concurrent.futures import Future
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace
from itertools import count
from typing import Any

from hotreload.errors import EngineLost, HotReloadError, NotServing
from hotreload.json_fields import Fields
from hotreload.server.model import (
    EncodedBy,
    EncoderMismatch,
    EngineAnswer,
    ModelRequest,
    StartedAnswer,
)
from hotreload.server.ports import AnswerTexts, Encoder
from hotreload.server.workers import message_kinds
from hotreload.server.workers.answer_steps import apply_step
from hotreload.server.workers.error_fields import error_from
from hotreload.server.workers.message_kinds import MessageKind
from hotreload.server.workers.wire import Message, Wire
from hotreload.types import Generation

MOST_UNREAD = 64
"""Pieces that wait for a slow reader one by one; of more only the newest of each answer does."""
PROCESS_ENDED = "the engine's process has ended; ask again"


class RemoteModel:
    """Asks by the wire, and hears the answers."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._names = count()
        self._pending: dict[int, _PendingAnswer] = {}
        self.encoder: Encoder | None = None
        """None while the other side encodes all prompts itself."""

    @asynccontextmanager
    async def open_answer(self, ask: ModelRequest) -> AsyncIterator[StartedAnswer]:
        """Ask, with prompts that are encoded here; who leaves early is told to the other side."""
        for each, texts in (await self._encode_prompts(ask), (ask, None)):
            async with AsyncExitStack() as stack:
                try:
                    answer = await stack.enter_async_context(self._ask(each, texts))
                except EncoderMismatch:  # the engine is another one by now
                    continue
                yield answer
                return

    async def _encode_prompts(self, ask: ModelRequest) -> tuple[ModelRequest, AnswerTexts | None]:
        """The same, encoded, and what makes the texts of a stream's pieces, which come as tokens.

        The other side says what is refused, as it may let nobody in.
        """
        if (encoder := self.encoder) is None:
            return ask, None
        try:
            given = await encoder.encode(ask.request)
        except HotReloadError as refusal:
            return replace(ask, request={}, encoded=EncodedBy(encoder.name, refusal)), None
        if given is None:
            return ask, None
        request, by = dict(given), EncodedBy(encoder.name)
        if not request.get("stream"):
            return replace(ask, request=request, encoded=by), None
        request["text_at_end"] = True
        return replace(ask, request=request, encoded=by), encoder.make_texts(request)

    @asynccontextmanager
    async def _ask(
        self, ask: ModelRequest, texts: AnswerTexts | None
    ) -> AsyncIterator[StartedAnswer]:
        if self._wire.is_over:
            raise EngineLost(PROCESS_ENDED)
        name = next(self._names)
        answer = self._pending[name] = _PendingAnswer(texts)
        self._wire.send(
            MessageKind.ASK,
            name,
            message_kinds.request_fields(ask, asyncio.get_running_loop().time()),
        )
        try:
            generation = await answer.wait_for_start()
            async with aclosing(answer.items()) as items:
                yield StartedAnswer(generation, items)
        finally:
            del self._pending[name]
            if not answer.is_over:
                self._wire.send(MessageKind.LEAVE, name)

    def receive(self, message: Message) -> None:
        """Hear something of an answer; of one that nobody waits for any more, nothing."""
        word, name, *parts = message
        if (answer := self._pending.get(name)) is not None:
            answer.receive(word, parts)

    def fail_all(self) -> None:
        """No answer goes on: the other side is gone."""
        for answer in self._pending.values():
            answer.fail(EngineLost(PROCESS_ENDED))


class _PendingAnswer:
    """The part of one request's answers that was heard, and not taken yet."""

    def __init__(self, texts: AnswerTexts | None) -> None:
        self._texts = texts
        self.is_over = False
        """True once no more is told."""
        self._generation: Generation | None = None
        self._unread: deque[tuple[str, Any, Any]] = deque()
        """The messages that wait: a word, which of several answers, and what of it."""
        self._last: dict[Any, Fields] = {}
        """The newest piece of each answer that was taken."""
        self._fault: Exception | None = None
        self._message_came = asyncio.Event()

    def receive(self, word: str, parts: Message) -> None:
        match word:
            case MessageKind.STEP | MessageKind.WHOLE:
                self._unread.append((word, *parts))
                if len(self._unread) > MOST_UNREAD:
                    self._keep_newest_only()
            case MessageKind.BATCH:
                self._unread.append((word, None, parts[0]))
            case MessageKind.BEGUN:
                self._generation = message_kinds.generation_from(parts[0])
            case MessageKind.OVER:
                self.is_over = True
            case MessageKind.FAILED:
                self.fail(error_from(parts[0]))
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
                yield self._add_text(self._take(*self._unread.popleft()))
            if self._fault is not None:
                raise self._fault
            if self.is_over:
                return
            await self._wait_for_message()

    def _add_text(self, item: EngineAnswer) -> EngineAnswer:
        if self._texts is None or isinstance(item, list):
            return item
        return self._texts.add_text(item)

    async def _wait_for_message(self) -> None:
        self._message_came.clear()
        await self._message_came.wait()

    def _take(self, word: str, index: Any, told: Any) -> EngineAnswer:
        if word == MessageKind.BATCH:
            batch: EngineAnswer = told
            return batch
        piece = told if word == MessageKind.WHOLE else apply_step(self._last[index], told)
        self._last[index] = piece
        # A copy: its reader may put a stamp on it, and the next step is upon the piece as it came.
        return dict(piece)

    def _keep_newest_only(self) -> None:
        """Pass over what a slow reader misses: each piece holds all that those before it did."""
        newest = {index: self._take(word, index, told) for word, index, told in self._unread}
        self._unread.clear()
        self._unread.extend((MessageKind.WHOLE, index, piece) for index, piece in newest.items())


class RemoteMetrics:
    """Metrics of a worker: the engine's process has the page of all, and counts tokens itself."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def request_finished(self, route: str, code: int, seconds: float) -> None:
        """Tell it."""
        self._wire.send(MessageKind.FINISHED, route, code, seconds)

    def first_token(self, seconds: float) -> None:
        """Tell it."""
        self._wire.send(MessageKind.FIRST_TOKEN, seconds)

    def tokens(self, count: int) -> None:
        """Count nothing here."""

    def latest(self) -> Future[bytes]:
        """There is no page here."""
        raise NotServing("the engine's process has the page")
