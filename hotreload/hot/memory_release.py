"""Frees device memory of a program's engine for a while: that of the KV pool, or of the weights."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from hotreload.core.engines.replica import Replica
from hotreload.core.switch import ABORT_GRACE
from hotreload.engine.sglang import SglangEngine
from hotreload.errors import BadRequest, DrainTimedOut, NotServing
from hotreload.hot.given_weights import GivenWeights
from hotreload.hot.new_weights import NewWeights
from hotreload.hot.weight_changes import WeightChanges
from hotreload.threads import run_to_end
from hotreload.types import Generation, Mode

_KV, _WEIGHTS = "kv", "weights"
"""The parts of an engine's memory, by name."""
_AGAIN = {
    _KV: "the KV pool is released: hot.resume() makes it again",
    _WEIGHTS: "the weights are released: hot.resume(arrays) brings new ones, hot.resume() those of "
    "before from their folder",
}
_CODE = "released"


class ReleasedParts:
    """The parts of the memory that are released now; refuses calls that need them."""

    def __init__(self) -> None:
        self.parts: frozenset[str] = frozenset()
        self.is_changing = False
        """True while memory is being released."""

    def check_answers(self) -> None:
        """NotServing while no request can be answered."""
        if self.parts:
            raise NotServing(self._words, code=_CODE)
        if self.is_changing:
            raise NotServing("memory is being released: hot.resume() takes it again", code=_CODE)

    def check_changes(self, mode: Mode) -> None:
        """NotServing while no weights can be staged, proven or made live."""
        if _WEIGHTS in self.parts or (self.parts and mode is Mode.DRAIN):
            raise NotServing(self._words, code=_CODE)

    @property
    def _words(self) -> str:
        return _AGAIN[_WEIGHTS if _WEIGHTS in self.parts else _KV]


class MemoryRelease:
    """Releases memory of one engine, and takes it back; one call at a time."""

    def __init__(
        self,
        replica: Replica[SglangEngine],
        released: ReleasedParts,
        changes: WeightChanges,
        new_weights: NewWeights,
        drain_timeout: float,
    ) -> None:
        self._replica = replica
        self._released_parts = released
        self._changes = changes
        self._new_weights = new_weights
        self._drain_timeout = drain_timeout

    async def release(self, *, kv: bool, weights: bool, abort: bool) -> int:
        """Free the memory once no request is under way; return the number of bytes."""
        if not (kv or weights):
            raise BadRequest("release must be told what: kv=True, weights=True, or both")
        async with self._changes.lock_memory():
            self._released_parts.is_changing = True
            try:
                await self._wait_until_idle(abort)
                return await run_to_end(self._free(kv=kv, weights=weights))
            finally:
                self._released_parts.is_changing = False

    async def _wait_until_idle(self, abort: bool) -> None:
        """Wait until no request is under way, and no earlier weights answer any more."""
        gate, within = self._replica.gate, self._drain_timeout
        if abort:
            await self._replica.engine.abort()
            within = ABORT_GRACE
        try:
            async with asyncio.timeout(within):
                await self._changes.wait_unless_closed(gate.until(lambda: not gate.inside))
                await self._changes.wait_unless_closed(self._replica.fewer_fade(1))
        except TimeoutError:
            raise DrainTimedOut(
                f"{gate.inside} requests were still running {within:g} s after release was called: "
                "call release(abort=True), or raise HotTerms(drain_timeout=…)"
            ) from None

    async def _free(self, *, kv: bool, weights: bool) -> int:
        replica, freed = self._replica, 0
        async with replica.lock:
            with replica.seal_when_lost():
                if weights:
                    freed += await self._free_spares() + await replica.engine.release_weights()
                    self._released_parts.parts |= {_WEIGHTS}
                if kv:
                    freed += await replica.engine.release_pool()
                    self._released_parts.parts |= {_KV}
        return freed

    async def _free_spares(self) -> int:
        """Free the previous weights, which may share leaves with the live; return the bytes."""
        engine, spare = self._replica.engine, self._replica.previous
        freed = engine.held_bytes([engine.live, spare])[1] if spare is not None else 0
        await self._replica.forget_previous()
        return freed

    async def resume(
        self, given: GivenWeights | None, name: str, *, number: int | None, prove: bool
    ) -> Generation:
        """Take the memory back and load weights if they were released: new or a generation's.

        After an error the memory is released again. No request is answered before the end.
        """
        async with self._changes.lock_memory():
            parts = self._released_parts.parts
            refill = await self._find_refill(given, name, number=number, prove=prove)
            try:
                await run_to_end(self._take_back())
                await refill()
                self._released_parts.parts = frozenset()
            except BaseException:
                if not self._replica.gate.is_lost:
                    await run_to_end(self._free(kv=_KV in parts, weights=_WEIGHTS in parts))
                raise
            return self._replica.live

    async def _find_refill(
        self, given: GivenWeights | None, name: str, *, number: int | None, prove: bool
    ) -> Callable[[], Awaitable[object]]:
        """Return the step that loads weights, once there is memory for them."""
        if _WEIGHTS not in self._released_parts.parts:
            if not (given is None and number is None):
                raise BadRequest("the weights are not released: give new ones to update")
            return _nothing_to_do
        if given is not None:
            if number is not None:
                raise BadRequest("resume takes new weights or a generation's number, not both")
            return partial(self._new_weights.refill, given, name, prove=prove)
        place = self._changes.place_to_resume(number)
        checkpoint = await self._new_weights.from_files(place, "give resume the weights")
        return partial(self._changes.refill, checkpoint, prove=prove)

    async def _take_back(self) -> None:
        engine = self._replica.engine
        async with self._replica.lock:
            with self._replica.seal_when_lost():
                await engine.take_pool()
                await engine.take_room_for_weights()


async def _nothing_to_do() -> None:
    """Load nothing: the weights were not released."""
