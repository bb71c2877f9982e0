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
from hotreload.engine.weights.leaf.comparing import leaves_whose_copies_differ
from hotreload.engine.weights.leaf.leaf_rules import Plan
from hotreload.engine.weights.leaf.leaves import layout_of
from hotreload.engine.weights.leaf.measuring import Measured
from hotreload.engine.weights.leaf.values import first_values
from hotreload.engine.weights.load.first_load import FirstLoad
from hotreload.engine.weights.load.loaders import Comparison, Loaders
from hotreload.engine.weights.load.plan import record_plan
from hotreload.engine.weights.load.rereading import why_no_room
from hotreload.engine.weights.load.trust import mark_of, note
from hotreload.engine.weights.memory.headroom import size_of, why_one_set
from hotreload.engine.weights.memory.room_for_a_set import Room
from hotreload.engine.weights.noise import with_noise
from hotreload.engine.weights.twins import Copying, Original, take_the_place
from hotreload.engine.weights.weights import Destination, Weights, held_bytes, sources_of
from hotreload.errors import BadRequest
from hotreload.quiet import QUIET, Quiet
from hotreload.threads import in_thread
from hotreload.types import Checkpoint, HowFar, LoadFacts, Noise, Revision, Staged


@dataclass(frozen=True, slots=True)
class StagingOptions:
    """Options of how checkpoints are loaded, as the operator decided."""

    spool: Path
    """The folder where upstream's loader gets a private copy to read."""
    max_drift: float | None = None
    loader: Literal["auto", "upstream"] = "auto"
    memory: Literal["double", "host", "auto"] = "double"
    quiet: Quiet = QUIET
    trust: Path | None = None
    """The file that tells later starts what our own loader was found to make as upstream's does."""


First = Revision | Original | FirstLoad
"""The first weights: the name of what upstream loaded, another engine's, or what ours loaded."""


