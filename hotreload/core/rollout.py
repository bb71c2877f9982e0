"""The engines of one attempt, in their order, and what becomes of those that are lost by it.

The first engine is tried alone: it makes the new weights, proves them and goes live. The others
copy what it has. Where it cannot live with them no other one gets them.
"""

import logging
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager

from hotreload.core.drain import DrainingSwitch
from hotreload.core.ledger import PastGeneration
from hotreload.core.overlap import OverlappingSwitch
from hotreload.core.ports import Engine
from hotreload.core.progress import AttemptProgress, StillWanted
from hotreload.core.recording import Attempts
from hotreload.core.replica import Replicas
from hotreload.core.rules import Rules
from hotreload.core.switch import MakeWeights, Switch
from hotreload.errors import CheckpointRejected, DrainTimedOut, EngineLost, Superseded, TryAgain
from hotreload.types import Generation, Mode, Staged

log = logging.getLogger("hotreload.rollout")

LOST_CODE = "replica_lost"
"""The reason of an attempt that cost an engine while others serve."""

SWITCHES: dict[Mode, type[Switch]] = {
    Mode.OVERLAP: OverlappingSwitch,
    Mode.DRAIN: DrainingSwitch,
}


class Rollout:
    """Each engine has a `Switch`; made anew for each attempt."""

    def __init__(
        self,
        progress: AttemptProgress,
        wanted: StillWanted,
        replicas: Replicas[Engine],
        *,
        attempts: Attempts,
        rules: Rules,
    ) -> None:
        self._progress = progress
        self._replicas = replicas
        self._ledger = attempts.ledger
        self._switches = [
            SWITCHES[each.mode](each, progress, wanted, remember=attempts.save, rules=rules)
            for each in replicas
        ]
        self.ready: dict[Switch, Staged] = {}
        """Engines that hold new weights until all do, in the order in which they got them."""
        self.changed: list[Switch] = []
        """Engines that answer by the new weights, or did until they were lost."""
        self.trial: Generation | None = None
        """The name of the new weights; live for the daemon once every engine has them."""

    def begin_with_those_that_keep(self, place: PastGeneration) -> None:
        """Put those first that have this generation in memory."""
        self._switches.sort(key=lambda switch: not switch.replica.keeps(place))

    @property
    def first(self) -> Switch:
        """The one that new weights are tried on."""
        return next(self.each())

    def each(self) -> Iterator[Switch]:
        """Go through the engines that serve, each when its turn comes."""
        serving = [switch for switch in self._switches if switch.serves]
        if not serving:
            raise EngineLost("no engine serves any more")
        return (switch for switch in serving if switch.serves)

    @property
    def is_everywhere(self) -> bool:
        """True once all that serve answer by the new weights."""
        return all(each in self.changed for each in self._switches if each.serves)

    # --- whose weights an engine gets --------------------------------------------------------

    @property
    def _original(self) -> Switch | None:
        """One that has the new weights already, and lives with them."""
        return next((each for each in (*self.changed, *self.ready) if each.serves), None)

    def new_weights(self, make: MakeWeights) -> MakeWeights:
        """Have an engine copy what another one has, or make them where none has."""
        self.check_original()
        return self.copy() or make

    def copy(self) -> MakeWeights | None:
        """Have an engine copy what another one has; None where none has it."""
        if (original := self._original) is None:
            return None
        staged = self.ready.get(original) or original.live
        return lambda engine: engine.twin(staged)

    def check_original(self) -> None:
        """TryAgain when all engines that had the new weights are lost: no other one gets them."""
        if self._is_orphaned:
            raise TryAgain("no engine that has the new weights serves", code="original_gone")

    @property
    def _is_orphaned(self) -> bool:
        return bool(self.changed or self.ready) and self._original is None

    # --- engines that are lost by it ---------------------------------------------------------

    @contextmanager
    def on(self, switch: Switch) -> Iterator[None]:
        """Work on this engine; where it is lost by that, the others go on without it.

        Where no other one has the new weights either, nobody knows that one can live with them.
        """
        self._progress.replica = switch.replica.index
        try:
            yield
        except Superseded:
            raise
        except Exception as fault:
            if not self._is_lost(switch, fault) and not self._is_orphaned:
                raise
            self._progress.verdict = None  # what breaks in a dying engine says nothing of weights
            if self._original is None:
                raise self._verdict(fault) from fault
            log.warning("rollout.without_one", extra={"replica": switch.replica.index})

    async def put_away(self, switch: Switch, held: AsyncExitStack) -> None:
        """Have it keep or free what is spare now; nothing is, where it is lost."""
        del self.ready[switch]
        try:
            await held.aclose()
        except Exception as fault:
            if not self._is_lost(switch, fault):
                raise
            log.warning("rollout.without_one", extra={"replica": switch.replica.index})

    def _is_lost(self, switch: Switch, fault: Exception) -> bool:
        """True when the engine that this broke in is lost; EngineLost when it was the last one."""
        if isinstance(fault, EngineLost):
            switch.replica.lose(fault)
        if len(self._replicas) == 0:
            raise EngineLost(str(fault)) from fault
        return not switch.serves

    def _verdict(self, lost: Exception) -> CheckpointRejected | TryAgain:
        """Judge a checkpoint by the loss of the engine that it was tried on: twice refuses it."""
        words = f"the engine it was tried on was lost ({lost}); the others go on as before"
        if self._ledger.in_a_row(self._progress.revision, LOST_CODE):
            return CheckpointRejected(f"{words}, for the second time", code="crashed")
        return TryAgain(words, code=LOST_CODE)

    # --- the way back of those that have changed ---------------------------------------------

    async def put_back(self, live: Generation) -> None:
        """Have them answer by what is live, the last one first, unproven; or count them as lost."""
        unchanged = [each for each in self._switches if each not in self.changed]
        tried_on = self._progress.replica
        for switch in reversed(self.changed):
            self._progress.replica = switch.replica.index
            switch.drain_as_long_as_requests_may_run()
            failed = switch.live
            try:
                await _put_back_in_the_end(switch, live, unchanged)
                switch.replica.gate.turn_out(failed)
            except Exception as fault:
                why = f"what was live could not be put back: {type(fault).__name__}: {fault}"
                switch.replica.lose(EngineLost(why))
        self._progress.replica = tried_on


async def _put_back_in_the_end(switch: Switch, live: Generation, unchanged: list[Switch]) -> None:
    """A request that runs long is no reason to lose an engine: it is waited for again."""
    while switch.serves:
        try:
            return await _put_one_back(switch, live, unchanged)
        except DrainTimedOut as late:
            log.warning("rollout.not_put_back_yet", extra={"cause": str(late)})


async def _put_one_back(switch: Switch, live: Generation, unchanged: list[Switch]) -> None:
    place = PastGeneration(live.number, live.revision, live.fingerprint, "", live.since)
    async with switch.taken_back(place) as kept:
        if kept is not None:
            await _answer_by(switch, kept, live)
            return
    original = next((each for each in unchanged if each.serves), None)
    if original is None:
        raise TryAgain("no engine that serves has it any more")
    staged = original.live
    async with switch.staged(lambda engine: engine.twin(staged)) as copy, switch.alone():
        await _answer_by(switch, copy, live)


async def _answer_by(switch: Switch, staged: Staged, live: Generation) -> None:
    old = await switch.flip(staged, probe=False)
    await switch.answer_as(live, staged, old)
