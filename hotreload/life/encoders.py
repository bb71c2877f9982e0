"""Keeps the copy of an engine's prompt encoder for the workers."""

import asyncio
from collections.abc import Callable, Sequence

from hotreload.engine.answering.encoder_copy import EncoderCopy
from hotreload.life.running_engine import RunningEngine


class Encoders:
    """Copies the encoder of the first engine, at first and whenever an engine came or went."""

    def __init__(self, engines: Callable[[], Sequence[RunningEngine]]) -> None:
        """`engines` lists the engines that serve."""
        self._engines = engines
        self._moved = asyncio.Event()
        self.copy: EncoderCopy | None = None
        """The first engine's encoder as of the last look; None if it has none."""

    async def look(self) -> bool:
        """Have each engine copy its encoder, and know prompts encoded by it; return True if it
        changed."""
        before = self.copy
        copies = [await engine.encoder_copy() for engine in self._engines()]
        self.copy = copies[0] if copies else None
        return self.copy != before

    def look_again(self) -> None:
        """Look soon: an engine came or went."""
        self._moved.set()

    async def follow(self, send: Callable[[], None]) -> None:
        """Call `send` each time the encoder has changed, for ever."""
        while True:
            await self._moved.wait()
            self._moved.clear()
            if await self.look():
                send()
