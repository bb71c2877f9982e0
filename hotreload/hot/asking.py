"""Requests of a program in the words of sglang-jax, and their answers: at once, or in pieces."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from hotreload.engine.answering.answers import Answer, Newest, all_ended
from hotreload.engine.answering.probe import Probe
from hotreload.errors import BadRequest, NotServing, shown
from hotreload.threads import run_to_end
from hotreload.types import Generation

Prompt = str | list[int] | tuple[int, ...]
"""A text, or its token ids."""
SeveralPrompts = list[str] | tuple[str, ...] | Sequence[list[int]] | Sequence[tuple[int, ...]]
"""Several of them."""
Sampling = Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""As sglang-jax takes them, for all prompts or for each."""


def request_for(
    prompt: Prompt | SeveralPrompts, sampling: Sampling | None, more: Mapping[str, Any]
) -> dict[str, Any]:
    """In the engine's own schema, which knows lists alone; BadRequest when it is nothing of it."""
    if not isinstance(prompt, str | list | tuple):
        kind = type(prompt).__name__
        raise BadRequest(f"prompt must be a text, token ids, or a list of either, and is a {kind}")
    is_text = isinstance(prompt, str) or any(isinstance(each, str) for each in prompt)
    name, asked = "text" if is_text else "input_ids", {} if sampling is None else sampling
    own = _in_lists(asked)  # ours to take something out of
    copies = _copies(own)
    return {name: _in_lists(prompt), "sampling_params": own, **copies, **more}


def are_asked(probes: Sequence[Probe] | None) -> bool:
    """Say if probes are asked: those of the start, unless there are to be none."""
    if probes is None:
        return True
    if isinstance(probes, Sequence) and not probes:
        return False
    words = "() asks none, and without it those are asked that were given at the start"
    raise BadRequest(f"probes of one update must be (), not {shown(probes)}: {words}")


def check_whole_number(name: str, value: object) -> None:
    """BadRequest for what is none."""
    if type(value) is not int:
        raise BadRequest(f"{name} must be a whole number, not {shown(value)}")


def check_text(name: str, value: object) -> None:
    """BadRequest for what is none."""
    if not isinstance(value, str):
        raise BadRequest(f"{name} must be a text, not {shown(value)}")


def check_is_staged(value: object, kind: type) -> None:
    """BadRequest for what is not what `stage` returned."""
    if not isinstance(value, kind):
        raise BadRequest(f"staged must be what stage returned, and is a {type(value).__name__}")


def stamp(answer: Answer, generation: Generation) -> None:
    """Say in its `meta_info` which generation made it: number, revision and fingerprint."""
    answer["meta_info"] = {**answer.get("meta_info", {}), **generation.stamp}


def _copies(sampling: Any) -> dict[str, int]:
    """The number of answers to each prompt (`n`), taken out of its parameters; as for `/generate`.

    What is no mapping is left to the engine, which says so.
    """
    several = sampling if isinstance(sampling, list) else [sampling]
    asked = [each.pop("n", None) for each in several if isinstance(each, dict)]
    counts = {1 if n is None else _checked_count(n) for n in asked}
    if len(counts) > 1:
        raise BadRequest("sampling_params.n: must be the same for each prompt")
    n = counts.pop() if counts else 1
    return {"copies": n} if n > 1 else {}


def _checked_count(n: Any) -> int:
    check_whole_number("sampling_params.n", n)
    if n < 1:
        raise BadRequest(f"sampling_params.n must be at least 1, not {n}")
    return int(n)


def _in_lists(value: object) -> object:
    if isinstance(value, list | tuple):
        return [_in_lists(each) for each in value]
    return dict(value) if isinstance(value, Mapping) else value


class Stream:
    """Follows an answer, or several, in a task of its own: the engine's end needs no reader.

    Its reader may be kept for ever, and holds nothing of the engine then.
    """

    def __init__(self, answers: AsyncGenerator[Answer]) -> None:
        self._newest = Newest(1)
        self.task = asyncio.create_task(_follow(answers, self._newest))

    async def next(self) -> Answer | None:
        """The next piece, None at the end; a slow reader misses some of them."""
        return await self._newest.next()

    async def end(self) -> None:
        """Abort what has not ended, and return when the engine has forgotten it."""
        await run_to_end(all_ended([self.task]))


class Streams:
    """The streams that have not ended."""

    def __init__(self) -> None:
        self._open: set[asyncio.Task[None]] = set()

    def begin(self, answers: AsyncGenerator[Answer]) -> Stream:
        """Follow answers from now on."""
        stream = Stream(answers)
        self._open.add(stream.task)
        stream.task.add_done_callback(self._open.discard)
        return stream

    async def end(self) -> None:
        """End all of them: their readers hear NotServing."""
        await all_ended([*self._open])


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
