"""Changes the weights of an engine that a program holds, by the switches of the daemon."""

import asyncio
import logging
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from dataclasses import replace
from functools import partial
from pathlib import Path

from hotreload.core import rollback_target
from hotreload.core.attempt_records import Attempts
from hotreload.core.engines.replica import Replica
from hotreload.core.engines.rollout import SWITCHES
from hotreload.core.ledger import PastGeneration
from hotreload.core.orders import ROLLED_BACK
from hotreload.core.ports import Engine
from hotreload.core.progress import AttemptProgress, WantedCheck
from hotreload.core.rules import KeepPrevious, Rules
from hotreload.core.switch import Switch
from hotreload.errors import (
    Busy,
    CheckpointRejected,
    EngineLost,
    NotServing,
    Superseded,
)
from hotreload.hot.given_weights import named_upon
from hotreload.hot.staged import AsyncStagedWeights, Hold
from hotreload.threads import run_checked, run_to_end
from hotreload.types import Checkpoint, Generation, Mode, Revision, Staged

log = logging.getLogger("hotreload.hot")


class Switching:
    """Belongs to one engine. One change at a time: others wait meanwhile, but for a rollback.

    That overrules what was asked for before it and is not live yet: it does not wait for a load, or
    for older answers.
    """

    def __init__(
        self,
        replica: Replica[Engine],
        attempts: Attempts,
        rules: Rules,
        *,
        check: Callable[[], object],
        check_there: Callable[[], object],
    ) -> None:
        """`check` raises when the engine is closed, or lost.

        `check_there` does while memory is given back that a change would need.
        """
        self._hold: Hold | None = None
        """The room of the last that were staged; others can be once it is free."""
        self._staged: Callable[[], AsyncStagedWeights | None] = lambda: None
        """The last that were staged, as long as anybody has them."""
        self._loop = asyncio.get_running_loop()
        self._freeing: asyncio.Task[None] | None = None
        self._replica = replica
        self._attempts = attempts
        self._ledger = attempts.ledger
        self._rules = rules
        self.rollbacks = 0
        """Count of those that were ever asked for."""
        self._check = check
        self._check_there = check_there
        self._one_at_a_time = asyncio.Lock()
        self._wants: Callable[[], bool] = lambda: True
        """True while what is under way is still wanted."""
        self._is_ending = False
        self._news = asyncio.Event()

    def turn(
        self, since: int | None = None, *, upon: Generation | None = None
    ) -> AbstractAsyncContextManager[None]:
        """Be the only one to change something, once no other does; NotServing when it has ended.

        Superseded when a rollback is asked for meanwhile, or since there had been so many; or when
        other weights are live than those `upon` which a part of the tensors was staged.
        """
        asked = self.rollbacks if since is None else since
        return self._turn(lambda: self.rollbacks == asked, upon)

    @asynccontextmanager
    async def _turn(
        self, wants: Callable[[], bool], upon: Generation | None = None
    ) -> AsyncIterator[None]:
        async with self._one_at_a_time:
            self._check()
            self._check_there()
            if not wants():
                raise Superseded("a rollback was asked for meanwhile")
            self._check_still_live(upon)
            self._wants = wants
            with self._telling_of_the_end():
                yield

    @contextmanager
    def _telling_of_the_end(self) -> Iterator[None]:
        """Say of what was given up because the engine is closed that this is why."""
        try:
            yield
        except Superseded as given_up:
            if self._is_ending:
                raise NotServing("the engine was closed meanwhile") from given_up
            raise

    def _check_still_live(self, upon: Generation | None) -> None:
        live = self._replica.live
        if upon is not None and upon.revision != live.revision:
            raise Superseded(
                "only a part of the tensors was staged, the others are those of generation "
                f"{upon.number}, and generation {live.number} is live now: stage the part again"
            )

    @asynccontextmanager
    async def undisturbed(self) -> AsyncIterator[None]:
        """Be the only one to do something to the engine's memory; Busy while weights are staged."""
        self.check_free()
        async with self._one_at_a_time:
            self._check()
            self.check_free()
            if self._hold is not None:
                await self._hold.discard()  # nobody has them any more
            self._wants = lambda: True
            with self._telling_of_the_end():
                yield

    async def until_ended[T](self, work: Awaitable[T]) -> T:
        """Wait for work within `undisturbed`, until the engine is closed."""
        return await run_checked(self._news, self._check_not_ending, work)

    def _check_not_ending(self) -> None:
        if self._is_ending:
            raise Superseded("the engine is being closed")

    async def refill(self, checkpoint: Checkpoint, *, prove: bool) -> Generation:
        """Load checked weights and put them in the place of zeros, which are freed then.

        Within `undisturbed`: nobody is answered meanwhile, so they are proven while they are live.
        """
        progress = self._attempts.progress_of(checkpoint.revision)
        progress.checkpoint = checkpoint
        switch = self._new_switch(progress, Mode.DRAIN, KeepPrevious.NONE)
        path = checkpoint.path if checkpoint.memory is None else None
        async with switch.hold_new(lambda engine: engine.stage(checkpoint)) as staged:
            if checkpoint.memory is not None:
                checkpoint.memory.drop()  # the caller's arrays are the caller's again
            await self._go_live(switch, progress, path, staged, prove)
        assert progress.generation is not None, "the switch says what they are live as"
        return progress.generation

    async def end(self) -> None:
        """Give up what is under way, and free what is staged; later calls find it closed."""
        self._is_ending = True
        self._news.set()
        async with self._one_at_a_time:
            if self._hold is not None and not self._replica.gate.is_lost:
                await self._hold.discard()

    async def stage(self, checkpoint: Checkpoint, since: int | None = None) -> AsyncStagedWeights:
        """Load checked weights beside the live ones; Busy while others wait there.

        What a part of the tensors leaves out is taken of those that are live when this begins.
        """
        async with self.turn(since):
            self.check_free()
            live = self._replica.live if checkpoint.is_part else None
            if live is not None:
                checkpoint = named_upon(checkpoint, live.revision)
            if self._hold is not None:
                await self._hold.discard()  # nobody has them any more
            path = checkpoint.path if checkpoint.memory is None else None
            progress = self._attempts.progress_of(checkpoint.revision)
            progress.checkpoint = checkpoint
            switch = self._new_switch(progress)
            frees = AsyncExitStack()
            new = switch.hold_new(lambda engine: engine.stage(checkpoint))
            weights = await frees.enter_async_context(new)
            if checkpoint.memory is not None:
                checkpoint.memory.drop()  # the caller's arrays are the caller's again
            staged = AsyncStagedWeights(
                weights,
                hold := Hold(weights, frees),
                prove=switch.prove,
                go_live=partial(self._go_live, switch, progress, path),
                progress=progress,
                why_unprovable=self._why_unprovable,
                turn=partial(self.turn, upon=live),
                one_at_a_time=self._one_at_a_time,
            )
            self._hold, self._staged = hold, weakref.ref(staged)
            weakref.finalize(staged, self._abandoned, hold).atexit = False
            return staged

    @property
    def staged(self) -> AsyncStagedWeights | None:
        """The weights that wait beside the live ones, if any that somebody has."""
        staged = self._staged()
        return staged if staged is not None and staged.is_held else None

    def check_free(self) -> None:
        """Busy while staged weights wait: there is room for them alone."""
        if (staged := self.staged) is not None:
            raise Busy(
                f"{staged.name} is staged and neither live nor released: flip it first, or free it "
                "by hot.staged.release()"
            )

    def _abandoned(self, hold: Hold) -> None:
        """Free weights that nobody has any more; in whatever thread the last one dropped them."""
        if hold.weights is not None:
            with suppress(RuntimeError):  # the loop has ended, and they with it
                self._loop.call_soon_threadsafe(self._begin_freeing, hold)

    def _begin_freeing(self, hold: Hold) -> None:
        self._freeing = asyncio.create_task(self._free(hold))

    async def _free(self, hold: Hold) -> None:
        with suppress(CheckpointRejected, EngineLost):
            async with self._one_at_a_time:
                await hold.discard()

    @property
    def _why_unprovable(self) -> str | None:
        if self._replica.mode is Mode.OVERLAP:
            return None
        return self._replica.engine.cannot_overlap or "mode = 'drain'"

    # --- the way back ---------------------------------------------------------------------------

    def place_to_go_back_to(self, number: int | None) -> PastGeneration:
        """The generation of this number, or the one before; BadRequest when it cannot be had."""
        live = self._replica.live
        if number is None:
            return rollback_target.find_last(self._ledger, live, self._where)
        return rollback_target.find_numbered(self._ledger, live, number)

    def place_to_resume(self, number: int | None) -> PastGeneration:
        """The generation of this number, or the live one."""
        live = self._replica.live
        if number is None or number == live.number:
            return self._ledger.place_of(live)
        return rollback_target.find_numbered(self._ledger, live, number)

    def _where(self, place: PastGeneration) -> str | None:
        """Say where a generation can be had from; None when it cannot."""
        if self._replica.keeps(place):
            return "in memory"
        return f"from {place.path}" if place.path else None

    def overrule(self) -> int:
        """Give up for a rollback what is not live yet; return how many were asked for with it."""
        self.rollbacks += 1
        self._news.set()
        return self.rollbacks

    async def back(self, place: PastGeneration) -> Generation | None:
        """Answer by an earlier generation again; None when it is not in memory any more."""
        async with self._turn(lambda: True):
            return await self._back(place)

    async def _back(self, place: PastGeneration) -> Generation | None:
        left = self._replica.live.revision
        progress = self._attempts.progress_of(place.revision)
        switch = self._new_switch(progress)
        async with switch.hold_earlier(place) as kept:
            if kept is None:
                return None
            await run_to_end(self._flip_and_commit(switch, progress, None, kept))
        self.leave(left)
        return progress.generation

    def leave(self, left: Revision) -> None:
        """Remember that it was rolled back from: another rollback goes further back."""
        self._ledger.refuse(left, ROLLED_BACK, time.time())

    # --- the steps of a switch ------------------------------------------------------------------

    def _new_switch(
        self,
        progress: AttemptProgress,
        mode: Mode | None = None,
        keep: KeepPrevious | None = None,
    ) -> Switch:
        wanted = WantedCheck(progress, self._news)
        wanted.ask(lambda: self._wants() and not self._is_ending)
        switch, remember = SWITCHES[mode or self._replica.mode], self._attempts.save
        rules = replace(self._rules, keep_previous=keep or self._rules.keep_previous)
        return switch(self._replica, progress, wanted, remember=remember, rules=rules)

    async def _go_live(
        self,
        switch: Switch,
        progress: AttemptProgress,
        path: Path | None,
        staged: Staged,
        prove: bool,
    ) -> None:
        async with switch.lock_engine():
            flip = self._flip_and_commit(switch, progress, path, staged, prove=prove)
            await run_to_end(flip)
        if not prove and progress.generation is not None:
            about = {"generation": progress.generation.number, "revision": str(staged.revision)}
            log.info("generation.unproven", extra=about)

    async def _flip_and_commit(
        self,
        switch: Switch,
        progress: AttemptProgress,
        path: Path | None,
        staged: Staged,
        *,
        prove: bool = True,
    ) -> None:
        """No cancel interrupts this: at its end one set of weights answers, and is recorded."""
        old = await switch.flip(staged, probe=prove)
        progress.generation = self._attempts.mint(staged)
        self._attempts.record_live(progress.generation, path)
        await switch.answer_as(progress.generation, staged, old)
