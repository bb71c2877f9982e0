"""One attempt, top to bottom: prepare; on each engine stage, prove, judge, flip and commit.

Each is made within `Attempts.recorded`: it is in the ledger as begun before anything is done, and
how it ended is judged, recorded and published there. A start does so too, with an engine that is
made in the place of the flip (`first_switch`). The steps on one engine have two orders (`overlap`,
`drain`). `everywhere` does the same on several engines, and `rollout` puts them back if one cannot.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from hotreload.core.attempt_records import Attempts
from hotreload.core.decision import check_content, check_undecided
from hotreload.core.engines.engine_change import (
    EngineChange,
    change_in_turn,
    change_together,
    take_back,
)
from hotreload.core.engines.follow_up import FollowUp
from hotreload.core.engines.replica import Replicas
from hotreload.core.engines.rollout import Rollout
from hotreload.core.judge import Judge, watch_with
from hotreload.core.ledger import PastGeneration
from hotreload.core.ports import Engine
from hotreload.core.probes import unproven_evidence
from hotreload.core.progress import AttemptProgress, WantedCheck
from hotreload.core.rules import Rules
from hotreload.core.switch import MakeWeights, Switch
from hotreload.threads import uninterrupted, wait_for_left_behind
from hotreload.types import Checkpoint, Noise, Phase, Revision, Staged

Fetch = Callable[[Revision], Awaitable[Path]]
"""Bring the files of a revision to this machine, and say where they lie."""
Validate = Callable[[Revision, Path], Awaitable[Checkpoint]]
"""Run every check that needs no engine on the files in that folder."""


async def prepare(
    progress: AttemptProgress,
    wanted: WantedCheck,
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
        path = await wanted.run_while_wanted(fetched())
    async with progress.phase(Phase.VALIDATING, rules.validate_timeout, "validate_timeout"):
        progress.checkpoint = await wanted.run_while_wanted(validate(progress.revision, path))
    return progress.checkpoint


class AttemptUnderWay:
    """One attempt to have other weights answer, on every engine or on none."""

    def __init__(
        self,
        progress: AttemptProgress,
        wanted: WantedCheck,
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
        self.follow_up: FollowUp | None = None
        """Work that judges have put off until the new weights are live."""
        self._is_way_back = False
        self._is_forced = False
        """True if it goes on though its content turns out to be live, or refused, already."""

    def name(self, revision: Revision, version: str) -> None:
        """Have the weights known by this version if they are of this revision, and not live yet."""
        if self.progress.revision == revision and self.progress.generation is None:
            self.progress.version = version

    # --- the four kinds ----------------------------------------------------------------------

    async def reload(
        self, is_wanted: Callable[[], bool], version: str = "", *, force: bool = False
    ) -> None:
        """Make the revision live, or raise why not: then what answered before answers still.

        Recognized, without `force`, where staging finds that its content was decided on before.
        """
        self.progress.version, self._is_forced = version, force
        self.wanted.ask(is_wanted)
        self._check_judges()
        checkpoint = await self._prepare()
        self._learn()
        with watch_with(self._judges):
            await self._change(lambda engine: engine.stage(checkpoint))

    async def rehearse(self, is_wanted: Callable[[], bool]) -> None:
        """Do on one engine what `reload` does before anything goes live; cut nobody off for it."""
        self.wanted.ask(is_wanted)
        self._is_forced = True
        self._check_judges()
        checkpoint = await self._prepare()
        self._rules = replace(self._rules, abort_on_drain_timeout=False)
        with watch_with(self._judges):
            await self._rehearse_on_one(checkpoint)

    async def _rehearse_on_one(self, checkpoint: Checkpoint) -> None:
        async with self._all_or_none() as rollout:
            switch = rollout.first
            with rollout.work_on(switch):
                async with switch.hold_new(lambda engine: engine.stage(checkpoint)) as staged:
                    self._learn()
                    self.wanted.check()
                    if why := switch.replica.engine.cannot_overlap:
                        self.progress.note(unproven_evidence(why))
                    else:
                        await switch.prove_unseen(staged)
                        await self._judge(switch, staged, is_dry_run=True)

    async def go_back(self, place: PastGeneration) -> None:
        """Make an earlier generation live again: by what is in memory, else from its files."""
        self._is_way_back = True
        left = [(each.gate, each.engine.live) for each in self._replicas]
        self.progress.version = place.version
        async with self._all_or_none() as rollout:
            is_back = await take_back(rollout, place, self._flip, self._go_live)
        if not is_back:
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

    async def _prepare(self) -> Checkpoint:
        return await prepare(
            self.progress,
            self.wanted,
            fetch=self._fetch,
            validate=self._validate,
            rules=self._rules,
        )

    async def _change(self, make: MakeWeights, *, probe: bool = True) -> None:
        """Have other weights answer on every engine, or on none."""
        change = EngineChange(self._hold_proven if probe else _hold_unproven, self._go_live, probe)
        go = change_together if self._rules.together and probe else change_in_turn
        async with self._all_or_none() as rollout:
            await go(rollout, make, change)

    @asynccontextmanager
    async def _all_or_none(self) -> AsyncIterator[Rollout]:
        """Have all engines that serve to oneself; what fails puts back those that changed."""
        async with self._replicas.changing:
            await self._attempts.follow_ups.make_way()
            rollout = Rollout(
                self.progress,
                self.wanted,
                self._replicas,
                attempts=self._attempts,
                rules=self._rules,
            )
            async with rollout.all_or_none():
                yield rollout

    # --- on one engine -----------------------------------------------------------------------

    @asynccontextmanager
    async def _hold_proven(self, switch: Switch, make: MakeWeights) -> AsyncIterator[Staged]:
        """Hold new weights beside the live ones, once probes and judges have let them pass."""
        async with switch.hold_new(make) as staged:
            self._learn()
            self.wanted.check()  # the last cheap exit
            self.progress.is_staged = not any(judge.takes_long for judge in self._judges)
            await switch.prove(staged)
            await self._judge(switch, staged)
            self.progress.is_staged = True
            yield staged

    def _learn(self) -> None:
        """Know the weights by their content, which staging may have been the first to read."""
        is_new = self._attempts.learn(self.progress)
        if self._is_forced or self._is_way_back:
            return
        if is_new:
            check_undecided(self._attempts.ledger, self.progress.revision)
        check_content(self._attempts.ledger, self.progress.revision)

    async def _judge(self, switch: Switch, staged: Staged, *, is_dry_run: bool = False) -> None:
        """Ask all judges, once an attempt: what is so on the first engine is so on all."""
        judges, self._judges = self._judges, ()
        case = switch.case_of(staged, is_dry_run=is_dry_run)
        for judge in judges:
            await switch.judge(judge, case)
        self.follow_up = self.follow_up or FollowUp(case)

    async def _go_live(
        self, rollout: Rollout, switch: Switch, staged: Staged, *, probe: bool = True
    ) -> None:
        """Have these weights answer; no disk bars the way back."""
        await rollout.secure_number(at_any_rate=self._is_way_back)
        async with switch.lock_engine():  # past the last exit
            await uninterrupted(self._flip(rollout, switch, staged, probe=probe))

    async def _flip(
        self, rollout: Rollout, switch: Switch, staged: Staged, *, probe: bool = True
    ) -> None:
        """No cancel interrupts this: at its end one set of weights answers, and is recorded."""
        old = await switch.flip(staged, probe=probe)
        generation = rollout.commit(switch, staged)
        if self.follow_up is not None and self.follow_up.replica is switch.replica:
            self.follow_up.hold()
        await switch.answer_as(generation, staged, old)


def _hold_unproven(switch: Switch, make: MakeWeights) -> AbstractAsyncContextManager[Staged]:
    return switch.hold_new(make)
