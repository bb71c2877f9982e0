"""Every request passes it, every swap closes it.

It knows who is inside, who waits, and which generation answers; nothing of HTTP or weights.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from hotreload.errors import DrainTimedOut, EngineLost, NotNewEnough, NotServing
from hotreload.events import GateChanged, Publish
from hotreload.types import GateState, Generation


class Gate:
    """Starts sealed (`booting`); the first `open` says who answers."""

    def __init__(
        self,
        *,
        publish: Publish,
        max_held: int = 1024,
        hold_arrivals: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.state = GateState.SEALED
        self.live: Generation | None = None
        self.inside = 0
        self.held = 0
        self.awaiting = 0
        """How many wait for a generation that is not live yet; as many may as may be held."""
        self._publish = publish
        self._max_held = max_held
        self._hold_arrivals = hold_arrivals
        self._clock = clock
        self._sealed_for_good = False
        self._refusal = NotServing("the engine is starting", code="booting", retry_after=2)
        self._moved = asyncio.Event()
        self._empty = asyncio.Event()
        self._held_since = 0.0

    def check(self) -> None:
        """NotServing when nobody is let in any more, or yet."""
        if self.state is GateState.SEALED:
            raise self._refusal

    @asynccontextmanager
    async def passing(self, at_least: int = 0, within: float = 0.0) -> AsyncIterator[Generation]:
        """Let one request through; the generation it yields answers it from start to end.

        One before `at_least` is not good enough: wait for it so long, then NotNewEnough.
        """
        await self._admission()
        if self._is_before(at_least):
            await self._newer(at_least, within)
        # No await between the admission and this line: a swap cannot come in between.
        assert self.live is not None
        self.inside += 1
        try:
            yield self.live
        finally:
            self.inside -= 1
            if self.inside == 0:
                self._empty.set()

    def hold(self) -> None:
        """Make arrivals wait; those inside go on."""
        if self.state is not GateState.SEALED:
            self._held_since = self._clock()
            self._move(GateState.HOLDING)

    def open(self, live: Generation) -> float:
        """Let everybody in, to be answered by `live`; return how long arrivals were held."""
        if self._sealed_for_good:
            return 0.0
        paused = self._clock() - self._held_since if self.state is GateState.HOLDING else 0.0
        self.live = live
        self._move(GateState.OPEN)
        return paused

    def seal(self, reason: str, *, code: str = "not_serving") -> None:
        """Refuse everybody from now on, those who wait too; those inside go on. It is final."""
        if self._sealed_for_good:
            return
        self._sealed_for_good = True
        self._refusal = NotServing(reason, code=code)
        self._move(GateState.SEALED, reason, code)

    @property
    def is_lost(self) -> bool:
        """Whether it was sealed because the engine is lost."""
        return self._sealed_for_good and self._refusal.code == EngineLost.code

    async def drained(self, within: float) -> None:
        """Wait until nobody is inside; DrainTimedOut names how many still are."""
        self._empty.clear()
        try:
            async with asyncio.timeout(within):
                while self.inside:
                    self._empty.clear()
                    await self._empty.wait()
        except TimeoutError:
            raise DrainTimedOut(
                f"{self.inside} requests were still running {within:g} s after the gate closed; "
                "raise [reload] drain_timeout or set on_drain_timeout = 'abort'"
            ) from None

    async def _admission(self) -> None:
        while self.state is not GateState.OPEN:
            self.check()
            await self._wait_held()

    def _is_before(self, at_least: int) -> bool:
        return self.live is not None and self.live.number < at_least

    async def _newer(self, at_least: int, within: float) -> None:
        """Wait until such a generation answers; one that arrives later may be older again."""
        if self.awaiting >= self._max_held:
            raise NotServing(
                f"{self.awaiting} requests already wait for a generation ([reload] max_held)",
                code="too_many_awaiting",
                retry_after=1,
            )
        self.awaiting += 1
        try:
            async with asyncio.timeout(within):
                while self.state is not GateState.OPEN or self._is_before(at_least):
                    self.check()
                    await self._moved.wait()
        except TimeoutError:
            assert self.live is not None
            raise NotNewEnough(
                f"generation {at_least} was asked for and did not answer within {within:g} s "
                f"([server.limits] generation_seconds); {self.live.number} is live"
            ) from None
        finally:
            self.awaiting -= 1

    async def _wait_held(self) -> None:
        if not self._hold_arrivals:
            raise NotServing("a swap is under way", code="swapping", retry_after=1)
        if self.held >= self._max_held:
            raise NotServing(
                f"{self.held} requests already wait for a swap ([reload] max_held)",
                code="too_many_held",
                retry_after=1,
            )
        self.held += 1
        try:
            await self._moved.wait()
        finally:
            self.held -= 1

    def _move(self, state: GateState, reason: str | None = None, code: str | None = None) -> None:
        self.state = state
        self._moved.set()
        self._moved = asyncio.Event()
        self._publish(GateChanged(state, self.inside, self.held, reason, code))
