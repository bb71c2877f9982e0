"""One rank's part of an engine over several processes: its devices, its share of the weights.

Each rank calls the same methods of its part in the same order; rank 0's part takes the requests.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from hotreload.engine.answering.answers import Answer, Answers
from hotreload.engine.answering.canaries import Batches
from hotreload.engine.answering.items import Parsed
from hotreload.engine.answering.probe import Probe
from hotreload.engine.options import EngineOptions
from hotreload.engine.sglang import SglangEngine, name_first
from hotreload.engine.unseen_answers import UnseenAnswers
from hotreload.engine.unseen_room import UnseenRoom
from hotreload.engine.upstream import build
from hotreload.engine.upstream.distributed import Distributed
from hotreload.engine.upstream.parts import ENGINE_START, Parts, build_parts
from hotreload.engine.upstream.thread.between import BetweenSteps
from hotreload.engine.upstream.thread.scheduler import Wake
from hotreload.engine.upstream.thread.watch import EngineWatch
from hotreload.engine.weights.leaf.differences import copies_here, find_differing
from hotreload.engine.weights.leaf.measures import splits_words
from hotreload.engine.weights.sets import First, StagingOptions, WeightSets
from hotreload.errors import CheckpointIncompatible, ConfigError, EngineLost, NotServing
from hotreload.hosts.engine.joined_ranks import (
    BetweenStepsOfAll,
    JoinedRanks,
    MeetingPlace,
    gather,
    merge_measurements,
    turns_of,
)
from hotreload.hosts.steps import in_step, name_next_job
from hotreload.hosts.upstream.ranks import Ranks
from hotreload.hosts.upstream.turns import Turns, guard_sockets
from hotreload.threads import in_thread, list_left_behind
from hotreload.types import Checkpoint, Revision, Staged


class NoFront(Answers):
    """The front of a follower, in the place of rank 0's: it gets no request."""

    def __init__(self) -> None:
        """Begin nothing: no message is received."""

    @property
    def under_way(self) -> int:
        """Zero: rank 0 counts the requests."""
        return 0

    def send(self, message: Any) -> None:
        """Send nothing: this rank's scheduler is woken by rank 0's turns."""

    def abort(self, is_meant: Callable[[int], bool]) -> None:
        """Do nothing: rank 0 aborts, and its message comes to all ranks."""

    async def generate(self, parsed: Parsed, lane: int) -> AsyncGenerator[Answer | list[Answer]]:
        """Refuse every request."""
        raise NotServing("rank 0 answers requests")
        yield

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""


class RankSets(WeightSets):
    """One rank's share of each set of weights."""

    def __init__(self, meeting: MeetingPlace, *args: Any) -> None:
        super().__init__(*args)
        self._meeting = meeting

    async def stage(self, checkpoint: Checkpoint) -> Staged:
        """Load this rank's share beside the live one; the fingerprint is the whole checkpoint's.

        Each rank reads the whole checkpoint and keeps its share: it waits for no other rank.
        """
        await self.loader_check.until_done()
        why = self.loaders.why_not_ours(checkpoint)
        if why is not None:
            # Upstream's loader waits for the other ranks' in the middle of the engine's work.
            raise CheckpointIncompatible(f"on several hosts only our own loader loads: {why}")
        return await super().stage(checkpoint)

    async def checksums(self) -> dict[str, int]:
        """Return each live leaf's checksum over all ranks; every rank must call this."""
        async with self.unchanged:
            live, measure = self.live, self.loaders.measure
            own = await in_thread(lambda cancel: measure(live.weights.leaves))
            now = (await merge_measurements(self._meeting, name_next_job(), own)).checksums
            leaves = self.live_leaves()
            copies = await in_thread(lambda cancel: copies_here(leaves))
            for path in find_differing(await gather(self._meeting, name_next_job(), copies)):
                now[path] ^= 1  # as if copies differ on one host
            return self.note_damage(live, now)

    async def complete_first(self) -> None:
        """Complete the first set's measurements, of which each rank has its share."""
        weights = self.live.weights
        weights.measured = await merge_measurements(
            self._meeting, name_next_job(), weights.measured
        )
        fingerprint, checksums = weights.measured.fingerprint, weights.measured.checksums
        self.live = replace(self.live, fingerprint=fingerprint, leaves=checksums)

    def check_shares(self) -> None:
        """ConfigError for a leaf that is cut within four bytes: it has no checksum."""
        for path, leaf in self.live_leaves().items():
            if splits_words(leaf, self.plan.parts.get(path, ())):
                raise ConfigError(
                    f"[engine] nnodes: {path} would be cut within four bytes, so nobody could "
                    "tell which weights answer; choose another tp"
                )


