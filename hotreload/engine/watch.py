"""Notices that an engine died or hangs, and tells everybody who waits for it."""

import asyncio
import time
from collections.abc import Callable
from typing import NoReturn

from hotreload.errors import EngineLost

LOOK_SECONDS = 0.25


class Watch:
    """Belongs to the event loop it is made on; `report` may be called from anywhere."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lost: asyncio.Future[str] = self._loop.create_future()
        self.is_closed = False
        self.on_loss: Callable[[], None] = lambda: None

    @property
    def reason(self) -> str | None:
        """Why the engine is lost; None while it is not."""
        return self._lost.result() if self._lost.done() else None

    def report(self, reason: str) -> None:
        """Say that the engine is lost; the first reason stays."""
        try:
            self._loop.call_soon_threadsafe(self.lose, reason)
        except RuntimeError:
            return  # the loop is closed: nobody waits any more

    def lose(self, reason: str) -> None:
        """The same, on the loop."""
        if self.is_closed or self._lost.done():
            return
        self._lost.set_result(reason)
        self.on_loss()

    def check(self) -> None:
        """Raise EngineLost if it is lost."""
        if self._lost.done():
            raise EngineLost(self._lost.result())

    async def until_lost(self) -> NoReturn:
        """Raise EngineLost as soon as the engine is lost."""
        raise EngineLost(await asyncio.shield(self._lost))

    def close(self) -> None:
        """From now on an end of the engine is what was asked for."""
        self.is_closed = True

    async def look(
        self,
        fault: Callable[[], str | None],
        progress: Callable[[], tuple[bool, int]],
        hang_seconds: float,
    ) -> None:
        """Look at the engine's threads again and again, until one has ended or hangs."""
        seen, since = progress(), time.monotonic()
        while not self._lost.done():
            await asyncio.sleep(LOOK_SECONDS)
            if reason := fault():
                self.lose(reason)
            now = progress()
            if now != seen or not now[0]:
                seen, since = now, time.monotonic()
            elif time.monotonic() - since > hang_seconds:
                self.lose(f"a step takes longer than {hang_seconds:g} s (watchdog_timeout)")
