"""One rank's part of an engine over several processes: its devices, its share of the weights.

Each rank has one and asks the same of it in the same order; rank 0's takes the requests.
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
from hotreload.engine.sglang import SglangEngine, named
from hotreload.engine.upstream import build
from hotreload.engine.upstream.distributed import Distributed
from hotreload.engine.upstream.parts import ENGINE_START, Parts, built
from hotreload.engine.upstream.thread.between import BetweenSteps
from hotreload.engine.upstream.thread.scheduler import Wake
from hotreload.engine.upstream.thread.watch import EngineWatch
from hotreload.engine.weights.leaf.differences import copies_here, find_differing
from hotreload.engine.weights.leaf.measures import splits_words
from hotreload.engine.weights.sets import StagingOptions
from hotreload.errors import CheckpointIncompatible, ConfigError, EngineLost, NotServing
from hotreload.hosts.engine.joined import Joined
from hotreload.hosts.engine.together import BetweenStepsOfAll, gather, merge_measurements, turns_of
from hotreload.hosts.steps import in_step, next_job
from hotreload.hosts.upstream.ranks import Ranks
from hotreload.hosts.upstream.turns import Turns
from hotreload.hosts.upstream.wire import guard_sockets
from hotreload.threads import in_thread, list_left_behind
from hotreload.types import Checkpoint, Revision, Staged


class NoFront(Answers):
    """Stands in for rank 0's front: no client asks another rank."""

    def __init__(self) -> None:
        """Nothing is received, so nothing begins."""

    @property
    def under_way(self) -> int:
        """Rank 0 counts them."""
        return 0

    def send(self, message: Any) -> None:
        """Send nothing: this rank's scheduler is woken by rank 0's turns."""

    def abort(self, is_meant: Callable[[int], bool]) -> None:
        """Rank 0 aborts, and its message comes to all."""

    async def generate(self, parsed: Parsed, lane: int) -> AsyncGenerator[Answer | list[Answer]]:
        """Refuse it."""
        raise NotServing("rank 0 answers requests")
        yield

    async def close(self) -> None:
        """There is nothing to close."""


class RankEngine(SglangEngine):
    """Made by `start_rank`, on every rank at once; each waits for the others."""

    def __init__(
        self,
        parts: Parts,
        watch: EngineWatch,
        joined: Joined,
        *,
        first: Revision,
        probes: Sequence[Probe],
        terms: StagingOptions,
    ) -> None:
        super().__init__(parts, watch, first=first, probes=probes, terms=terms)
        self._ranks = joined.ranks
        self._meeting = joined.meeting
        self._check_shares()

    @classmethod
    async def start_rank(
        cls,
        joined: Joined,
        options: EngineOptions,
        *,
        terms: StagingOptions,
        probes: Sequence[Probe],
        revision: Revision,
        checkpoint: Checkpoint,
    ) -> "RankEngine":
        """Build this rank's part of an engine, as `start` does.

        A cancel does not wait for a build that waits for another rank's, and leaves it behind:
        EngineLost for each later one, since this process can build no more.
        """
        terms = _check_options(terms)
        if ENGINE_START in list_left_behind():
            raise EngineLost(
                "an earlier start waits for another rank's for ever; only a new process helps"
            )
        watch = EngineWatch()
        with in_step(joined.next_build()):
            building = partial(build.build, options, watch.report, distributed_by(joined.ranks))
            parts = await built(lambda cancel: building())
            make = partial(cls, parts, watch, joined, probes=probes, terms=terms)
            return await cls._begun(make, parts, watch, named(revision), checkpoint)

    async def stage(self, checkpoint: Checkpoint) -> Staged:
        """Load this rank's share beside the live one; the fingerprint is the whole checkpoint's.

        Each rank reads all of it and keeps its share: nothing is waited for at other ranks.
        """
        await self.until_compared()
        why = self.loaders.why_not_ours(checkpoint)
        if why is not None:
            # Upstream's loader waits for the others', in the middle of what the engine computes.
            raise CheckpointIncompatible(f"on several hosts only our own loader loads: {why}")
        return await super().stage(checkpoint)

    async def checksums(self) -> dict[str, int]:
        """Compute each live leaf's checksum over all ranks; every rank must call this."""
        async with self.unchanged:
            live, measure = self.live, self.loaders.measure
            own = await in_thread(lambda cancel: measure(live.weights.leaves))
            now = (await merge_measurements(self._meeting, next_job(), own)).checksums
            leaves = self._live_leaves()
            copies = await in_thread(lambda cancel: copies_here(leaves))
            for path in find_differing(await gather(self._meeting, next_job(), copies)):
                now[path] ^= 1  # as where copies differ on one host
            return self._note_damage(live, now)

    def withdraw(self, step: int) -> None:
        """Let no rank wait any more to do its part of this step; rank 0 alone asks."""
        turns_of(self._scheduler).withdraw(str(step))
        self._front.send(Wake())

    # --- what is another thing than in an engine on one host --------------------------------------

    def _make_front(self) -> Answers:
        return super()._make_front() if self._ranks.leads else NoFront()

    def _make_between(self) -> BetweenSteps:
        return BetweenStepsOfAll(self._scheduler, self._front, self._watch, self._meeting)

    async def _know_whole(self) -> None:
        """Each rank has measured its share of the first set."""
        weights = self.live.weights
        weights.measured = await merge_measurements(self._meeting, next_job(), weights.measured)
        fingerprint, checksums = weights.measured.fingerprint, weights.measured.checksums
        self.live = replace(self.live, fingerprint=fingerprint, leaves=checksums)
        await self._check_room()

    async def _ask_canaries(self, asked: Batches, lane: int) -> None:
        """Rank 0 asks, and the others compute the answers."""
        if self._ranks.leads:
            await super()._ask_canaries(asked, lane)

    async def _check_room(self) -> None:
        """Check that all ranks have as much room for what they do in step, and for proving."""
        tokens = self._scheduler.scheduler.token_to_kv_pool_allocator.size
        own = {"probes": self._canaries.room, "KV pools": tokens}
        for told in await gather(self._meeting, next_job(), own):
            if told != own:
                raise ConfigError(
                    f"ranks differ in how many tokens they have room for, {told} and {own}: give "
                    "all the same [[probe]]s and [engine.args]"
                )

    def _check_shares(self) -> None:
        for path, leaf in self._live_leaves().items():
            if splits_words(leaf, self.plan.parts.get(path, ())):
                raise ConfigError(
                    f"[engine] nnodes: {path} would be cut within four bytes, so nobody could "
                    "tell which weights answer; choose another tp"
                )


def distributed_by(ranks: Ranks) -> Distributed:
    """Return the hooks for an engine of these ranks, which have met."""
    return Distributed(ranks.arguments, partial(guard_sockets, ranks.secret), Turns)


def _check_options(terms: StagingOptions) -> StagingOptions:
    """Two sets on the device: by `auto` each rank would decide for itself."""
    if terms.memory == "host":
        words = "new weights wait beside the live ones where [engine] nnodes > 1: set 'double'"
        raise ConfigError(f"[reload] memory = 'host': {words}")
    if terms.loader == "upstream":
        words = "it cannot load beside what answers where [engine] nnodes > 1: set 'auto'"
        raise ConfigError(f"[engine] loader = 'upstream': {words}")
    return replace(terms, memory="double")
