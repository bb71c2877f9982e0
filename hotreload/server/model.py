"""The model: takes a request through the entrance to an engine, and yields the answer.

Requests and answers are plain data; nothing here knows HTTP.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Hashable, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    ExitStack,
    aclosing,
    asynccontextmanager,
)
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from hotreload.core.way_in.admission import AnswerCallbacks, Conditions, LetIn, Listener, Origin
from hotreload.core.way_in.gate import ExactWeights
from hotreload.errors import EngineLost, HotReloadError
from hotreload.json_fields import Fields
from hotreload.server.api_schema.kinds import is_integer
from hotreload.server.key_limits import KeyLimits, TokenCount
from hotreload.server.ports import Admitter, Metrics
from hotreload.server_limits import Limits
from hotreload.types import FOR_A_SWAP, Generation

EngineAnswer = Fields | list[Fields]

REPLAYS = 2
"""The most replays of a request, so that a series of swaps cannot delay its answer for ever."""


class EncoderMismatch(HotReloadError):
    """The prompts were encoded by another tokenizer than the engine's: send the texts instead."""


@dataclass(frozen=True, slots=True)
class EncodedBy:
    """The encoder that a worker used for a request's prompts, and its refusal, if any."""

    encoder: str
    """The name of the encoder, as in `ClientAnswers.encodes_as`."""
    refusal: HotReloadError | None = None
    """The reason for which the encoder refused the request; the fields are not sent then."""

    def check(self, encodes_as: str) -> None:
        """Raise the refusal; EncoderMismatch if the engine's encoder is another one by now."""
        if self.encoder != encodes_as:
            raise EncoderMismatch("encoded by a tokenizer, or limits, of another engine")
        if self.refusal is not None:
            raise self.refusal


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A request to the model: its fields in the engine's schema, and the weights that it wants."""

    fields: Fields
    until: float
    """The deadline, by the loop's clock."""
    at_least: int = 0
    exactly: ExactWeights | None = None
    session: Hashable | None = None
    may_be_kept: bool = True
    """False where the client forbids keeping the request for a comparison of weights."""
    encoded: EncodedBy | None = None
    """None for a request whose prompts are still texts."""
    origin: Origin = Origin()  # noqa: RUF009  # it is frozen
    key: str = ""
    """The name of the client's API key; empty if it has none."""

    @property
    def copies(self) -> int:
        """The number of answers to each prompt."""
        return int(self.fields.get("copies", 1))

    @property
    def prompts(self) -> int:
        """The number of prompts."""
        return count_prompts(self.fields.get("text", self.fields.get("input_ids")))


@dataclass(frozen=True, slots=True)
class StartedAnswer:
    """An answer whose first item the engine has made."""

    generation: Generation
    items: AsyncGenerator[EngineAnswer, None]
    """All items that the engine yields, beginning with the first."""


class Model(Protocol):
    """The model, in this process or in another one."""

    def open_answer(self, request: ModelRequest) -> AbstractAsyncContextManager[StartedAnswer]:
        """Send the request; yield when the first token is there. Leaving the block aborts it.

        An error before the first token is raised on entering the block.
        """


class _EndedUnread(Exception):
    """A swap ended an answer of which the client has seen nothing yet."""


