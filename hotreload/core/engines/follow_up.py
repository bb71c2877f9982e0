"""Does the work that judges put off until new weights are live; nothing waits for it.

The work runs beside requests, and holds the weights of before, so that both sets can be asked. The
next attempt ends it before that attempt changes any weights.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from hotreload.core.engines.replica import Replica
from hotreload.core.judge import Case
from hotreload.errors import EngineLost
from hotreload.threads import run_to_end
from hotreload.types import Lease

log = logging.getLogger("hotreload.follow_up")


class FollowUp:
    """The work left of one attempt, on the engine whose weights were judged."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._held: Lease[Any] | None = None

    @property
    def replica(self) -> Replica[Any]:
        """The engine that the work runs on."""
        return self._case.replica

    @property
    def is_held(self) -> bool:
        """True while this holds the weights of before."""
        return self._held is not None

    def hold(self) -> None:
        """Hold the weights that are live now, just before the flip."""
        if self._case.once_live and self._held is None:
            self._held = self.replica.gate.lease
            assert self._held is not None, "what answers has a lease"
            self.replica.gate.keep(self._held, self)

    def release(self) -> None:
        """Release the weights of before."""
        held, self._held = self._held, None
        if held is not None:
            self.replica.gate.unkeep(held, self)

    async def run(self) -> None:
        """Do the work; its faults are logged and change nothing else."""
        try:
            for work in self._case.once_live or ():
                with self.replica.seal_when_lost():
                    await work()
        except EngineLost:
            log.info("follow_up.ended", extra={"why": "the engine was lost"})
        except Exception:
            log.exception("follow_up.internal_error")
        finally:
            self.release()


class FollowUps:
    """Does the work left of attempts, for one attempt at a time."""

    def __init__(self, save: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """`save` writes the findings to disk."""
        self._save = save
        self._under_way: FollowUp | None = None
        self._task: asyncio.Task[None] | None = None

    def go_on_with(self, follow_up: FollowUp, *, is_live: bool) -> None:
        """Start the work left of an ended attempt, if its weights are live."""
        if not is_live or not follow_up.is_held:
            follow_up.release()
            return
        self._under_way = follow_up
        self._task = asyncio.create_task(self._run(follow_up), name="follow up")

    async def _run(self, follow_up: FollowUp) -> None:
        try:
            await follow_up.run()
        finally:
            await run_to_end(self._save())

    async def make_way(self) -> None:
        """End the work under way, and wait until the weights that it held are put away."""
        if (ended := await self.stop()) is not None:
            while ended.replica.drained_weights is not None:
                await ended.replica.fewer_fade(len(ended.replica.fading))

    async def stop(self) -> FollowUp | None:
        """End the work under way, and return it."""
        if self._task is None or self._task.done():
            return None
        self._task.cancel()
        await asyncio.wait([self._task])
        return self._under_way
