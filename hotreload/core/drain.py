"""The way of one set of weights at a time: drain, exchange, probe, and back if it is bad.

Nothing that serves is touched before the gate is closed and empty, and whatever happens the gate
opens again (or is sealed) and one set of weights is live.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import override

from hotreload.core.ledger import PastGeneration
from hotreload.core.ports import Engine
from hotreload.core.replica import Replica
from hotreload.core.rules import KeepPrevious
from hotreload.core.switch import ABORT_GRACE, Make, Ready, Switch, as_verdict
from hotreload.errors import DrainTimedOut, EngineLost
from hotreload.events import GenerationLive
from hotreload.threads import uninterrupted
from hotreload.types import Phase, Staged


class DrainingSwitch(Switch):
    """Makes other weights live while nobody is inside the gate."""

    @override
    @asynccontextmanager
    async def held(self, make: Make, *, asked: bool = True) -> AsyncIterator[Ready]:
        async with self._staged(make) as spare:
            yield Ready(spare.weights, self._prove, partial(self._go, spare, asked))

    async def _prove(self) -> None:
        """Nothing: it is done while they are live and nobody is inside, before they stay."""

    async def _go(self, spare: "_Spare", asked: bool) -> None:
        swap = self._swap_probe_or_roll_back if asked else self._swap_unprobed
        async with self._drained():
            await uninterrupted(swap(spare))

    @override
    async def back(self, place: PastGeneration, *, asked: bool = True) -> bool:
        previous = self.replica.kept(place)
        if previous is None:
            return False
        async with self._unstowed(previous) as spare:
            await self._go(spare, asked)
        return True

    @asynccontextmanager
    async def _staged(self, make: Make) -> AsyncIterator["_Spare"]:
        """Hold new weights beside the live ones; what is spare at the end is put away."""
        if self._rules.keep_previous is KeepPrevious.DEVICE:
            # Two sets on the device at most: the rollback slot makes room for the new one.
            await self.replica.forget_previous()
        async with self._held(_Spare(await self._stage(make))) as spare:
            await self._course.reach("staged")
            yield spare

    @asynccontextmanager
    async def _unstowed(self, previous: Staged) -> AsyncIterator["_Spare"]:
        async with self._course.phase(Phase.STAGING):
            staged = await self._engine.unstow(previous)
        self.replica.previous = None
        async with self._held(_Spare(staged, was_live=True)) as spare:
            yield spare

    @asynccontextmanager
    async def _held(self, spare: "_Spare") -> AsyncIterator["_Spare"]:
        try:
            with self.replica.sealed_when_lost():
                yield spare
        finally:
            # A lost engine is closed with all it holds: nobody knows which set is the spare one.
            if self.serves:
                await uninterrupted(self._put_away(spare))

    async def _put_away(self, spare: "_Spare") -> None:
        """Keep what was live for a rollback, as the operator decided; free what never was."""
        self.replica.staged = None
        if not spare.was_live:
            await self._engine.release(spare.weights)
            return
        if self._rules.keep_previous is KeepPrevious.HOST:
            await self._remember()  # the copy takes long; a crash in it must not lose what is live
        await self.replica.put_away(spare.weights, self._rules.keep_previous)

    @asynccontextmanager
    async def _drained(self) -> AsyncIterator[None]:
        """Close the gate, wait until nobody is inside, and open it again whatever happens."""
        rules, before = self._rules, self.replica.live
        async with self.replica.alone:
            self.replica.gate.hold()
            try:
                with self.replica.sealed_when_lost():
                    async with self._course.phase(Phase.DRAINING):
                        await self._wanted.during(
                            drain(self.replica, rules.drain_timeout, rules.abort_on_drain_timeout)
                        )
                    self._wanted.check()  # it may have changed as the last request left
                    self._wanted.may_give_up = False
                    yield
            finally:
                paused = self.replica.open()
                self._course.pause_seconds = max(paused, self._course.pause_seconds)
                if self.replica.live is not before:
                    self._course.publish(GenerationLive(self.replica.live, self.replica.index))

    async def _swap_probe_or_roll_back(self, spare: "_Spare") -> None:
        """The part that no cancel interrupts: it ends with one generation live, and recorded."""
        fresh = spare.weights
        old = await self._swap(fresh)
        try:
            await self._course.reach("swapped")
            await self._probed(self._engine.probe)
            self._wanted.check_refused()
        except EngineLost:
            raise
        except Exception as bad:
            spare.weights = await self._roll_back(old)
            self._course.verdict = as_verdict(bad)
            raise self._course.verdict from bad
        await self._go_live(spare, old)

    async def _swap_unprobed(self, spare: "_Spare") -> None:
        old = await self._swap(spare.weights)
        await self._go_live(spare, old)

    async def _swap(self, fresh: Staged) -> Staged:
        async with self._course.phase(Phase.SWAPPING):
            old = await self._engine.exchange(fresh)
            # A probe asks a few prompts: weights that passed it may have made NaN of others.
            await self._scrub()
            return old

    async def _go_live(self, spare: "_Spare", old: Staged) -> None:
        fresh = spare.weights
        spare.weights, spare.was_live = old, True
        self.replica.live = self._recorded(fresh, old)
        await self._course.reach("committed")

    async def _roll_back(self, old: Staged) -> Staged:
        self._course.rolled_back = True
        async with self._course.phase(Phase.ROLLING_BACK):
            try:
                failed = await self._engine.exchange(old)
            except Exception as broken:
                raise EngineLost(f"the rollback failed: {broken}") from broken
            await self._scrub()
            return failed

    async def _scrub(self) -> None:
        """Old leaves alone are no rollback: NaN in the KV pool would poison every later answer."""
        try:
            await self._engine.scrub()
        except Exception as broken:
            raise EngineLost(f"the KV pool could not be scrubbed: {broken}") from broken


async def drain(replica: Replica[Engine], within: float, abort: bool) -> None:
    """Wait until nobody is inside the closed gate; those who stay longer are aborted, or win."""
    try:
        await replica.gate.drained(within)
    except DrainTimedOut:
        if not abort:
            raise
        await replica.engine.abort()
        await replica.gate.drained(ABORT_GRACE)


@dataclass(slots=True)
class _Spare:
    """The weights that are not live now, and whether they ever were."""

    weights: Staged
    was_live: bool = False
