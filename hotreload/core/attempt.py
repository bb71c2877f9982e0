"""One attempt, top to bottom: prepare; on each engine stage, prove, flip and commit; or put back.

Each is made within `Attempts.recorded`: it is in the ledger as begun before anything is done, and
how it ended is judged, recorded and published there. A start does so too, with an engine that is
made in the place of the flip (`first_switch`). The steps on one engine have two orders (`overlap`,
`drain`); what becomes of engines that are lost meanwhile `Rollout` knows.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from hotreload.core.judge import Judge, watched_by
from hotreload.core.ledger import PastGeneration
from hotreload.core.ports import Engine
from hotreload.core.probing import not_probed
from hotreload.core.progress import AttemptProgress, StillWanted
from hotreload.core.recording import Attempts
from hotreload.core.replica import OnTrial, Replicas
from hotreload.core.rollout import Rollout
from hotreload.core.rules import Rules
from hotreload.core.switch import MakeWeights, Switch
from hotreload.errors import CheckpointRejected, EngineLost
from hotreload.threads import uninterrupted, wait_for_left_behind
from hotreload.types import Checkpoint, Generation, Noise, Phase, Reason, Revision, Staged

Fetch = Callable[[Revision], Awaitable[Path]]
"""Bring the files of a revision to this machine, and say where they lie."""
Validate = Callable[[Revision, Path], Awaitable[Checkpoint]]
"""Run every check that needs no engine on the files in that folder."""


async def prepare(
    progress: AttemptProgress,
    wanted: StillWanted,
    *,
    fetch: Fetch,
    validate: Validate,
    rules: Rules,
) -> Checkpoint:
    """Fetch a revision and check it, or raise why not: it needs no engine and no gate."""

    async def fetched() -> Path:
        await wait_for_left_behind()
        return await fetch(progress.revision)

    async with progress.phase(Phase.FETCHING, rules.fetch_timeout, "fetch_timeout"):
        path = await wanted.during(fetched())
    async with progress.phase(Phase.VALIDATING, rules.validate_timeout, "validate_timeout"):
        progress.checkpoint = await wanted.during(validate(progress.revision, path))
    return progress.checkpoint


class AttemptUnderWay:
    """One attempt to have other weights answer, on every engine or on none."""

    def __init__(
        self,
        progress: AttemptProgress,
        wanted: StillWanted,
        *,
        fetch: Fetch,
        validate: Validate,
        replicas: Replicas[Engine],
        attempts: Attempts,
        rules: Rules,
        judges: Sequence[Judge] = (),
    ) -> None:
        """`judges` judge new weights after the probes, in this order."""
        self.progress = progress
        self.wanted = wanted
        self._fetch = fetch
        self._validate = validate
        self._replicas = replicas
        self._attempts = attempts
        self._rules = rules
        self._judges = judges
        """Those that have not judged the new weights yet."""
        self._is_way_back = False

    def name(self, revision: Revision, version: str) -> None:
        """Have the weights known by this version if they are of this revision, and not live yet."""
        if self.progress.revision == revision and self.progress.generation is None:
            self.progress.version = version

    # --- the four kinds ----------------------------------------------------------------------

    async def reload(self, is_wanted: Callable[[], bool], version: str = "") -> None:
        """Make the revision live, or raise why not: then what answered before answers still."""
        self.progress.version = version
        self.wanted.ask(is_wanted)
        self._check_judges()
        checkpoint = await self._prepared()
        with watched_by(self._judges):
            await self._change(lambda engine: engine.stage(checkpoint))

    async def rehearse(self, is_wanted: Callable[[], bool]) -> None:
        """Do on one engine what `reload` does before anything goes live; cut nobody off for it."""
        self.wanted.ask(is_wanted)
        self._check_judges()
        checkpoint = await self._prepared()
        self._rules = replace(self._rules, abort_on_drain_timeout=False)
        with watched_by(self._judges):
            await self._rehearse_on_one(checkpoint)

    async def _rehearse_on_one(self, checkpoint: Checkpoint) -> None:
        async with self._all_or_none() as rollout:
            switch = rollout.first
            with rollout.on(switch):
                async with switch.staged(lambda engine: engine.stage(checkpoint)) as staged:
                    self.wanted.check()
                    if why := switch.replica.engine.cannot_overlap:
                        self.progress.note(not_probed(why))
                    else:
                        await switch.prove_unseen(staged)
                        await self._judge(switch, staged, is_dry_run=True)

    async def go_back(self, place: PastGeneration) -> None:
        """Make an earlier generation live again: by what is in memory, else from its files."""
        self._is_way_back = True
        left = [(each.gate, each.engine.live) for each in self._replicas]
        self.progress.version = place.version
        if not await self._take_back(place):
            self._judges = ()  # the way back is not barred by how far it goes
            await self.reload(lambda: True, place.version)  # nothing overrules a rollback
        for gate, weights in left:
            gate.turn_out(weights)  # no conversation goes on by what was left

    async def add_noise(self, noise: Noise) -> None:
        """Make a copy of the live weights with noise on it live, whatever it answers.

        It shows that a swap moves the checksums. A probe would forbid that as often as not, and
        what noisy weights answer tells nothing.
        """
        await self._change(
            lambda engine: engine.perturb(self.progress.revision, noise), probe=False
        )

    def _check_judges(self) -> None:
        """Load nothing that could not be judged."""
        for judge in self._judges:
            judge.check_can_judge(self._replicas.first.engine)

    # --- the steps ---------------------------------------------------------------------------

    async def _prepared(self) -> Checkpoint:
        return await prepare(
            self.progress,
            self.wanted,
            fetch=self._fetch,
            validate=self._validate,
            rules=self._rules,
        )

    async def _change(self, make: MakeWeights, *, probe: bool = True) -> None:
        """Have other weights answer on one engine after the other: the first makes them."""
        async with self._all_or_none() as rollout:  # what fails puts back those that changed
            if self._rules.together and probe:
                await self._together(rollout, make)
                return
            for switch in rollout.each():
                with rollout.on(switch):  # the others go on without one that is lost
                    async with switch.staged(rollout.new_weights(make)) as staged:
                        if probe:
                            await self._prove(switch, staged)
                        rollout.check_original()
                        await self._go_live(rollout, switch, staged, probe=probe)

    async def _prove(self, switch: Switch, staged: Staged) -> None:
        self.wanted.check()  # the last cheap exit
        self.progress.is_staged = not any(judge.takes_long for judge in self._judges)
        await switch.prove(staged)
        await self._judge(switch, staged)
        self.progress.is_staged = True

    async def _judge(self, switch: Switch, staged: Staged, *, is_dry_run: bool = False) -> None:
        """Ask all judges, once an attempt: what is so on the first engine is so on all."""
        takes_long = any(judge.takes_long for judge in self._judges)
        for judge in self._judges:
            await switch.judge(judge, staged, is_hurried=not (is_dry_run or takes_long))
        self._judges = ()

    async def _go_live(
        self, rollout: Rollout, switch: Switch, staged: Staged, *, probe: bool = True
    ) -> None:
        await self._secure_number(rollout)
        async with switch.alone():  # past the last exit
            await uninterrupted(self._flip_and_commit(rollout, switch, staged, probe=probe))

    async def _flip_and_commit(
        self, rollout: Rollout, switch: Switch, staged: Staged, *, probe: bool = True
    ) -> None:
        """No cancel interrupts this: at its end one set of weights answers, and is recorded."""
        old = await switch.flip(staged, probe=probe)
        generation = self._commit(rollout, switch, staged)
        await switch.answer_as(generation, staged, old)

    async def _secure_number(self, rollout: Rollout) -> None:
        """Before the first engine answers by new weights; no disk bars the way back."""
        if rollout.trial is None:
            await self._attempts.secure_number(at_any_rate=self._is_way_back)

    def _commit(self, rollout: Rollout, switch: Switch, staged: Staged) -> Generation:
        """Note that an engine answers by new weights; with the last of them the daemon does."""
        trial = rollout.trial = rollout.trial or self._minted(staged)
        rollout.changed.append(switch)
        self._conclude(rollout)
        if self.progress.generation is None:
            self._replicas.trial = OnTrial(trial, self._reject)
            self.wanted.may_give_up = True  # until the next one changes: this one is put back
        return trial

    def _minted(self, staged: Staged) -> Generation:
        return self._attempts.mint(staged, version=self.progress.version)

    def _conclude(self, rollout: Rollout) -> None:
        """Record the new generation once every engine that serves has it."""
        if rollout.trial and rollout.is_everywhere and self.progress.generation is None:
            checkpoint = self.progress.checkpoint
            self._attempts.record(rollout.trial, checkpoint.path if checkpoint else None)
            self._replicas.live = self.progress.generation = rollout.trial
            self._replicas.trial = None

    # --- all engines at once, and back -------------------------------------------------------

    async def _together(self, rollout: Rollout, make: MakeWeights) -> None:
        """Do the same with all engines proven before any of them goes live."""
        async with AsyncExitStack() as all_staged:
            for switch in rollout.each():
                with rollout.on(switch):
                    async with AsyncExitStack() as own:
                        new = switch.staged(rollout.new_weights(make))
                        staged = await own.enter_async_context(new)
                        await self._prove(switch, staged)
                        rollout.ready[switch] = staged
                        all_staged.push_async_callback(rollout.put_away, switch, own.pop_all())
            await self._all_go_live(rollout)
            self.wanted.check_refused()
            self._conclude(rollout)  # one may have been lost after the last that went

    async def _all_go_live(self, rollout: Rollout) -> None:
        """Each to its end: one that fails must not leave another in between."""

        async def go_live(switch: Switch, staged: Staged) -> None:
            with rollout.on(switch):
                await self._go_live(rollout, switch, staged)

        going = (go_live(switch, staged) for switch, staged in rollout.ready.items())
        for failure in await asyncio.gather(*going, return_exceptions=True):
            if isinstance(failure, BaseException):
                raise failure

    async def _take_back(self, place: PastGeneration) -> bool:
        """Have each engine answer by what it keeps, or by a copy; False when none keeps it."""
        async with self._all_or_none() as rollout:
            rollout.begin_with_those_that_keep(place)
            for switch in rollout.each():
                with rollout.on(switch):
                    if not await self._take_one_back(rollout, switch, place):
                        return False
        return True

    async def _take_one_back(self, rollout: Rollout, switch: Switch, place: PastGeneration) -> bool:
        await self._secure_number(rollout)
        async with switch.taken_back(place) as kept:
            if kept is not None:
                await uninterrupted(self._flip_and_commit(rollout, switch, kept))
                return True
        if (copy := rollout.copy()) is None:
            return False
        async with switch.staged(copy) as staged:
            rollout.check_original()
            await self._go_live(rollout, switch, staged, probe=False)
        return True

    # --- all or none -------------------------------------------------------------------------

    @asynccontextmanager
    async def _all_or_none(self) -> AsyncIterator[Rollout]:
        """Have the engines that serve now to oneself: none joins, and none is closed meanwhile.

        What breaks off before all of them have changed puts back those that have.
        """
        async with self._replicas.changing:
            rollout = Rollout(
                self.progress,
                self.wanted,
                self._replicas,
                attempts=self._attempts,
                rules=self._rules,
            )
            try:
                yield rollout
                if self.progress.generation is None:
                    self.wanted.check_refused()
            except EngineLost:
                raise
            except Exception:
                if rollout.changed and self.progress.generation is None:
                    await uninterrupted(self._put_back(rollout))
                raise
            finally:
                self._replicas.trial = None
            self._conclude(rollout)

    async def _put_back(self, rollout: Rollout) -> None:
        """Have those that changed answer by what is live again; no wish ends that."""
        self._replicas.trial = None
        self.wanted.ask(lambda: True)
        self.progress.rolled_back = True
        await rollout.put_back(self._replicas.live)

    def _reject(self, reason: Reason) -> None:
        self.wanted.refuse(CheckpointRejected(reason.message, code=reason.code))
