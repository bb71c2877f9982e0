"""Answers that come piece by piece, for readers who may be slow, or never come back."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from hotreload.engine.answering.answers import Newest, all_ended
from hotreload.errors import NotServing
from hotreload.hot.asking import Answer
from hotreload.threads import uninterrupted


class Stream:
    """Follows an answer, or several, in a task of its own: the engine's end needs no reader.

    Its reader may be kept for ever, and holds nothing of the engine then.
    """

    def __init__(self, answers: AsyncGenerator[Answer]) -> None:
        self._newest = Newest(1)
        self.task = asyncio.create_task(_follow(answers, self._newest))

    async def next(self) -> Answer | None:
        """The next piece, None at the end; who reads slowly misses some of them."""
        return await self._newest.next()

    async def end(self) -> None:
        """Abort what has not ended, and return when the engine has forgotten it."""
        await uninterrupted(all_ended([self.task]))


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
