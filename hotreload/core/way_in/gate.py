"""Admits requests to one engine, and hands each a lease on the weights that answer it.

A swap that needs an empty engine closes the gate. The gate knows the requests inside, those that
wait, and their generations, but nothing of HTTP, weights or engines.
"""

import asyncio
import copy
import time
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from hotreload.core.rules import USUAL_RULES
from hotreload.errors import (
    DrainTimedOut,
    EngineLost,
    GenerationGone,
    NotNewEnough,
    NotServing,
    cut,
)
from hotreload.events import GateChanged, Publish
from hotreload.types import AnsweringGeneration, GateState, Generation, Lease, Staged


@dataclass(frozen=True, slots=True)
class ExactWeights:
    """The weights that a request asks for, by generation number, fingerprint or version."""

    number: int | None = None
    fingerprint: str | None = None
    weight_version: str | None = None

    def fits(self, generation: Generation) -> bool:
        """Return True if this generation has all the given names."""
        return (
            self.number in (None, generation.number)
            and self.fingerprint in (None, generation.fingerprint)
            and self.weight_version in (None, generation.weight_version)
        )

    def __str__(self) -> str:
        words = {"generation": self.number, "fingerprint": self.fingerprint}
        words["weight_version"] = self.weight_version
        return ", ".join(
            f"{name} {cut(str(word))}" for name, word in words.items() if word is not None
        )


class MustLeave(Exception):
    """The request waited at this gate, and must wait for a feature, or may enter another gate."""


