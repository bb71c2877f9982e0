"""Gives back the memory of the KV pool and of the live weights for a while, and takes it again.

For a program that trains on the same devices. The caller sees to it that nobody is answered
meanwhile, and that no other weights are held beside the live ones.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, override

from hotreload.engine.switching import SwitchingEngine
from hotreload.engine.upstream.thread.scheduler import rewrite_pools
from hotreload.engine.weights.leaf.leaves import Vacated
from hotreload.engine.weights.memory.headroom import raise_not_enough_memory
from hotreload.engine.weights.memory.one_set import stand_ins
from hotreload.threads import forgetting_locals, in_thread, run_to_end


class ReleasingEngine(SwitchingEngine):
    """An engine whose device memory can be had for something else, and be given to it again.

    What is taken again has the shapes and the places of before: nothing is compiled anew.
    """

    _pool: tuple[Vacated, ...] = ()
    """All that stands for buffers of the KV pool, while their memory is given back."""
    _leaves: Mapping[int, Vacated] | None = None
    """All that stands for the live leaves, by their places, while theirs is."""

    async def release_pool(self) -> int:
        """Forget every cached prefix and free the KV pool; return its bytes, 0 if it was free."""
        if self._pool:
            return 0
        return await self._between.run(self._free_pool)

    async def take_pool(self) -> None:
        """Make the KV pool again, of zeros; NotEnoughMemory, and it is free as before."""
        if self._pool:
            await self._taken("the KV pool", self._pool, self._fill_pool)

    async def release_weights(self) -> int:
        """Free the live leaves; return their bytes, 0 if they were free.

        All that they computed is forgotten.
        """
        if self._leaves is not None:
            return 0
        await self.until_compared()
        async with self.unchanged:
            return await self._between.run(self._free_weights)

    async def take_room_for_weights(self) -> None:
        """Put zeros where the live leaves were, for new ones to take their place.

        NotEnoughMemory, and all is as before.
        """
        if self._leaves is not None:
            async with self.unchanged:
                await self._taken("the weights", [*self._leaves.values()], self._fill_weights)

    @override
    def _overwrite_pools(self) -> None:
        if not self._pool:  # nothing is cached in what was given back
            super()._overwrite_pools()

    async def _taken(
        self, what: str, vacated: Sequence[Vacated], fill: Callable[[list[Any]], None]
    ) -> None:
        """Make arrays in the place of these, and have the scheduler thread put them there.

        They are made beside it: it would count as hung while a program is compiled.
        """
        made: list[Any] = []

        def make() -> None:
            for each in vacated:
                made.append(each.zeros().block_until_ready())

        try:
            with raise_not_enough_memory(what), forgetting_locals():
                await run_to_end(in_thread(lambda cancel: make()))
                await run_to_end(self._between.run(partial(fill, made)))
        finally:
            made.clear()

    # --- on the scheduler thread ------------------------------------------------------------------

    def _free_pool(self) -> int:
        freed: list[Vacated] = []

        def free(buffer: Any) -> Vacated:
            freed.append(Vacated.by(buffer))
            return freed[-1]

        self._forget_all()
        self._rewrite(free)
        self._pool = tuple(freed)
        return sum(each.nbytes for each in freed)

    def _fill_pool(self, made: list[Any]) -> None:
        by = dict(zip(map(id, self._pool), made, strict=True))
        self._rewrite(lambda vacated: by[id(vacated)], Vacated)
        self._pool = ()

    def _rewrite(self, rewrite: Callable[[Any], Any], kind: Any = None) -> None:
        rewrite_pools(self._scheduler.scheduler.tp_worker.get_model_runner(), rewrite, kind)

    def _free_weights(self) -> int:
        live, places = self.live.weights, self.layout.places
        self._forget_all()
        leaves = list(live.leaves)
        self._scheduler.bind(stand_ins(leaves))
        live.leaves.clear()  # whatever knows this list must not hold what leaves the device
        self._leaves = {at: Vacated.by(leaves[at]) for at in places}
        left = [None if at in self._leaves else leaf for at, leaf in enumerate(leaves)]
        self._hold(left, self._leaves)
        return sum(each.nbytes for each in self._leaves.values())

    def _fill_weights(self, made: list[Any]) -> None:
        assert self._leaves is not None, "there is room to be filled"
        leaves, filled = list(self.live.weights.leaves), dict(zip(self._leaves, made, strict=True))
        for at, leaf in filled.items():
            leaves[at] = leaf
        self._hold(leaves, filled)
        self._scheduler.bind(leaves)
        self._leaves = None

    def _hold(self, leaves: list[Any], in_model: Mapping[int, Any]) -> None:
        """Have this list be the live one; nothing is shared with it, whatever it was made of.

        The model's own variables say of which shape and dtype leaves are, also while there are
        none.
        """
        self.live.weights.leaves, self.live.weights.sources = leaves, {}
        for at, leaf in in_model.items():
            variable = self.layout.variables[at]
            assert variable is not None, "places are those of weights"
            variable.set_raw_value(leaf)

    def _forget_all(self) -> None:
        """Leave nothing in any lane that a later answer could be computed from."""
        if not self._scheduler.cannot_overlap:
            self._scheduler.lanes.forget_prefixes()
        self._forget()
