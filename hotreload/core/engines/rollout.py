"""All engines of one attempt: they change, all or none, in their order; some are lost by it.

The first engine is tried alone: it makes the new weights, proves them and goes live. The others
copy what it has. Where it cannot live with them no other one gets them.
"""

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

from hotreload.core.attempt_records import Attempts
from hotreload.core.drain import DrainingSwitch
from hotreload.core.engines.replica import GenerationOnTrial, Replicas
from hotreload.core.engines.undo import put_back
from hotreload.core.ledger import PastGeneration
from hotreload.core.overlap import OverlappingSwitch
from hotreload.core.ports import Engine
from hotreload.core.progress import AttemptProgress, WantedCheck
from hotreload.core.rules import Rules
from hotreload.core.switch import MakeWeights, Switch
from hotreload.errors import CheckpointRejected, EngineLost, Misbehaved, Superseded, TryAgain
from hotreload.threads import uninterrupted
from hotreload.types import Generation, Mode, Reason, Staged

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
        wanted: WantedCheck,
        replicas: Replicas[Engine],
        *,
        attempts: Attempts,
        rules: Rules,
    ) -> None:
        self._progress = progress
        self._wanted = wanted
        self._replicas = replicas
        self._attempts = attempts
        self._switches = [
            SWITCHES[each.mode](each, progress, wanted, remember=attempts.save, rules=rules)
            for each in replicas
        ]
        self.ready: dict[Switch, Staged] = {}
        """Engines that hold new weights until all do, in the order in which they got them."""
        self.changed: list[Switch] = []
        """Engines that answer by the new weights, or did until they were lost."""
        self._trial: Generation | None = None
        """The name of the new weights; live for the daemon once every engine has them."""

    @asynccontextmanager
    async def all_or_none(self) -> AsyncIterator[None]:
        """Have the engines that serve now to oneself: none joins, and none is closed meanwhile.

        What breaks off before all of them have changed puts back those that have.
        """
        try:
            yield
            if self._progress.generation is None:
                self._wanted.check_refused()
        except EngineLost:
            raise
        except Exception:
            if self.changed and self._progress.generation is None:
                await uninterrupted(self._put_back())
            raise
        finally:
            self._replicas.trial = None
        self._conclude()

    async def _put_back(self) -> None:
        """Have those that changed answer by what is live again; no wish ends that."""
        self._replicas.trial = None
        self._wanted.ask(lambda: True)
        self._progress.rolled_back = True
        unchanged = [each for each in self._switches if each not in self.changed]
        await put_back(self.changed, unchanged, self._replicas.live, self._progress)

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

    # --- the name of the new weights ---------------------------------------------------------

    async def secure_number(self, *, at_any_rate: bool) -> None:
        """Before the first engine answers by new weights, have their number survive a death."""
        if self._trial is None:
            await self._attempts.secure_number(at_any_rate=at_any_rate)

    def commit(self, switch: Switch, staged: Staged) -> Generation:
        """Note that an engine answers by new weights; with the last of them the daemon does."""
        version = self._progress.version
        self._trial = self._trial or self._attempts.mint(staged, version=version)
        self.changed.append(switch)
        self._conclude()
        if self._progress.generation is None:
            self._replicas.trial = GenerationOnTrial(self._trial, self._reject)
            self._wanted.may_give_up = True  # until the next one changes: this one is put back
        return self._trial

    def end(self) -> None:
        """All have gone live; one may have been lost after the last that went."""
        self._wanted.check_refused()
        self._conclude()

    def _conclude(self) -> None:
        """Record the new generation once every engine that serves has it."""
        if self._trial and self._is_everywhere and self._progress.generation is None:
            checkpoint = self._progress.checkpoint
            self._attempts.record_live(self._trial, checkpoint.path if checkpoint else None)
            self._replicas.live = self._progress.generation = self._trial
            self._replicas.trial = None

    @property
    def _is_everywhere(self) -> bool:
        """True once all that serve answer by the new weights."""
        return all(each in self.changed for each in self._switches if each.serves)

    def _reject(self, reason: Reason) -> None:
        self._wanted.refuse(Misbehaved(reason.message, code=reason.code))

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
    def work_on(self, switch: Switch) -> Iterator[None]:
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
        if self._attempts.ledger.in_a_row(self._progress.revision, LOST_CODE):
            return Misbehaved(f"{words}, for the second time", code="crashed")
        return TryAgain(words, code=LOST_CODE)
