"""A rank that follows: holds its part of the engine, and does each step that rank 0 sends.

It decides nothing. It has a source, checks, a ledger, a status and metrics of its own. If a step
fails on it, rank 0 gets the reason, and no rank does the step.
"""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, override

from hotreload import failpoints
from hotreload.core.attempt import prepare
from hotreload.core.attempt_records import Attempts
from hotreload.core.engines.replica import Replica, Replicas, choose_mode
from hotreload.core.ports import Source
from hotreload.core.progress import Reach, WantedCheck
from hotreload.core.way_in.entrance import Entrance
from hotreload.errors import EngineLost, HotReloadError, NotServing, SourceUnavailable, TryAgain
from hotreload.events import GenerationLive, PhaseEntered, Warmup
from hotreload.facts.heap import STARTING, keep_what_is_there
from hotreload.hosts.engine.joined_ranks import JoinedRanks
from hotreload.hosts.engine.rank_engine import RankEngine
from hotreload.hosts.life.rank_group import NUMBERS_GIVEN, Lose, meet, read_facts
from hotreload.hosts.messages import parse_live, parse_revision
from hotreload.hosts.steps import About, StepFollower, take_part
from hotreload.hosts.upstream.ranks import Ranks
from hotreload.hosts.vote import Follower
from hotreload.life.live_settings import CheckpointChecks
from hotreload.life.running_engine import RunningEngine
from hotreload.life.serving_slot import ServingSlot
from hotreload.life.start.boot import pass_no_failpoint
from hotreload.life.start.candidates import revision_of_model
from hotreload.life.start.model_files import find_served_model, keep_model
from hotreload.life.start.start_engine import to_start_from
from hotreload.settings.sections import Settings
from hotreload.threads import run_to_end
from hotreload.types import Checkpoint, Generation, Lease, Phase, Revision

NOT_RANK_0 = "not_rank_0"


