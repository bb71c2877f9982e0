"""How tests wait until something holds: on events, by turns of the loop, or by looks."""

import asyncio
import time
from collections.abc import Callable

from hotreload.events import Event

PATIENCE = 90.0
"""Seconds after which a test that waits has failed; a slow machine must not reach it."""
TICK = 0.05
"""Seconds between two looks at another process."""
MOST_TURNS, SHORT = 1000, 0.001
"""After so many turns of the loop at once, so many seconds pass between two."""


class Witness:
    """Notes what happens, and looks again at each event for whoever waits for something."""

    patience = PATIENCE

    def __init__(self) -> None:
        self.happened: list[Event] = []
        self._changed = asyncio.Event()

    def note(self, event: Event) -> None:
        self.happened.append(event)
        self.look_again()

    def look_again(self) -> None:
        self._changed.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(self.patience):
            while not holds():
                self._changed.clear()
                await self._changed.wait()


async def turn_until(
    holds: Callable[[], bool], seconds: float = PATIENCE, pause: float = 0
) -> None:
    """Let the loop turn until something holds that no event tells of.

    What takes more turns than that waits for a thread or a process, which needs the processor.
    """
    turns = 0
    async with asyncio.timeout(seconds):
        while not holds():
            turns += 1
            await asyncio.sleep(pause or (turns > MOST_TURNS) * SHORT)


def look_until(
    holds: Callable[[], object],
    told: Callable[[], str],
    *,
    seconds: float = PATIENCE,
    tick: float = TICK,
) -> None:
    """From outside a process nothing but a look tells; when time is up, show what is told."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() >= deadline:
            raise TimeoutError(told())
        time.sleep(tick)
