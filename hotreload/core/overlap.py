"""The way nobody waits for: stage and prove beside those that answer, flip, let the old ones end.

Until the flip nothing that serves is touched, and no gate closes for it: those who come after it
are answered by the new weights, those who came before by the old ones, to their end (`fading`).
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import override

from hotreload.core.ledger import PastGeneration
from hotreload.core.replica import Fading
from hotreload.core.rules import KeepPrevious
from hotreload.core.switch import ABORT_GRACE, Switch
from hotreload.errors import DrainTimedOut, EngineLost
from hotreload.events import GenerationLive, Waiting
from hotreload.threads import uninterrupted
from hotreload.types import Checkpoint, Noise, Phase, Staged


class OverlappingSwitch(Switch):
    """Makes other weights answer those who come, while the old ones answer those inside."""

    @override
    async def to(self, checkpoint: Checkpoint) -> None:
        async with self._staged(partial(self._engine.stage, checkpoint)) as staged:
            self._wanted.check()
            self.is_staged = True
            with self._replica.sealed_when_lost():
                await self._wanted.during(self._proven(staged))
            await self._course.reach("proven")
            await self._go_live(staged, checkpoint.path)

    @override
    async def to_noise(self, noise: Noise) -> None:
        make = partial(self._engine.perturb, self._course.revision, noise)
        async with self._staged(make) as staged:
            await self._go_live(staged, None)

    @override
    def _beside(self, checkpoint: Checkpoint) -> AbstractAsyncContextManager[Staged]:
        return self._staged(partial(self._engine.stage, checkpoint))

    @asynccontextmanager
    async def _staged(self, make: Callable[[], Awaitable[Staged]]) -> AsyncIterator[Staged]:
        """Hold new weights beside those that answer; they are freed unless they go live."""
        await self._make_room()
        staged, is_known = await self._stage(make), True
        try:
            await self._course.reach("staged")
            yield staged
        except EngineLost:
            is_known = False  # do they answer? The process ends with all
            raise
        finally:
            self._replica.staged = None
            if is_known and self._engine.live is not staged:
                await uninterrupted(self._engine.release(staged))

    async def _go_live(self, staged: Staged, path: Path | None) -> None:
        async with self._replica.alone:
            self._wanted.check()  # the last exit
            self._wanted.may_give_up = False
            await uninterrupted(self._flip(staged, path))

    async def _flip(self, fresh: Staged, path: Path | None) -> None:
        """The part that no cancel interrupts: from its end on `fresh` answers, and is recorded."""
        with self._replica.sealed_when_lost():
            async with self._course.phase(Phase.SWAPPING):
                old = await self._engine.flip(fresh)
                try:
                    await self._course.reach("flipped")
                    generation = self._recorded(fresh, old, path)
                except Exception:
                    await self._flip_back(old, fresh)
                    raise
                self._replica.pass_on(generation, old)
        self._course.publish(GenerationLive(generation, self._replica.index))
        await self._course.reach("committed")

    async def _flip_back(self, old: Staged, fresh: Staged) -> None:
        """Have the old weights answer again: nobody was told yet of the new ones."""
        try:
            await self._engine.flip(old)
            if not any(each.weights is fresh for each in self._replica.fading):
                await self._engine.retire(fresh)
        except Exception as broken:
            raise EngineLost(f"the flip back failed: {broken}") from broken

    # --- the way back ----------------------------------------------------------------------

    @override
    async def back(self, place: PastGeneration) -> bool:
        async with self._replica.alone:
            kept = self._replica.kept(place)
            if kept is None:
                return False
            async with self._at_hand(kept) as fresh:
                await uninterrupted(self._flip(fresh, None))
            return True

    @asynccontextmanager
    async def _at_hand(self, kept: Staged) -> AsyncIterator[Staged]:
        """Have weights that were live on the device; they are kept as before unless they go live.

        It waits for no room: an operator's way back does not wait for old answers.
        """
        async with self._course.phase(Phase.STAGING):
            fresh = await self._engine.unstow(kept)
        was_waiting = self._replica.previous is kept
        if was_waiting:
            self._replica.previous = fresh
        try:
            yield fresh
        except EngineLost:
            raise
        except Exception:
            if was_waiting and self._replica.previous is fresh:
                self._replica.previous = None
                await uninterrupted(self._replica.put_away(fresh, self._rules.keep_previous))
            raise

    # --- room for one more set of weights --------------------------------------------------

    async def _make_room(self) -> None:
        """Wait until one more set of weights may be on the device."""
        while self._sets_on_device >= self._rules.sets:
            if self._previous_on_device is not None:
                async with self._replica.alone:
                    await self._replica.forget_previous()
            else:
                await self._until_fewer_fade()

    @property
    def _sets_on_device(self) -> int:
        live_and_fading = 1 + len(self._replica.fading)
        return live_and_fading + (self._previous_on_device is not None)

    @property
    def _previous_on_device(self) -> Staged | None:
        is_there = self._rules.keep_previous is KeepPrevious.DEVICE
        return self._replica.previous if is_there else None

    async def _until_fewer_fade(self) -> None:
        """Wait until all who began under some older weights are answered, and say for whom."""
        # Counted here: what waits is a task of its own, and begins when they may have ended.
        oldest, now = self._replica.fading[0], len(self._replica.fading)
        sets = f"there is room for {self._rules.sets} sets of weights ([reload] sets)"
        async with self._course.phase(Phase.DRAINING):
            self._course.publish(Waiting(f"{self._still(oldest)}: {sets}", "reconciler"))
            try:
                await self._wanted.during(self._fewer_fade_in_time(oldest, now))
            finally:
                self._course.publish(Waiting(None, "reconciler"))

    async def _fewer_fade_in_time(self, oldest: Fading, now: int) -> None:
        """Those who are not answered within finish_timeout of the flip are aborted, or win."""
        fewer = self._replica.fewer_fade
        left = oldest.since + self._rules.finish_timeout - time.monotonic()
        try:
            await asyncio.wait_for(fewer(now), max(left, 0.0))
        except TimeoutError:
            if not self._rules.abort_on_drain_timeout:
                raise self._too_late(oldest) from None
            await self._engine.abort(oldest.weights)
            try:
                await asyncio.wait_for(fewer(now), ABORT_GRACE)
            except TimeoutError:
                raise self._too_late(oldest) from None

    def _too_late(self, oldest: Fading) -> DrainTimedOut:
        return DrainTimedOut(
            f"{self._still(oldest)}, {self._rules.finish_timeout:g} s after another went live; "
            "raise [reload] finish_timeout or sets, or set on_drain_timeout = 'abort'"
        )

    def _still(self, oldest: Fading) -> str:
        count = self._replica.gate.requests_on(oldest.weights)
        requests = "1 request is" if count == 1 else f"{count} requests are"
        return f"{requests} still answered by generation {oldest.generations[-1].number}"
