"""Swaps one set of weights for another: drain, exchange, probe, and exchange back if bad.

Nothing that serves is touched before the gate is closed and empty. Whatever happens, the gate opens
again (or is sealed) and one set of weights is live.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import override

from hotreload.core.engines.replica import Replica
from hotreload.core.judge import as_verdict
from hotreload.core.ledger import PastGeneration
from hotreload.core.ports import Engine
from hotreload.core.rules import KeepPrevious
from hotreload.core.switch import ABORT_GRACE, MakeWeights, Switch
from hotreload.errors import DrainTimedOut, EngineLost
from hotreload.events import GenerationLive
from hotreload.threads import run_to_end
from hotreload.types import Generation, Phase, Staged


class DrainingSwitch(Switch):
    """Makes other weights live while no request is inside the gate."""

    _spare: Staged
    """The one of this switch's two sets of weights that is not live now."""
    _spare_was_live: bool
    """True if the spare weights were live before: then they may be kept for a rollback."""

    @override
    @asynccontextmanager
    async def keep_staged(self, make: MakeWeights) -> AsyncIterator[Staged]:
        if self.rules.keep_previous is KeepPrevious.DEVICE:
            # Two sets on the device at most: the rollback slot makes room for the new one.
            await self.replica.forget_previous()
        staged = await self._stage(make)
        async with self._hold(staged, was_live=False):
            await self.progress.reach("staged")
            yield staged

    @override
    async def prove(self, staged: Staged) -> None:
        """Do nothing: `flip` probes the new weights while they are live and the gate is closed."""

    @override
    @asynccontextmanager
    async def lock_engine(self) -> AsyncIterator[None]:
        """Close the gate, wait until no request is inside, and open the gate again whatever
        happens."""
        rules, before = self.rules, self.replica.live
        async with self.replica.lock:
            self.replica.gate.hold()
            try:
                with self.replica.seal_when_lost():
                    async with self.progress.phase(Phase.DRAINING):
                        await self.wanted.run_while_wanted(
                            drain(self.replica, rules.drain_timeout, rules.abort_on_drain_timeout)
                        )
                    self.wanted.check()  # it may have changed as the last request left
                    self.wanted.may_give_up = False
                    yield
            finally:
                paused = self.replica.open()
                self.progress.pause_seconds = max(paused, self.progress.pause_seconds)
                if self.replica.live is not before:
                    self.progress.publish(GenerationLive(self.replica.live, self.replica.index))

    @override
    async def flip(self, staged: Staged, *, probe: bool = True) -> Staged:
        """Exchange these weights for the live ones; exchange back if their answers are bad."""
        async with self.progress.phase(Phase.SWAPPING):
            old = await self.engine.switch.exchange(staged)
            # The old weights passed a probe of a few prompts, and may have made NaN of others.
            await self._scrub()
        if probe:
            await self._prove_or_roll_back(old)
        return old

    @override
    async def answer_as(self, generation: Generation, fresh: Staged, old: Staged) -> None:
        self.progress.fingerprints = (old.fingerprint, fresh.fingerprint)
        self._spare, self._spare_was_live = old, True
        self.replica.live = generation
        await self.progress.reach("committed")

    @override
    @asynccontextmanager
    async def keep_earlier(self, place: PastGeneration) -> AsyncIterator[Staged | None]:
        previous = self.replica.find_kept(place)
        if previous is None:
            yield None
            return
        async with self.progress.phase(Phase.STAGING):
            staged = await self.engine.weights.unstow(previous)
        self.replica.previous = None
        async with self._hold(staged, was_live=True), self.lock_engine():
            yield staged

    # --- what is spare ---------------------------------------------------------------------

    @asynccontextmanager
    async def _hold(self, spare: Staged, *, was_live: bool) -> AsyncIterator[None]:
        self._spare, self._spare_was_live = spare, was_live
        try:
            with self.replica.seal_when_lost():
                yield
        finally:
            spare = self._spare
            del self._spare  # a program may hold this switch for long
            # A lost engine is closed with all it holds: which set is the spare one is unknown.
            if self.serves:
                await run_to_end(self._put_away(spare))

    async def _put_away(self, spare: Staged) -> None:
        """Keep what was live for a rollback, as the operator decided; free what never was."""
        self.replica.staged = None
        if not self._spare_was_live:
            await self.engine.weights.release(spare)
            return
        if self.rules.keep_previous is KeepPrevious.HOST:
            await self.remember()  # the copy takes long; a crash in it must not lose what is live
        await self.replica.put_away(spare, self.rules.keep_previous)

    # --- proof, and the way back of what fails it ------------------------------------------

    async def _prove_or_roll_back(self, old: Staged) -> None:
        try:
            await self.progress.reach("swapped")
            async with self._time_probes(self.rules.probe_timeout, "[reload] probe_timeout"):
                await self.engine.unseen.probe()
            self.wanted.check_refused()
        except EngineLost:
            raise
        except Exception as bad:
            self._spare = await self._roll_back(old)
            self.progress.verdict = as_verdict(bad)
            raise self.progress.verdict from bad

    async def _roll_back(self, old: Staged) -> Staged:
        self.progress.rolled_back = True
        async with self.progress.phase(Phase.ROLLING_BACK):
            try:
                failed = await self.engine.switch.exchange(old)
            except Exception as broken:
                raise EngineLost(f"the rollback failed: {broken}") from broken
            await self._scrub()
            return failed

    async def _scrub(self) -> None:
        """Overwrite the KV pool: NaN left in it would poison every later answer."""
        try:
            await self.engine.switch.scrub()
        except Exception as broken:
            raise EngineLost(f"the KV pool could not be scrubbed: {broken}") from broken


async def drain(replica: Replica[Engine], within: float, abort: bool) -> None:
    """Wait until the closed gate is empty; requests that stay longer are aborted if `abort`."""
    try:
        await replica.gate.wait_until_empty(within)
    except DrainTimedOut:
        if not abort:
            raise
        await replica.engine.answers.abort()
        await replica.gate.wait_until_empty(ABORT_GRACE)
