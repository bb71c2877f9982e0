"""The copy of what encodes prompts that workers have: that of an engine which serves now."""

import asyncio
from collections.abc import Callable, Sequence

from hotreload.engine.answering.encoder_copy import EncoderCopy
from hotreload.life.running_engine import RunningEngine


class Encoders:
    """Looks at the engines that serve, at first and whenever one has come or gone."""

    def __init__(self, engines: Callable[[], Sequence[RunningEngine]]) -> None:
        """`engines` lists those that serve, the first of which may be the only one."""
        self._engines = engines
        self._moved = asyncio.Event()
        self.copy: EncoderCopy | None = None
        """That of the first one, as of the last look; None if it has none."""

    async def look(self) -> bool:
        """Have each make its copy, by whose name it knows what was encoded so; True for news."""
        before = self.copy
        copies = [await engine.encoder_copy() for engine in self._engines()]
        self.copy = copies[0] if copies else None
        return self.copy != before

    def look_again(self) -> None:
        """Look soon: the engines are others."""
        self._moved.set()

    async def follow(self, tell: Callable[[], None]) -> None:
        """Tell of news, for ever."""
        while True:
            await self._moved.wait()
            self._moved.clear()
            if await self.look():
                tell()
