"""Swaps weights while requests are answered: stage and prove the new ones, flip, let the old end.

Before the flip nothing that serves is touched, and no gate closes. Requests that come after it are
answered by the new weights; those that came before are answered by the old ones to their end
(`fading`).
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import override

from hotreload.core.engines.replica import FadingWeights
from hotreload.core.ledger import PastGeneration
from hotreload.core.rules import BY_MEMORY, KeepPrevious
from hotreload.core.switch import ABORT_GRACE, MakeWeights, Switch
from hotreload.errors import DrainTimedOut, EngineLost
from hotreload.events import GenerationLive, Wait
from hotreload.threads import run_to_end
from hotreload.types import Generation, Phase, Staged

log = logging.getLogger("hotreload.sessions")

LOOK_AGAIN = 5.0
"""Seconds between two looks at memory that others may free, while a checkpoint waits for it."""


class OverlappingSwitch(Switch):
    """Makes other weights answer new requests, while the old ones answer those under way."""

    @override
    @asynccontextmanager
    async def keep_staged(self, make: MakeWeights) -> AsyncIterator[Staged]:
        """Hold new weights beside the live ones, and free them unless they go live."""
        await self._make_room()
        staged = await self._stage(make)
        try:
            with self.replica.seal_when_lost():
                await self.progress.reach("staged")
                yield staged
        finally:
            self.replica.staged = None
            # A lost engine is closed with all it holds: which weights it answers by is unknown.
            if self.serves and self.engine.weights.live is not staged:
                await run_to_end(self.engine.weights.release(staged))

    @override
    async def prove(self, staged: Staged) -> None:
        await self.prove_unseen(staged)
        await self.progress.reach("proven")

    @override
    @asynccontextmanager
    async def lock_engine(self) -> AsyncIterator[None]:
        async with self.replica.lock:
            self.wanted.check()  # the last exit
            self.wanted.may_give_up = False
            yield

    @override
    async def flip(self, staged: Staged, *, probe: bool = True) -> Staged:
        """Flip to weights that were proven before, or that need no proof."""
        with self.replica.seal_when_lost():
            async with self.progress.phase(Phase.SWAPPING):
                old = await self.engine.switch.flip(staged)
                try:
                    await self.progress.reach("flipped")
                    self.wanted.check_refused()
                except Exception:
                    await self._flip_back(old, staged)
                    raise
                return old

    @override
    async def answer_as(self, generation: Generation, fresh: Staged, old: Staged) -> None:
        self.progress.fingerprints = (old.fingerprint, fresh.fingerprint)
        self.replica.switch_to(generation, old)
        self.progress.publish(GenerationLive(generation, self.replica.index))
        await self.progress.reach("committed")

    async def _flip_back(self, old: Staged, fresh: Staged) -> None:
        """Flip back to the old weights: the gate has not let any request to the new ones yet."""
        try:
            await self.engine.switch.flip(old)
            if not any(each.weights is fresh for each in self.replica.fading):
                await self.engine.switch.retire(fresh)
        except Exception as broken:
            raise EngineLost(f"the flip back failed: {broken}") from broken

    # --- the way back ----------------------------------------------------------------------

    @override
    @asynccontextmanager
    async def keep_earlier(self, place: PastGeneration) -> AsyncIterator[Staged | None]:
        """Lock the engine first, as older weights might be put away meanwhile.

        A rollback does not wait for room: it does not wait for older requests to end.
        """
        async with self.replica.lock:
            kept = self.replica.find_kept(place)
            if kept is None:
                yield None
                return
            async with self._hold_kept(kept) as fresh:
                yield fresh

    @asynccontextmanager
    async def _hold_kept(self, kept: Staged) -> AsyncIterator[Staged]:
        """Bring kept weights to the device, and keep them as before unless they go live."""
        async with self.progress.phase(Phase.STAGING):
            fresh = await self.engine.weights.unstow(kept)
        was_waiting = self.replica.previous is kept
        if was_waiting:
            self.replica.previous = fresh
        try:
            yield fresh
        except EngineLost:
            raise
        except Exception:
            if self.serves and was_waiting and self.replica.previous is fresh:
                self.replica.previous = None
                await run_to_end(self.replica.put_away(fresh, self.rules.keep_previous))
            raise

    # --- room for one more set of weights --------------------------------------------------

    async def _make_room(self) -> None:
        """Wait until the device may hold one more set of weights."""
        while (why := await self._why_no_room()) is not None:
            if self._previous_on_device is not None:
                async with self.replica.lock:
                    await self.replica.forget_previous()
            elif self.replica.fading:  # else the last set has ended while memory was looked at
                self._turn_out_kept()
                await self._wait_until_fewer_fade(why)

    async def _why_no_room(self) -> str | None:
        """Return why the device may hold no more sets of weights now; None when it may.

        A second set beside the live one is not checked here: staging it says what memory is
        missing.
        """
        live_and_fading, most = 1 + len(self.replica.fading), self.rules.most_sets
        there = live_and_fading + (self._previous_on_device is not None)
        if there >= most:
            return f"there is room for {most} sets of weights ([reload] sets)"
        if there == 1 or self.rules.sets != BY_MEMORY:
            return None
        lack = await self.engine.weights.lacks_room(self.progress.checkpoint)
        return lack and f"{lack} ([reload] sets = 'auto')"

    @property
    def _previous_on_device(self) -> Staged | None:
        is_there = self.rules.keep_previous is KeepPrevious.DEVICE
        return self.replica.previous if is_there else None

    def _turn_out_kept(self) -> None:
        """Drop conversations' claims on the oldest weights: new weights need their room."""
        oldest = self.replica.fading[0]
        if turned_out := self.replica.gate.turn_out(oldest.weights):
            oldest.since = time.monotonic()  # until now a conversation wanted them
            number = oldest.generations[-1].number
            log.info("sessions.turned_out", extra={"generation": number, "sessions": turned_out})

    async def _wait_until_fewer_fade(self, why: str) -> None:
        """Wait until a set of older weights has ended, and publish how many requests it answers."""
        # Counted before the wait: its task may begin only after some have ended.
        oldest, now = self.replica.fading[0], len(self.replica.fading)
        self.progress.waits_for_room = True
        async with self.progress.phase(Phase.DRAINING):
            self.progress.publish(Wait(f"{self._describe_wait(oldest)}: {why}", "reconciler"))
            try:
                await self.wanted.run_while_wanted(self._abort_if_too_late(oldest, now))
            finally:
                self.progress.publish(Wait(None, "reconciler"))
        self.progress.waits_for_room = False

    async def _abort_if_too_late(self, oldest: FadingWeights, now: int) -> None:
        """Wait for room until `finish_timeout` has passed since the older weights' last flip.

        Then, as the rules say, their requests are aborted, or the attempt is put off.
        """
        fewer = self.replica.fewer_fade
        left = oldest.since + self.rules.finish_timeout - time.monotonic()
        try:
            async with asyncio.timeout(max(left, 0.0)):
                await self._wait_for_room(now)
        except TimeoutError:
            if not self.rules.abort_on_drain_timeout:
                raise self._timeout_error(oldest) from None
            await self.engine.answers.abort(oldest.weights)
            try:
                await asyncio.wait_for(fewer(now), ABORT_GRACE)
            except TimeoutError:
                raise self._timeout_error(oldest) from None

    async def _wait_for_room(self, now: int) -> None:
        """Wait until fewer sets answer older requests, or others have freed the missing memory."""
        look_again = LOOK_AGAIN if self.rules.sets == BY_MEMORY else None
        while True:
            try:
                return await asyncio.wait_for(self.replica.fewer_fade(now), look_again)
            except TimeoutError:
                if await self._why_no_room() is None:
                    return

    def _timeout_error(self, oldest: FadingWeights) -> DrainTimedOut:
        raised = "finish_timeout" if self.rules.sets == BY_MEMORY else "finish_timeout or sets"
        return DrainTimedOut(
            f"{self._describe_wait(oldest)}, {self.rules.finish_timeout:g} s after another went "
            f"live; raise [reload] {raised}, or set on_drain_timeout = 'abort'"
        )

    def _describe_wait(self, oldest: FadingWeights) -> str:
        count = self.replica.gate.requests_on(oldest.weights)
        requests = "1 request is" if count == 1 else f"{count} requests are"
        return f"{requests} still answered by generation {oldest.generations[-1].number}"
