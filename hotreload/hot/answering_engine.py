"""The half of a program's engine that answers requests; the other half changes the weights."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, overload

from hotreload.core.way_in.gate import Gate
from hotreload.engine.answering.answers import Answer
from hotreload.engine.sglang import SglangEngine
from hotreload.errors import BadRequest, EngineLost, NotServing
from hotreload.hot.loop_thread import Home
from hotreload.hot.memory_release import ReleasedParts
from hotreload.hot.program_requests import (
    Prompt,
    Sampling,
    SeveralPrompts,
    Streams,
    check_text,
    check_whole_number,
    request_for,
    stamp,
)
from hotreload.types import Lease

ADMISSION_SECONDS = 60.0
"""The longest wait of a request for a generation that is new enough."""


class AnsweringEngine:
    """An engine behind a gate: it refuses requests once it is closed, or memory is released."""

    def __init__(self, gate: Gate[SglangEngine]) -> None:
        self._home = Home()
        self._gate = gate
        self._released_parts = ReleasedParts()
        self._streams = Streams()
        self._ending: asyncio.Task[None] | None = None
        """The task of `close`, once it was called."""

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
        """Return the answer, or a list of answers for a list of prompts, each by one generation.

        `more` are further fields of sglang-jax's `/generate`. No generation older than `at_least`
        answers: the request waits for a new one, and NotNewEnough is raised if none comes.
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
        """Yield the answer in pieces, each with the whole text up to there; closing aborts it."""
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
        """Yield the engine's answer, once or in pieces, each stamped with its generation."""
        self._check()
        self._released_parts.check_answers()
        check_whole_number("at_least", at_least)
        request = request_for(prompt, sampling, more)
        prepared = await self._gate.get_engine().answers.prepare(request)
        async with (
            self._inside(at_least) as lease,
            aclosing(lease.engine.answers.generate(prepared, lease.weights)) as answers,
        ):
            async for answer in answers:
                for each in answer if isinstance(answer, list) else [answer]:
                    stamp(each, lease.generation)
                yield answer

    @asynccontextmanager
    async def _inside(self, at_least: int = 0) -> AsyncIterator[Lease[SglangEngine]]:
        """Hold a lease on the live weights: they stay, and no memory is released meanwhile."""
        async with self._gate.admit(at_least, ADMISSION_SECONDS) as lease:
            self._released_parts.check_answers()  # memory may have been released since
            yield lease

    async def abort(self, rid: str | None = None) -> int:
        """End the answers under way, or those of one `rid`; return how many ended."""
        self._check()
        if rid is not None:
            check_text("rid", rid)
        return await self._gate.get_engine().answers.abort_asked(rid)

    def _check(self) -> None:
        """EngineLost for a lost engine, NotServing for a closed one, BadRequest after a fork."""
        self._home.check()
        try:
            self._gate.get_engine()
        except NotServing as refusal:
            if self._gate.is_lost:
                raise EngineLost(f"{refusal}: close it, and start another") from refusal
            raise
