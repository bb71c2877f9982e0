"""Notices that an engine died or hangs, and wakes every task that waits for the engine."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from hotreload.errors import EngineLost

WATCH_SECONDS = 0.25
LONGEST_LOOK = 4 * WATCH_SECONDS


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the engine that clients wait for, and how to see that it hangs."""

    words: str
    """The words for its hang."""
    progress: Callable[[], tuple[bool, int]]
    """Returns whether the part is busy, and how much it has done so far."""
    patience: float
    """Seconds that the part may be busy with one thing."""


class EngineWatch:
    """Belongs to the event loop it is made on; `report` may be called from anywhere."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lost: asyncio.Future[str] = self._loop.create_future()
        self.is_closed = False
        self.on_loss: Callable[[], None] = lambda: None

    @property
    def reason(self) -> str | None:
        """Reason for which the engine is lost; None while it is not."""
        return self._lost.result() if self._lost.done() else None

    def report(self, reason: str) -> None:
        """Say that the engine is lost; the first reason stays."""
        try:
            self._loop.call_soon_threadsafe(self.lose, reason)
        except RuntimeError:
            return  # the loop is closed: nobody waits any more

    def lose(self, reason: str) -> None:
        """Say the same from the loop's own thread."""
        if self.is_closed or self._lost.done():
            return
        self._lost.set_result(reason)
        self.on_loss()

    def check(self) -> None:
        """Raise EngineLost if the engine is lost."""
        if self._lost.done():
            raise EngineLost(self._lost.result())

    async def until_lost(self) -> NoReturn:
        """Raise EngineLost as soon as the engine is lost."""
        raise EngineLost(await asyncio.shield(self._lost))

    def close(self) -> None:
        """Take the engine's end as asked for from now on, and not as a loss."""
        self.is_closed = True

    async def look(self, fault: Callable[[], str | None], parts: Sequence[Part]) -> None:
        """Look at the engine's threads again and again, until one has ended or hangs."""
        paces, before = [_Pace(part) for part in parts], time.monotonic()
        while not self._lost.done():
            await asyncio.sleep(WATCH_SECONDS)
            if reason := fault():
                self.lose(reason)
            now = time.monotonic()
            # Time in which this process was stopped or starved counts against no part.
            passed, before = min(now - before, LONGEST_LOOK), now
            for pace in paces:
                if reason := pace.look(passed):
                    self.lose(reason)


class _Pace:
    """Measures how long a part has been busy with the same thing."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._seen = part.progress()
        self._waited = 0.0

    def look(self, passed: float) -> str | None:
        """Say that it hangs, if it does."""
        now = self._part.progress()
        if now != self._seen or not now[0]:
            self._seen, self._waited = now, 0.0
            return None
        self._waited += passed
        return self._part.words if self._waited > self._part.patience else None