class FollowersUnseen(UnseenAnswers):
    """The unseen answers on a rank that follows: it computes them along, and asks nothing."""

    async def _ask_canaries(self, asked: Batches, lane: int) -> None:
        """Ask nothing: rank 0 sends the prompts."""


class RankEngine(SglangEngine):
    """One rank's part of an engine, made by `start_rank` on every rank at the same time."""

    weights: RankSets

    def __init__(
        self,
        parts: Parts,
        watch: EngineWatch,
        joined: JoinedRanks,
        *,
        first: Revision,
        probes: Sequence[Probe],
        terms: StagingOptions,
    ) -> None:
        self._ranks = joined.ranks
        self._meeting = joined.meeting
        super().__init__(parts, watch, first=first, probes=probes, terms=terms)
        self.weights.check_shares()

    @classmethod
    async def start_rank(
        cls,
        joined: JoinedRanks,
        options: EngineOptions,
        *,
        terms: StagingOptions,
        probes: Sequence[Probe],
        revision: Revision,
        checkpoint: Checkpoint,
    ) -> "RankEngine":
        """Build this rank's part of an engine, as `start` does; each rank waits for the others.

        A cancel leaves behind a build that waits for another rank. Every later build raises
        EngineLost: this process can build no more.
        """
        terms = _check_options(terms)
        if ENGINE_START in list_left_behind():
            raise EngineLost(
                "an earlier start waits for another rank's for ever; only a new process helps"
            )
        watch = EngineWatch()
        with in_step(joined.next_build()):
            building = partial(build.build, options, watch.report, make_hooks(joined.ranks))
            parts = await build_parts(lambda cancel: building())
            make = partial(cls, parts, watch, joined, probes=probes, terms=terms)
            return await cls._begin_built(make, parts, watch, name_first(revision), checkpoint)

    def withdraw(self, step: int) -> None:
        """Cancel the waiting jobs of this step on all ranks; only rank 0 calls it."""
        turns_of(self._scheduler).withdraw(str(step))
        self._front.send(Wake())

    # --- differences from an engine on one host ---------------------------------------------------

    def _make_sets(self, parts: Parts, first: First, terms: StagingOptions) -> RankSets:
        runner, ready = parts.model_runner, self.ahead.until_ready_to_prove
        return RankSets(self._meeting, runner, terms, first, ready)

    def _make_front(self) -> Answers:
        return super()._make_front() if self._ranks.leads else NoFront()

    def _make_between(self) -> BetweenSteps:
        return BetweenStepsOfAll(self._scheduler, self._front, self.watch, self._meeting)

    def _make_unseen(self, room: UnseenRoom) -> UnseenAnswers:
        kind = UnseenAnswers if self._ranks.leads else FollowersUnseen
        parts = (self._front, self.switch, self._shadows, room)
        return kind(*parts, canaries=self._canaries, ahead=self.ahead)

    async def _complete_first_set(self) -> None:
        await self.weights.complete_first()
        await self._check_room()

    async def _check_room(self) -> None:
        """ConfigError unless all ranks have room for as many tokens, in KV pools and probes."""
        tokens = self._scheduler.scheduler.token_to_kv_pool_allocator.size
        own = {"probes": self._canaries.room, "KV pools": tokens}
        for theirs in await gather(self._meeting, name_next_job(), own):
            if theirs != own:
                raise ConfigError(
                    f"ranks differ in how many tokens they have room for, {theirs} and {own}: give "
                    "all the same [[probe]]s and [engine.args]"
                )


def make_hooks(ranks: Ranks) -> Distributed:
    """Return the hooks for an engine of these ranks, which have met."""
    return Distributed(ranks.arguments, partial(guard_sockets, ranks.secret), Turns)


def _check_options(terms: StagingOptions) -> StagingOptions:
    """Return the terms with two sets on the device: with `auto` each rank would decide alone."""
    if terms.memory == "host":
        words = "new weights wait beside the live ones where [engine] nnodes > 1: set 'double'"
        raise ConfigError(f"[reload] memory = 'host': {words}")
    if terms.loader == "upstream":
        words = "it cannot load beside what answers where [engine] nnodes > 1: set 'auto'"
        raise ConfigError(f"[engine] loader = 'upstream': {words}")
    return replace(terms, memory="double")
