"""Makes and frees whole sets of weights beside the live one."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal
from weakref import WeakSet

from hotreload.engine.weights import staging
from hotreload.engine.weights.copies import leaves_whose_copies_differ
from hotreload.engine.weights.headroom import size_of, why_one_set
from hotreload.engine.weights.leaves import layout_of
from hotreload.engine.weights.loaders import Comparison, Destination, Loaders
from hotreload.engine.weights.noise import perturb
from hotreload.engine.weights.plan import record_plan
from hotreload.engine.weights.quiet import QUIET, Quiet
from hotreload.engine.weights.room import Room
from hotreload.engine.weights.twins import Copying, Original, take_the_place
from hotreload.engine.weights.weights import Weights, sources_of
from hotreload.threads import in_thread
from hotreload.types import Checkpoint, HowFar, Loading, Noise, Revision, Staged


@dataclass(frozen=True, slots=True)
class StagingOptions:
    """How checkpoints are loaded, as the operator decided."""

    spool: Path
    """Where upstream's loader gets a private copy to read."""
    max_drift: float | None = None
    loader: Literal["auto", "upstream"] = "auto"
    memory: Literal["double", "host", "auto"] = "double"
    quiet: Quiet = QUIET


class WeightSets:
    """Knows how the sets of one model look; which of them answers, it is told at each call."""

    def __init__(self, model_runner: Any, terms: StagingOptions, comparison: Comparison) -> None:
        self.layout = layout_of(model_runner.model)
        self.plan = record_plan(model_runner, self.layout)
        self.loaders = Loaders(
            model_runner,
            self.layout,
            self.plan,
            spool=terms.spool,
            choice=terms.loader,
            quiet=terms.quiet,
            comparison=comparison,
        )
        self.bytes = 0
        """Of one set; known when the first was adopted."""
        self.why_one_set: str | None = None
        """Why one set at a time is on the device, and spare ones wait on the host; None where
        they lie beside the live one."""
        self.staging: HowFar | None = None
        """How far the checkpoint is that is being staged."""
        self.max_drift = terms.max_drift
        """By how much a tensor's norm may differ; another may be set at any time."""
        self._memory = terms.memory
        self._destination = Destination()
        self._room = Room()
        self._made: WeakSet[Weights] = WeakSet()
        self._comparing: asyncio.Task[None] | None = None
        self._is_distrusted = asyncio.Event()

    def adopt(self, leaves: list[Any], revision: Revision) -> Staged:
        """Make one of our sets of what upstream loaded, copied into memory of our own.

        Upstream's loader maps the files: before the copy, a rewritten file changes live weights.
        """
        self.bytes = size_of(self.layout.named(leaves))
        staging.take_over(leaves, self.layout)
        return self._as_staged(revision, Weights(leaves, self.loaders.measure(leaves)))

    def adopt_copy(self, leaves: list[Any], original: Original) -> Staged:
        """Adopt a copy of another engine's weights instead of those that upstream built."""
        take_the_place(original, leaves, self.layout)
        first = self.adopt(leaves, original.revision)
        original.check_same(first.weights.measured)
        first.weights.sources = original.sources
        return first

    def drop_references(self) -> None:
        """Hold nothing of the engine any more, nor let whoever has one of its sets: it ends.

        A caller may keep an error, whose frames hold all that was at hand.
        """
        for weights in self._made:
            weights.drop()
        self.layout.drop_references()
        self._comparing = None
        del self.loaders

    def compare_with(self, checkpoint: Checkpoint, live: Staged) -> asyncio.Task[None]:
        """Begin to compare our own loader with what upstream's made live of this checkpoint."""
        compare = self._compare(checkpoint, live.weights)
        self._comparing = asyncio.create_task(compare, name="comparing the loaders")
        return self._comparing

    async def _compare(self, checkpoint: Checkpoint, live: Weights) -> None:
        # The list is a copy: these leaves may be released meanwhile.
        made = Weights(list(live.leaves), live.measured)
        await in_thread(lambda cancel: self.loaders.compare(checkpoint, made, cancel))
        self._note_distrust()
        if self.loaders.comparison.is_tried:
            live.sources = sources_of(checkpoint)

    def _note_distrust(self) -> None:
        if self.loaders.comparison.distrust:
            self._is_distrusted.set()

    async def distrusted(self) -> str:
        """Wait until our own loader was found to make other weights than upstream's; say which."""
        await self._is_distrusted.wait()
        return self.loaders.comparison.distrust

    def decide(self, live: Staged, beside: Sequence[Any] = ()) -> None:
        """Decide where spare sets wait; `beside` describes what must fit beside one that is staged.

        Once, before any is made: a set that waits on one side would not be looked for on the other.
        """
        alive = self.layout.named(live.weights.leaves).values()
        self.why_one_set = why_one_set(self._memory, alive, beside)
        self._destination = (
            Destination(is_host=True) if self.why_one_set else Destination(beside=beside)
        )

    async def stage(self, checkpoint: Checkpoint, live: Staged) -> Staged:
        """Load beside the live weights; a cancelled or failed call leaves nothing behind."""
        self.staging = HowFar(0, checkpoint.bytes)
        how: list[Loading] = []
        try:
            await self.until_compared()
            load = partial(self._load, checkpoint, live, how)
            staged = await self._staged(checkpoint.revision, load)
        finally:
            self.staging = None
            self._note_distrust()
        return replace(staged, loading=how[0])

    async def until_compared(self) -> None:
        """The comparison holds leaves of the live set, and one of its own at a time."""
        if self._comparing is not None:
            await asyncio.wait({self._comparing})

    def _load(
        self, checkpoint: Checkpoint, live: Staged, how: list[Loading], *, cancel: threading.Event
    ) -> Weights:
        def told(done: int) -> None:
            self.staging = HowFar(done, checkpoint.bytes)

        weights, loading = staging.stage(
            checkpoint,
            loaders=self.loaders,
            layout=self.layout,
            live=live.weights,
            max_drift=self.max_drift,
            place=self._destination,
            told=told,
            cancel=cancel,
        )
        how.append(loading)
        return weights

    async def perturb(self, revision: Revision, noise: Noise, live: Staged) -> Staged:
        """Copy the live weights, with noise on some leaves; it fails as `stage` does."""
        await self.until_compared()
        work = partial(perturb, noise, layout=self.layout, live=live.weights)
        work = partial(work, parts=self.plan.parts, to_host=self._destination.is_host)
        return await self._staged(revision, work)

    async def twin(self, staged: Staged, live: Staged) -> Staged:
        """Copy another engine's weights to where spare ones wait here; it fails as `stage` does."""
        original = Original(staged)  # at once: they may be released there while we wait here
        try:
            await self.until_compared()
            copying = Copying(self.layout, self.plan.parts, live.weights, self.loaders.quiet)
            work = partial(copying.copied, original, self._destination)
            return await self._staged(staged.revision, work, name="the copying of", is_read=False)
        finally:
            original.drop_references()

    async def stow(self, staged: Staged, live: Staged) -> Staged:
        """Move spare weights to host memory; what is there already stays as it is."""
        if not staged.weights.leaves:
            return staged
        move = partial(staging.stow, staged.weights, self.layout, live.weights.leaves)
        weights = await in_thread(lambda cancel: move(), discard=Weights.drop)
        self._made.add(weights)
        return replace(staged, weights=weights)

    async def unstow(self, staged: Staged, live: Staged) -> Staged:
        """Bring stowed weights back; what is where spare weights wait already stays as it is."""
        if staged.weights.leaves or self.why_one_set:
            return staged
        back = partial(staging.unstow, staged.weights, self.layout, live.weights.leaves)
        name = f"the way back to {staged.revision}"
        weights = await self._room.make(lambda cancel: back(), name=name)
        self._made.add(weights)
        return replace(staged, weights=weights)

    async def release(self, staged: Staged) -> None:
        """Free spare weights, off the loop."""
        assert staged.weights.lane is None, "weights that answer cannot be freed"
        await asyncio.to_thread(staged.weights.free)

    async def checksums(self, staged: Staged) -> dict[str, int]:
        """Each leaf's checksum, computed on what lies on the device now."""
        # A cancel waits for the thread: it holds leaves that a trade must be able to free.
        return self.noted(
            staged, await in_thread(lambda cancel: self._checksums(staged.weights.leaves))
        )

    def noted(self, staged: Staged, now: dict[str, int]) -> dict[str, int]:
        """The same checksums; what they say of a set that is to be shared with is kept in mind."""
        if now != staged.leaves:
            staged.weights.sources = {}  # nothing is shared with damaged weights: all is read anew
        return now

    def _checksums(self, leaves: Sequence[Any]) -> dict[str, int]:
        """Where copies differ none of them speaks for the leaf: its checksum is another then."""
        checksums = self.loaders.measure(leaves).checksums
        for path in leaves_whose_copies_differ(self.layout.named(leaves), self.plan.parts):
            checksums[path] ^= 1
        return checksums

    async def _staged(
        self,
        revision: Revision,
        work: Callable[..., Weights],
        *,
        name: str = "the loading of",
        is_read: bool = True,
    ) -> Staged:
        make = partial(self._room.make, name=f"{name} {revision}", leave=True, is_read=is_read)
        return self._as_staged(revision, await make(lambda cancel: work(cancel=cancel)))

    def _as_staged(self, revision: Revision, weights: Weights) -> Staged:
        self._made.add(weights)
        measured, weights.paths = weights.measured, self.layout.paths
        return Staged(revision, weights, measured.fingerprint, measured.checksums, self.bytes)
