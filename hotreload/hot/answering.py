"""The half of an engine in one's own program that answers requests."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, overload

from hotreload.core.way_in.gate import Gate
from hotreload.engine.answering.answers import Answer
from hotreload.engine.sglang import SglangEngine
from hotreload.errors import BadRequest, EngineLost, NotServing
from hotreload.hot.asking import (
    Prompt,
    Sampling,
    SeveralPrompts,
    Streams,
    check_text,
    check_whole_number,
    request_for,
    stamp,
)
from hotreload.hot.loop_thread import Home
from hotreload.hot.released import Released
from hotreload.types import Lease

ADMISSION_SECONDS = 60.0
"""Time that a request waits for a generation that is new enough."""


class AnsweringHalf:
    """Answers requests through a gate, until it is closed, or while memory is released."""

    def __init__(self, gate: Gate[SglangEngine]) -> None:
        self._home = Home()
        self._gate = gate
        self._released = Released()
        self._streams = Streams()
        self._ending: asyncio.Task[None] | None = None
        """The work of `close`, once it was called."""

    @overload
    async def generate(
        self,
        prompt: Prompt,
        sampling_params: Sampling | None = None,
        *,
        at_least: int = 0,
        **more: Any,
    ) -> Answer: ...

    @overload
    async def generate(
        self,
        prompt: SeveralPrompts,
        sampling_params: Sampling | None = None,
        *,
        at_least: int = 0,
        **more: Any,
    ) -> list[Answer]: ...

    async def generate(
        self,
        prompt: Prompt | SeveralPrompts,
        sampling_params: Sampling | None = None,
        *,
        at_least: int = 0,
        **more: Any,
    ) -> Answer | list[Answer]:
        """The answer, or a list of them for a list of prompts; each is by one generation alone.

        `more` is what sglang-jax's `/generate` takes beside. A generation older than `at_least`
        does not answer: it is waited for, then NotNewEnough.
        """
        if more.get("stream"):
            raise BadRequest("generate answers at once: for pieces, call stream")
        async with aclosing(self._answers(prompt, sampling_params, at_least, more)) as answers:
            answer: Answer | list[Answer] = await anext(answers)
        if self._ending is not None:
            raise NotServing("the engine was closed meanwhile")
        return answer

    async def stream(
        self,
        prompt: Prompt | SeveralPrompts,
        sampling_params: Sampling | None = None,
        *,
        at_least: int = 0,
        **more: Any,
    ) -> AsyncGenerator[Answer]:
        """The same in pieces, each with the whole text so far; closing it aborts the answer."""
        more["stream"] = True
        stream = self._streams.begin(self._answers(prompt, sampling_params, at_least, more))
        # No other generator within this one: asyncio closes all of them at once when a loop ends.
        try:
            while (piece := await stream.next()) is not None:
                yield piece
        finally:
            await stream.end()

    async def _answers(
        self,
        prompt: Prompt | SeveralPrompts,
        sampling: Sampling | None,
        at_least: int,
        more: Mapping[str, Any],
    ) -> AsyncGenerator[Any]:
        """Yield what the engine answers, once or in pieces; each answer says who made it."""
        self._check()
        self._released.check_answers()
        check_whole_number("at_least", at_least)
        request = request_for(prompt, sampling, more)
        prepared = await self._gate.get_preparer().prepare(request)
        async with (
            self._inside(at_least) as lease,
            aclosing(lease.engine.generate(prepared, lease.weights)) as answers,
        ):
            async for answer in answers:
                for each in answer if isinstance(answer, list) else [answer]:
                    stamp(each, lease.generation)
                yield answer

    @asynccontextmanager
    async def _inside(self, at_least: int = 0) -> AsyncIterator[Lease[SglangEngine]]:
        """Hold a lease: its weights do not end meanwhile, and no memory is given back."""
        async with self._gate.admit(at_least, ADMISSION_SECONDS) as lease:
            self._released.check_answers()  # nobody may come in any more
            yield lease

    async def abort(self, rid: str | None = None) -> int:
        """End the answers under way (to prompts that are called so), as they are; how many."""
        self._check()
        if rid is not None:
            check_text("rid", rid)
        return await self._gate.get_preparer().abort_asked(rid)

    def _check(self) -> None:
        """EngineLost when it is lost, NotServing when it is closed, BadRequest after a fork."""
        self._home.check()
        try:
            self._gate.get_preparer()
        except NotServing as refusal:
            if self._gate.is_lost:
                raise EngineLost(f"{refusal}: close it, and start another") from refusal
            raise
