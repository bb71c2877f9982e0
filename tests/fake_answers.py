"""The half of the fake engine that talks to clients, and says what a test lets it say."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hotreload.engine.answering.items import Parsed
from hotreload.engine.answering.requests import FIELDS
from hotreload.errors import BadRequest, EngineLost
from hotreload.server.model import count_prompts
from hotreload.types import Staged

Fields = dict[str, Any]

FOR_EVER = "Count for ever."
"""An answer to this prompt ends when it is aborted."""


@dataclass(frozen=True)
class FakeParsed(Parsed):
    """A request as it was sent: the fake reads it when it answers."""

    request: Mapping[str, Any] = field(default_factory=dict)


@dataclass(eq=False)
class UnderWay:
    """A request that is being answered, and what ends it early."""

    rid: object
    weights: Staged
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    is_as_asked: bool = False


def prompts_of(request: Mapping[str, Any]) -> Any:
    return request.get("text") or request.get("input_ids")


def are_one(prompts: Any) -> bool:
    """Whether it is a text, the ids of one, or nothing that a real engine would take."""
    return not isinstance(prompts, list) or not isinstance(next(iter(prompts), 0), str | list)


def parsed(request: Mapping[str, Any]) -> FakeParsed:
    prompts, copies = prompts_of(request), request.get("copies", 1)
    is_batch = not are_one(prompts) or copies > 1
    return FakeParsed((), is_batch, bool(request.get("stream")), request=request)


def is_prompt_alone(request: Mapping[str, Any]) -> bool:
    sampling = request.get("sampling_params")
    return isinstance(sampling, dict) and sampling.get("max_new_tokens") == 0


class FakeAnswers:
    """What clients are told: `word word …`, one word a chunk, when the test lets it."""

    def __init__(self, pass_through: Callable[[str], Awaitable[None]]) -> None:
        self._pass_through = pass_through
        self._words: list[str] | None = None
        self.requests: list[Mapping[str, Any]] = []
        self.under_way: Counter[Staged] = Counter()
        """How many requests each set of weights answers."""
        self.inside: Callable[[], int] = lambda: 0
        self.inside_when_closed: list[int] = []
        """How many were inside the gate as each generation ended: its own request, at least."""
        self.breaks_after: tuple[int, Exception] | None = None
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.went_on = asyncio.Event()
        self._one_less = asyncio.Event()
        self.logprob = 0.5
        self.tells_ids = False
        """Whether an answer has the ids of its tokens: each word is one, its first letter."""
        self.end: Fields = {"type": "stop"}
        self.calls: list[dict[str, str]] = []
        """What it calls when it is given tools: one call more with each word."""
        self.swaps_ahead = 0
        """So many answers are ended for a swap before they have said anything."""
        self.swap: Callable[[], None] = lambda: None
        """Called as each of these ends."""
        self._lost: EngineLost | None = None
        self._now: set[UnderWay] = set()
        self.prefixes = 0
        """How many tokens of answers are cached."""

    live: Staged
    candidate: Staged | None = None
    """What is asked where no client sees it."""

    @property
    def running(self) -> int:
        """How many requests are being answered."""
        return self.under_way.total()

    @property
    def words(self) -> list[str]:
        """What is said: what the live weights say, or a test has put in its place."""
        return self.words_of(self.live)

    @words.setter
    def words(self, words: list[str]) -> None:
        self._words = words

    def speaks_for_itself(self) -> None:
        """Forget what a test has put in the place of what the weights say."""
        self._words = None

    def words_of(self, weights: Staged) -> list[str]:
        """What these weights say, unless a test has put something else in its place."""
        return self.answer(weights).split() if self._words is None else self._words

    def answer(self, weights: Staged | None = None) -> str:
        """What these weights (the live ones) say, whatever they are asked."""
        raise NotImplementedError

    def check_answer(self, request: Mapping[str, Any], weights: Staged) -> None:
        """Withhold an answer that is no numbers."""

    async def prepare(self, request: Mapping[str, Any]) -> FakeParsed:
        self.check_alive()
        await self._pass_through("prepare")
        for name in request.keys() - FIELDS:
            raise BadRequest(f"{name}: the fake has no such parameter", param=name)
        return parsed(request)

    async def generate(
        self, prepared: Parsed, weights: Staged | None = None
    ) -> AsyncGenerator[Fields | list[Fields]]:
        assert isinstance(prepared, FakeParsed)
        self.requests.append(prepared.request)
        self.check_alive()
        await self._pass_through("generate")
        weights = weights or self.live
        self.check_answer(prepared.request, weights)
        self.under_way[weights] += 1
        one = UnderWay(prepared.request.get("rid"), weights)
        self._now.add(one)
        try:
            async for item in self._answers(prepared, one):
                yield item
        finally:
            self._now.remove(one)
            self.prefixes += 7
            self.under_way[weights] -= 1
            self.inside_when_closed.append(self.inside())
            self.went_on.set()
            self._one_less.set()

    def check_alive(self) -> None:
        if self._lost is not None:
            raise self._lost

    def end_all(self, weights: Staged | None = None) -> None:
        """Whatever is being answered (by these weights) goes no further."""
        for each in self._now:
            if weights in (None, each.weights):
                each.ended.set()

    def end_clients(self) -> None:
        """Whatever clients are being answered goes no further."""
        for weights in [*self.under_way]:
            if weights is not self.candidate:
                self.end_all(weights)

    async def abort_asked(self, rid: str | None) -> int:
        asked = [e for e in self._now if rid in (None, e.rid) and e.weights is not self.candidate]
        for each in asked:
            each.is_as_asked = not each.ended.is_set()
            each.ended.set()
        return len(asked)

    async def tokenize(self, asked: Mapping[str, Any]) -> list[list[int]]:
        """A byte is a token."""
        self.check_alive()
        if "messages" in asked:
            return [list("\n".join(each["content"] for each in asked["messages"]).encode())]
        return [list(text.encode()) for text in asked["text"]]

    async def detokenize(self, ids: Sequence[list[int]], *, skip_special: bool) -> list[str]:
        self.check_alive()
        if any(not 0 <= token < 256 for each in ids for token in each):
            raise BadRequest("tokens: there is no such token", param="tokens")
        return [bytes(each).decode(errors="replace") for each in ids]

    def askable(self, prepared: Parsed) -> Mapping[int, Sequence[int]]:
        """Every prompt; a byte is a token."""
        assert isinstance(prepared, FakeParsed)
        asked, copies = prepared.request, prepared.request.get("copies", 1)
        given = asked.get("text") or str(asked.get("messages"))
        texts = [given] if isinstance(given, str) else given
        prompts = [list(text.encode()) for text in texts for _ in range(copies)]
        return dict(enumerate(prompts))

    async def flush(self) -> int:
        await self._pass_through("flush")
        flushed, self.prefixes = self.prefixes, 0
        return flushed

    async def nothing_under(self, weights: Staged) -> None:
        """Until no request is answered by these weights."""
        while self.under_way[weights]:
            self._one_less.clear()
            await self._one_less.wait()

    async def _answers(
        self, asked: FakeParsed, one: UnderWay
    ) -> AsyncGenerator[Fields | list[Fields]]:
        prompts, weights = prompts_of(asked.request), one.weights
        count = asked.request.get("copies", 1) * max(1, count_prompts(prompts))
        if self.swaps_ahead:
            self.swaps_ahead -= 1
            self.swap()
            cut = _ended_for_a_swap(self._chunk(weights, 0))
            yield [cut] * count if asked.is_batch and not asked.stream else cut
        elif is_prompt_alone(asked.request):
            alone = _without_tokens(self._chunk(weights, 0))
            if asked.stream:
                for index in range(count):
                    yield {**alone, "index": index} if asked.is_batch else alone
            else:
                yield [dict(alone) for _ in range(count)] if asked.is_batch else alone
        elif asked.stream:
            async for item in self._streamed(asked, count, one):
                yield item
        else:
            await self._go_on(one.ended)
            words = len(self.words_of(weights))
            chunks = (self._chunk(weights, words) for _ in range(count))
            answers = [_cut_short(self._with_calls(each, asked), one) for each in chunks]
            yield answers if asked.is_batch else answers[0]

    async def _streamed(
        self, asked: FakeParsed, count: int, one: UnderWay
    ) -> AsyncGenerator[Fields]:
        weights, ended = one.weights, one.ended
        is_endless, length = asked.request.get("text") == FOR_EVER, len(self.words_of(weights))
        for so_far in range(1, length + 1 + is_endless):
            if self.breaks_after and so_far > self.breaks_after[0]:
                raise self.breaks_after[1]
            if so_far > length:
                await ended.wait()
                self.check_alive()
            is_last = ended.is_set()
            for index in range(count):
                piece = self._with_calls(self._chunk(weights, so_far), asked)
                piece = _without_end(piece) if is_endless else piece
                extra = {"index": index} if asked.is_batch else {}
                yield _as_asked(_cut_short(piece, one), asked.request) | extra
            if is_last:
                return
            await self._go_on(ended)

    async def _go_on(self, ended: asyncio.Event) -> None:
        """Until it may, or must end."""
        if not self.may_answer.is_set():
            waits = [asyncio.create_task(each.wait()) for each in (self.may_answer, ended)]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
        self.check_alive()

    def _with_calls(self, chunk: Fields, asked: FakeParsed) -> Fields:
        if not asked.request.get("tools"):
            return chunk
        return {**chunk, "tool_calls": self.calls[: chunk["meta_info"]["completion_tokens"]]}

    def _chunk(self, weights: Staged, words: int) -> Fields:
        all_words = self.words_of(weights)
        is_whole = words == len(all_words)
        meta = {
            "id": "r",
            "prompt_tokens": 7,
            "completion_tokens": words,
            "logprob": self.logprob,
            "finish_reason": self.end if is_whole else None,
        }
        answer: Fields = {"text": " ".join(all_words[:words]), "meta_info": meta}
        ids = [ord(word[:1] or " ") for word in all_words[:words]]
        return answer | {"output_ids": ids} if self.tells_ids else answer


def _without_tokens(answer: Fields) -> Fields:
    meta = {k: [] if k.startswith("output_") else v for k, v in answer["meta_info"].items()}
    meta["finish_reason"] = {"type": "length", "length": 0}
    return {**answer, "meta_info": meta}


def _without_end(answer: Fields) -> Fields:
    return answer | {"meta_info": answer["meta_info"] | {"finish_reason": None}}


def _as_asked(piece: Fields, request: Mapping[str, Any]) -> Fields:
    """The piece, of which an answer that goes on has no text if that is asked at the end."""
    if not request.get("text_at_end") or piece["meta_info"]["finish_reason"]:
        return piece
    return {name: value for name, value in piece.items() if name != "text"}


def _cut_short(answer: Fields, one: UnderWay) -> Fields:
    if not one.ended.is_set():
        return answer
    return _ended_as_asked(answer) if one.is_as_asked else _ended_for_a_swap(answer)


def _ended_as_asked(answer: Fields) -> Fields:
    why: Fields = {"type": "abort", "code": "asked", "message": "Aborted"}
    why |= {"status_code": None, "err_type": None}
    return answer | {"meta_info": answer["meta_info"] | {"finish_reason": why}}


def _ended_for_a_swap(answer: Fields) -> Fields:
    why = {"type": "abort", "code": "swap", "message": "ended early for a swap"}
    return answer | {"meta_info": answer["meta_info"] | {"finish_reason": why}}