@dataclass(slots=True)
class LocalModel[P]:
    """The model behind this process's entrance; an answer begins and ends while it is inside."""

    entrance: Admitter[P]
    metrics: Metrics
    limits: Limits
    listeners: Sequence[Listener] = ()
    """Called for each request that is admitted."""
    replay: bool = False
    """True to retry a request, under the new weights, that a swap ended before its first token."""
    key_limits: KeyLimits = field(default_factory=KeyLimits)
    last_token_at: float = float("-inf")
    """The time of the last token of any answer, by the monotonic clock."""

    @asynccontextmanager
    async def open_answer(self, request: ModelRequest) -> AsyncIterator[StartedAnswer]:
        """Send the request; retry if a swap or an engine's loss ends it before the first token."""
        came_at = asyncio.get_running_loop().time()
        with self.key_limits.hold(request.key, request.copies) as count:
            for replays_left in reversed(range(REPLAYS + 1)):
                may_replay, has_begun = self.replay and replays_left > 0, False
                inside = self._answer_inside(request, count, came_at, may_replay=may_replay)
                try:
                    async with inside as answer:
                        has_begun = True
                        yield answer
                        return
                except _EndedUnread:
                    continue
                except EngineLost:  # another engine may answer
                    if has_begun or not (replays_left and self.entrance.lets_in):
                        raise

    @asynccontextmanager
    async def _answer_inside(
        self, request: ModelRequest, count: TokenCount, came_at: float, *, may_replay: bool
    ) -> AsyncIterator[StartedAnswer]:
        """Prepare the request, pass the entrance, and yield the answer while the lease is held."""
        # Prepared before the gate, so that no swap waits while a long text is encoded. The gate
        # lends an engine for this, or raises the reason why it admits no request.
        with self.entrance.lend_engine() as engine:
            if request.encoded is not None:
                request.encoded.check(engine.answers.encodes_as)
            prepared = await engine.answers.prepare(request.fields)
        patience = self.limits.generation_seconds
        conditions = Conditions(request.at_least, patience, request.exactly, request.session)
        async with (
            self.entrance.admit(conditions) as lease,
            aclosing(lease.engine.answers.generate(prepared, lease.weights)) as items,
        ):
            askable = (
                partial(lease.engine.unseen.askable, prepared) if request.may_be_kept else None
            )
            let_in = LetIn(
                lease.generation,
                request.prompts,
                request.copies,
                request.until,
                askable,
                came_at,
                bool(request.fields.get("stream")),
                request.origin,
            )
            with ExitStack() as listening:
                callbacks = [
                    listening.enter_context(block)
                    for listener in self.listeners
                    if (block := listener.listen(let_in)) is not None
                ]
                first = await anext(items)
                if may_replay and any(map(_was_ended_for_a_swap, answers_in(first))):
                    raise _EndedUnread
                async with aclosing(self._report_tokens(first, items, callbacks, count)) as noted:
                    yield StartedAnswer(lease.generation, noted)

    async def _report_tokens(
        self,
        first: EngineAnswer,
        items: AsyncGenerator[EngineAnswer, None],
        callbacks: Sequence[AnswerCallbacks],
        count: TokenCount,
    ) -> AsyncGenerator[EngineAnswer, None]:
        """Yield the items; count their tokens, and report each answer to the listeners."""
        each_grew = [each.grew for each in callbacks if each.grew is not None]
        each_ended = [each.ended for each in callbacks if each.ended is not None]

        def report(item: EngineAnswer) -> None:  # for each token of each stream: few steps
            all_new, at = 0, time.monotonic()
            for place, answer in enumerate(answers_in(item)):
                meta, index = answer.get("meta_info") or {}, answer.get("index", place)
                made = meta.get("completion_tokens", 0)
                # Counted as they come: counting at the end would show a peak after zeros.
                if (before := count.answers.get(index)) is None:
                    before = count.begin(index, meta.get("prompt_tokens") or 0)
                count.answers[index] = made
                if (new := made - before) > 0:
                    all_new += new
                    for grew in each_grew:
                        grew(index, new, at)
                if meta.get("finish_reason"):
                    for ended in each_ended:
                        ended(index, answer)
            if all_new:
                self.metrics.tokens(all_new)
                self.last_token_at = at

        report(first)
        yield first
        async for item in items:
            report(item)
            yield item


def count_prompts(prompts: Any) -> int:
    """Count the prompts: one for a text or a list of ids, else the length of the list."""
    if isinstance(prompts, list) and not (prompts and is_integer(prompts[0])):
        return len(prompts)
    return 1


def answers_in(item: EngineAnswer) -> list[Fields]:
    """Return the answers of one item: those of a batch, or the single one."""
    return item if isinstance(item, list) else [item]


def finish_reason(answer: Fields) -> Fields:
    """Return how an answer ended; empty while the answer goes on."""
    ended: Fields | None = answer.get("meta_info", {}).get("finish_reason")
    return ended or {}


def count_tokens(answer: Fields) -> int:
    """Return the number of an answer's tokens so far."""
    return int(answer.get("meta_info", {}).get("completion_tokens", 0))


def _was_ended_for_a_swap(answer: Fields) -> bool:
    return bool(finish_reason(answer).get("code") == FOR_A_SWAP)
