"""Changes the weights of an engine that a program holds, by the switches of the daemon."""

import asyncio
import time
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

from hotreload.core.attempts import Attempts
from hotreload.core.course import Course, StillWanted
from hotreload.core.ledger import PastGeneration
from hotreload.core.orders import ROLLED_BACK
from hotreload.core.ports import Engine
from hotreload.core.reconcile import SWITCHES
from hotreload.core.replica import Replica
from hotreload.core.rules import Rules
from hotreload.core.switch import Switch
from hotreload.errors import (
    BadRequest,
    Busy,
    CheckpointRejected,
    EngineLost,
    NothingOfThatName,
    NotServing,
    Superseded,
)
from hotreload.hot.staged import AsyncStagedWeights, Hold
from hotreload.types import Checkpoint, Generation, Mode, Revision, Staged


class Switching:
    """Belongs to one engine. One change at a time: who comes meanwhile waits, but for a rollback.

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
    ) -> None:
        """`check` raises when the engine is closed, or lost."""
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
        """How many were ever asked for."""
        self._check = check
        self._one_at_a_time = asyncio.Lock()
        self._wants: Callable[[], bool] = lambda: True
        """Whether what is under way is still wanted."""
        self._is_ending = False
        self._news = asyncio.Event()

    def turn(self, since: int | None = None) -> AbstractAsyncContextManager[None]:
        """Be the one who changes something, once nobody else does; NotServing when it has ended.

        Superseded when a rollback is asked for meanwhile; or since there had been so many.
        """
        asked = self.rollbacks if since is None else since
        return self._turn(lambda: self.rollbacks == asked)

    @asynccontextmanager
    async def _turn(self, wants: Callable[[], bool]) -> AsyncIterator[None]:
        async with self._one_at_a_time:
            self._check()
            if not wants():
                raise Superseded("a rollback was asked for meanwhile")
            self._wants = wants
            try:
                yield
            except Superseded as given_up:
                if self._is_ending:
                    raise NotServing("the engine was closed meanwhile") from given_up
                raise

    async def end(self) -> None:
        """Give up what is under way, and free what is staged; whoever comes finds it closed."""
        self._is_ending = True
        self._news.set()
        async with self._one_at_a_time:
            if self._hold is not None and not self._replica.gate.is_lost:
                await self._hold.discard()

    async def stage(self, checkpoint: Checkpoint, since: int | None = None) -> AsyncStagedWeights:
        """Load checked weights beside the live ones; Busy while others wait there."""
        async with self.turn(since):
            self.check_free()
            if self._hold is not None:
                await self._hold.discard()  # nobody has them any more
            path = checkpoint.path if checkpoint.memory is None else None
            course = self._attempts.course(checkpoint.revision)
            switch = self._new_switch(course, path)
            frees = AsyncExitStack()
            ready = await frees.enter_async_context(switch.held(switch.stage(checkpoint)))
            if checkpoint.memory is not None:
                checkpoint.memory.drop()  # the caller's arrays are the caller's again
            staged = AsyncStagedWeights(
                ready,
                hold := Hold(ready, frees),
                course=course,
                why_unprovable=self._why_unprovable,
                turn=self.turn,
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
        if hold.ready is not None:
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
        if number == live.number:
            raise BadRequest(f"generation {number} is live already")
        if number is not None:
            place = self._ledger.past(number)
            known = ", ".join(str(place.number) for place in self._ledger.generations)
            if place is None:
                raise NothingOfThatName(f"generation {number} is not remembered; known are {known}")
            return place
        older = [place for place in self._ledger.generations if self._is_before(place)]
        if not older:
            raise BadRequest(f"there is nothing before generation {live.number} to go back to")
        if self._where(before := older[-1]) is None:
            raise BadRequest(
                f"generation {before.number} ({before.revision.label}), the one before, is no "
                f"longer in memory and has no files; {self._what_there_is(older)}"
            )
        return before

    def _what_there_is(self, older: Sequence[PastGeneration]) -> str:
        found = [(place, where) for place in older if (where := self._where(place)) is not None]
        if not found:
            return "nor is there any other: stage its weights again"
        listed = ", ".join(f"{each.number} ({each.revision.label}, {at})" for each, at in found)
        return f"there is still {listed}: name it, or stage the weights you want"

    def _where(self, place: PastGeneration) -> str | None:
        """Where a generation can be had from; None when it cannot."""
        if self._replica.keeps(place):
            return "in memory"
        return f"from {place.path}" if place.path else None

    def _is_before(self, place: PastGeneration) -> bool:
        live, refused = self._replica.live, self._ledger.refused
        is_other = place.fingerprint != live.fingerprint and place.revision.id not in refused
        return place.number < live.number and is_other

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
        course = self._attempts.course(place.revision)
        if not await self._new_switch(course, None).back(place):
            return None
        self.leave(left)
        assert course.generation is not None, "the switch says what they are live as"
        return course.generation

    def leave(self, left: Revision) -> None:
        """Remember that it was rolled back from: another rollback goes further back."""
        self._ledger.refuse(left, ROLLED_BACK, time.time())

    def _new_switch(self, course: Course, path: Path | None) -> Switch:
        def commit(switch: Switch, fresh: Staged) -> Generation:
            course.generation = self._attempts.mint(fresh)
            self._attempts.record(course.generation, path)
            return course.generation

        wanted = StillWanted(course, self._news)
        wanted.ask(lambda: self._wants() and not self._is_ending)
        return SWITCHES[self._replica.mode](
            self._replica,
            course,
            wanted,
            commit=commit,
            remember=self._attempts.save,
            rules=self._rules,
        )
