"""The half of a program's engine that answers requests; the other half changes the weights.

Requests are in sglang-jax's schema; their answers come at once or in pieces.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, overload

from hotreload.core.way_in.gate import Gate
from hotreload.engine.answering.answers import Answer, Newest, all_ended
from hotreload.engine.answering.probe import Probe
from hotreload.engine.sglang import SglangEngine
from hotreload.errors import BadRequest, EngineLost, NotServing, show_value
from hotreload.hot.loop_thread import Home
from hotreload.threads import run_to_end
from hotreload.types import Lease, Mode

Prompt = str | list[int] | tuple[int, ...]
"""A text, or its token ids."""
SeveralPrompts = list[str] | tuple[str, ...] | Sequence[list[int]] | Sequence[tuple[int, ...]]
"""Several texts, or the token ids of each."""
Sampling = Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""Sampling parameters of sglang-jax, for all prompts or for each."""

ADMISSION_SECONDS = 60.0
"""The longest wait of a request for a generation that is new enough."""


class AnsweringEngine:
    """An engine behind a gate: it refuses requests once it is closed, or memory is released."""

    def __init__(self, gate: Gate[SglangEngine]) -> None:
        self._home = Home()
        self._gate = gate
        self._released_parts = ReleasedParts()
        self._streams = set[asyncio.Task[None]]()
        """The tasks that collect the answers of streams, until they end."""
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
        answers, newest = self._answers(prompt, sampling_params, at_least, more), Newest(1)
        # A task collects the answer: the engine waits for no reader, and a slow one misses pieces.
        # No other generator within this one: asyncio closes all of them at once when a loop ends.
        task = asyncio.create_task(_follow(answers, newest))
        self._streams.add(task)
        task.add_done_callback(self._streams.discard)
        try:
            while (piece := await newest.next()) is not None:
                yield piece
        finally:
            await run_to_end(all_ended([task]))

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
                    each["meta_info"] = {**each.get("meta_info", {}), **lease.generation.stamp}
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


# --- memory that is released ------------------------------------------------------------

KV_POOL, ALL_WEIGHTS = "kv", "weights"
"""The parts of an engine's memory, by name."""
_AGAIN = {
    KV_POOL: "the KV pool is released: hot.resume() makes it again",
    ALL_WEIGHTS: "the weights are released: hot.resume(arrays) brings new ones, hot.resume() those "
    "of before from their folder",
}
_CODE = "released"


@dataclass
class ReleasedParts:
    """The parts of the memory that are released now; refuses calls that need them."""

    parts: frozenset[str] = frozenset()
    is_changing: bool = False
    """True while memory is being released."""

    def check_answers(self) -> None:
        """NotServing while no request can be answered."""
        if self.parts:
            raise NotServing(self._words, code=_CODE)
        if self.is_changing:
            raise NotServing("memory is being released: hot.resume() takes it again", code=_CODE)

    def check_changes(self, mode: Mode) -> None:
        """NotServing while no weights can be staged, proven or made live."""
        if ALL_WEIGHTS in self.parts or (self.parts and mode is Mode.DRAIN):
            raise NotServing(self._words, code=_CODE)

    @property
    def _words(self) -> str:
        return _AGAIN[ALL_WEIGHTS if ALL_WEIGHTS in self.parts else KV_POOL]


# --- requests, and what a program may give ----------------------------------


def request_for(
    prompt: Prompt | SeveralPrompts, sampling: Sampling | None, more: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the request in the engine's schema, which has lists only; BadRequest for no prompt."""
    if not isinstance(prompt, str | list | tuple):
        kind = type(prompt).__name__
        raise BadRequest(f"prompt must be a text, token ids, or a list of either, and is a {kind}")
    is_text = isinstance(prompt, str) or any(isinstance(each, str) for each in prompt)
    name, asked = "text" if is_text else "input_ids", {} if sampling is None else sampling
    own = _in_lists(asked)  # a copy: `_copies` takes `n` out of it
    copies = _copies(own)
    return {name: _in_lists(prompt), "sampling_params": own, **copies, **more}


def wants_probes(probes: Sequence[Probe] | None) -> bool:
    """Return whether the probes of the start are sent: always, but for an empty sequence."""
    if probes is None:
        return True
    if isinstance(probes, Sequence) and not probes:
        return False
    words = "() asks none, and without it those are asked that were given at the start"
    raise BadRequest(f"probes of one update must be (), not {show_value(probes)}: {words}")


def check_whole_number(name: str, value: object) -> None:
    """BadRequest unless the value is an int."""
    if type(value) is not int:
        raise BadRequest(f"{name} must be a whole number, not {show_value(value)}")


def check_text(name: str, value: object) -> None:
    """BadRequest unless the value is a str."""
    if not isinstance(value, str):
        raise BadRequest(f"{name} must be a text, not {show_value(value)}")


def check_is_staged(value: object, kind: type) -> None:
    """BadRequest unless `stage` returned the value."""
    if not isinstance(value, kind):
        raise BadRequest(f"staged must be what stage returned, and is a {type(value).__name__}")


def _copies(sampling: Any) -> dict[str, int]:
    """Take the number of answers to each prompt (`n`) out of the parameters, as `/generate` does.

    Parameters that are no mapping stay as they are: the engine refuses them.
    """
    several = sampling if isinstance(sampling, list) else [sampling]
    asked = [each.pop("n", None) for each in several if isinstance(each, dict)]
    counts = {1 if n is None else _check_count(n) for n in asked}
    if len(counts) > 1:
        raise BadRequest("sampling_params.n: must be the same for each prompt")
    n = counts.pop() if counts else 1
    return {"copies": n} if n > 1 else {}


def _check_count(n: Any) -> int:
    check_whole_number("sampling_params.n", n)
    if n < 1:
        raise BadRequest(f"sampling_params.n must be at least 1, not {n}")
    return int(n)


def _in_lists(value: object) -> object:
    if isinstance(value, list | tuple):
        return [_in_lists(each) for each in value]
    return dict(value) if isinstance(value, Mapping) else value


async def _follow(answers: AsyncGenerator[Answer], newest: Newest) -> None:
    try:
        async with aclosing(answers):
            async for answer in answers:
                newest.put(answer.get("index"), answer)
        newest.end()
    except asyncio.CancelledError:
        newest.fail(NotServing("the engine was closed meanwhile"))
        raise
    except Exception as fault:
        newest.fail(fault)
