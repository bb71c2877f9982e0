"""Makes and frees whole sets of weights beside the live one."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal
from weakref import WeakSet

from hotreload.engine.weights import staged_set
from hotreload.engine.weights.leaf.differences import leaves_whose_copies_differ
from hotreload.engine.weights.leaf.leaves import layout_of, signature
from hotreload.engine.weights.leaf.measures import Measured
from hotreload.engine.weights.leaf.values import first_values
from hotreload.engine.weights.load.extra_reads import why_no_room
from hotreload.engine.weights.load.first_load import FirstLoad
from hotreload.engine.weights.load.loader_check import LoaderCheck
from hotreload.engine.weights.load.loaders import Comparison, Loaders
from hotreload.engine.weights.load.plan import record_plan
from hotreload.engine.weights.load.room_to_load import room_to_make
from hotreload.engine.weights.memory.headroom import size_of, why_one_set
from hotreload.engine.weights.memory.room_for_a_set import Room
from hotreload.engine.weights.noise import with_noise
from hotreload.engine.weights.twins import Original, TwinCopier, take_the_place
from hotreload.engine.weights.weights import Destination, Weights, held_bytes, sources_of
from hotreload.errors import BadRequest
from hotreload.quiet import QUIET, Quiet
from hotreload.threads import in_thread
from hotreload.types import Checkpoint, HowFar, LoadFacts, Noise, Revision, Staged, TensorSpec


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
    """The file that notes for later starts which leaves our own loader makes as upstream's does."""


First = Revision | Original | FirstLoad
"""The first weights: the name of what upstream loaded, another engine's, or what ours loaded."""


