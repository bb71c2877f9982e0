"""Changes all engines of one attempt, or none: in turn, together, or back; engines may be lost.

The first engine is tried alone: it makes the new weights, proves them and goes live. The others
copy its weights. If the first engine fails with them, no other one gets them.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass, field
from typing import Any

from hotreload.core.attempt_records import Attempts
from hotreload.core.drain import DrainingSwitch
from hotreload.core.engines.replica import GenerationOnTrial, Replicas
from hotreload.core.ledger import PastGeneration
from hotreload.core.overlap import OverlappingSwitch
from hotreload.core.ports import Engine
from hotreload.core.progress import AttemptProgress, WantedCheck
from hotreload.core.switch import MakeWeights, Switch
from hotreload.errors import (
    CheckpointRejected,
    DrainTimedOut,
    EngineLost,
    Misbehaved,
    Superseded,
    TryAgain,
)
from hotreload.threads import run_to_end
from hotreload.types import Generation, Mode, Reason, Staged

log = logging.getLogger("hotreload.rollout")

LOST_CODE = "replica_lost"
"""The reason code of an attempt that cost an engine while others serve."""

SWITCHES: dict[Mode, type[Switch]] = {Mode.OVERLAP: OverlappingSwitch, Mode.DRAIN: DrainingSwitch}

HoldReady = Callable[[Switch, MakeWeights], AbstractAsyncContextManager[Staged]]
"""Hold new weights beside the live ones of one engine, ready to answer."""
GoLive = Callable[[Switch, Staged], Coroutine[Any, Any, None]]
"""Make held weights live on that engine."""


@dataclass(eq=False)
class Rollout:
    """The switches of all engines; one rollout for each attempt."""

    progress: AttemptProgress
    wanted: WantedCheck
    replicas: Replicas[Engine]
    attempts: Attempts
    switches: list[Switch]
    ready: dict[Switch, Staged] = field(default_factory=dict)
    """Engines that hold new weights until all do, in the order in which they got them."""
    changed: list[Switch] = field(default_factory=list)
    """Engines that answer by the new weights, or did until they were lost."""
    trial: Generation | None = None
    """The new weights' generation; live for the daemon once every engine has it."""

    @asynccontextmanager
    async def all_or_none(self) -> AsyncIterator[None]:
        """Hold the engines that serve now: no engine joins or is closed meanwhile.

        If the block fails before all engines have changed, those that have are put back.
        """
        try:
            yield
            if self.progress.generation is None:
                self.wanted.check_refused()
        except EngineLost:
            raise
        except Exception:
            if self.changed and self.progress.generation is None:
                await run_to_end(self._put_back())
            raise
        finally:
            self.replicas.trial = None
        self._conclude()

    # --- the way back after a failure ---------------------------------------------------------

    async def _put_back(self) -> None:
        """Flip the changed engines back to the live generation, the last one first; or lose them.

        No newer wish stops this.
        """
        self.replicas.trial = None
        self.wanted.ask(lambda: True)
        self.progress.rolled_back = True
        tried_on = self.progress.replica
        for switch in reversed(self.changed):
            self.progress.replica = switch.replica.index
            switch.drain_as_long_as_requests_may_run()
            failed = switch.live
            try:
                await self._put_back_in_the_end(switch)
                switch.replica.gate.turn_out(failed)
            except Exception as fault:
                why = f"what was live could not be put back: {type(fault).__name__}: {fault}"
                switch.replica.lose(EngineLost(why))
        self.progress.replica = tried_on

    async def _put_back_in_the_end(self, switch: Switch) -> None:
        """Put an engine back, and wait again for long requests: they are no reason to lose it."""
        while switch.serves:
            try:
                return await self._put_one_back(switch)
            except DrainTimedOut as late:
                log.warning("rollout.not_put_back_yet", extra={"cause": str(late)})

    async def _put_one_back(self, switch: Switch) -> None:
        async with switch.keep_earlier(PastGeneration.of(self.replicas.live)) as kept:
            if kept is not None:
                await self._answer_as_before(switch, kept)
                return
        unchanged = (each for each in self.switches if each not in self.changed and each.serves)
        original = next(unchanged, None)
        if original is None:
            raise TryAgain("no engine that serves has it any more")
        staged = original.live
        async with (
            switch.keep_staged(lambda engine: engine.weights.twin(staged)) as copy,
            switch.lock_engine(),
        ):
            await self._answer_as_before(switch, copy)

    async def _answer_as_before(self, switch: Switch, staged: Staged) -> None:
        old = await switch.flip(staged, probe=False)
        await switch.answer_as(self.replicas.live, staged, old)

    # --- the engines in their order -----------------------------------------------------------

    def begin_with_those_that_keep(self, place: PastGeneration) -> None:
        """Take the engines first that have this generation in memory."""
        self.switches.sort(key=lambda switch: not switch.replica.keeps(place))

    @property
    def first(self) -> Switch:
        """The engine that new weights are tried on."""
        return next(self.each())

    def each(self) -> Iterator[Switch]:
        """Iterate over the engines that serve, each checked when its turn comes."""
        serving = [switch for switch in self.switches if switch.serves]
        if not serving:
            raise EngineLost("no engine serves any more")
        return (switch for switch in serving if switch.serves)

    # --- the name of the new weights ---------------------------------------------------------

    async def secure_number(self, *, at_any_rate: bool) -> None:
        """Reserve the new weights' number before the first engine answers by them."""
        if self.trial is None:
            await self.attempts.secure_number(at_any_rate=at_any_rate)

    def commit(self, switch: Switch, staged: Staged) -> Generation:
        """Record that an engine answers by new weights; after the last engine the daemon does."""
        version = self.progress.version
        self.trial = self.trial or self.attempts.mint(staged, version=version)
        self.changed.append(switch)
        self._conclude()
        if self.progress.generation is None:
            self.replicas.trial = GenerationOnTrial(self.trial, self._reject)
            self.wanted.may_give_up = True  # until the next one changes: this one is put back
        return self.trial

    def end(self) -> None:
        """End the change after all have gone live, and check that none was refused."""
        self.wanted.check_refused()
        self._conclude()

    def _conclude(self) -> None:
        """Record the new generation once every engine that serves has it."""
        if self.trial and self._is_everywhere and self.progress.generation is None:
            checkpoint = self.progress.checkpoint
            self.attempts.record_live(self.trial, checkpoint.path if checkpoint else None)
            self.replicas.live = self.progress.generation = self.trial
            self.replicas.trial = None

    @property
    def _is_everywhere(self) -> bool:
        """True once all engines that serve answer by the new weights."""
        return all(each in self.changed for each in self.switches if each.serves)

    def _reject(self, reason: Reason) -> None:
        self.wanted.refuse(Misbehaved(reason.message, code=reason.code))

    # --- whose weights an engine gets --------------------------------------------------------

    @property
    def _original(self) -> Switch | None:
        """An engine that serves and has the new weights already; None without."""
        return next((each for each in (*self.changed, *self.ready) if each.serves), None)

    def new_weights(self, make: MakeWeights) -> MakeWeights:
        """Return how an engine gets the new weights: a copy from another, or `make`."""
        self.check_original()
        return self.copy() or make

    def copy(self) -> MakeWeights | None:
        """Return how to copy the new weights from another engine; None if no other has them."""
        if (original := self._original) is None:
            return None
        staged = self.ready.get(original) or original.live
        return lambda engine: engine.weights.twin(staged)

    def check_original(self) -> None:
        """Raise TryAgain when all engines that had the new weights are lost."""
        if self._is_orphaned:
            raise TryAgain("no engine that has the new weights serves", code="original_gone")

    @property
    def _is_orphaned(self) -> bool:
        return bool(self.changed or self.ready) and self._original is None

    # --- engines that are lost by it ---------------------------------------------------------

    @contextmanager
    def work_on(self, switch: Switch) -> Iterator[None]:
        """Work on this engine in the block; if it is lost, the others go on without it.

        If no other engine has the new weights, the loss counts against the weights.
        """
        self.progress.replica = switch.replica.index
        try:
            yield
        except Superseded:
            raise
        except Exception as fault:
            if not self._is_lost(switch, fault) and not self._is_orphaned:
                raise
            self.progress.verdict = None  # a fault in a dying engine says nothing of the weights
            if self._original is None:
                raise self._verdict(fault) from fault
            log.warning("rollout.without_one", extra={"replica": switch.replica.index})

    async def put_away(self, switch: Switch, held: AsyncExitStack) -> None:
        """Keep or free the engine's spare weights; a lost engine has none."""
        del self.ready[switch]
        try:
            await held.aclose()
        except Exception as fault:
            if not self._is_lost(switch, fault):
                raise
            log.warning("rollout.without_one", extra={"replica": switch.replica.index})

    def _is_lost(self, switch: Switch, fault: Exception) -> bool:
        """Return True when this fault's engine is lost; EngineLost when it was the last one."""
        if isinstance(fault, EngineLost):
            switch.replica.lose(fault)
        if len(self.replicas) == 0:
            raise EngineLost(str(fault)) from fault
        return not switch.serves

    def _verdict(self, lost: Exception) -> CheckpointRejected | TryAgain:
        """Judge a checkpoint by the loss of its first engine: a second loss refuses it."""
        words = f"the engine it was tried on was lost ({lost}); the others go on as before"
        if self.attempts.ledger.in_a_row(self.progress.revision, LOST_CODE):
            return Misbehaved(f"{words}, for the second time", code="crashed")
        return TryAgain(words, code=LOST_CODE)

    # --- the change on each engine ---------------------------------------------------------

    async def change_in_turn(self, make: MakeWeights, hold: HoldReady, go_live: GoLive) -> None:
        """Change one engine after the other; the first makes the weights, the others copy them."""
        for switch in self.each():
            with self.work_on(switch):  # the others go on without one that is lost
                async with hold(switch, self.new_weights(make)) as staged:
                    self.check_original()
                    await go_live(switch, staged)

    async def change_together(self, make: MakeWeights, hold: HoldReady, go_live: GoLive) -> None:
        """Change all engines, with all of them ready before any goes live."""
        async with AsyncExitStack() as all_held:
            for switch in self.each():
                with self.work_on(switch):
                    async with AsyncExitStack() as own:
                        held = hold(switch, self.new_weights(make))
                        self.ready[switch] = await own.enter_async_context(held)
                        all_held.push_async_callback(self.put_away, switch, own.pop_all())
            await self._all_go_live(go_live)
            self.end()

    async def _all_go_live(self, go_live: GoLive) -> None:
        """Make all ready engines live; each ends its flip, even if another fails."""

        async def go_on(switch: Switch, staged: Staged) -> None:
            with self.work_on(switch):
                await go_live(switch, staged)

        going = (go_on(switch, staged) for switch, staged in self.ready.items())
        for failure in await asyncio.gather(*going, return_exceptions=True):
            if isinstance(failure, BaseException):
                raise failure

    async def take_back(self, place: PastGeneration, flip: GoLive, go_live: GoLive) -> bool:
        """Make kept weights, or a copy, live on each engine; False if no engine keeps them."""
        self.begin_with_those_that_keep(place)
        for switch in self.each():
            with self.work_on(switch):
                if not await self._take_one_back(switch, place, flip, go_live):
                    return False
        return True

    async def _take_one_back(
        self, switch: Switch, place: PastGeneration, flip: GoLive, go_live: GoLive
    ) -> bool:
        await self.secure_number(at_any_rate=True)
        async with switch.keep_earlier(place) as kept:
            if kept is not None:
                await run_to_end(flip(switch, kept))
                return True
        if (copy := self.copy()) is None:
            return False
        async with switch.keep_staged(copy) as staged:
            self.check_original()
            await go_live(switch, staged)
        return True
