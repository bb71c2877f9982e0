"""Decides which weights answer in an engine: the live ones, older ones that end, unproven ones.

Where the engine has lanes, new weights take over while older ones still answer. Where it has none,
they are exchanged while nothing is under way. Knows nothing of gates or checkpoints.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from hotreload.engine.answering.answers import Answers
from hotreload.engine.lanes.along import Along
from hotreload.engine.lanes.lane import Bound
from hotreload.engine.lanes.shadow import ShadowPool
from hotreload.engine.slots import find_slot
from hotreload.engine.upstream.thread.between import BetweenSteps
from hotreload.engine.upstream.thread.scheduler import SchedulerThread, forget_caches, rewrite_pools
from hotreload.engine.upstream.thread.watch import EngineWatch
from hotreload.engine.weights.leaf.leaves import fill_with_zeros, signature
from hotreload.engine.weights.load.first_load import FirstLoad
from hotreload.engine.weights.load.loaders import Comparison
from hotreload.engine.weights.memory.headroom import raise_not_enough_memory
from hotreload.engine.weights.memory.one_set import Trade, stand_ins
from hotreload.engine.weights.sets import First, StagingEngine, StagingOptions
from hotreload.engine.weights.staged_set import give_to_model
from hotreload.engine.weights.twins import Original
from hotreload.engine.weights.weights import Weights
from hotreload.errors import EngineLost, TryAgain
from hotreload.threads import forgetting_locals, in_thread, run_to_end
from hotreload.types import Staged

ONLY_LANE = 0
"""Every request is answered in it where an engine has no others."""


class SwitchingEngine(StagingEngine):
    """An engine that can change which weights answer; its scheduler thread makes every change.

    What its verbs promise stands in `core.ports.Engine`.
    """

    _front: Answers
    _between: BetweenSteps
    """Both belong to the event loop, and are made when the engine begins on it."""

    def __init__(
        self,
        scheduler: SchedulerThread,
        watch: EngineWatch,
        first: First,
        terms: StagingOptions,
    ) -> None:
        """Begin with what was loaded while upstream built it, or with an original's copy.

        Nobody is answered yet. It blocks.
        """
        runner = scheduler.scheduler.tp_worker.get_model_runner()
        comparison = first.comparison if isinstance(first, Original) else Comparison()
        ours = first if isinstance(first, FirstLoad) else None
        comparison.is_tried = comparison.is_tried or ours is not None
        super().__init__(runner, terms, comparison, None if ours is None else ours.plan)
        others = "copy" if isinstance(first, Original) else "upstream"
        self.first_loader = others if ours is None else "own"
        """The loader of the weights that it starts with; `copy` of another engine's."""
        self.last_exchange_seconds: float | None = None
        """Time that the scheduler thread took for the last change of weights."""
        self._scheduler = scheduler
        self._watch = watch
        self._shadow_pool: ShadowPool | None = None
        self._proving: set[int] = set()
        # A list of our own: main's ahead-of-time programs know upstream's by its identity.
        leaves = list(find_slot(runner).read())
        scheduler.bind(stand_ins(leaves))  # what is replaced goes at once, one by one
        self.adopt(leaves, first)
        scheduler.bind(leaves)
        self.live.weights.lane = ONLY_LANE

    @property
    def cannot_overlap(self) -> str | None:
        """Reason why two sets of weights cannot answer side by side in it; None when they can."""
        return self.why_one_set or self._scheduler.cannot_overlap

    def structure(self) -> dict[str, tuple[Any, ...]]:
        """Shape, dtype and placement of each live leaf: what the compiled model sees of it."""
        return {path: signature(leaf) for path, leaf in self._live_leaves().items()}

    def _live_leaves(self) -> dict[str, Any]:
        return self.layout.by_path(self.live.weights.leaves)

    # --- where two generations can answer -------------------------------------------------------

    async def flip(self, staged: Staged) -> Staged:
        """Answer new requests by `staged` from now on; returns what answered them before."""
        assert staged.weights.leaves, "stowed or released weights cannot go live"
        # To its end even when cancelled: what the scheduler thread did, `live` must say.
        with forgetting_locals():
            return await run_to_end(self._flipped(staged))

    async def _flipped(self, staged: Staged) -> Staged:
        weights, before = staged.weights, self.live
        try:
            flip = partial(self._flip, weights, await self._ready_to_bind(weights))
            self.last_exchange_seconds = await self._between.at_a_turn(flip)
        except (TryAgain, EngineLost):  # as below
            raise
        except Exception as fault:
            self._lose("the flip", fault)
        self.live = staged
        await self._have_the_model_follow(weights)
        return before

    async def _ready_to_bind(self, weights: Weights) -> Bound | None:
        """All that a new lane computes with; None for weights that have a lane.

        Off the threads that clients wait for: it goes through the leaves.
        """
        if weights.lane is not None:
            return None
        prepare, live = self._scheduler.lanes.prepare, self._lane(None)
        return await in_thread(lambda cancel: prepare(weights.leaves, beside=live))

    async def _have_the_model_follow(self, weights: Weights) -> None:
        """Have the model's own variables hold what is live.

        Nobody computes with them, so no step waits for it. But they would keep the old weights in
        memory, and LoRA on main makes the live list again from them.
        """
        for _ in give_to_model(self.layout, weights.leaves):
            await asyncio.sleep(0)
            self._watch.check()  # a closed engine holds no weights any more

    async def retire(self, staged: Staged) -> None:
        """Wait until nothing of these weights is left in the engine; they are spare then."""
        assert staged is not self.live, "what is live does not end"
        await self._end(staged.weights.lane)
        staged.weights.lane = None

    def _decide_where_to_prove(self, needs: Sequence[int]) -> None:
        """Beside others that answer, if that can be; it decides where spare weights wait, too.

        `needs` has for each probe of a batch how many tokens it takes with its answer.
        """
        if self._scheduler.cannot_overlap:
            self.decide()
            return
        self._shadow_pool = ShadowPool(self._scheduler.lanes.allocator, needs)
        self.decide(self._shadow_pool.buffers)

    @asynccontextmanager
    async def _shadow(
        self, staged: Staged, prompts: int, along: Along | None = None
    ) -> AsyncIterator[int]:
        """A lane in which these weights answer nobody but us, in a KV pool of their own.

        It answers so many prompts together, and begins when all have come. `along` is told of each
        of its steps.
        """
        pool, opened = self._shadow_pool, list[int]()
        assert pool is not None, self.cannot_overlap

        async def opens() -> None:
            opened.append(await self._open_shadow(staged.weights.leaves, pool, prompts, along))
            self._proving.update(opened)

        try:
            with forgetting_locals():
                # Cancelled meanwhile, it is open, and ended all the same.
                await run_to_end(opens())
            yield opened[0]
        finally:
            for number in opened:
                await run_to_end(self._end(number))
                self._proving.discard(number)

    # --- where one answers at a time --------------------------------------------------------------

    async def exchange(self, staged: Staged) -> Staged:
        """Make `staged` live and return what was live; only while nothing is under way.

        What waits on the host is traded with it leaf by leaf: what was live waits there then.
        """
        weights, before = staged.weights, self.live
        assert weights.leaves or weights.host, "released weights cannot go live"
        # To its end even when cancelled: what the scheduler thread did, `live` must say, and half
        # of a set answers nobody.
        with forgetting_locals():
            await run_to_end(self._exchanged(staged) if weights.leaves else self._traded(staged))
        return before

    def _takes_over(self, staged: Staged) -> None:
        before = self.live.weights
        before.lane, staged.weights.lane = None, before.lane
        self.live = staged

    async def _exchanged(self, staged: Staged) -> None:
        try:
            swap = partial(self._swap, staged.weights)
            self.last_exchange_seconds = await self._between.run(swap)
        except (TryAgain, EngineLost):  # what the job never began, it has not broken off
            raise
        except Exception as fault:
            self._lose("the exchange", fault)
        self._takes_over(staged)
        await self._have_the_model_follow(staged.weights)

    async def _traded(self, staged: Staged) -> None:
        started = time.perf_counter()
        trade = partial(self._trade, staged.weights, self.live.weights)
        async with self.unchanged, self._between.standing_still(self._forget):
            try:
                name = "the exchange of weights"
                await self._between.unless_lost(
                    in_thread(lambda cancel: trade(), leave_as=name, is_read=False)
                )
            except EngineLost as lost:
                self._watch.lose(str(lost))
                raise
            self._takes_over(staged)
        self.last_exchange_seconds = time.perf_counter() - started

    async def scrub(self) -> None:
        """Overwrite the KV pool with zeros and forget every cached prefix."""
        await self._between.run(self._overwrite_pools)

    # --- who is answered by what ------------------------------------------------------------------

    def _lane(self, weights: Staged | None) -> int:
        """The number of the lane in which these weights answer; None stands for the live ones."""
        number = (weights or self.live).weights.lane
        assert number is not None, f"{weights} answers nobody"
        return int(number)

    async def abort(self, staged: Staged | None = None) -> None:
        """End every answer under way, by these weights or by any, with the text it has so far.

        A probe goes on.
        """
        meant = None if staged is None else staged.weights.lane
        self._front.abort(
            lambda lane: lane not in self._proving if meant is None else lane == meant
        )

    async def abort_asked(self, rid: str | None) -> int:
        """End the answers to prompts that clients call so, or to all of theirs; how many."""
        return self._front.abort_asked(rid)

    async def flush(self) -> int:
        """Forget each cached prefix that nothing under way uses; how many tokens are free by it."""
        return await self._between.at_a_turn(self._scheduler.forget_unused)

    # --- on the scheduler thread ------------------------------------------------------------------

    def _flip(self, weights: Weights, ready: Bound | None) -> float:
        """Open a lane for what is ready to be bound; no more work for more leaves.

        Clients wait for the next step.
        """
        started = time.perf_counter()
        if ready is not None:
            weights.lane = self._scheduler.lanes.open(ready)
        assert weights.lane is not None, "it has a lane, or one was made ready for it"
        self._scheduler.lanes.make_live(weights.lane)
        return time.perf_counter() - started

    def _swap(self, weights: Weights) -> float:
        """Bind the prepared weights; it allocates nothing."""
        started = time.perf_counter()
        self._scheduler.bind(weights.leaves)
        self._forget()
        return time.perf_counter() - started

    def _forget(self) -> None:
        forget_caches(self._scheduler.scheduler)

    def _overwrite_pools(self) -> None:
        if not self._scheduler.cannot_overlap:
            self._scheduler.lanes.forget_prefixes()
        rewrite_pools(self._scheduler.scheduler.tp_worker.get_model_runner(), fill_with_zeros)
        self._forget()

    # --- in a thread, while the scheduler thread stands still -------------------------------------

    def _trade(self, weights: Weights, live: Weights) -> None:
        """No step can be computed before all leaves are traded, or all are back."""
        leaves = list(live.leaves)
        self._scheduler.bind(stand_ins(leaves))
        live.leaves.clear()  # whatever knows this list must not hold what leaves the device
        live.leaves = leaves
        try:
            Trade(self.layout, leaves, weights.host, self._scheduler.note_turn).run()
        except EngineLost:
            raise
        except Exception:
            self._scheduler.bind(leaves)
            raise
        self._scheduler.bind(leaves)
        live.leaves, live.host = [], weights.host
        weights.leaves, weights.host = leaves, {}

    # --- lanes ------------------------------------------------------------------------------------

    async def _open_shadow(
        self, leaves: list[Any], pool: ShadowPool, prompts: int, along: Along | None
    ) -> int:
        with raise_not_enough_memory():
            made = await in_thread(lambda cancel: pool.make())
        shadow = partial(self._scheduler.lanes.open_shadow, prompts=prompts, along=along)
        open_lane = partial(shadow, leaves, *made)
        return await self._between.at_a_turn(open_lane)

    async def _end(self, number: int) -> None:
        with forgetting_locals():
            ended = await self._between.at_a_turn(partial(self._scheduler.lanes.end, number))
            await self._between.until_lost(ended)

    def _lose(self, what: str, fault: Exception) -> None:
        self._watch.lose(f"{what} broke off: {type(fault).__name__}: {fault}")
        self._watch.check()
