"""The model as it is asked for an answer: one way through the gate, whoever tells the answer.

What is asked is plain data, and so is each answer; nothing here knows HTTP.
"""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Hashable, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    ExitStack,
    aclosing,
    asynccontextmanager,
)
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from hotreload.core.way_in.admission import Conditions
from hotreload.core.way_in.exact_weights import ExactWeights
from hotreload.core.way_in.listener import AnswerEnded, LetIn, Listener
from hotreload.errors import EngineLost, HotReloadError
from hotreload.json_fields import Fields
from hotreload.server.http.request_body import is_integer
from hotreload.server.ports import Metrics, WayIn
from hotreload.server_limits import Limits
from hotreload.types import FOR_A_SWAP, Generation

EngineAnswer = Fields | list[Fields]

REPLAYS = 2
"""The most replays of a request: swaps in close succession must not keep it from its answer."""


class EncoderMismatch(HotReloadError):
    """Prompts were encoded in another way than that of the engine: it must be given the texts."""


@dataclass(frozen=True, slots=True)
class EncodedBy:
    """A note that prompts were encoded before the engine's process was asked."""

    by: str
    """The name of what encoded them, as `Preparer.encodes_as` has it."""
    refusal: HotReloadError | None = None
    """The reason why the request cannot be served; then nothing of it is there."""

    def check(self, encodes_as: str) -> None:
        """Refuse what was refused, if that is still how the engine would judge."""
        if self.by != encodes_as:
            raise EncoderMismatch("encoded by a tokenizer, or limits, of another engine")
        if self.refusal is not None:
            raise self.refusal


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A request to the model, in the engine's schema, and which weights are to answer it."""

    request: Fields
    until: float
    """The loop's time when the answer is of no more use."""
    at_least: int = 0
    exactly: ExactWeights | None = None
    session: Hashable | None = None
    may_be_kept: bool = True
    """False where its client forbids that it is kept."""
    encoded: EncodedBy | None = None
    """None for a request as it came."""

    @property
    def copies(self) -> int:
        """Count of the answers to each prompt."""
        return int(self.request.get("copies", 1))

    @property
    def prompts(self) -> int:
        """Count of the prompts, which may have several answers each."""
        return count_prompts(self.request.get("text", self.request.get("input_ids")))


@dataclass(frozen=True, slots=True)
class StartedAnswer:
    """An answer that has answer."""

    generation: Generation
    items: AsyncGenerator[EngineAnswer, None]
    """All that the engine gives, the first of which is there."""


class Model(Protocol):
    """The model, wherever it is."""

    def open_answer(self, ask: ModelRequest) -> AbstractAsyncContextManager[StartedAnswer]:
        """Ask, and yield once the answer begins; who leaves ends it.

        What keeps an answer from beginning is raised on the way in.
        """
        ...


class _EndedUnread(Exception):
    """An answer was ended for a swap before anybody saw any of it."""


@dataclass(slots=True)
class LocalModel[P]:
    """The model behind our own gate; an answer begins and ends inside it."""

    gate: WayIn[P]
    metrics: Metrics
    limits: Limits
    listeners: Sequence[Listener] = ()
    """They listen to each request."""
    replay: bool = False
    """True where new weights answer what was ended for a swap before anybody saw any of it."""
    last_token_at: float = float("-inf")
    """The monotonic clock's time when a token was told last."""

    @asynccontextmanager
    async def open_answer(self, ask: ModelRequest) -> AsyncIterator[StartedAnswer]:
        """Ask, once more where a swap or the loss of an engine ended what nobody saw."""
        for replays_left in reversed(range(REPLAYS + 1)):
            async with AsyncExitStack() as stack:
                inside = self._answer_inside_gate(ask, may_replay=self.replay and replays_left > 0)
                try:
                    answer = await stack.enter_async_context(inside)
                except _EndedUnread:
                    continue
                except EngineLost:  # another engine may answer
                    if not (replays_left and self.gate.lets_in):
                        raise
                    continue
                yield answer
                return

    @asynccontextmanager
    async def _answer_inside_gate(
        self, ask: ModelRequest, *, may_replay: bool
    ) -> AsyncIterator[StartedAnswer]:
        """Be inside the gate while the engine answers."""
        # Before the gate: a swap need not wait for a long text to be encoded. The gate lends an
        # engine for that, or says why it lets nobody in.
        with self.gate.lend_preparer() as preparer:
            if ask.encoded is not None:
                ask.encoded.check(preparer.encodes_as)
            prepared = await preparer.prepare(ask.request)
        patience = self.limits.generation_seconds
        asked = Conditions(ask.at_least, patience, ask.exactly, ask.session)
        async with (
            self.gate.admit(asked) as lease,
            aclosing(lease.engine.generate(prepared, lease.weights)) as items,
        ):
            askable = partial(lease.engine.askable, prepared) if ask.may_be_kept else None
            let_in = LetIn(lease.generation, ask.prompts, ask.copies, ask.until, askable)
            with ExitStack() as listening:
                each_ended = [
                    ended
                    for each in self.listeners
                    if (ended := listening.enter_context(each.listen(let_in))) is not None
                ]
                first = await anext(items)
                if may_replay and any(map(_was_ended_for_a_swap, answers_in(first))):
                    raise _EndedUnread
                async with aclosing(self._report_tokens(first, items, each_ended)) as noted:
                    yield StartedAnswer(lease.generation, noted)

    async def _report_tokens(
        self,
        first: EngineAnswer,
        items: AsyncGenerator[EngineAnswer, None],
        each_ended: Sequence[AnswerEnded],
    ) -> AsyncGenerator[EngineAnswer, None]:
        """Count the tokens of an answer as they come, and report its end to the listeners."""
        counted: dict[int, int] = {}
        self._report(first, each_ended, counted)
        yield first
        async for item in items:
            self._report(item, each_ended, counted)
            yield item

    def _report(
        self, item: EngineAnswer, each_ended: Sequence[AnswerEnded], counted: dict[int, int]
    ) -> None:
        new = 0
        for place, answer in enumerate(answers_in(item)):
            index, made = answer.get("index", place), count_tokens(answer)
            if finish_reason(answer):
                for ended in each_ended:
                    ended(index, answer)
            # As they come: a long answer counted at its end would be a peak, and zeros before.
            new += max(0, made - counted.get(index, 0))
            counted[index] = made
        self.metrics.tokens(new)
        if new:
            self.last_token_at = time.monotonic()


def count_prompts(prompts: Any) -> int:
    """Count the prompts in a text, in a list of texts or of ids, or in a list of such lists."""
    if isinstance(prompts, list) and not (prompts and is_integer(prompts[0])):
        return len(prompts)
    return 1


def answers_in(item: EngineAnswer) -> list[Fields]:
    """List what the engine gives at once: the answers of a batch, or one."""
    return item if isinstance(item, list) else [item]


def finish_reason(answer: Fields) -> Fields:
    """Tell how an answer ended; nothing while it goes on."""
    ended: Fields | None = answer.get("meta_info", {}).get("finish_reason")
    return ended or {}


def count_tokens(answer: Fields) -> int:
    """Count the tokens of an answer so far."""
    return int(answer.get("meta_info", {}).get("completion_tokens", 0))


def _was_ended_for_a_swap(answer: Fields) -> bool:
    return bool(finish_reason(answer).get("code") == FOR_A_SWAP)
