"""One rank's part of an engine over several processes: its devices, its share of the weights.

Each rank has one and asks the same of it in the same order; rank 0's takes the requests.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from hotreload.engine import facts
from hotreload.engine.answering.answers import Answers
from hotreload.engine.answering.canaries import Canaries
from hotreload.engine.answering.probe import Probe
from hotreload.engine.answering.prompts import Prompts
from hotreload.engine.first_weights import begin_with, shadow_pool
from hotreload.engine.generations import Generations
from hotreload.engine.ranks.store import DistributedStore
from hotreload.engine.ranks.together import BetweenStepsOfAll, Meeting, known_to_all
from hotreload.engine.upstream import build
from hotreload.engine.upstream.joining import Ranks, join, leave
from hotreload.engine.upstream.scheduler import Wake
from hotreload.engine.upstream.watch import EngineWatch
from hotreload.engine.weights.measuring import splits_words
from hotreload.engine.weights.sets import StagingTerms
from hotreload.errors import CheckpointIncompatible, ConfigError
from hotreload.ranks.beats import Beats
from hotreload.ranks.steps import in_step
from hotreload.threads import in_thread, uninterrupted
from hotreload.types import Checkpoint, HowFar, Revision, Staged


class NoFront:
    """Stands where rank 0 has its front: nobody asks another rank."""

    under_way = 0

    def send(self, message: Any) -> None:
        """Nobody waits for it: this rank's scheduler is woken by rank 0's turns."""

    def abort(self, is_meant: Any) -> None:
        """Rank 0 aborts, and its message comes to all."""

    async def close(self) -> None:
        """There is nothing to close."""


class Member:
    """Made by `start`, on every rank at once; each waits for the others."""

    def __init__(
        self,
        parts: build.Parts,
        watch: EngineWatch,
        ranks: Ranks,
        *,
        revision: Revision,
        terms: StagingTerms,
        probes: Sequence[Probe],
    ) -> None:
        self.parts = parts
        self.watch = watch
        self.front: Any = NoFront()
        self._tasks: list[asyncio.Task[None]] = []
        self._ranks = ranks
        self._scheduler = parts.running_scheduler
        self._sets, self._first = begin_with(revision, self._scheduler, terms)
        self._check_shares()
        # 0.1.0rc0 looks again and again whether a grammar is compiled, each rank by its own clock.
        can = facts.capabilities_of(parts, grammars=False)
        tokenizer = self._scheduler.scheduler.tokenizer
        self.prompts = Prompts(tokenizer, facts.limits_of(parts), can, None)
        self._canaries = Canaries(probes, self.prompts)

    @classmethod
    async def start(
        cls,
        ranks: Ranks,
        *,
        model: Path,
        device: str,
        tp: int,
        terms: StagingTerms,
        checkpoint: Checkpoint,
        args: Mapping[str, Any],
        within: int,
        probes: Sequence[Probe] = (),
        dtype: str = "auto",
    ) -> "Member":
        """Build this rank's part of an engine that answers from `model`.

        `checkpoint` holds the same weights, in files that stay.
        """
        await in_thread(lambda cancel: join(ranks, within))
        watch = EngineWatch()
        make = partial(build.build, model=model, device=device, tp=tp, dtype=dtype)
        make = partial(make, load_format="auto", args=args, log_level=logging.WARNING)
        make = partial(make, report=watch.report, ranks=ranks)
        parts = await in_thread(lambda cancel: make(), discard=build.discard)
        take_over = partial(cls, parts, watch, ranks, terms=terms, probes=probes)
        try:
            member = await in_thread(lambda cancel: take_over(revision=checkpoint.revision))
        except BaseException:
            watch.close()
            await uninterrupted(build.taken_apart(parts))
            raise
        try:
            with in_step("start"):
                await member._begin(checkpoint)
        except BaseException:
            await uninterrupted(member.close())
            raise
        return member

    @property
    def live(self) -> Staged:
        """The weights that answer; their fingerprint is that of all ranks' shares together."""
        return self._generations.live

    @property
    def staging(self) -> HowFar | None:
        """How far `stage` is with a checkpoint; None while it is with none."""
        return self._sets.staging

    @property
    def cannot_overlap(self) -> str | None:
        """Why two sets of weights cannot answer side by side in it; None when they can."""
        return self._scheduler.cannot_overlap

    async def stage(self, checkpoint: Checkpoint) -> Staged:
        """Load this rank's share beside the live one; the fingerprint is the whole checkpoint's.

        Each rank reads all of it and keeps its share: nothing is waited for at other ranks.
        """
        await self._sets.until_compared()
        why = self._sets.loaders.why_not_ours(checkpoint)
        if why is not None:
            # Upstream's loader waits for the others', in the middle of what the engine computes.
            raise CheckpointIncompatible(f"on several hosts only our own loader loads: {why}")
        return await self._sets.stage(checkpoint, self.live)

    async def exchange(self, staged: Staged) -> Staged:
        """Make it live on all ranks in the same turn, once nothing runs; returns what was live."""
        return await self._generations.exchange(staged)

    async def prove(self, staged: Staged) -> None:
        """Ask staged weights the canary prompts in a lane of their own; the others compute them."""
        assert self._shadow_pool is not None, self.cannot_overlap
        async with self._generations.shadow(staged, self._shadow_pool) as lane:
            if self._ranks.leads:
                await self._canaries.ask(partial(self.front.generate, lane=lane))

    async def flip(self, staged: Staged) -> Staged:
        """Answer new requests by it from one turn of all ranks on; `retire` what it returns."""
        return await self._generations.flip(staged)

    async def retire(self, staged: Staged) -> None:
        """Wait until nothing is left of weights that nobody is admitted to any more."""
        await self._generations.retire(staged)

    async def scrub(self) -> None:
        """Overwrite the KV pool of every rank with zeros, and forget every cached prefix."""
        await self._generations.scrub()

    def withdraw(self, step: int) -> None:
        """Let no rank wait any more to do its part of this step; rank 0 alone asks."""
        turns = self._scheduler.turns
        assert turns is not None, "there are several ranks"
        turns.withdraw(str(step))
        self.front.send(Wake())

    async def release(self, staged: Staged) -> None:
        """Free spare weights."""
        await self._sets.release(staged)

    async def fingerprint(self, name: str) -> str:
        """That of what is live now on all ranks, each of which asks under this name."""
        leaves, measure = self.live.weights.leaves, self._sets.loaders.measure
        own = await in_thread(lambda cancel: measure(leaves))
        return (await known_to_all(self.meeting, name, own)).fingerprint

    async def died(self) -> NoReturn:
        """Raise EngineLost as soon as it is known that this rank's part died."""
        await self.watch.until_lost()

    async def close(self) -> None:
        """End this rank's threads and leave the others; a second call does nothing."""
        if self.watch.is_closed:
            return
        self.watch.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.front.close()
        self._scheduler.ask_to_stop()
        self.front.send(Wake())
        await uninterrupted(build.taken_apart(self.parts))
        await asyncio.to_thread(leave)

    async def _begin(self, checkpoint: Checkpoint) -> None:
        if self._ranks.leads:
            manager = self.parts.tokenizer_manager
            self.front = Answers(manager, self.watch, self.parts.to_loop)
        store, others = DistributedStore(), list(self._ranks.others)
        self.meeting = Meeting(store, self._ranks)
        self.beats = Beats(store, self._ranks.own, others, self.watch.lose)
        self._tasks.append(asyncio.create_task(self.beats.run(), name="beats"))
        self._between = BetweenStepsOfAll(self._scheduler, self.front, self.watch, self.meeting)
        first = await self._known_whole(self._first)
        del self._first  # who holds it would keep its leaves
        self._generations = Generations(
            self._scheduler,
            self.front,
            self.watch,
            live=first,
            layout=self._sets.layout,
            between=self._between,
        )
        await self._generations.scrub()
        longest = self._canaries.longest
        self._shadow_pool = shadow_pool(self._scheduler, self._sets, first, longest)
        self._tasks.append(self._sets.compare_with(checkpoint, first))

    async def _known_whole(self, first: Staged) -> Staged:
        """The same with the fingerprint of all ranks' shares together."""
        whole = await known_to_all(self.meeting, "start", first.weights.measured)
        first.weights.measured = whole
        return replace(first, fingerprint=whole.fingerprint, leaves=whole.checksums)

    def _check_shares(self) -> None:
        for path, leaf in self._sets.layout.named(self._first.weights.leaves).items():
            if splits_words(leaf, self._sets.plan.parts.get(path, ())):
                raise ConfigError(
                    f"[engine] nnodes: {path} would be cut within four bytes, so nobody could "
                    "tell which weights answer; choose another tp"
                )