class Bell:
    """Wakes every waiter; each re-checks its condition."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """Wake every task that waits now."""
        self._rung.set()
        self._rung = asyncio.Event()

    async def wait(self) -> None:
        """Wait until the bell rings."""
        await self._rung.wait()


@dataclass(eq=False, kw_only=True)
class Gate[E]:
    """The gate of one engine; sealed (`booting`) until the first `open`."""

    publish: Publish
    max_held: int = USUAL_RULES.max_held
    """Limit of requests that wait for a swap, and of those that wait for a generation."""
    hold_arrivals: bool = True
    clock: Callable[[], float] = time.monotonic
    replica: int = 0
    """The index of the gate's replica, which its events carry."""
    entry_bell: Bell = field(default_factory=Bell)
    """Wakes requests that wait to enter: the gate opened, closed or has another lease.

    Gates may share one bell.
    """
    state: GateState = GateState.SEALED
    lease: Lease[E] | None = None
    """The lease of new requests; None until the start is over."""
    held: int = 0
    awaiting: int = 0
    """Count of requests that wait for a newer generation; at most `max_held`."""

    def __post_init__(self) -> None:
        self._sealed_for_good = False
        self._refusal = NotServing("the engine is starting", code="booting", retry_after=2)
        self._holders: dict[Lease[E], int] = {}
        """Count of requests inside under each lease that any request holds."""
        self._kept: dict[Lease[E], set[Hashable]] = {}
        """The keepers of each lease's weights (conversations, follow-ups)."""
        self._closed: set[int] = set()
        """Numbers of generations that answer requests inside and no new ones."""
        self._exit_bell = Bell()
        """Wakes tasks that wait for requests to leave: a lease lost its last holder or keeper."""
        self._held_since = 0.0

    def get_engine(self) -> E:
        """Return the engine that encodes and validates requests; NotServing when sealed."""
        self._check_unsealed()
        assert self.lease is not None, "what was never opened is sealed"
        return self.lease.engine

    @asynccontextmanager
    async def admit(
        self,
        at_least: int = 0,
        within: float = 0.0,
        must_leave: Callable[[], bool] = lambda: False,
        wanted: Callable[[], Sequence[ExactWeights]] = lambda: (),
    ) -> AsyncIterator[Lease[E]]:
        """Admit one request; the lease it yields says which weights answer, from start to end.

        While only an older generation than `at_least` answers, the request waits, at most `within`
        seconds; then NotNewEnough. Raises MustLeave as soon as `must_leave()` is true while it
        waits. `wanted()` is read last; if none of the named weights still answers: GenerationGone.
        """
        await self._wait_until_open(must_leave)
        if self.is_before(at_least) and not wanted():
            await self._wait_for_newer(at_least, within, must_leave)
        # No await between the wait for an open gate and this line: no swap comes in between.
        lease = self._choose_lease(wanted(), at_least)
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
        """Return the lease that fits all these names: the live one, or one that is still held."""
        held = {**self._holders, **self._kept}
        older = sorted(held, key=lambda lease: -lease.generation.number)
        leases = [each for each in older if each.generation.number not in self._closed]
        leases[:0] = [self.lease] if self.lease else []
        fits = (each for each in leases if all(word.fits(each.generation) for word in wanted))
        return next(fits, None)

    def _choose_lease(self, wanted: Sequence[ExactWeights], at_least: int) -> Lease[E]:
        assert self.lease is not None, "an open gate has a lease"
        if not wanted:
            return self.lease
        lease = self.lease_of(wanted)
        if lease is not None and lease.generation.number >= at_least:
            return lease
        live = self.lease.generation
        asked = [*map(str, wanted), *([f"generation {at_least} or newer"] if at_least else [])]
        raise GenerationGone(
            f"{' and '.join(asked)}: asked for, and answers no request any more; live is "
            f"generation {live.number}, fingerprint {live.fingerprint}, "
            f"weight_version {live.weight_version}"
        )

    def keep(self, lease: Lease[E], keeper: Hashable) -> None:
        """Keep a lease's weights for this keeper, if the engine can keep them beside others."""
        if lease.weights is not None:
            self._kept.setdefault(lease, set()).add(keeper)

    def unkeep(self, lease: Lease[E], keeper: Hashable) -> None:
        """Drop this keeper's claim on the lease's weights."""
        keepers = self._kept.get(lease, set())
        keepers.discard(keeper)
        if not keepers and self._kept.pop(lease, None) is not None:
            self._exit_bell.ring()

    def turn_out(self, weights: Staged) -> int:
        """Drop every claim on these weights and admit no request to them; return how many claims.

        Requests inside go on.
        """
        leases = [each for each in {**self._holders, **self._kept} if each.weights is weights]
        self._closed.update(each.generation.number for each in leases)
        turned_out = sum(len(self._kept.pop(each, ())) for each in leases)
        self._exit_bell.ring()
        return turned_out

    def is_needed(self, weights: Staged) -> bool:
        """Return True while a request holds a lease on these weights, or a keeper keeps them."""
        return any(each.weights is weights for each in (*self._holders, *self._kept))

    def requests_on(self, weights: Staged) -> int:
        """Count the requests that hold a lease on these weights."""
        return sum(n for lease, n in self._holders.items() if lease.weights is weights)

    def list_answering(self) -> list[AnsweringGeneration]:
        """List the generations that answer, the live one first, then the newest; for any thread."""
        counts: dict[Generation, int] = {self.lease.generation: 0} if self.lease else {}
        for lease, holders in self._holders.copy().items():
            counts[lease.generation] = counts.get(lease.generation, 0) + holders
        live = self.lease.generation if self.lease else None
        order = sorted(counts, key=lambda each: (each is not live, -each.number))
        return [AnsweringGeneration(generation, counts[generation]) for generation in order]

    def hold(self) -> None:
        """Make new requests wait; requests inside go on."""
        if self.state is not GateState.SEALED:
            self._held_since = self.clock()
            self._move(GateState.HOLDING)

    def open(self, lease: Lease[E]) -> float:
        """Admit requests with this lease; return for how long arrivals were held."""
        self.lease = lease  # a sealed gate admits none, and still reports what is live
        if self._sealed_for_good:
            return 0.0
        paused = self.clock() - self._held_since if self.state is GateState.HOLDING else 0.0
        self._move(GateState.OPEN)
        return paused

    def change(self, lease: Lease[E]) -> None:
        """Hand new requests this lease from now on; requests inside go on.

        No request waits for the change. Those that wait for a newer generation check again.
        """
        self.lease = lease
        self._closed.discard(lease.generation.number)
        self.entry_bell.ring()
        self._exit_bell.ring()  # no request may hold the former lease

    def rename(self, generation: Generation) -> None:
        """Give a generation a new version for new requests; its weights stay.

        Requests inside keep the version they began with. A conversation continues with the new one.
        """

        def rename_lease(lease: Lease[E]) -> Lease[E]:
            is_it = lease.generation == generation  # the version is not compared
            return replace(lease, generation=generation) if is_it else lease

        if self.lease is not None:
            self.lease = rename_lease(self.lease)
        self._holders = {rename_lease(lease): count for lease, count in self._holders.items()}
        self._kept = {rename_lease(lease): keepers for lease, keepers in self._kept.items()}

    def seal(self, reason: str, *, code: str = "not_serving") -> None:
        """Refuse every request for good, also those that wait; requests inside go on."""
        if self._sealed_for_good:
            return
        self._sealed_for_good = True
        self._refusal = NotServing(reason, code=code)
        self._move(GateState.SEALED, reason, code)

    @property
    def is_lost(self) -> bool:
        """True if the gate was sealed because the engine is lost."""
        return self._sealed_for_good and self._refusal.code == EngineLost.code

    async def wait_until_empty(self, within: float) -> None:
        """Wait until no request is inside; DrainTimedOut says how many still are."""
        try:
            async with asyncio.timeout(within):
                await self.until(lambda: not self._holders)
        except TimeoutError:
            raise DrainTimedOut(
                f"{self.inside} requests were still running {within:g} s after the gate closed; "
                "raise [reload] drain_timeout or set on_drain_timeout = 'abort'"
            ) from None

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until `is_so()`: called each time a lease changes or loses its last holder."""
        while not is_so():
            await self._exit_bell.wait()

    def _give_back(self, lease: Lease[E]) -> None:
        self._holders[lease] -= 1
        if not self._holders[lease]:
            del self._holders[lease]
            self._exit_bell.ring()

    def _check_unsealed(self) -> None:
        """Raise NotServing when the gate is sealed."""
        if self.state is GateState.SEALED:
            raise copy.copy(self._refusal)  # a raised error holds the frames of its request

    def _check_may_wait(self, must_leave: Callable[[], bool]) -> None:
        if must_leave():
            raise MustLeave
        self._check_unsealed()

    async def _wait_until_open(self, must_leave: Callable[[], bool]) -> None:
        while self.state is not GateState.OPEN:
            self._check_may_wait(must_leave)
            if not self.hold_arrivals:
                raise NotServing("a swap is under way", code="swapping", retry_after=1)
            if self.held >= self.max_held:
                words = f"{self.held} requests already wait for a swap ([reload] max_held)"
                raise NotServing(words, code="too_many_held", retry_after=1)
            self.held += 1
            try:
                await self.entry_bell.wait()
            finally:
                self.held -= 1

    def is_before(self, at_least: int) -> bool:
        """Return True while an older generation than this one answers."""
        return self.lease is not None and self.lease.generation.number < at_least

    async def _wait_for_newer(
        self, at_least: int, within: float, must_leave: Callable[[], bool]
    ) -> None:
        """Wait until a generation that is new enough answers."""
        if self.awaiting >= self.max_held:
            words = f"{self.awaiting} requests already wait for a generation ([reload] max_held)"
            raise NotServing(words, code="too_many_awaiting", retry_after=1)
        self.awaiting += 1
        try:
            async with asyncio.timeout(within):
                while self.state is not GateState.OPEN or self.is_before(at_least):
                    self._check_may_wait(must_leave)
                    await self.entry_bell.wait()
        except TimeoutError:
            assert self.lease is not None
            live = self.lease.generation
            raise NotNewEnough(
                f"generation {at_least} was asked for and did not answer within {within:g} s "
                f"([server.limits] generation_seconds); {live.number} is live"
            ) from None
        finally:
            self.awaiting -= 1

    def _move(self, state: GateState, reason: str | None = None, code: str | None = None) -> None:
        self.state = state
        self.entry_bell.ring()
        self.publish(GateChanged(state, self.inside, self.held, reason, code, self.replica))
