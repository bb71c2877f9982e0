"""Changes the weights of a program's engine, by the switches of the daemon."""

import asyncio
import logging
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial

from hotreload.checkpoint.digests import identify
from hotreload.core.attempt_records import Attempts
from hotreload.core.engines.replica import Replica
from hotreload.core.engines.rollout import SWITCHES
from hotreload.core.ledger import PastGeneration
from hotreload.core.orders import ROLLED_BACK, find_last, find_numbered
from hotreload.core.ports import Engine
from hotreload.core.progress import AttemptProgress, WantedCheck
from hotreload.core.rules import KeepPrevious, Rules
from hotreload.core.switch import Switch
from hotreload.errors import Busy, CheckpointRejected, EngineLost, NotServing, Superseded
from hotreload.hot.staged import AsyncStagedWeights, Hold
from hotreload.threads import run_checked, run_to_end
from hotreload.types import Checkpoint, CheckpointFile, Generation, Mode, Revision, Staged

log = logging.getLogger("hotreload.hot")


@dataclass
class WeightChanges:
    """The changes of one engine's weights, one at a time; a further change waits for its turn.

    A rollback does not wait for a load or for older answers: it overrules each earlier change that
    is not live yet.
    """

    replica: Replica[Engine]
    attempts: Attempts
    rules: Rules
    check: Callable[[], object]
    """Raise for a closed or lost engine."""
    check_there: Callable[[], object]
    """Raise while memory is released that a change would need."""
    rollbacks: int = 0
    """The number of rollbacks requested since the start."""

    def __post_init__(self) -> None:
        self._hold: Hold | None = None
        """The memory of the last staged weights; the next are staged once it is free."""
        self._staged: Callable[[], AsyncStagedWeights | None] = lambda: None
        """The last staged weights; None once the program has dropped them."""
        self._loop = asyncio.get_running_loop()
        self._freeing: asyncio.Task[None] | None = None
        self._ledger = self.attempts.ledger
        self._one_at_a_time = asyncio.Lock()
        self._wants: Callable[[], bool] = lambda: True
        """True while the change under way is still wanted."""
        self._is_ending = False
        self._news = asyncio.Event()

    @asynccontextmanager
    async def turn(
        self,
        since: int | None = None,
        *,
        upon: Generation | None = None,
        is_rollback: bool = False,
    ) -> AsyncIterator[None]:
        """Hold the right to change the weights, after the change under way; NotServing once closed.

        Superseded if a rollback is requested meanwhile, or if the rollbacks are more than `since`;
        also if a part of the tensors was staged `upon` weights that are no longer live. One
        that `is_rollback` is not given up for a later rollback.
        """
        asked = self.rollbacks if since is None else since
        async with self._one_at_a_time:
            self.check()
            self.check_there()
            self._wants = lambda: is_rollback or self.rollbacks == asked
            if not self._wants():
                raise Superseded("a rollback was asked for meanwhile")
            live = self.replica.live
            if upon is not None and upon.revision != live.revision:
                raise Superseded(
                    "only a part of the tensors was staged, the others are those of generation "
                    f"{upon.number}, and generation {live.number} is live now: stage the part again"
                )
            with self._name_the_end():
                yield

    @contextmanager
    def _name_the_end(self) -> Iterator[None]:
        """Turn Superseded into NotServing if the engine was closed meanwhile."""
        try:
            yield
        except Superseded as given_up:
            if self._is_ending:
                raise NotServing("the engine was closed meanwhile") from given_up
            raise

    @asynccontextmanager
    async def lock_memory(self) -> AsyncIterator[None]:
        """Lock the engine's memory against other changes; Busy while weights are staged."""
        self.check_free()
        async with self._one_at_a_time:
            self.check()
            self.check_free()
            if self._hold is not None:
                await self._hold.discard()  # the program has dropped them
            self._wants = lambda: True
            with self._name_the_end():
                yield

    async def wait_unless_closed[T](self, work: Awaitable[T]) -> T:
        """Wait for work within `lock_memory`, until the engine is closed."""
        return await run_checked(self._news, self._check_not_ending, work)

    def _check_not_ending(self) -> None:
        if self._is_ending:
            raise Superseded("the engine is being closed")

    async def refill(self, checkpoint: Checkpoint, *, prove: bool) -> Generation:
        """Load checked weights in the place of zeros, which are then freed.

        Call it within `lock_memory`: no request is answered meanwhile, and the weights are proven
        while they are live.
        """
        progress = self.attempts.progress_of(checkpoint.revision)
        progress.checkpoint = checkpoint
        switch = self._new_switch(progress, Mode.DRAIN, KeepPrevious.NONE)
        async with switch.keep_staged(lambda engine: engine.weights.stage(checkpoint)) as staged:
            if checkpoint.memory is not None:
                checkpoint.memory.drop()  # the caller's arrays are the caller's again
            await self._go_live(switch, progress, staged, prove)
        assert progress.generation is not None, "the switch says what they are live as"
        return progress.generation

    async def end(self) -> None:
        """Give up the change under way, and free staged weights; later calls are NotServing."""
        self._is_ending = True
        self._news.set()
        async with self._one_at_a_time:
            if self._hold is not None and not self.replica.gate.is_lost:
                await self._hold.discard()

    async def stage(self, checkpoint: Checkpoint, since: int | None = None) -> AsyncStagedWeights:
        """Load checked weights beside the live ones; Busy while other staged weights wait.

        A part of the tensors is completed by the weights that are live when the load begins.
        """
        async with self.turn(since):
            self.check_free()
            live = self.replica.live if checkpoint.is_part else None
            if live is not None:
                checkpoint = named_upon(checkpoint, live.revision)
            if self._hold is not None:
                await self._hold.discard()  # the program has dropped them
            progress = self.attempts.progress_of(checkpoint.revision)
            progress.checkpoint = checkpoint
            switch = self._new_switch(progress)
            frees = AsyncExitStack()
            new = switch.keep_staged(lambda engine: engine.weights.stage(checkpoint))
            weights = await frees.enter_async_context(new)
            if checkpoint.memory is not None:
                checkpoint.memory.drop()  # the caller's arrays are the caller's again
            staged = AsyncStagedWeights(
                weights,
                hold := Hold(weights, frees),
                prove=switch.prove,
                go_live=partial(self._go_live, switch, progress),
                progress=progress,
                why_unprovable=self._why_unprovable,
                turn=partial(self.turn, upon=live),
                one_at_a_time=self._one_at_a_time,
            )
            self._hold, self._staged = hold, weakref.ref(staged)
            weakref.finalize(staged, self._free_abandoned, hold).atexit = False
            return staged

    @property
    def staged(self) -> AsyncStagedWeights | None:
        """The weights that wait beside the live ones, unless the program has dropped them."""
        staged = self._staged()
        return staged if staged is not None and staged.is_held else None

    def check_free(self) -> None:
        """Busy while staged weights wait: there is memory for one staged set."""
        if (staged := self.staged) is not None:
            raise Busy(
                f"{staged.name} is staged and neither live nor released: flip it first, or free it "
                "by hot.staged.release()"
            )

    def _free_abandoned(self, hold: Hold) -> None:
        """Free weights that the program has dropped; callable from any thread."""
        if hold.weights is not None:
            with suppress(RuntimeError):  # the loop has ended, and the weights with it
                self._loop.call_soon_threadsafe(self._begin_freeing, hold)

    def _begin_freeing(self, hold: Hold) -> None:
        self._freeing = asyncio.create_task(self._free(hold))

    async def _free(self, hold: Hold) -> None:
        with suppress(CheckpointRejected, EngineLost):
            async with self._one_at_a_time:
                await hold.discard()

    @property
    def _why_unprovable(self) -> str | None:
        if self.replica.mode is Mode.OVERLAP:
            return None
        return self.replica.engine.switch.cannot_overlap or "mode = 'drain'"

    # --- the way back ---------------------------------------------------------------------------

    def place_to_go_back_to(self, number: int | None) -> PastGeneration:
        """Return the generation of this number, or the previous one; BadRequest if it is gone."""
        live = self.replica.live
        if number is None:
            return find_last(self._ledger, live, self._where)
        return find_numbered(self._ledger, live, number)

    def place_to_resume(self, number: int | None) -> PastGeneration:
        """Return the generation of this number, or the live one."""
        live = self.replica.live
        if number is None or number == live.number:
            return self._ledger.place_of(live)
        return find_numbered(self._ledger, live, number)

    def _where(self, place: PastGeneration) -> str | None:
        """Return the place of a generation's weights, in words; None if they are gone."""
        if self.replica.keeps(place):
            return "in memory"
        return f"from {place.path}" if place.path else None

    def overrule(self) -> int:
        """Count a rollback and return the count; each change that is not live yet is given up."""
        self.rollbacks += 1
        self._news.set()
        return self.rollbacks

    async def back(self, place: PastGeneration) -> Generation | None:
        """Make an earlier generation live again; None if it is no longer in memory."""
        async with self.turn(is_rollback=True):
            left = self.replica.live.revision
            progress = self.attempts.progress_of(place.revision)
            switch = self._new_switch(progress)
            async with switch.keep_earlier(place) as kept:
                if kept is None:
                    return None
                await run_to_end(self._flip_and_commit(switch, progress, kept))
            self.leave(left)
            return progress.generation

    def leave(self, left: Revision) -> None:
        """Record a rollback from this revision: the next rollback goes further back."""
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
        switch, remember = SWITCHES[mode or self.replica.mode], self.attempts.save
        rules = replace(self.rules, keep_previous=keep or self.rules.keep_previous)
        return switch(self.replica, progress, wanted, remember=remember, rules=rules)

    async def _go_live(
        self,
        switch: Switch,
        progress: AttemptProgress,
        staged: Staged,
        prove: bool,
    ) -> None:
        async with switch.lock_engine():
            flip = self._flip_and_commit(switch, progress, staged, prove=prove)
            await run_to_end(flip)
        if not prove and progress.generation is not None:
            about = {"generation": progress.generation.number, "revision": str(staged.revision)}
            log.info("generation.unproven", extra=about)

    async def _flip_and_commit(
        self,
        switch: Switch,
        progress: AttemptProgress,
        staged: Staged,
        *,
        prove: bool = True,
    ) -> None:
        """Flip, and record the set that answers; run it uncancelled, for the two must agree."""
        old = await switch.flip(staged, probe=prove)
        progress.generation = self.attempts.mint(staged)
        checkpoint = progress.checkpoint
        path = checkpoint.path if checkpoint is not None and checkpoint.memory is None else None
        self.attempts.record_live(progress.generation, path)
        await switch.answer_as(progress.generation, staged, old)


def named_upon(part: Checkpoint, live: Revision) -> Checkpoint:
    """Return the part with an id of its bytes and the live ones: equal ids mean equal weights."""
    files = (
        CheckpointFile("the part", part.bytes, part.revision.id),
        CheckpointFile("what stays", 0, live.id),
    )
    return replace(part, revision=replace(part.revision, id=identify(files)))