class StagingEngine:
    """An engine that can make and free sets of weights beside the live one.

    What its verbs promise stands in `core.ports.Engine`.
    """

    live: Staged
    """The weights that answer new requests."""

    def __init__(
        self,
        model_runner: Any,
        terms: StagingOptions,
        comparison: Comparison,
        plan: Plan | None = None,
    ) -> None:
        self.layout = layout_of(model_runner.model)
        self.plan = plan or record_plan(model_runner, self.layout)
        self.loaders = Loaders(
            model_runner,
            self.layout,
            self.plan,
            spool=terms.spool,
            choice=terms.loader,
            quiet=terms.quiet,
            comparison=comparison,
        )
        self.set_bytes = 0
        """Of one set; known when the first was adopted."""
        self.why_one_set: str | None = None
        """Reason why one set at a time is on the device, and spare ones wait on the host; None if
        they lie beside the live one."""
        self.staging: HowFar | None = None
        """Progress of the checkpoint that is being staged."""
        self.max_drift = terms.max_drift
        """By how much a tensor's norm may differ; another may be set at any time."""
        self._memory = terms.memory
        self._trust = terms.trust
        self._destination = Destination()
        self._room = Room()
        self._made: WeakSet[Weights] = WeakSet()
        self._comparing: asyncio.Task[None] | None = None
        self._is_distrusted = asyncio.Event()
        self.unchanged = asyncio.Lock()
        """Held while the live leaves are read (never half of a set), and while they are traded."""

    @property
    def spares_wait_on_host(self) -> bool:
        """True where one set of weights at a time is on the device."""
        return self.why_one_set is not None

    def adopt(self, leaves: list[Any], first: First) -> None:
        """Make the live set of what was loaded, or of an original's copy."""
        if isinstance(first, FirstLoad):
            self.live = self._filled(leaves, first)
            return
        if isinstance(first, Revision):
            self.live = self._adopted(leaves, first)
            return
        take_the_place(first, leaves, self.layout)
        self.live = self._adopted(leaves, first.revision)
        first.check_same(self.live.weights.measured)
        self.live.weights.sources = first.sources

    def _adopted(self, leaves: list[Any], revision: Revision) -> Staged:
        """One of our sets, copied into memory of our own.

        Upstream's loader maps the files: before the copy, a rewritten file changes live weights.
        """
        self.set_bytes = size_of(self.layout.named(leaves))
        staging.take_over(leaves, self.layout)
        return self._as_staged(revision, Weights(leaves, self.loaders.measure(leaves)))

    def _filled(self, leaves: list[Any], filling: FirstLoad) -> Staged:
        """One of our sets, which lies in memory of our own and is measured."""
        assert filling.measured is not None, "the engine was built with it"
        self.set_bytes = size_of(self.layout.named(leaves))
        weights = Weights(leaves, filling.measured, sources=sources_of(filling.checkpoint))
        return self._as_staged(filling.checkpoint.revision, weights)

    def drop_references(self) -> None:
        """Hold nothing of the engine any more, and empty all its sets: it ends.

        A caller may keep an error, whose frames hold all that was at hand.
        """
        for weights in self._made:
            weights.drop()
        self.layout.drop_references()
        self._comparing = None
        del self.loaders

    def compare_with(self, checkpoint: Checkpoint) -> asyncio.Task[None]:
        """Begin to compare our own loader with what upstream's made live of this checkpoint."""
        compare = self._compare(checkpoint, self.live.weights)
        self._comparing = asyncio.create_task(compare, name="comparing the loaders")
        return self._comparing

    async def _compare(self, checkpoint: Checkpoint, live: Weights) -> None:
        # The list is a copy: these leaves may be released meanwhile.
        made = Weights(list(live.leaves), live.measured)
        await in_thread(lambda cancel: self._compared(checkpoint, made, cancel))
        self._note_distrust()
        if self.loaders.comparison.is_tried:
            live.sources = sources_of(checkpoint)

    def _compared(self, checkpoint: Checkpoint, made: Weights, cancel: threading.Event) -> None:
        self.loaders.compare(checkpoint, made, cancel)
        if self._trust is not None and self.loaders.why_upstream is None:
            note(self._trust, mark_of(self.layout, made.leaves, self.plan, checkpoint))

    def _note_distrust(self) -> None:
        if self.loaders.comparison.distrust:
            self._is_distrusted.set()

    async def wait_for_distrust(self) -> str:
        """Wait until our own loader was found to make other weights than upstream's; say which."""
        await self._is_distrusted.wait()
        return self.loaders.comparison.distrust

    def decide(self, beside: Sequence[Any] = ()) -> None:
        """Decide where spare sets wait; `beside` describes what must fit beside one that is staged.

        Once, before any is made: a set that waits on one side would not be looked for on the other.
        """
        alive = self.layout.named(self.live.weights.leaves).values()
        self.why_one_set = why_one_set(self._memory, alive, beside)
        self._destination = (
            Destination(is_host=True) if self.why_one_set else Destination(beside=beside)
        )

    async def stage(self, checkpoint: Checkpoint) -> Staged:
        """Load beside the live weights, or to the host; a cancelled call leaves nothing behind."""
        await self.until_ready_to_stage()
        self.staging = HowFar(0, checkpoint.bytes)
        how: list[LoadFacts] = []
        try:
            load = partial(self._load, checkpoint, self.live.weights, how)
            staged = await self._staged(checkpoint.revision, load)
        finally:
            self.staging = None
            self._note_distrust()
        revision = checkpoint.as_read.revision  # only now anybody knows what unread files are
        if checkpoint.is_unread:  # and arrays
            revision = replace(revision, id=staged.fingerprint)
        return replace(staged, revision=revision, loading=how[0])

    async def until_ready_to_stage(self) -> None:
        """Return once nothing is under way that must be over before a set is staged."""
        await self.until_compared()

    async def until_compared(self) -> None:
        """The comparison holds leaves of the live set, and one of its own at a time."""
        if self._comparing is not None:
            await asyncio.wait({self._comparing})

    async def check_takes(self, checkpoint: Checkpoint) -> None:
        """BadRequest for a part of the tensors, where sets are loaded whole alone."""
        await self.until_compared()
        self.loaders.check_takes(checkpoint)

    async def takes_unread(self, checkpoint: Checkpoint) -> bool:
        """Say if the engine takes these arrays from where they lie, and judges them there."""
        await self.until_compared()
        async with self.unchanged:
            live = self.live.weights
            return not self.spares_wait_on_host and self.loaders.takes_unread(checkpoint, live)

    def live_sums(self) -> dict[str, int]:
        """The number of each live tensor by its name: those that a fingerprint is made of.

        BadRequest where nobody can tell which tensors the leaves were made of.
        """
        if self.plan.why_not is not None:
            words = "the tensors that are live cannot be told one by one"
            raise BadRequest(f"{words}: {self.plan.why_not}")
        measured: Measured = self.live.weights.measured
        return measured.of_tensors

    async def lacks_room(self, checkpoint: Checkpoint | None) -> str | None:
        """Say what memory is missing for one more set of weights; None when it is there."""
        live = self.live.weights
        place = self._beside_all(live)
        return await in_thread(partial(why_no_room, checkpoint, self.loaders, live, place))

    def held_bytes(self, sets: Sequence[Staged]) -> list[int]:
        """Bytes that each takes on the device beside those before it: a leaf is held once."""
        return held_bytes(self.layout, [list(each.weights.leaves) for each in sets])

    def _beside_all(self, live: Weights) -> Destination:
        """The place where a set is made, with what it holds already beside the live one."""
        held = tuple(each for each in self._made if each is not live and each.leaves)
        return replace(self._destination, held=held)

    def _load(
        self,
        checkpoint: Checkpoint,
        live: Weights,
        how: list[LoadFacts],
        *,
        cancel: threading.Event,
    ) -> Weights:
        def told(done: int) -> None:
            self.staging = HowFar(done, checkpoint.bytes)

        weights, loading = staging.made_of(
            checkpoint,
            loaders=self.loaders,
            layout=self.layout,
            live=live,
            max_drift=self.max_drift,
            place=self._beside_all(live),
            told=told,
            cancel=cancel,
        )
        how.append(loading)
        return weights

    async def perturb(self, revision: Revision, noise: Noise) -> Staged:
        """Copy the live weights, with noise on some leaves; it fails as `stage` does."""
        await self.until_compared()
        work = partial(with_noise, noise, layout=self.layout, live=self.live.weights)
        work = partial(work, parts=self.plan.parts, to_host=self._destination.is_host)
        return await self._staged(revision, work)

    async def twin(self, staged: Staged) -> Staged:
        """Copy another engine's weights to where spare ones wait here; it fails as `stage` does."""
        original = Original(staged)  # at once: they may be released there while we wait here
        try:
            await self.until_ready_to_stage()
            copying = Copying(self.layout, self.plan.parts, self.live.weights, self.loaders.quiet)
            work = partial(copying.copied, original, self._beside_all(self.live.weights))
            return await self._staged(staged.revision, work, name="the copying of", is_read=False)
        finally:
            original.drop_references()

    async def stow(self, staged: Staged) -> Staged:
        """Move spare weights to host memory; what is there already stays as it is."""
        if not staged.weights.leaves:
            return staged
        move = partial(staging.taken_to_host, staged.weights, self.layout, self.live.weights.leaves)
        weights = await in_thread(lambda cancel: move(), discard=Weights.drop)
        self._made.add(weights)
        return replace(staged, weights=weights)

    async def unstow(self, staged: Staged) -> Staged:
        """Bring stowed weights back; what is where spare weights wait already stays as it is."""
        if staged.weights.leaves or self.why_one_set:
            return staged
        back = partial(staging.brought_back, staged.weights, self.layout, self.live.weights.leaves)
        name = f"the way back to {staged.revision}"
        weights = await self._room.make(lambda cancel: back(), name=name)
        self._made.add(weights)
        return replace(staged, weights=weights)

    async def release(self, staged: Staged) -> None:
        """Free spare weights, off the loop."""
        assert staged.weights.lane is None, "weights that answer cannot be freed"
        await asyncio.to_thread(staged.weights.free)

    async def checksums(self) -> dict[str, int]:
        """Each leaf's checksum, computed on what is live now."""
        async with self.unchanged:
            live = self.live
            # A cancel waits for the thread: it holds leaves that a trade must be able to free.
            now = await in_thread(lambda cancel: self._checksums(live.weights.leaves))
            return self._noted(live, now)

    async def first_values(self, name: str, most: int) -> list[Any]:
        """The first numbers, or rows, of a live leaf, or of a tensor that one was made of."""
        async with self.unchanged:
            show = partial(first_values, self.layout.named(self.live.weights.leaves))
            return await in_thread(lambda cancel: show(self.plan.parts, name, most))

    def _noted(self, live: Staged, now: dict[str, int]) -> dict[str, int]:
        """Note what checksums say of a set that is to be shared with; return them."""
        if now != live.leaves:
            # Nothing is shared with damaged weights, all is read again: others may hold that leaf.
            for each in [live.weights, *self._made]:
                each.sources = {}
        return now

    def _checksums(self, leaves: Sequence[Any]) -> dict[str, int]:
        """Checksums of leaves; one whose copies differ gets another: none speaks for it."""
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
        return Staged(revision, weights, measured.fingerprint, measured.checksums, self.set_bytes)
