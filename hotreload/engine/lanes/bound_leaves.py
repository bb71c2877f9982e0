"""Lets weights and KV pool travel with each batch: the scheduler thread marks it with its lane,
the forward thread binds what that lane computes with, just before the batch is computed.
"""

import threading
from collections.abc import Callable
from typing import Any

from hotreload.engine.lanes.lane import Bound
from hotreload.engine.slots import Slot


class LeafBinder:
    """Puts a lane's weights and pool where the engine looks for them at each step."""

    def __init__(self, runner: Any, slot: Slot) -> None:
        self._runner = runner
        self._slot = slot
        self._computing = threading.Lock()
        """Held from the binding of a batch until it is computed: no other lane binds meanwhile."""

    def current(self) -> Bound:
        """Return the weights and the pool that are bound now."""
        runner = self._runner
        pools = getattr(runner, "memory_pools", None)
        dispatcher = getattr(runner, "_run_model_dispatcher", None)
        return Bound(self._slot.read(), runner.token_to_kv_pool, pools, dispatcher)

    def beside(self, bound: Bound, leaves: list[Any]) -> Bound:
        """Other weights, to be computed with in the same KV pool."""
        dispatcher = dispatcher_for(bound.dispatcher, leaves)
        return Bound(leaves, bound.kv_pool, bound.memory_pools, dispatcher)

    def with_pool(self, bound: Bound, leaves: list[Any], kv_pool: Any) -> Bound:
        """Other weights with a KV pool of their own."""
        own = self.beside(bound, leaves)
        own.kv_pool = kv_pool
        if bound.memory_pools is not None:
            pools = {**bound.memory_pools._pools, "token_to_kv_pool": kv_pool}
            own.memory_pools = type(bound.memory_pools)(**pools)
        return own

    def unbind(self, ended: Bound, other: Bound) -> None:
        """Hold what an ended lane computed with no longer, neither here nor in past batches.

        While a batch is computed, it is another lane's, so what ended is bound no longer.
        """
        if self._computing.acquire(blocking=False):
            try:
                if self._slot.read() is ended.leaves:
                    self._bind(other)
            finally:
                self._computing.release()
        ended.leaves, ended.kv_pool, ended.memory_pools, ended.dispatcher = [], None, None, None

    def bind(self, bound: Bound) -> None:
        """Let the next step compute with these; only while nothing is under way."""
        with self._computing:
            self._bind(bound)

    def _bind(self, bound: Bound) -> None:
        runner = self._runner
        if self._slot.read() is not bound.leaves:
            self._slot.rebind(bound.leaves)
        if runner.token_to_kv_pool is not bound.kv_pool:
            runner.token_to_kv_pool = bound.kv_pool
            if bound.memory_pools is not None:
                runner.memory_pools = bound.memory_pools
        runner.along = bound.along
        if bound.dispatcher is not None:
            runner._run_model_dispatcher = bound.dispatcher

    def travel_with_batches(self, tp_worker: Any, launched: Callable[[Any], Bound]) -> None:
        """Mark every batch that is launched with what `launched` says of it, and bind that for it.

        With overlap scheduling a thread of its own computes what was launched before.
        """

        def launch_marked(batch: Any, *args: Any, **more: Any) -> Any:
            batch.computes_with = launched(batch)
            return launch(batch, *args, **more)

        worker = tp_worker.worker if hasattr(tp_worker, "forward_thread") else tp_worker
        forward = worker.forward_batch_generation

        def forward_bound(batch: Any, *args: Any, **more: Any) -> Any:
            with self._computing:
                self._bind(batch.computes_with)
                return forward(batch, *args, **more)

        worker.forward_batch_generation = forward_bound
        # Where one thread does both, the mark comes first, as it must.
        launch = tp_worker.forward_batch_generation
        tp_worker.forward_batch_generation = launch_marked


def dispatcher_for(dispatcher: Any, leaves: list[Any]) -> Any:
    """Make a dispatcher for these leaves that starts with the programs the given one compiled.

    The newer engine's dispatcher of ahead-of-time programs (SGLANG_JAX_AOT_DISPATCH) keeps the
    leaves too, and drops both when it gets other leaves: with two lanes it would compile at each
    turn. Therefore each lane has its own. The programs depend on shapes, not on values.
    """
    if dispatcher is None:
        return None
    model_def, state_def, old = dispatcher._stable_call_args
    made = type(dispatcher)(
        dispatcher._jit_fn,
        stable_call_args=(model_def, state_def, leaves),
        stable_flat_args=(model_def, leaves),
        name=dispatcher._name,
    )
    made._enabled = dispatcher._enabled
    for key, program in list(dispatcher._cache.items()):
        if isinstance(program, tuple) and (own := _with_leaves(program, old, leaves)):
            made._cache[key] = own
    return made


def _with_leaves(program: tuple[Any, ...], old: list[Any], new: list[Any]) -> Any:
    """The program with the new leaves at the places of the old; None if they cannot be found."""
    places = {id(leaf): place for place, leaf in enumerate(old)}
    before, (run, handlers, tree, held, *rest) = len(old), program
    found = [places.get(id(buffer), before) for buffer in held]
    if before in found:
        return None
    return (run, handlers, tree, [new[place] for place in found], *rest)
