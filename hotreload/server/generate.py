"""POST /generate: the engine's own schema, in and out, each answer naming who made it."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from hotreload.errors import BadRequest, HotReloadError
from hotreload.server.exchange import generation_header, while_connected
from hotreload.server.limits import Limits
from hotreload.server.ports import Engine, Fields, Gate, Metrics
from hotreload.server.problems import Json, Refused, problem_fields
from hotreload.server.requests import BOOLEAN, Kind, is_integer, read_fields
from hotreload.server.sse import EventWriter
from hotreload.types import Generation

Item = Fields | list[Fields]

REPLAYS = 2
"""Swaps that follow each other closely must not keep a long request from ever being answered."""


def _is_list_of(value: Any, *kinds: type) -> bool:
    return isinstance(value, list) and all(isinstance(item, kinds) for item in value)


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and all(is_integer(item) for item in value)


def _are_ids_or_batch(value: Any) -> bool:
    return _are_ids(value) or (isinstance(value, list) and all(_are_ids(item) for item in value))


def _is_one_or_list(*kinds: type) -> Kind:
    words = {str: "string", bool: "boolean", dict: "object", int: "integer"}
    named = words[kinds[0]]

    def fits(value: Any) -> bool:
        return isinstance(value, kinds) or _is_list_of(value, *kinds)

    return f"{'an' if named[0] in 'aeiou' else 'a'} {named} or a list of them", fits


IDS: Kind = ("a list of token ids or a list of such lists", _are_ids_or_batch)
FIELDS: Mapping[str, Kind] = {
    "rid": _is_one_or_list(str),
    "text": _is_one_or_list(str),
    "input_ids": IDS,
    "sampling_params": _is_one_or_list(dict),
    "stream": BOOLEAN,
    "return_logprob": _is_one_or_list(bool),
    "logprob_start_len": _is_one_or_list(int),
    "top_logprobs_num": _is_one_or_list(int),
    "token_ids_logprob": IDS,
    "return_text_in_logprobs": BOOLEAN,
}


class Generate:
    """The route, as an ASGI app: an answer begins and ends inside the gate."""

    def __init__(
        self, *, gate: Gate, engine: Engine, metrics: Metrics, limits: Limits, replay: bool = False
    ) -> None:
        self._gate = gate
        self._engine = engine
        self._metrics = metrics
        self._limits = limits
        self._replay = replay
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._check_load()
        self._running += 1
        try:
            wish = await self._read(Request(scope, receive))
            answer = self._streamed if wish.get("stream") else self._whole
            # One deadline for all replays: it is the client who waits.
            until = asyncio.get_running_loop().time() + self._limits.request_seconds
            for replays_left in reversed(range(REPLAYS + 1)):
                # Ended for a swap before the client saw any of it: the new weights answer.
                if await answer(wish, until, scope, receive, send, may_replay=replays_left > 0):
                    break
        finally:
            self._running -= 1

    def _check_load(self) -> None:
        if self._running >= self._limits.concurrent:
            raise Refused(
                503,
                "too_many_requests",
                f"{self._running} requests are running ([server.limits] concurrent)",
                headers={"Retry-After": "1"},
            )

    async def _read(self, request: Request) -> Fields:
        wish = await read_fields(request, FIELDS, nesting=self._limits.nesting)
        if ("text" in wish) == ("input_ids" in wish):
            raise BadRequest("give text or input_ids, one of them", code="bad_field")
        if (size := _batch_size(wish)) > self._limits.batch:
            raise BadRequest(
                f"{size} prompts in one request; {self._limits.batch} are allowed "
                "([server.limits] batch)",
                code="batch_too_big",
            )
        return wish

    async def _whole(
        self,
        wish: Fields,
        until: float,
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        may_replay: bool,
    ) -> bool:
        async with self._answering(wish, until, receive) as (generation, items):
            item = await anext(items)
        if may_replay and self._is_to_replay(item):
            return False
        answers = item if isinstance(item, list) else [item]
        for answer in answers:
            _stamp(answer, generation)
        self._metrics.tokens(sum(_tokens(answer) for answer in answers))
        await Json(item, headers=generation_header(generation))(scope, receive, send)
        return True

    def _is_to_replay(self, item: Item) -> bool:
        """Whether a drain ended it ([reload] on_drain_timeout = 'replay')."""
        answers = item if isinstance(item, list) else [item]
        return self._replay and any(_was_ended_for_a_swap(answer) for answer in answers)

    async def _streamed(
        self,
        wish: Fields,
        until: float,
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        may_replay: bool,
    ) -> bool:
        began = time.perf_counter()
        out = EventWriter(scope, receive, send, write_seconds=self._limits.write_seconds)
        try:
            async with self._answering(wish, until, receive) as (generation, items):
                first = await anext(items)
                if may_replay and self._is_to_replay(first):
                    return False
                out.add_headers(generation_header(generation))
                await self._pump(_chained(first, items), generation, out, began)
        except HotReloadError as error:
            if not out.is_started:
                raise
            await out.write({"error": problem_fields(error)})
        await out.done()
        return True

    @asynccontextmanager
    async def _answering(
        self, wish: Fields, until: float, receive: Receive
    ) -> AsyncIterator[tuple[Generation, AsyncGenerator[Item, None]]]:
        """Be inside the gate while the engine answers, no longer than allowed or waited for."""
        try:
            async with (
                asyncio.timeout_at(until) as deadline,
                while_connected(receive),
                self._gate.passing() as generation,
                aclosing(self._engine.generate(wish)) as items,
            ):
                yield generation, items
        except TimeoutError:
            if not deadline.expired():
                raise
            limit = self._limits.request_seconds
            words = f"not answered within {limit:g} s ([server.limits] request_seconds)"
            raise Refused(504, "timed_out", words) from None

    async def _pump(
        self,
        items: AsyncIterator[Item],
        generation: Generation,
        out: EventWriter,
        began: float,
    ) -> None:
        tokens: dict[int, int] = {}
        try:
            async for item in items:
                assert isinstance(item, dict)
                if not tokens:
                    self._metrics.first_token(time.perf_counter() - began)
                tokens[item.get("index", 0)] = _tokens(item)
                _stamp(item, generation)
                await out.write(item)
        finally:
            self._metrics.tokens(sum(tokens.values()))


def _batch_size(wish: Fields) -> int:
    prompts = wish.get("text", wish.get("input_ids"))
    if isinstance(prompts, list) and not (prompts and is_integer(prompts[0])):
        return len(prompts)
    return 1


def _stamp(answer: Fields, generation: Generation) -> None:
    answer["meta_info"] = {
        **answer.get("meta_info", {}),
        "generation": generation.number,
        "revision": generation.revision.id,
        "fingerprint": generation.fingerprint,
    }


async def _chained(first: Item, rest: AsyncIterator[Item]) -> AsyncIterator[Item]:
    yield first
    async for item in rest:
        yield item


def _was_ended_for_a_swap(answer: Fields) -> bool:
    ended = answer.get("meta_info", {}).get("finish_reason") or {}
    return bool(ended.get("code") == "swap")


def _tokens(answer: Fields) -> int:
    return int(answer.get("meta_info", {}).get("completion_tokens", 0))
