"""One attempt, top to bottom: prepare; on each engine stage, prove, judge, flip and commit.

`Attempts.open_record` wraps each attempt: it writes the attempt into the ledger before anything is
done, and afterwards judges, records and publishes how the attempt ended. A start does the same, but
makes an engine in the place of the flip (`first_switch`). On one engine the steps come in one of
two orders (`overlap`, `drain`). `rollout` takes them on several engines, and puts the engines back
if one of them fails.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from hotreload.core.attempt_records import Attempts
from hotreload.core.decision import check_content, check_undecided
from hotreload.core.engines.replica import Replicas
from hotreload.core.engines.rollout import SWITCHES, Rollout
from hotreload.core.judge import FollowUp, Judge, unproven_evidence, watch_with
from hotreload.core.ledger import PastGeneration
from hotreload.core.ports import Engine
from hotreload.core.progress import AttemptProgress, WantedCheck
from hotreload.core.rules import Rules
from hotreload.core.switch import MakeWeights, Switch
from hotreload.threads import run_to_end, wait_for_left_behind
from hotreload.types import Checkpoint, Noise, Phase, Revision, Staged

Fetch = Callable[[Revision], Awaitable[Path]]
"""Bring the files of a revision to this machine and return their folder."""
Validate = Callable[[Revision, Path], Awaitable[Checkpoint]]
"""Run every check that needs no engine on the files in that folder."""


async def prepare(
    progress: AttemptProgress,
    wanted: WantedCheck,
    fetch: Fetch,
    validate: Validate,
    rules: Rules,
) -> Checkpoint:
    """Fetch a revision and check its files, or raise why not; needs no engine and no gate."""

    async def fetch_alone() -> Path:
        await wait_for_left_behind()
        return await fetch(progress.revision)

    async with progress.phase(Phase.FETCHING, rules.fetch_timeout, "fetch_timeout"):
        path = await wanted.run_while_wanted(fetch_alone())
    async with progress.phase(Phase.VALIDATING, rules.validate_timeout, "validate_timeout"):
        progress.checkpoint = await wanted.run_while_wanted(validate(progress.revision, path))
    return progress.checkpoint


@dataclass(eq=False, kw_only=True)
class AttemptUnderWay:
    """One attempt to have other weights answer, on every engine or on none."""

    progress: AttemptProgress
    wanted: WantedCheck
    fetch: Fetch
    validate: Validate
    replicas: Replicas[Engine]
    attempts: Attempts
    rules: Rules
    judges: Sequence[Judge]
    """The judges that have not judged the new weights yet, in their order after the probes."""
    follow_up: FollowUp | None = None
    """Work that judges have put off until the new weights are live."""
    is_way_back: bool = False
    is_forced: bool = False
    """True if the attempt goes on although its content is live, or was refused, already."""

    def name(self, revision: Revision, version: str) -> None:
        """Call the new weights by this version if they are of this revision and not live yet."""
        if self.progress.revision == revision and self.progress.generation is None:
            self.progress.version = version

    # --- the four kinds ----------------------------------------------------------------------

    async def reload(
        self, is_wanted: Callable[[], bool], version: str = "", *, force: bool = False
    ) -> None:
        """Make the revision live, or raise why not; after an error the weights of before still
        answer.

        Raises Recognized, without `force`, where staging finds that this content was decided on
        before.
        """
        self.progress.version, self.is_forced = version, force
        self.wanted.ask(is_wanted)
        checkpoint = await self._prepare()
        self._learn()
        with watch_with(self.judges):
            await self._change(lambda engine: engine.weights.stage(checkpoint))

    async def rehearse(self, is_wanted: Callable[[], bool]) -> None:
        """Do on one engine all steps of `reload` before the flip; abort no request for it."""
        self.wanted.ask(is_wanted)
        self.is_forced = True
        checkpoint = await self._prepare()
        self.rules = replace(self.rules, on_drain_timeout="postpone")
        with watch_with(self.judges):
            await self._rehearse_on_one(checkpoint)

    async def _rehearse_on_one(self, checkpoint: Checkpoint) -> None:
        async with self._all_or_none() as rollout:
            switch = rollout.first
            with rollout.work_on(switch):
                held = switch.keep_staged(lambda engine: engine.weights.stage(checkpoint))
                async with held as staged:
                    self._learn()
                    self.wanted.check()
                    if why := switch.replica.engine.switch.cannot_overlap:
                        self.progress.note(unproven_evidence(why))
                    else:
                        await switch.prove_unseen(staged)
                        await self._judge(switch, staged, is_dry_run=True)

    async def go_back(self, place: PastGeneration) -> None:
        """Make an earlier generation live again, from memory if an engine keeps it, else from its
        files."""
        self.is_way_back = True
        left = [(each.gate, each.engine.weights.live) for each in self.replicas]
        self.progress.version = place.version
        async with self._all_or_none() as rollout:
            go_live = partial(self._go_live, rollout, probe=False)
            is_back = await rollout.take_back(place, partial(self._flip, rollout), go_live)
        if not is_back:
            self.judges = ()  # a rollback is not refused for how much it changes
            await self.reload(lambda: True, place.version)  # nothing overrules a rollback
        for gate, weights in left:
            gate.turn_out(weights)  # no conversation continues on the weights that were left

    async def add_noise(self, noise: Noise) -> None:
        """Make a copy of the live weights with noise on it live, without a probe.

        The copy shows that a swap changes the checksums. A probe would often refuse noisy weights,
        and their answers have no meaning.
        """
        await self._change(
            lambda engine: engine.weights.perturb(self.progress.revision, noise), probe=False
        )

    # --- the steps ---------------------------------------------------------------------------

    async def _prepare(self) -> Checkpoint:
        """Fetch and check the files; NotJudged comes first, if a judge cannot judge here."""
        for judge in self.judges:
            judge.check_can_judge(self.replicas.first.engine)
        progress, wanted = self.progress, self.wanted
        return await prepare(progress, wanted, self.fetch, self.validate, self.rules)

    async def _change(self, make: MakeWeights, *, probe: bool = True) -> None:
        """Have other weights answer on every engine, or on none."""
        hold = self._hold_proven if probe else _hold_unproven
        async with self._all_or_none() as rollout:
            is_together = self.rules.together and probe
            go = rollout.change_together if is_together else rollout.change_in_turn
            await go(make, hold, partial(self._go_live, rollout, probe=probe))

    @asynccontextmanager
    async def _all_or_none(self) -> AsyncIterator[Rollout]:
        """Lock all engines that serve; if the block fails, put back the engines that changed."""
        async with self.replicas.changing:
            await self.attempts.follow_ups.make_way()
            shared = (self.progress, self.wanted, self.attempts.save, self.rules)
            switches = [SWITCHES[each.mode](each, *shared) for each in self.replicas]
            rollout = Rollout(self.progress, self.wanted, self.replicas, self.attempts, switches)
            async with rollout.all_or_none():
                yield rollout

    # --- on one engine -----------------------------------------------------------------------

    @asynccontextmanager
    async def _hold_proven(self, switch: Switch, make: MakeWeights) -> AsyncIterator[Staged]:
        """Hold new weights beside the live ones, once probes and judges have passed them."""
        async with switch.keep_staged(make) as staged:
            self._learn()
            self.wanted.check()  # the last cheap exit
            self.progress.is_staged = not any(judge.takes_long for judge in self.judges)
            await switch.prove(staged)
            await self._judge(switch, staged)
            self.progress.is_staged = True
            yield staged

    def _learn(self) -> None:
        """Replace an id made by a stat by the content's, which staging may be first to read."""
        is_new = self.attempts.learn(self.progress)
        if self.is_forced or self.is_way_back:
            return
        if is_new:
            check_undecided(self.attempts.ledger, self.progress.revision)
        check_content(self.attempts.ledger, self.progress.revision)

    async def _judge(self, switch: Switch, staged: Staged, *, is_dry_run: bool = False) -> None:
        """Ask all judges once: their verdict on the first engine holds for every engine."""
        judges, self.judges = self.judges, ()
        case = switch.case_of(staged, is_dry_run=is_dry_run)
        for judge in judges:
            await switch.judge(judge, case)
        self.follow_up = self.follow_up or FollowUp(case)

    async def _go_live(
        self, rollout: Rollout, switch: Switch, staged: Staged, *, probe: bool
    ) -> None:
        """Have these weights answer; a disk that cannot be written does not stop a rollback."""
        await rollout.secure_number(at_any_rate=self.is_way_back)
        async with switch.lock_engine():  # past the last exit
            await run_to_end(self._flip(rollout, switch, staged, probe=probe))

    async def _flip(
        self, rollout: Rollout, switch: Switch, staged: Staged, *, probe: bool = True
    ) -> None:
        """Flip, commit and open the gate to these weights; the caller lets no cancel interrupt
        this."""
        old = await switch.flip(staged, probe=probe)
        generation = rollout.commit(switch, staged)
        if self.follow_up is not None and self.follow_up.replica is switch.replica:
            self.follow_up.hold()
        await switch.answer_as(generation, staged, old)


def _hold_unproven(switch: Switch, make: MakeWeights) -> AbstractAsyncContextManager[Staged]:
    return switch.keep_staged(make)