class WeightSets:
    """The live set of an engine, and the spare ones: makes them, measures them, frees them.

    `core.ports.WeightSets` says what its methods promise.
    """

    live: Staged
    """The weights that answer new requests; known once the first set was adopted."""

    def __init__(
        self,
        model_runner: Any,
        terms: StagingOptions,
        first: First,
        until_compiled: Callable[[], Awaitable[None]],
    ) -> None:
        """`until_compiled` waits for the programs that prove a set; staging begins after it."""
        ours = first if isinstance(first, FirstLoad) else None
        comparison = first.comparison if isinstance(first, Original) else Comparison()
        comparison.is_tried = comparison.is_tried or ours is not None
        others = "copy" if isinstance(first, Original) else "upstream"
        self.first_loader = others if ours is None else "own"
        """The loader of the first set; `copy` of another engine's."""
        self.layout = layout_of(model_runner.model)
        plan = None if ours is None else ours.plan
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
        self.loader_check = LoaderCheck(self.loaders, self.layout, self.plan, terms.trust)
        self.set_bytes = 0
        """The size of one set; known once the first was adopted."""
        self.why_one_set: str | None = None
        """The reason why spare sets wait on the host; None if they lie beside the live one."""
        self.staging_progress: HowFar | None = None
        """Progress of the checkpoint that is being staged."""
        self.max_drift = terms.max_drift
        """The factor by which a leaf's root mean square may change; it may be set at any time."""
        self._memory = terms.memory
        self._until_compiled = until_compiled
        self._destination = Destination()
        self._room = Room()
        self._made: WeakSet[Weights] = WeakSet()
        self.unchanged = asyncio.Lock()
        """Held while the live leaves are read (never half of a set), and while they are traded."""

    @property
    def spares_wait_on_host(self) -> bool:
        """True where one set of weights at a time is on the device."""
        return self.why_one_set is not None

    @property
    def leaf_count(self) -> int:
        """Number of leaves of a set."""
        return len(self.layout.places)

    def expected_tensors(self) -> Mapping[str, TensorSpec]:
        """Return every tensor a checkpoint must have; a shape is None where it is unknown."""
        return self.plan.tensors

    def live_leaves(self) -> dict[str, Any]:
        """Return the live leaves by path."""
        return self.layout.by_path(self.live.weights.leaves)

    def structure(self) -> dict[str, tuple[Any, ...]]:
        """Shape, dtype and placement of each live leaf: what the compiled model sees of it."""
        return {path: signature(leaf) for path, leaf in self.live_leaves().items()}

    def adopt(self, leaves: list[Any], first: First) -> None:
        """Set `live` to the leaves that a loader made, or to a copy of an original's; it blocks."""
        if isinstance(first, FirstLoad):
            self.live = self._adopt_ours(leaves, first)
            return
        if isinstance(first, Revision):
            self.live = self._adopt_upstreams(leaves, first)
            return
        take_the_place(first, leaves, self.layout)
        self.live = self._adopt_upstreams(leaves, first.revision)
        first.check_same(self.live.weights.measured)
        self.live.weights.sources = first.sources

    def _adopt_upstreams(self, leaves: list[Any], revision: Revision) -> Staged:
        """Copy the leaves of upstream's loader into memory of our own; return them as a set.

        Upstream's loader maps the files: without the copy a rewritten file changes live weights.
        """
        self.set_bytes = size_of(self.layout.by_path(leaves))
        staged_set.take_over(leaves, self.layout)
        return self._as_staged(revision, Weights(leaves, self.loaders.measure(leaves)))

    def _adopt_ours(self, leaves: list[Any], filling: FirstLoad) -> Staged:
        """Return the leaves of our own loader as a set: they are measured already."""
        assert filling.measured is not None, "the engine was built with it"
        self.set_bytes = size_of(self.layout.by_path(leaves))
        weights = Weights(leaves, filling.measured, sources=sources_of(filling.checkpoint))
        return self._as_staged(filling.checkpoint.revision, weights)

    def drop_references(self) -> None:
        """Drop all references to the engine, and empty all its sets, when the engine ends.

        A caller may keep an error, whose frames hold all objects that they used.
        """
        for weights in self._made:
            weights.drop()
        self.layout.drop_references()
        self.loader_check.drop_references()
        del self.loaders

    async def wait_for_distrust(self) -> str:
        """Wait until our own loader makes other weights than upstream's; return which leaf."""
        return await self.loader_check.wait_for_distrust()

    def decide(self, beside: Sequence[Any] = ()) -> None:
        """Decide where spare sets wait; `beside` describes arrays that must fit beside a new one.

        It is decided once, before the first set is made: all spare sets wait in the same place.
        """
        alive = self.live_leaves().values()
        itemsizes = {leaf.dtype.itemsize for leaf in alive}
        making, _ = room_to_make([*alive], itemsizes, self.loaders.quiet.threads)
        self.why_one_set = why_one_set(self._memory, alive, [*beside, *making])
        self._destination = (
            Destination(is_host=True) if self.why_one_set else Destination(beside=beside)
        )

    async def stage(self, checkpoint: Checkpoint) -> Staged:
        """Load beside the live weights, or to the host; a cancelled call leaves nothing behind."""
        await self.until_ready_to_stage()
        self.staging_progress = HowFar(0, checkpoint.bytes)
        how: list[LoadFacts] = []
        try:
            load = partial(self._load, checkpoint, self.live.weights, how)
            staged = await self._stage(checkpoint.revision, load)
        finally:
            self.staging_progress = None
            self.loader_check.note_distrust()
        revision = checkpoint.as_read.revision  # the id of unread files is known only now
        if checkpoint.is_unread:  # and so is that of arrays
            revision = replace(revision, id=staged.fingerprint)
        return replace(staged, revision=revision, loading=how[0])

    async def until_ready_to_stage(self) -> None:
        """Wait until a set that is staged could be proven at once, too."""
        await self._until_compiled()
        await self.loader_check.until_done()

    async def check_takes(self, checkpoint: Checkpoint) -> None:
        """Raise BadRequest for a part of the tensors if only whole sets can be loaded."""
        await self.loader_check.until_done()
        self.loaders.check_takes(checkpoint)

    async def takes_unread(self, checkpoint: Checkpoint) -> bool:
        """Say if the engine copies these arrays from where they lie, and checks them there."""
        await self.loader_check.until_done()
        async with self.unchanged:
            live = self.live.weights
            return not self.spares_wait_on_host and self.loaders.takes_unread(checkpoint, live)

    def live_sums(self) -> dict[str, int]:
        """Return the number of each live tensor by its name; the fingerprint is made of them.

        BadRequest if it is unknown which tensors the leaves were made of.
        """
        if self.plan.why_not is not None:
            words = "the tensors that are live cannot be listed one by one"
            raise BadRequest(f"{words}: {self.plan.why_not}")
        measured: Measured = self.live.weights.measured
        return measured.of_tensors

    async def lacks_room(self, checkpoint: Checkpoint | None) -> str | None:
        """Say what memory is missing for one more set of weights; None when it is there."""
        live = self.live.weights
        place = self._beside_all(live)
        return await in_thread(partial(why_no_room, checkpoint, self.loaders, live, place))

    def held_bytes(self, sets: Sequence[Staged]) -> list[int]:
        """Return each set's bytes on the device; a leaf counts in the first set that has it."""
        return held_bytes(self.layout, [list(each.weights.leaves) for each in sets])

    def _beside_all(self, live: Weights) -> Destination:
        """Return the place where a set is made, with all sets that lie there already."""
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
        def note_progress(done: int) -> None:
            self.staging_progress = HowFar(done, checkpoint.bytes)

        weights, loading = staged_set.load_weights(
            checkpoint,
            loaders=self.loaders,
            layout=self.layout,
            live=live,
            max_drift=self.max_drift,
            place=self._beside_all(live),
            report=note_progress,
            cancel=cancel,
        )
        how.append(loading)
        return weights

    async def perturb(self, revision: Revision, noise: Noise) -> Staged:
        """Copy the live weights, with noise on some leaves; raises the errors of `stage`."""
        await self.loader_check.until_done()
        work = partial(with_noise, noise, layout=self.layout, live=self.live.weights)
        work = partial(work, parts=self.plan.parts, to_host=self._destination.is_host)
        return await self._stage(revision, work)

    async def twin(self, staged: Staged) -> Staged:
        """Copy another engine's weights to the place of spare ones; raises what `stage` raises."""
        original = Original(staged)  # at once: they may be released there while we wait here
        try:
            await self.until_ready_to_stage()
            copier = TwinCopier(self.layout, self.plan.parts, self.live.weights, self.loaders.quiet)
            work = partial(copier.copy_weights, original, self._beside_all(self.live.weights))
            return await self._stage(staged.revision, work, name="the copying of", is_read=False)
        finally:
            original.drop_references()

    async def stow(self, staged: Staged) -> Staged:
        """Move spare weights to host memory; those that are there already stay as they are."""
        if not staged.weights.leaves:
            return staged
        move = partial(
            staged_set.move_to_host, staged.weights, self.layout, self.live.weights.leaves
        )
        weights = await in_thread(lambda cancel: move(), discard=Weights.drop)
        self._made.add(weights)
        return replace(staged, weights=weights)

    async def unstow(self, staged: Staged) -> Staged:
        """Bring stowed weights back to the place of spare ones, unless they are there already."""
        if staged.weights.leaves or self.why_one_set:
            return staged
        back = partial(staged_set.bring_back, staged.weights, self.layout, self.live.weights.leaves)
        name = f"the way back to {staged.revision}"
        weights = await self._room.make(lambda cancel: back(), name=name)
        self._made.add(weights)
        return replace(staged, weights=weights)

    async def release(self, staged: Staged) -> None:
        """Free spare weights, off the loop."""
        assert staged.weights.lane is None, "weights that answer cannot be freed"
        await asyncio.to_thread(staged.weights.free)

    async def checksums(self) -> dict[str, int]:
        """Compute the checksum of each live leaf."""
        async with self.unchanged:
            live = self.live
            # A cancel waits for the thread: it holds leaves that a trade must be able to free.
            now = await in_thread(lambda cancel: self._checksums(live.weights.leaves))
            return self.note_damage(live, now)

    async def first_values(self, name: str, most: int) -> list[Any]:
        """Return the first numbers, or rows, of a live leaf, or of a tensor in one."""
        async with self.unchanged:
            show = partial(first_values, self.live_leaves())
            return await in_thread(lambda cancel: show(self.plan.parts, name, most))

    def note_damage(self, live: Staged, now: dict[str, int]) -> dict[str, int]:
        """Return the checksums; if they differ from the live set's, share no leaf any more."""
        if now != live.leaves:
            # A damaged leaf may be in other sets, too: all is read again.
            for each in [live.weights, *self._made]:
                each.sources = {}
        return now

    def _checksums(self, leaves: Sequence[Any]) -> dict[str, int]:
        """Compute checksums of leaves; a leaf whose copies differ gets a wrong one on purpose."""
        checksums = self.loaders.measure(leaves).checksums
        for path in leaves_whose_copies_differ(self.layout.by_path(leaves), self.plan.parts):
            checksums[path] ^= 1
        return checksums

    async def _stage(
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
