"""One attempt on every engine: the same switch on one after the other, and back if one says no.

The first engine is tried alone: it loads the checkpoint, proves it and goes live. The others copy
its weights and do the same. What fails after that puts back those that had changed, the last one
first. With `together` all are ready before any changes.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from hotreload.core.attempts import Attempts
from hotreload.core.course import Course, StillWanted
from hotreload.core.ledger import PastGeneration
from hotreload.core.ports import Engine
from hotreload.core.replica import Replica
from hotreload.core.replicas import Replicas
from hotreload.core.switch import Commit, Make, Ready, Switch
from hotreload.errors import CheckpointRejected, EngineLost, TryAgain
from hotreload.threads import uninterrupted
from hotreload.types import Checkpoint, Generation, Noise, Staged

log = logging.getLogger("hotreload.rollout")

MakeSwitch = Callable[[Replica[Engine], Commit], Switch]
First = Callable[[Switch], Make]
"""How the first engine gets its new weights; the others copy them."""
Work = Coroutine[Any, Any, bool]
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
        self._changed: list[Switch] = []
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
        await self._serving[0].rehearse(checkpoint)

    # --- the orders --------------------------------------------------------------------------

    async def _in_turn(self, first: First, *, asked: bool = True) -> bool:
        for switch in self._serving:
            if switch.serves:
                await self._unless_lost(switch, self._made(switch, first, asked=asked))
        return True

    async def _back_in_turn(self, place: PastGeneration) -> bool:
        for switch in self._serving:
            if not await self._unless_lost(switch, self._taken_back(switch, place)):
                return False
        return True

    async def _all_at_once(self, first: First) -> bool:
        async with AsyncExitStack() as held:
            ready: dict[Switch, Ready] = {}
            for switch in self._serving:
                one = next(iter(ready.values()), None)
                make = switch.copy(one.weights) if one else first(switch)
                await self._unless_lost(switch, _held(held, switch, make, ready))
            going = (self._unless_lost(switch, _went(each)) for switch, each in ready.items())
            # Each to its end: one that fails must not leave another in between.
            for failure in await asyncio.gather(*going, return_exceptions=True):
                if isinstance(failure, BaseException):
                    raise failure
        return True

    # --- on one engine -----------------------------------------------------------------------

    async def _made(self, switch: Switch, first: First, *, asked: bool) -> bool:
        """Make new weights live on it: a copy of what another one has, where there is one."""
        make = switch.copy(self._source.live) if self._source else first(switch)
        async with switch.ready(make, asked=asked) as ready:
            await ready.go()
        return True

    async def _taken_back(self, switch: Switch, place: PastGeneration) -> bool:
        if await switch.back(place):
            return True
        if self._source is None:
            return False
        return await self._made(switch, lambda switch: switch.copy(switch.live), asked=False)

    @property
    def _serving(self) -> list[Switch]:
        serving = [switch for switch in self._switches if switch.serves]
        if not serving:
            raise EngineLost("no engine serves any more")
        return serving

    @property
    def _source(self) -> Switch | None:
        """One that has the new weights already."""
        return next((switch for switch in self._changed if switch.serves), None)

    async def _unless_lost(self, switch: Switch, work: Work) -> bool:
        """Do it on this engine; where it is lost by that, the others go on without it."""
        try:
            return await work
        except EngineLost as lost:
            switch.replica.lose(lost)
            if len(self._replicas) == 0:
                raise
            if not self._changed:
                raise self._verdict(lost) from lost
            log.warning("rollout.without_one", extra={"replica": switch.replica.index})
            return True

    def _verdict(self, lost: EngineLost) -> CheckpointRejected | TryAgain:
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
        except EngineLost:
            raise
        except Exception:
            if self._changed and self._course.generation is None:
                await uninterrupted(self._put_back())
            raise
        self._conclude()
        return is_done

    def _committed(self, switch: Switch, fresh: Staged) -> Generation:
        """One engine answers by other weights; with the last of them the daemon does."""
        if self._is_putting_back:
            return self._replicas.live
        if self._trial is None:
            self._trial = self._attempts.mint(fresh)
        self._changed.append(switch)
        self._conclude()
        return self._trial

    def _conclude(self) -> None:
        """Record the new generation once every engine that serves has it."""
        is_everywhere = all(each in self._changed for each in self._switches if each.serves)
        if self._trial is not None and is_everywhere and self._course.generation is None:
            self._attempts.record(self._trial, self._path)
            self._replicas.live = self._course.generation = self._trial

    async def _put_back(self) -> None:
        """Have those that changed answer by what is live; one that cannot is lost."""
        self._wanted.ask(lambda: True)
        self._is_putting_back = self._course.rolled_back = True
        for switch in reversed(tuple(self._changed)):
            try:
                await self._restore(switch)
            except Exception as fault:
                why = f"what was live could not be put back: {type(fault).__name__}: {fault}"
                switch.replica.lose(EngineLost(why))

    async def _restore(self, switch: Switch) -> None:
        live = self._replicas.live
        place = PastGeneration(live.number, live.revision, live.fingerprint, "", live.since)
        if not switch.serves or await switch.back(place, asked=False):
            return
        unchanged = next(each for each in self._serving if each not in self._changed)
        async with switch.ready(switch.copy(unchanged.live), asked=False) as ready:
            await ready.go()


LOST_CODE = "replica_lost"


async def _held(
    stack: AsyncExitStack, switch: Switch, make: Make, into: dict[Switch, Ready]
) -> bool:
    into[switch] = await stack.enter_async_context(switch.ready(make))
    return True


async def _went(ready: Ready) -> bool:
    await ready.go()
    return True
