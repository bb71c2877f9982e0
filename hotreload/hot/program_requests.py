"""A program's requests in sglang-jax's schema, and their answers, at once or in pieces."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from hotreload.engine.answering.answers import Answer, Newest, all_ended
from hotreload.engine.answering.probe import Probe
from hotreload.errors import BadRequest, NotServing, show_value
from hotreload.threads import run_to_end
from hotreload.types import Generation

Prompt = str | list[int] | tuple[int, ...]
"""A text, or its token ids."""
SeveralPrompts = list[str] | tuple[str, ...] | Sequence[list[int]] | Sequence[tuple[int, ...]]
"""Several texts, or the token ids of each."""
Sampling = Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""Sampling parameters of sglang-jax, for all prompts or for each."""


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


def stamp(answer: Answer, generation: Generation) -> None:
    """Write number, revision and fingerprint of its generation into the answer's `meta_info`."""
    answer["meta_info"] = {**answer.get("meta_info", {}), **generation.stamp}


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


class Stream:
    """Collects an answer, or several, in a background task: the engine waits for no reader.

    A program may keep the reader for ever: it then holds no part of the engine.
    """

    def __init__(self, answers: AsyncGenerator[Answer]) -> None:
        self._newest = Newest(1)
        self.task = asyncio.create_task(_follow(answers, self._newest))

    async def next(self) -> Answer | None:
        """Return the next piece, or None at the end; a slow reader misses some pieces."""
        return await self._newest.next()

    async def end(self) -> None:
        """Abort answers that have not ended, and return once the engine has dropped them."""
        await run_to_end(all_ended([self.task]))


class Streams:
    """The streams that have not ended."""

    def __init__(self) -> None:
        self._open: set[asyncio.Task[None]] = set()

    def begin(self, answers: AsyncGenerator[Answer]) -> Stream:
        """Return a stream that collects these answers from now on."""
        stream = Stream(answers)
        self._open.add(stream.task)
        stream.task.add_done_callback(self._open.discard)
        return stream

    async def end(self) -> None:
        """End all streams: their readers get NotServing."""
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
