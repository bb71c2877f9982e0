"""Changes which weights answer clients in an engine.

Where the engine has lanes, new weights take over while older ones still answer. Where it has none,
they are exchanged while nothing is under way. Knows nothing of gates or checkpoints.
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from hotreload.engine.lanes.lane import Bound
from hotreload.engine.shadow_lanes import ShadowLanes
from hotreload.engine.slots import find_slot
from hotreload.engine.upstream.thread.between import BetweenSteps
from hotreload.engine.upstream.thread.scheduler import SchedulerThread, forget_caches, rewrite_pools
from hotreload.engine.upstream.thread.watch import EngineWatch
from hotreload.engine.weights.leaf.leaves import fill_with_zeros
from hotreload.engine.weights.memory.one_set import Trade, stand_ins
from hotreload.engine.weights.sets import First, WeightSets
from hotreload.engine.weights.staged_set import give_to_model
from hotreload.engine.weights.weights import Weights
from hotreload.errors import EngineLost, TryAgain
from hotreload.threads import forgetting_locals, in_thread, run_to_end
from hotreload.types import Staged

ONLY_LANE = 0
"""The lane of every request where an engine has no others."""


class WeightSwitch:
    """Changes which weights answer clients; the scheduler thread makes every change.

    `core.ports.WeightSwitch` says what its methods promise.
    """

    def __init__(
        self,
        sets: WeightSets,
        scheduler: SchedulerThread,
        between: BetweenSteps,
        shadows: ShadowLanes,
        watch: EngineWatch,
    ) -> None:
        self.between = between
        """Runs jobs on the scheduler thread."""
        self.last_exchange_seconds: float | None = None
        """Time that the scheduler thread took for the last change of weights."""
        self._sets = sets
        self._scheduler = scheduler
        self._shadows = shadows
        self._watch = watch

    @property
    def cannot_overlap(self) -> str | None:
        """Reason why two sets of weights cannot answer side by side in it; None when they can."""
        return self._sets.why_one_set or self._scheduler.cannot_overlap

    def lane_of(self, weights: Staged | None) -> int:
        """Return the number of the lane in which these weights answer, or the live ones."""
        number = (weights or self._sets.live).weights.lane
        assert number is not None, f"{weights} answers no request"
        return int(number)

    def drop_references(self) -> None:
        """Drop all references to the engine, when it ends: an error may hold this object."""
        del self._scheduler, self.between

    # --- where two generations can answer -------------------------------------------------------

    async def flip(self, staged: Staged) -> Staged:
        """Answer new requests by `staged` from now on; returns what answered them before."""
        assert staged.weights.leaves, "stowed or released weights cannot go live"
        # To its end even when cancelled: what the scheduler thread did, `live` must say.
        with forgetting_locals():
            return await run_to_end(self._flip_uncancelled(staged))

    async def _flip_uncancelled(self, staged: Staged) -> Staged:
        weights, before = staged.weights, self._sets.live
        try:
            bound = await self._prepare_lane(weights)
            flip = partial(self._flip_on_scheduler, weights, bound)
            self.last_exchange_seconds = await self.between.at_a_turn(flip)
        except (TryAgain, EngineLost):  # as below
            raise
        except Exception as fault:
            self._lose("the flip", fault)
        self._sets.live = staged
        await self._update_model(weights)
        return before

    async def _prepare_lane(self, weights: Weights) -> Bound | None:
        """Bind the leaves for a new lane; None for weights that have a lane.

        It goes through all leaves: a thread does it that no client waits for. One of the loop's
        own: to start one takes memory, for which it would wait while XLA frees what a step on a
        CPU took.
        """
        if weights.lane is not None:
            return None
        prepare, live = self._scheduler.lanes.prepare, self.lane_of(None)
        return await asyncio.to_thread(prepare, weights.leaves, beside=live)

    async def _update_model(self, weights: Weights) -> None:
        """Put the live leaves into the model's own variables.

        No step computes with these, so none waits for it. But they would keep the old weights in
        memory, and LoRA on main makes the live list again from them.
        """
        for _ in give_to_model(self._sets.layout, weights.leaves):
            await asyncio.sleep(0)
            self._watch.check()  # a closed engine holds no weights any more

    async def retire(self, staged: Staged) -> None:
        """Wait until no request is under way under these weights; they are spare then."""
        assert staged is not self._sets.live, "what is live does not end"
        await self._shadows.end(self.lane_of(staged))
        staged.weights.lane = None

    # --- where one answers at a time --------------------------------------------------------------

    async def exchange(self, staged: Staged) -> Staged:
        """Make `staged` live and return what was live; only while nothing is under way.

        What waits on the host is traded with it leaf by leaf: what was live waits there then.
        """
        weights, before = staged.weights, self._sets.live
        assert weights.leaves or weights.host, "released weights cannot go live"
        # To its end even when cancelled: what the scheduler thread did, `live` must say, and half
        # of a set answers nobody.
        with forgetting_locals():
            await run_to_end(self._swap(staged) if weights.leaves else self._trade(staged))
        return before

    def _make_live(self, staged: Staged) -> None:
        before = self._sets.live.weights
        before.lane, staged.weights.lane = None, before.lane
        self._sets.live = staged

    async def _swap(self, staged: Staged) -> None:
        try:
            swap = partial(self._swap_on_scheduler, staged.weights)
            self.last_exchange_seconds = await self.between.run(swap)
        except (TryAgain, EngineLost):  # what the job never began, it has not broken off
            raise
        except Exception as fault:
            self._lose("the exchange", fault)
        self._make_live(staged)
        await self._update_model(staged.weights)

    async def _trade(self, staged: Staged) -> None:
        started = time.perf_counter()
        trade = partial(self._trade_in_thread, staged.weights, self._sets.live.weights)
        async with self._sets.unchanged, self.between.standing_still(self._forget_caches):
            try:
                name = "the exchange of weights"
                await self.between.unless_lost(
                    in_thread(lambda cancel: trade(), leave_as=name, is_read=False)
                )
            except EngineLost as lost:
                self._watch.lose(str(lost))
                raise
            self._make_live(staged)
        self.last_exchange_seconds = time.perf_counter() - started

    async def scrub(self) -> None:
        """Overwrite the KV pool with zeros and forget every cached prefix."""
        await self.between.run(self._overwrite_pools)

    async def flush(self) -> int:
        """Drop cached prefixes that no request under way uses; return how many tokens got free."""
        return await self.between.at_a_turn(self._scheduler.forget_unused)

    # --- on the scheduler thread ------------------------------------------------------------------

    def _flip_on_scheduler(self, weights: Weights, bound: Bound | None) -> float:
        """Open a lane for bound leaves; no more work for more leaves.

        Clients wait for the next step.
        """
        started = time.perf_counter()
        if bound is not None:
            weights.lane = self._scheduler.lanes.open(bound)
        assert weights.lane is not None, "it has a lane, or one was made ready for it"
        self._scheduler.lanes.make_live(weights.lane)
        return time.perf_counter() - started

    def _swap_on_scheduler(self, weights: Weights) -> float:
        """Bind the prepared weights; it allocates nothing."""
        started = time.perf_counter()
        self.bind(weights.leaves)
        self._forget_caches()
        return time.perf_counter() - started

    def _overwrite_pools(self) -> None:
        self.forget_all()
        self.rewrite_pools(fill_with_zeros)

    def bind(self, leaves: list[Any]) -> None:
        """Compute with these leaves from now on; only while one set answers, and none is asked."""
        self._scheduler.bind(leaves)

    def forget_all(self) -> None:
        """Leave nothing in any lane that a later answer could be computed from."""
        if not self._scheduler.cannot_overlap:
            self._scheduler.lanes.forget_prefixes()
        self._forget_caches()

    def rewrite_pools(self, rewrite: Callable[[Any], Any], kind: Any = None) -> None:
        """Replace each buffer of the KV pools, or each object of a kind that stands for one."""
        rewrite_pools(self._scheduler.scheduler.tp_worker.get_model_runner(), rewrite, kind)

    def _forget_caches(self) -> None:
        forget_caches(self._scheduler.scheduler)

    # --- in a thread, while the scheduler thread stands still -------------------------------------

    def _trade_in_thread(self, weights: Weights, live: Weights) -> None:
        """No step can be computed before all leaves are traded, or all are back."""
        leaves = list(live.leaves)
        self._scheduler.bind(stand_ins(leaves))
        live.leaves.clear()  # whatever knows this list must not hold what leaves the device
        live.leaves = leaves
        try:
            Trade(self._sets.layout, leaves, weights.host, self._scheduler.note_turn).run()
        except EngineLost:
            raise
        except Exception:
            self._scheduler.bind(leaves)
            raise
        self._scheduler.bind(leaves)
        live.leaves, live.host = [], weights.host
        weights.leaves, weights.host = leaves, {}

    def _lose(self, what: str, fault: Exception) -> None:
        self._watch.lose(f"{what} broke off: {type(fault).__name__}: {fault}")
        self._watch.check()


def adopt_first(sets: WeightSets, scheduler: SchedulerThread, first: First) -> None:
    """Begin with what was loaded while upstream built the engine, or with an original's copy.

    It blocks, and no request may be under way.
    """
    # A list of our own: main's ahead-of-time programs know upstream's by its identity.
    leaves = list(find_slot(scheduler.scheduler.tp_worker.get_model_runner()).read())
    scheduler.bind(stand_ins(leaves))  # what is replaced goes at once, one by one
    sets.adopt(leaves, first)
    scheduler.bind(leaves)
    sets.live.weights.lane = ONLY_LANE
