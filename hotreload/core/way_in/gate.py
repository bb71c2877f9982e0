"""Every request passes it and is told who answers; a swap that needs an empty engine closes it.

It knows who is inside, who waits, and who answers; nothing of HTTP, weights or what an engine is.
"""

import asyncio
import copy
import time
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from hotreload.core.way_in.bell import Bell
from hotreload.core.way_in.exact_weights import ExactWeights
from hotreload.errors import (
    DrainTimedOut,
    EngineLost,
    GenerationGone,
    NotNewEnough,
    NotServing,
)
from hotreload.events import GateChanged, Publish
from hotreload.types import Answering, GateState, Generation, Lease, Staged


class AnsweredElsewhere(Exception):
    """Somebody waited at this gate, and may go in at another one now."""


def _nowhere() -> bool:
    return False


def _whatever_is_live() -> Sequence[ExactWeights]:
    return ()


class Gate[E]:
    """Starts sealed (`booting`); the first `open` says who answers."""

    def __init__(
        self,
        *,
        publish: Publish,
        max_held: int = 1024,
        hold_arrivals: bool = True,
        clock: Callable[[], float] = time.monotonic,
        replica: int = 0,
    ) -> None:
        self.replica = replica
        """The index of the replica it belongs to, which its events carry."""
        self.state = GateState.SEALED
        self.lease: Lease[E] | None = None
        """The lease of those who are let in now; None until the boot is over."""
        self.held = 0
        self.awaiting = 0
        """Count of requests that wait for a generation that is not live yet; at most `max_held`."""
        self._publish = publish
        self.max_held = max_held
        """Limit for those who wait for a swap, and for those who wait for a generation."""
        self._hold_arrivals = hold_arrivals
        self._clock = clock
        self._sealed_for_good = False
        self._refusal = NotServing("the engine is starting", code="booting", retry_after=2)
        self.moved = Bell()
        """Rings whenever it opens, closes, or another generation answers; gates may share it."""
        self._holders: dict[Lease[E], int] = {}
        """Count of requests inside under each lease; one that nobody holds is not in it."""
        self._kept: dict[Lease[E], set[Hashable]] = {}
        """Those for whom a lease's weights are kept, though they may not be inside now."""
        self._closed: set[int] = set()
        """Numbers of generations that answer those inside, and nobody else any more."""
        self._left = Bell()
        self._held_since = 0.0

    def preparer(self) -> E:
        """An engine that makes a request ready before it is let in; NotServing when none will be.

        Every engine checks and encodes alike. Which one answers, the lease alone says.
        """
        self._check()
        assert self.lease is not None, "what was never opened is sealed"
        return self.lease.engine

    @asynccontextmanager
    async def admit(
        self,
        at_least: int = 0,
        within: float = 0.0,
        elsewhere: Callable[[], bool] = _nowhere,
        wanted: Callable[[], Sequence[ExactWeights]] = _whatever_is_live,
    ) -> AsyncIterator[Lease[E]]:
        """Let one request through; the lease it yields says who answers, from start to end.

        An older generation than `at_least` is waited out, within a timeout; then NotNewEnough.
        Nobody waits here once he may go in `elsewhere`: AnsweredElsewhere. `wanted` is asked last:
        who wants exactly these weights is answered by them, or hears GenerationGone.
        """
        await self._admission(elsewhere)
        if self.is_before(at_least) and not wanted():
            await self._newer(at_least, within, elsewhere)
        # No await between the admission and this line: a swap cannot come in between.
        lease = self._chosen(wanted(), at_least)
        self._holders[lease] = self._holders.get(lease, 0) + 1
        try:
            yield lease
        finally:
            self._give_back(lease)

    @property
    def inside(self) -> int:
        """Count the requests that are being answered; for any thread."""
        return sum(self._holders.copy().values())

    def lease_of(self, wanted: Sequence[ExactWeights]) -> Lease[E] | None:
        """The lease that all of these fit: the live one, or one that others hold still."""
        held = {**self._holders, **self._kept}
        older = sorted(held, key=lambda lease: -lease.generation.number)
        leases = [each for each in older if each.generation.number not in self._closed]
        leases[:0] = [self.lease] if self.lease else []
        fits = (each for each in leases if all(word.fits(each.generation) for word in wanted))
        return next(fits, None)

    def _chosen(self, wanted: Sequence[ExactWeights], at_least: int) -> Lease[E]:
        assert self.lease is not None, "who is let in is answered"
        if not wanted:
            return self.lease
        lease = self.lease_of(wanted)
        if lease is not None and lease.generation.number >= at_least:
            return lease
        live = self.lease.generation
        asked = [*map(str, wanted), *([f"generation {at_least} or newer"] if at_least else [])]
        raise GenerationGone(
            f"{' and '.join(asked)}: asked for, and answers nobody any more; live is generation "
            f"{live.number}, fingerprint {live.fingerprint}, weight_version {live.weight_version}"
        )

    def keep(self, lease: Lease[E], who: Hashable) -> None:
        """Keep a lease's weights for `who`, if they can be kept when others go live."""
        if lease.weights is not None:
            self._kept.setdefault(lease, set()).add(who)

    def let_go(self, lease: Lease[E], who: Hashable) -> None:
        """Keep them for him no longer."""
        keepers = self._kept.get(lease, set())
        keepers.discard(who)
        if not keepers and self._kept.pop(lease, None) is not None:
            self._left.ring()

    def turn_out(self, weights: Staged) -> int:
        """Keep these weights for nobody, and let nobody in by them; return for how many they were.

        Those inside go on.
        """
        leases = [each for each in {**self._holders, **self._kept} if each.weights is weights]
        self._closed.update(each.generation.number for each in leases)
        turned_out = sum(len(self._kept.pop(each, ())) for each in leases)
        self._left.ring()
        return turned_out

    def is_needed(self, weights: Staged) -> bool:
        """True while somebody is answered by these weights, or they are kept for somebody."""
        return any(each.weights is weights for each in (*self._holders, *self._kept))

    def requests_on(self, weights: Staged) -> int:
        """Count the requests that hold a lease on these weights."""
        return sum(n for lease, n in self._holders.items() if lease.weights is weights)

    def answering(self) -> list[Answering]:
        """List who answers requests: the live one first, then the newest first; for any thread."""
        counts: dict[Generation, int] = {self.lease.generation: 0} if self.lease else {}
        for lease, holders in self._holders.copy().items():
            counts[lease.generation] = counts.get(lease.generation, 0) + holders
        live = self.lease.generation if self.lease else None
        order = sorted(counts, key=lambda each: (each is not live, -each.number))
        return [Answering(generation, counts[generation]) for generation in order]

    def hold(self) -> None:
        """Make arrivals wait; those inside go on."""
        if self.state is not GateState.SEALED:
            self._held_since = self._clock()
            self._move(GateState.HOLDING)

    def open(self, lease: Lease[E]) -> float:
        """Let everybody in, to be answered as `lease` says; return how long arrivals were held."""
        self.lease = lease  # sealed, it lets nobody in, and tells all the same what is live
        if self._sealed_for_good:
            return 0.0
        paused = self._clock() - self._held_since if self.state is GateState.HOLDING else 0.0
        self._move(GateState.OPEN)
        return paused

    def change(self, lease: Lease[E]) -> None:
        """Have those who come from now on answered as `lease` says; those inside go on.

        Nobody is held for it. Who waits for a generation that is new enough looks again.
        """
        self.lease = lease
        self._closed.discard(lease.generation.number)
        self.moved.ring()
        self._left.ring()  # what nobody holds may be the lease of before

    def name(self, generation: Generation) -> None:
        """Call a generation so for those who come from now on: its weights stay what they are.

        Those inside keep the name they came for. A conversation goes on by the new one.
        """

        def named(lease: Lease[E]) -> Lease[E]:
            is_it = lease.generation == generation  # its name is no part of that
            return replace(lease, generation=generation) if is_it else lease

        if self.lease is not None:
            self.lease = named(self.lease)
        self._holders = {named(lease): count for lease, count in self._holders.items()}
        self._kept = {named(lease): who for lease, who in self._kept.items()}

    def seal(self, reason: str, *, code: str = "not_serving") -> None:
        """Refuse everybody from now on, those who wait too; those inside go on. It is final."""
        if self._sealed_for_good:
            return
        self._sealed_for_good = True
        self._refusal = NotServing(reason, code=code)
        self._move(GateState.SEALED, reason, code)

    @property
    def is_lost(self) -> bool:
        """True if it was sealed because the engine is lost."""
        return self._sealed_for_good and self._refusal.code == EngineLost.code

    async def wait_until_empty(self, within: float) -> None:
        """Wait until nobody is inside; DrainTimedOut names how many still are."""
        try:
            async with asyncio.timeout(within):
                await self.until(lambda: not self._holders)
        except TimeoutError:
            raise DrainTimedOut(
                f"{self.inside} requests were still running {within:g} s after the gate closed; "
                "raise [reload] drain_timeout or set on_drain_timeout = 'abort'"
            ) from None

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until this is so: asked each time a lease changes or loses its last holder."""
        while not is_so():
            await self._left.wait()

    def _give_back(self, lease: Lease[E]) -> None:
        self._holders[lease] -= 1
        if not self._holders[lease]:
            del self._holders[lease]
            self._left.ring()

    def _check(self) -> None:
        """Raise NotServing when nobody is let in yet, or any more."""
        if self.state is GateState.SEALED:
            raise copy.copy(self._refusal)  # one that is raised holds the frames of who was refused

    async def _admission(self, elsewhere: Callable[[], bool]) -> None:
        while self.state is not GateState.OPEN:
            _check_elsewhere(elsewhere)
            self._check()
            await self._wait_held()

    def is_before(self, at_least: int) -> bool:
        """True while an older generation than this one answers."""
        return self.lease is not None and self.lease.generation.number < at_least

    async def _newer(self, at_least: int, within: float, elsewhere: Callable[[], bool]) -> None:
        """Wait until a generation that is new enough answers."""
        if self.awaiting >= self.max_held:
            raise NotServing(
                f"{self.awaiting} requests already wait for a generation ([reload] max_held)",
                code="too_many_awaiting",
                retry_after=1,
            )
        self.awaiting += 1
        try:
            async with asyncio.timeout(within):
                while self.state is not GateState.OPEN or self.is_before(at_least):
                    _check_elsewhere(elsewhere)
                    self._check()
                    await self.moved.wait()
        except TimeoutError:
            assert self.lease is not None
            live = self.lease.generation
            raise NotNewEnough(
                f"generation {at_least} was asked for and did not answer within {within:g} s "
                f"([server.limits] generation_seconds); {live.number} is live"
            ) from None
        finally:
            self.awaiting -= 1

    async def _wait_held(self) -> None:
        if not self._hold_arrivals:
            raise NotServing("a swap is under way", code="swapping", retry_after=1)
        if self.held >= self.max_held:
            raise NotServing(
                f"{self.held} requests already wait for a swap ([reload] max_held)",
                code="too_many_held",
                retry_after=1,
            )
        self.held += 1
        try:
            await self.moved.wait()
        finally:
            self.held -= 1

    def _move(self, state: GateState, reason: str | None = None, code: str | None = None) -> None:
        self.state = state
        self.moved.ring()
        self._publish(GateChanged(state, self.inside, self.held, reason, code, self.replica))


def _check_elsewhere(elsewhere: Callable[[], bool]) -> None:
    if elsewhere():
        raise AnsweredElsewhere
