"""One attempt on every engine: the same switch on one after the other, and back if one says no.

The first engine is tried alone: it loads the checkpoint, proves it and goes live. The others copy
its weights and do the same. What fails after that puts back those that had changed, the last one
first. With `together` all are ready before any changes.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

from hotreload.core.attempts import Attempts
from hotreload.core.course import Course, StillWanted
from hotreload.core.ledger import PastGeneration
from hotreload.core.ports import Engine
from hotreload.core.put_back import put_back
from hotreload.core.replica import Replica
from hotreload.core.replicas import OnTrial, Replicas
from hotreload.core.switch import Commit, Make, Ready, Switch
from hotreload.errors import (
    CheckpointRejected,
    EngineLost,
    Superseded,
    TryAgain,
)
from hotreload.threads import uninterrupted
from hotreload.types import Checkpoint, Generation, Noise, Reason, Staged

log = logging.getLogger("hotreload.rollout")

MakeSwitch = Callable[[Replica[Engine], Commit], Switch]
First = Callable[[Switch], Make]
"""How the first engine gets its new weights; the others copy them."""
Work = Awaitable[bool | None]
"""What is done on one engine; False when that was not possible, and nothing has changed."""


class Rollout:
    """Makes other weights live on all engines that serve, or leaves them as they were."""

    def __init__(
        self,
        course: Course,
        wanted: StillWanted,
        replicas: Replicas[Engine],
        *,
        make_switch: MakeSwitch,
        attempts: Attempts,
        together: bool = False,
    ) -> None:
        self._course = course
        self._wanted = wanted
        self._replicas = replicas
        self._attempts = attempts
        self._together = together
        self._switches = [make_switch(replica, self._committed) for replica in replicas]
        self._ready: dict[Switch, Ready] = {}
        """Those that hold new weights until all do, in the order in which they got them."""
        self._changed: list[Switch] = []
        """Those that answer by the new weights, or did until they were lost."""
        self._path: Path | None = None
        self._trial: Generation | None = None
        """What the new weights are called; live for the daemon once every engine has them."""
        self._is_putting_back = False

    @property
    def is_staged(self) -> bool:
        """Whether little is left to do, so that a newer wish waits."""
        return any(switch.is_staged for switch in self._switches)

    async def to(self, checkpoint: Checkpoint) -> None:
        """Make a checked checkpoint live, unless its answers are bad."""
        self._path = checkpoint.path
        carry = self._all_at_once if self._together else self._in_turn
        await self._all_or_none(carry(lambda switch: switch.stage(checkpoint)))

    async def to_noise(self, noise: Noise) -> None:
        """Make a copy of the live weights with noise on it live, whatever it answers.

        It shows that a swap moves the checksums. A probe would forbid that as often as not, and
        what noisy weights answer tells nothing.
        """
        await self._all_or_none(self._in_turn(lambda switch: switch.perturb(noise), asked=False))

    async def back(self, place: PastGeneration) -> bool:
        """Make an earlier generation live again; False when no engine has it in memory any more."""
        self._switches.sort(key=lambda switch: not switch.replica.keeps(place))
        return await self._all_or_none(self._back_in_turn(place))

    async def rehearse(self, checkpoint: Checkpoint) -> None:
        """Do on the first engine all that is done before anything goes live."""
        switch = self._serving[0]
        await self._unless_lost(switch, switch.rehearse(checkpoint))

    # --- the orders --------------------------------------------------------------------------

    async def _in_turn(self, first: First, *, asked: bool = True) -> None:
        for switch in self._serving:
            if switch.serves:
                await self._unless_lost(switch, self._made(switch, first, asked=asked))

    async def _back_in_turn(self, place: PastGeneration) -> bool:
        for switch in self._serving:
            if switch.serves:
                is_back = await self._unless_lost(switch, self._taken_back(switch, place))
                if is_back is False:
                    return False
        return True

    async def _all_at_once(self, first: First) -> None:
        async with AsyncExitStack() as held:
            for switch in self._serving:
                if switch.serves:
                    await self._unless_lost(switch, self._made_ready(switch, first, held))
            going = (self._unless_lost(switch, each.go()) for switch, each in self._ready.items())
            # Each to its end: one that fails must not leave another in between.
            for failure in await asyncio.gather(*going, return_exceptions=True):
                if isinstance(failure, BaseException):
                    raise failure
            self._wanted.check_refused()
            self._conclude()  # one may have been lost after the last that went

    # --- on one engine -----------------------------------------------------------------------

    async def _made(self, switch: Switch, first: First, *, asked: bool) -> None:
        """Make new weights live on it."""
        async with switch.ready(self._new_weights(switch, first), asked=asked) as ready:
            self._check_source()
            await ready.go()

    async def _made_ready(self, switch: Switch, first: First, held: AsyncExitStack) -> None:
        """Hold new weights on it that are proven, for as long as `held`."""
        own = AsyncExitStack()
        new = switch.ready(self._new_weights(switch, first))
        self._ready[switch] = await own.enter_async_context(new)
        held.push_async_callback(self._give_back, switch, own)

    async def _give_back(self, switch: Switch, own: AsyncExitStack) -> None:
        """Have it keep or free what is spare now; nothing is, where it is lost."""
        del self._ready[switch]
        try:
            await own.aclose()
        except Exception as fault:
            if not self._is_lost(switch, fault):
                raise
            log.warning("rollout.without_one", extra={"replica": switch.replica.index})

    async def _taken_back(self, switch: Switch, place: PastGeneration) -> bool:
        if await switch.back(place):
            return True
        source = self._source
        if source is None:
            return False
        await self._made(switch, lambda switch: switch.copy(source.live), asked=False)
        return True

    def _new_weights(self, switch: Switch, first: First) -> Make:
        """How it gets them: as a copy of what another one has, where there is one."""
        self._check_source()
        source = self._source
        if source is None:
            return first(switch)
        ready = self._ready.get(source)
        return switch.copy(ready.weights if ready else source.live)

    @property
    def _serving(self) -> list[Switch]:
        serving = [switch for switch in self._switches if switch.serves]
        if not serving:
            raise EngineLost("no engine serves any more")
        return serving

    # --- engines that are lost by it -----------------------------------------------------------

    @property
    def _source(self) -> Switch | None:
        """One that has the new weights already, and lives with them."""
        return next((each for each in (*self._changed, *self._ready) if each.serves), None)

    def _check_source(self) -> None:
        """TryAgain when all engines that had the new weights are lost: no other one gets them."""
        if self._is_orphaned:
            raise TryAgain("no engine that has the new weights serves", code="original_gone")

    @property
    def _is_orphaned(self) -> bool:
        return bool(self._changed or self._ready) and self._source is None

    async def _unless_lost(self, switch: Switch, work: Work) -> bool | None:
        """Do it on this engine; where it is lost by that, the others go on without it.

        Where no other one has the new weights either, nobody knows that one can live with them.
        """
        try:
            return await work
        except Superseded:
            raise
        except Exception as fault:
            if not self._is_lost(switch, fault) and not self._is_orphaned:
                raise
            self._course.verdict = None  # what breaks in a dying engine says nothing of weights
            if self._source is None:
                raise self._verdict(fault) from fault
            log.warning("rollout.without_one", extra={"replica": switch.replica.index})
            return True

    def _is_lost(self, switch: Switch, fault: Exception) -> bool:
        """Whether the engine that this broke in is lost; EngineLost when it was the last one."""
        if isinstance(fault, EngineLost):
            switch.replica.lose(fault)
        if len(self._replicas) == 0:
            raise EngineLost(str(fault)) from fault
        return not switch.serves

    def _verdict(self, lost: Exception) -> CheckpointRejected | TryAgain:
        """What a loss on the first engine says of the checkpoint: the second time it is refused."""
        words = f"the engine it was tried on was lost ({lost}); the others go on as before"
        if self._attempts.ledger.in_a_row(self._course.revision, LOST_CODE):
            return CheckpointRejected(f"{words}, for the second time", code="crashed")
        return TryAgain(words, code=LOST_CODE)

    # --- all or none -------------------------------------------------------------------------

    async def _all_or_none(self, work: Work) -> bool:
        """Do it on every engine; what breaks it off undoes it on those that have changed."""
        try:
            is_done = await work
            if self._course.generation is None:
                self._wanted.check_refused()
        except EngineLost:
            raise
        except Exception:
            if self._changed and self._course.generation is None:
                await uninterrupted(self._put_back())
            raise
        finally:
            self._replicas.trial = None
        self._conclude()
        return is_done is not False

    def _committed(self, switch: Switch, fresh: Staged) -> Generation:
        """One engine answers by other weights; with the last of them the daemon does."""
        if self._is_putting_back:
            return self._replicas.live
        if self._trial is None:
            self._trial = self._attempts.mint(fresh)
        self._changed.append(switch)
        self._conclude()
        if self._course.generation is None:
            self._replicas.trial = OnTrial(self._trial, self._reject)
            self._wanted.may_give_up = True  # until the next one changes: this one is put back
        return self._trial

    def _reject(self, reason: Reason) -> None:
        self._wanted.refuse(CheckpointRejected(reason.message, code=reason.code))

    def _conclude(self) -> None:
        """Record the new generation once every engine that serves has it."""
        is_everywhere = all(each in self._changed for each in self._switches if each.serves)
        if self._trial is not None and is_everywhere and self._course.generation is None:
            self._attempts.record(self._trial, self._path)
            self._replicas.live = self._course.generation = self._trial
            self._replicas.trial = None

    async def _put_back(self) -> None:
        """Have those that changed answer by what is live again."""
        self._replicas.trial = None
        self._wanted.ask(lambda: True)
        self._is_putting_back = self._course.rolled_back = True
        unchanged = [each for each in self._switches if each not in self._changed]
        await put_back(tuple(self._changed), self._replicas.live, unchanged=unchanged)


LOST_CODE = "replica_lost"