@dataclass(eq=False)
class FollowerLife(StepFollower[RankEngine]):
    """One life of a follower: it does rank 0's steps until rank 0 leaves or the engine is lost."""

    settings: Settings
    ranks: Ranks
    slot: ServingSlot
    source: Source
    checking: CheckpointChecks
    attempts: Attempts
    report_loss: Lose
    started: Callable[[], None]
    """Called when this rank's part of the engine has been built."""

    def __post_init__(self) -> None:
        super().__init__()
        self._replica: Replica[RunningEngine] | None = None
        """This rank's part of the engine, once it is live, behind a gate that gets no request."""
        self._copies = AsyncExitStack()
        """The private copy from which the engine is built; freed after the build."""
        self._made_from: tuple[Checkpoint, dict[str, Any]] | None = None
        self._is_built = asyncio.Event()
        self._last: Checkpoint | None = None
        """The checkpoint prepared last; the ledger has the folders of earlier ones."""
        self._is_live = False

    async def run(self) -> NoReturn:
        """Do rank 0's steps until it leaves or the engine is lost: EngineLost says which."""
        within = self.settings.engine.join_timeout
        async with meet(self.ranks, within, self.report_loss) as (joined, _):
            self._joined: JoinedRanks = joined
            following = Follower(joined.store, self.ranks.own).follow(partial(take_part, self))
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(following, name="follow rank 0")
                    tasks.create_task(self._until_dead(), name="watch the engine")
            finally:
                self.slot.clear()
                await run_to_end(self._close())
        raise AssertionError("nothing else ends it")

    def lose(self, why: EngineLost) -> None:
        """Mark this rank's part of the engine as lost."""
        if self._own is not None:
            self._own.lose(str(why))

    async def _until_dead(self) -> None:
        await self._is_built.wait()
        try:
            await self.own.wait_until_dead()
        except EngineLost as lost:
            self.report_loss(lost)
            raise

    async def _close(self) -> None:
        try:
            await self._copies.aclose()
        finally:
            if self._own is not None:
                await self._own.close()

    async def reach(self, point: str) -> None:
        """Pass no failpoint of an attempt in the start."""
        await (failpoints.reach if self._is_live else pass_no_failpoint)(point)

    # --- the start -------------------------------------------------------------------------------

    async def introduce(self) -> About:
        """Return the facts that all ranks must share, and the last number of a generation."""
        numbers = str(self.attempts.ledger.next_number - 1)
        return {**await read_facts(self.settings), NUMBERS_GIVEN: numbers}

    async def prepare_start(self, about: About) -> None:
        """Fetch and check rank 0's candidate for the start, and copy it to a private folder."""
        if self._own is not None:
            raise EngineLost("rank 0 begins anew, and this rank has built an engine")
        await self._copies.aclose()  # of a candidate that rank 0 has passed over
        revision = parse_revision(about)
        checkpoint = await self._prepare(revision, pass_no_failpoint)
        model = self.settings.engine.model or checkpoint.path
        progress = self.attempts.progress_of(revision, pass_no_failpoint)
        copied = to_start_from(self.settings, model, checkpoint, progress)
        self._made_from = checkpoint, await self._copies.enter_async_context(copied)

    async def build(self) -> None:
        """Build this rank's part of the engine from the prepared checkpoint."""
        assert self._made_from is not None, "it is prepared before it is built"
        (checkpoint, asked), self._made_from = self._made_from, None
        progress = self.attempts.progress_of(checkpoint.revision, pass_no_failpoint)
        async with self._copies, progress.phase(Phase.BUILDING):
            engine = await RankEngine.start_rank(self._joined, **asked)
        progress.publish(PhaseEntered(progress.revision, None))
        self.started()
        self.take_over(engine)
        self._is_built.set()
        keep_what_is_there(STARTING)
        model = self.settings.engine.model
        state = self.settings.state.directory
        await keep_model(model or checkpoint.path, state, is_configured=model is not None)

    # --- what rank 0 makes live ------------------------------------------------------------------

    async def prepare(self, revision: Revision) -> Checkpoint:
        """Fetch a revision from this host's own source and check it, as an attempt does."""
        checkpoint = await self._prepare(revision, failpoints.reach)
        await failpoints.reach("staging")
        return checkpoint

    async def _prepare(self, revision: Revision, reach: Reach) -> Checkpoint:
        """Fetch a revision from this host's own source, and check it."""
        progress = self.attempts.progress_of(revision, reach)
        try:
            wanted, rules = WantedCheck(progress, asyncio.Event()), self.settings.rules
            checkpoint = await prepare(progress, wanted, self._fetch, self._check, rules)
        finally:
            progress.publish(PhaseEntered(revision, None))
        self._last = checkpoint
        return checkpoint

    async def _fetch(self, revision: Revision) -> Path:
        """Return the revision's folder: [engine] model, which no source has, or the source's."""
        model = self.settings.engine.model
        if model is not None and model.name == revision.label:
            try:
                if await revision_of_model(model) == revision:
                    return model
            except HotReloadError:  # it has no readable weights: the source may have the revision
                pass
        try:
            return await self.source.fetch(revision)
        except SourceUnavailable as gone:
            raise SourceUnavailable(await self._why_gone(revision, str(gone))) from gone

    async def _why_gone(self, revision: Revision, otherwise: str) -> str:
        """Return the reason of a failed fetch: this host may have other bytes of that name."""
        try:
            here = await self.source.resolve(revision.label)
        except HotReloadError:
            return otherwise
        if here.id == revision.id:
            return otherwise
        return f"{revision}: other bytes have that name on this host ({here.id[:12]})"

    async def _check(self, revision: Revision, path: Path) -> Checkpoint:
        if self._own is None:
            self.checking.serve(await find_served_model(self.settings.engine.model or path))
        return await self.checking(revision, path)

    async def record(self, about: About) -> None:
        """Record the generation that is live on all ranks, under the number that rank 0 gave it."""
        ledger, own = self.attempts.ledger, self.own.weights.live
        live = parse_live(about, own)
        if own.fingerprint != live.fingerprint:
            words = f"rank 0 has {live.fingerprint} live, and here {own.fingerprint} is"
            raise EngineLost(words)
        ledger.forget_others(live)
        ledger.numbers_given = max(live.number, ledger.numbers_given)
        last = self._last
        path = last.path if last is not None and last.revision == live.revision else None
        self.attempts.record_live(live, path)
        self._show(live)
        self._is_live = True
        why = await self.attempts.save()
        if why is not None:
            raise TryAgain(why, code="not_saved")

    def _show(self, live: Generation) -> None:
        """Publish the generation that is live now in this rank's part of the engine."""
        publish, gate = self.attempts.publish, self.slot.entrance.gates[0]
        if self._replica is None:
            chosen = choose_mode(self.settings.reload.mode, self.own)
            self._replica = Replica(self.own, gate, live, chosen.mode)
            self.slot.fill(Replicas({0: self._replica}))
            publish(chosen)
            self._replica.open()
            publish(Warmup(gate.replica, 0, 0, is_over=True))  # rank 0 asks for all
        else:
            self._replica.live = live
            gate.change(Lease(live, self.own))
        publish(GenerationLive(live))


class FollowerRefusal(Entrance[RunningEngine]):
    """A sealed entrance, in the place of rank 0's entrance and operator: it refuses everything."""

    def __init__(self, ranks: Ranks) -> None:
        super().__init__(publish=lambda event: None)
        host = ranks.address.rpartition(":")[0]
        self._why = (
            f"this is rank {ranks.own} of {ranks.count} of one engine: rank 0, on {host}, answers "
            "requests and takes orders"
        )
        self.seal(self._why, code=NOT_RANK_0)

    @override
    def check_answers_here(self) -> NoReturn:
        raise NotServing(self._why, code=NOT_RANK_0)

    def operator(self) -> NoReturn:
        """Refuse the order: rank 0 decides."""
        self.check_answers_here()
