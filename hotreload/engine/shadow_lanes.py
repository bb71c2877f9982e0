"""Opens lanes in which weights answer apart from clients, in a KV pool of their own."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

from hotreload.engine.answering.answers import all_ended
from hotreload.engine.lanes.along import Along
from hotreload.engine.lanes.compiled_sizes import computes_every_place, list_paddings
from hotreload.engine.lanes.shadow import ShadowPool
from hotreload.engine.upstream.thread.between import BetweenSteps
from hotreload.engine.upstream.thread.scheduler import SchedulerThread
from hotreload.engine.weights.memory.headroom import raise_not_enough_memory
from hotreload.engine.weights.weights import Weights
from hotreload.threads import forgetting_locals, in_thread, run_to_end

HURRY_EVERY = 0.25
"""Seconds between two checks whether a proof ends in time."""


class ShadowLanes:
    """The lanes of weights that are proven or compared, and their KV pool; on the event loop."""

    def __init__(self, scheduler: SchedulerThread, between: BetweenSteps) -> None:
        self._scheduler = scheduler
        self._between = between
        self.pool: ShadowPool | None = None
        """The pool of these lanes; None where the engine has no lanes."""
        self.open_now: set[int] = set()
        """The numbers of the lanes that are open now."""

    @property
    def smallest_piece(self) -> int:
        """The fewest tokens of prompts that a batch is padded to."""
        tokens, _, _ = list_paddings(self._scheduler.scheduler.tp_worker)
        return tokens[0]

    @property
    def _places_computed(self) -> int:
        """The most places that attention is computed to, whatever they hold."""
        worker = self._scheduler.scheduler.tp_worker
        _, _, places = list_paddings(worker)
        return places[-1] if computes_every_place(worker) else 0

    def make_pool(self, asked: Sequence[int], candidate: Sequence[int], probes: int) -> None:
        """Make the pool for a batch of prompts, each of which takes so many tokens with its answer.

        `candidate` has those of clients' that a candidate answers. At most `probes` are asked
        together. Without lanes there is none: weights are proven once they are exchanged.
        """
        if not self._scheduler.cannot_overlap:
            allocator, computed = self._scheduler.lanes.allocator, self._places_computed
            self.pool = ShadowPool(allocator, asked, candidate, computed, probes)

    @asynccontextmanager
    async def open(
        self, weights: Weights, prompts: int, along: Along | None = None
    ) -> AsyncIterator[int]:
        """Yield the number of a lane in which these weights answer.

        It answers so many prompts together, and begins when all have come. `along` is called at
        each of its steps.
        """
        opened = list[int]()

        async def opens() -> None:
            opened.append(await self._open(weights, prompts, along))
            self.open_now.update(opened)

        try:
            with forgetting_locals():
                # Cancelled meanwhile, it is open, and ended all the same.
                await run_to_end(opens())
            yield opened[0]
        finally:
            for number in opened:
                await run_to_end(self.end(number))
                self.open_now.discard(number)

    async def _open(self, weights: Weights, prompts: int, along: Along | None) -> int:
        pool = self.pool
        assert pool is not None, self._scheduler.cannot_overlap
        with raise_not_enough_memory():
            made = await in_thread(lambda cancel: pool.make(is_candidates=not prompts))
        is_noted = along is not None
        shadow = partial(
            self._scheduler.lanes.open_shadow,
            prompts=prompts,
            rows=pool.rows_of(prompts, is_noted=is_noted),
            places=pool.places_of(is_noted=is_noted) if prompts else 0,
            along=along,
        )
        return await self._between.at_a_turn(partial(shadow, weights.leaves, *made))

    async def end(self, number: int) -> None:
        """End a lane, also one of clients; return once nothing is under way in it."""
        with forgetting_locals():
            ended = await self._between.at_a_turn(partial(self._scheduler.lanes.end, number))
            await self._between.until_lost(ended)

    @asynccontextmanager
    async def in_time(self, number: int, steps: int) -> AsyncIterator[None]:
        """Give this lane turns enough for so many steps within `[reload] prove_within`.

        Over several hosts all decide the same, and by no clock.
        """
        hurrying = []
        if self._scheduler.turns is None:
            hurrying.append(asyncio.create_task(self._hurry(number, steps)))
        try:
            yield
        finally:
            await run_to_end(all_ended(hurrying))

    async def _hurry(self, number: int, steps: int) -> None:
        began = time.monotonic()
        while True:
            await asyncio.sleep(HURRY_EVERY)
            hurry = partial(self._scheduler.lanes.hurry, number, steps, time.monotonic() - began)
            await self._between.at_a_turn(hurry)

    def drop_references(self) -> None:
        """Drop all references to the engine, when it ends: an error may hold this object."""
        if self.pool is not None:
            self.pool.free()
        self.pool = None
        del self._scheduler, self._between
