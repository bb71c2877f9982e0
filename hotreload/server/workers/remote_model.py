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
from hotreload.server.model import Begun, Encoded, EncodedOtherwise, EngineAnswer, Inquiry
from hotreload.server.ports import Encoder, Wordings
from hotreload.server.workers import message_kinds
from hotreload.server.workers.answer_steps import stepped
from hotreload.server.workers.error_fields import as_error
from hotreload.server.workers.message_kinds import Word
from hotreload.server.workers.wire import Message, Wire
from hotreload.types import Generation

MOST_WAITING = 64
"""Pieces that wait for a slow reader one by one; of more only the newest of each answer does."""
PROCESS_ENDED = "the engine's process has ended; ask again"


class ModelElsewhere:
    """Asks by the wire, and hears the answers."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._names = count()
        self._heard: dict[int, _Answer] = {}
        self.encoder: Encoder | None = None
        """None while the other side encodes all prompts itself."""

    @asynccontextmanager
    async def answering(self, ask: Inquiry) -> AsyncIterator[Begun]:
        """Ask, with prompts that are encoded here; who leaves early is told to the other side."""
        for each, wordings in (await self._encoded(ask), (ask, None)):
            async with AsyncExitStack() as stack:
                try:
                    begun = await stack.enter_async_context(self._asked(each, wordings))
                except EncodedOtherwise:  # the engine is another one by now
                    continue
                yield begun
                return

    async def _encoded(self, ask: Inquiry) -> tuple[Inquiry, Wordings | None]:
        """The same, encoded, and what makes the texts of a stream's pieces, which come as tokens.

        The other side says what is refused, as it may let nobody in.
        """
        if (encoder := self.encoder) is None:
            return ask, None
        try:
            given = await encoder.encoded(ask.request)
        except HotReloadError as refusal:
            return replace(ask, request={}, encoded=Encoded(encoder.name, refusal)), None
        if given is None:
            return ask, None
        request, by = dict(given), Encoded(encoder.name)
        if not request.get("stream"):
            return replace(ask, request=request, encoded=by), None
        request["text_at_end"] = True
        return replace(ask, request=request, encoded=by), encoder.wordings(request)

    @asynccontextmanager
    async def _asked(self, ask: Inquiry, wordings: Wordings | None) -> AsyncIterator[Begun]:
        if self._wire.is_over:
            raise EngineLost(PROCESS_ENDED)
        name = next(self._names)
        answer = self._heard[name] = _Answer(wordings)
        self._wire.tell(
            Word.ASK, name, message_kinds.ask_fields(ask, asyncio.get_running_loop().time())
        )
        try:
            generation = await answer.begins()
            async with aclosing(answer.items()) as items:
                yield Begun(generation, items)
        finally:
            del self._heard[name]
            if not answer.is_over:
                self._wire.tell(Word.LEAVE, name)

    def hear(self, message: Message) -> None:
        """Hear something of an answer; of one that nobody waits for any more, nothing."""
        word, name, *parts = message
        if (answer := self._heard.get(name)) is not None:
            answer.hear(word, parts)

    def lose(self) -> None:
        """No answer goes on: the other side is gone."""
        for answer in self._heard.values():
            answer.fail(EngineLost(PROCESS_ENDED))


class _Answer:
    """The part of one request's answers that was heard, and not taken yet."""

    def __init__(self, wordings: Wordings | None) -> None:
        self._wordings = wordings
        self.is_over = False
        """True once no more is told."""
        self._generation: Generation | None = None
        self._told: deque[tuple[str, Any, Any]] = deque()
        """The messages that wait: a word, which of several answers, and what of it."""
        self._last: dict[Any, Fields] = {}
        """The newest piece of each answer that was taken."""
        self._fault: Exception | None = None
        self._moved = asyncio.Event()

    def hear(self, word: str, parts: Message) -> None:
        match word:
            case Word.STEP | Word.WHOLE:
                self._told.append((word, *parts))
                if len(self._told) > MOST_WAITING:
                    self._tell_the_newest_alone()
            case Word.BATCH:
                self._told.append((word, None, parts[0]))
            case Word.BEGUN:
                self._generation = message_kinds.generation_of(parts[0])
            case Word.OVER:
                self.is_over = True
            case Word.FAILED:
                self.fail(as_error(parts[0]))
        self._moved.set()

    def fail(self, fault: Exception) -> None:
        self._fault, self.is_over = fault, True
        self._moved.set()

    async def begins(self) -> Generation:
        while self._generation is None:
            if self._fault is not None:
                raise self._fault
            await self._move()
        return self._generation

    async def items(self) -> AsyncGenerator[EngineAnswer, None]:
        while True:
            while self._told:
                yield self._worded(self._taken(*self._told.popleft()))
            if self._fault is not None:
                raise self._fault
            if self.is_over:
                return
            await self._move()

    def _worded(self, item: EngineAnswer) -> EngineAnswer:
        if self._wordings is None or isinstance(item, list):
            return item
        return self._wordings.worded(item)

    async def _move(self) -> None:
        self._moved.clear()
        await self._moved.wait()

    def _taken(self, word: str, index: Any, told: Any) -> EngineAnswer:
        if word == Word.BATCH:
            batch: EngineAnswer = told
            return batch
        piece = told if word == Word.WHOLE else stepped(self._last[index], told)
        self._last[index] = piece
        # A copy: its reader may put a stamp on it, and the next step is upon the piece as it came.
        return dict(piece)

    def _tell_the_newest_alone(self) -> None:
        """Pass over what a slow reader misses: each piece holds all that those before it did."""
        newest = {index: self._taken(word, index, told) for word, index, told in self._told}
        self._told.clear()
        self._told.extend((Word.WHOLE, index, piece) for index, piece in newest.items())


class CountedElsewhere:
    """Metrics of a worker: the engine's process has the page of all, and counts tokens itself."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def request_finished(self, route: str, code: int, seconds: float) -> None:
        """Tell it."""
        self._wire.tell(Word.FINISHED, route, code, seconds)

    def first_token(self, seconds: float) -> None:
        """Tell it."""
        self._wire.tell(Word.FIRST_TOKEN, seconds)

    def tokens(self, count: int) -> None:
        """Count nothing here."""

    def latest(self) -> Future[bytes]:
        """There is no page here."""
        raise NotServing("the engine's process has the page")
