"""Frees device memory of a program's engine for a while: that of the KV pool, or of the weights."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from hotreload.core.engines.replica import Replica
from hotreload.core.switch import ABORT_GRACE
from hotreload.engine.sglang import SglangEngine
from hotreload.engine.weights.leaf.leaves import Vacated
from hotreload.engine.weights.memory.headroom import raise_not_enough_memory
from hotreload.engine.weights.memory.one_set import stand_ins
from hotreload.errors import BadRequest, DrainTimedOut
from hotreload.hot.answering_engine import ALL_WEIGHTS, KV_POOL, ReleasedParts
from hotreload.hot.names import GivenWeights
from hotreload.hot.new_weights import NewWeights
from hotreload.hot.weight_changes import WeightChanges
from hotreload.threads import forgetting_locals, in_thread, run_to_end
from hotreload.types import Generation


class MemoryLender:
    """Gives device memory of an engine back, and takes it again with the same shapes and places.

    Nothing is compiled anew. The caller sees to it that no request is answered meanwhile, and that
    no other weights are held beside the live ones.
    """

    def __init__(self, engine: SglangEngine) -> None:
        self._sets = engine.weights
        self._switch = engine.switch
        self._pool: tuple[Vacated, ...] = ()
        """All that stands for buffers of the KV pool, while their memory is given back."""
        self._leaves: Mapping[int, Vacated] | None = None
        """All that stands for the live leaves, by their places, while theirs is."""

    async def release_pool(self) -> int:
        """Forget every cached prefix and free the KV pool; return its bytes, 0 if it was free."""
        if self._pool:
            return 0
        return await self._switch.between.run(self._free_pool)

    async def take_pool(self) -> None:
        """Make the KV pool again, of zeros; NotEnoughMemory, and it is free as before."""
        if self._pool:
            await self._make_and_fill("the KV pool", self._pool, self._fill_pool)

    async def release_weights(self) -> int:
        """Free the live leaves; return their bytes, 0 if they were free.

        All that they computed is forgotten.
        """
        if self._leaves is not None:
            return 0
        await self._sets.loader_check.until_done()
        async with self._sets.unchanged:
            return await self._switch.between.run(self._free_weights)

    async def take_room_for_weights(self) -> None:
        """Put zeros where the live leaves were, for new ones to take their place.

        NotEnoughMemory, and all is as before.
        """
        if self._leaves is not None:
            async with self._sets.unchanged:
                await self._make_and_fill(
                    "the weights", [*self._leaves.values()], self._fill_weights
                )

    async def _make_and_fill(
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
                await run_to_end(self._switch.between.run(partial(fill, made)))
        finally:
            made.clear()

    # --- on the scheduler thread ------------------------------------------------------------------

    def _free_pool(self) -> int:
        freed: list[Vacated] = []

        def free(buffer: Any) -> Vacated:
            freed.append(Vacated.by(buffer))
            return freed[-1]

        self._switch.forget_all()
        self._switch.rewrite_pools(free)
        self._pool = tuple(freed)
        return sum(each.nbytes for each in freed)

    def _fill_pool(self, made: list[Any]) -> None:
        by = dict(zip(map(id, self._pool), made, strict=True))
        self._switch.rewrite_pools(lambda vacated: by[id(vacated)], Vacated)
        self._pool = ()

    def _free_weights(self) -> int:
        live, places = self._sets.live.weights, self._sets.layout.places
        self._switch.forget_all()
        leaves = list(live.leaves)
        self._switch.bind(stand_ins(leaves))
        live.leaves.clear()  # whatever knows this list must not hold what leaves the device
        self._leaves = {at: Vacated.by(leaves[at]) for at in places}
        left = [None if at in self._leaves else leaf for at, leaf in enumerate(leaves)]
        self._hold(left, self._leaves)
        return sum(each.nbytes for each in self._leaves.values())

    def _fill_weights(self, made: list[Any]) -> None:
        assert self._leaves is not None, "there is room to be filled"
        leaves = list(self._sets.live.weights.leaves)
        filled = dict(zip(self._leaves, made, strict=True))
        for at, leaf in filled.items():
            leaves[at] = leaf
        self._hold(leaves, filled)
        self._switch.bind(leaves)
        self._leaves = None

    def _hold(self, leaves: list[Any], in_model: Mapping[int, Any]) -> None:
        """Have this list be the live one; nothing is shared with it, whatever it was made of.

        The model's own variables say of which shape and dtype leaves are, also while there are
        none.
        """
        self._sets.live.weights.leaves, self._sets.live.weights.sources = leaves, {}
        for at, leaf in in_model.items():
            variable = self._sets.layout.variables[at]
            assert variable is not None, "places are those of weights"
            variable.set_raw_value(leaf)


@dataclass
class MemoryRelease:
    """Releases memory of one engine, and takes it back; one call at a time."""

    replica: Replica[SglangEngine]
    released_parts: ReleasedParts
    changes: WeightChanges
    new_weights: NewWeights
    drain_timeout: float

    def __post_init__(self) -> None:
        self._lender = MemoryLender(self.replica.engine)

    async def release(self, *, kv: bool, weights: bool, abort: bool) -> int:
        """Free the memory once no request is under way; return the number of bytes."""
        if not (kv or weights):
            raise BadRequest("release must be told what: kv=True, weights=True, or both")
        async with self.changes.lock_memory():
            self.released_parts.is_changing = True
            try:
                await self._wait_until_idle(abort)
                return await run_to_end(self._free(kv=kv, weights=weights))
            finally:
                self.released_parts.is_changing = False

    async def _wait_until_idle(self, abort: bool) -> None:
        """Wait until no request is under way, and no earlier weights answer any more."""
        gate, within = self.replica.gate, self.drain_timeout
        if abort:
            await self.replica.engine.answers.abort()
            within = ABORT_GRACE
        try:
            async with asyncio.timeout(within):
                await self.changes.wait_unless_closed(gate.until(lambda: not gate.inside))
                await self.changes.wait_unless_closed(self.replica.fewer_fade(1))
        except TimeoutError:
            raise DrainTimedOut(
                f"{gate.inside} requests were still running {within:g} s after release was called: "
                "call release(abort=True), or raise HotTerms(drain_timeout=…)"
            ) from None

    async def _free(self, *, kv: bool, weights: bool) -> int:
        replica, freed = self.replica, 0
        async with replica.lock:
            with replica.seal_when_lost():
                if weights:
                    freed += await self._free_spares() + await self._lender.release_weights()
                    self.released_parts.parts |= {ALL_WEIGHTS}
                if kv:
                    freed += await self._lender.release_pool()
                    self.released_parts.parts |= {KV_POOL}
        return freed

    async def _free_spares(self) -> int:
        """Free the previous weights, which may share leaves with the live; return the bytes."""
        engine, spare = self.replica.engine, self.replica.previous
        freed = (
            engine.weights.held_bytes([engine.weights.live, spare])[1] if spare is not None else 0
        )
        await self.replica.forget_previous()
        return freed

    async def resume(
        self, given: GivenWeights | None, name: str, *, number: int | None, prove: bool
    ) -> Generation:
        """Take the memory back and load weights if they were released: new or a generation's.

        After an error the memory is released again. No request is answered before the end.
        """
        async with self.changes.lock_memory():
            parts = self.released_parts.parts
            refill = await self._find_refill(given, name, number=number, prove=prove)
            try:
                await run_to_end(self._take_back())
                if refill is not None:
                    await refill()
                self.released_parts.parts = frozenset()
            except BaseException:
                if not self.replica.gate.is_lost:
                    await run_to_end(self._free(kv=KV_POOL in parts, weights=ALL_WEIGHTS in parts))
                raise
            return self.replica.live

    async def _find_refill(
        self, given: GivenWeights | None, name: str, *, number: int | None, prove: bool
    ) -> Callable[[], Awaitable[object]] | None:
        """Return the step that loads weights, once there is memory; None if none were released."""
        if ALL_WEIGHTS not in self.released_parts.parts:
            if not (given is None and number is None):
                raise BadRequest("the weights are not released: give new ones to update")
            return None
        if given is not None:
            if number is not None:
                raise BadRequest("resume takes new weights or a generation's number, not both")
            return partial(self.new_weights.refill, given, name, prove=prove)
        place = self.changes.place_to_resume(number)
        checkpoint = await self.new_weights.from_files(place, "give resume the weights")
        return partial(self.changes.refill, checkpoint, prove=prove)

    async def _take_back(self) -> None:
        async with self.replica.lock:
            with self.replica.seal_when_lost():
                await self._lender.take_pool()
                await self._lender.take_room_for_weights()
