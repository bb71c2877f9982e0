"""Copies the weights of another engine of the same model, from its devices to this engine's.

No file is read, so none is hashed: what arrived is measured, and must be what was measured there.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from hotreload import failpoints
from hotreload.checkpoint.file_reader import Cancelled
from hotreload.engine.weights.leaf.leaf_rules import Ingredients
from hotreload.engine.weights.leaf.leaves import Layout, like, wait_for
from hotreload.engine.weights.leaf.measures import Measured, One, join_measures, measure
from hotreload.engine.weights.load.loaders import Comparison
from hotreload.engine.weights.memory.headroom import (
    check_headroom,
    raise_not_enough_memory,
    size_of,
)
from hotreload.engine.weights.memory.host_arrays import copy_to_host
from hotreload.engine.weights.staged_set import check_signatures
from hotreload.engine.weights.weights import Destination, Weights, at_hand
from hotreload.errors import CheckpointIncompatible, TryAgain
from hotreload.quiet import Quiet, do_quietly
from hotreload.types import Revision, Staged


class Original:
    """The weights of another engine as they are now, held until each leaf has been copied.

    The other engine may release them meanwhile, but it never changes a leaf.
    """

    def __init__(self, staged: Staged, comparison: Comparison | None = None) -> None:
        """`comparison` is the other engine's result of comparing our own loader."""
        weights: Weights = staged.weights
        held = weights.host.items() if weights.host else enumerate(weights.leaves)
        self.revision: Revision = staged.revision
        self.measured = weights.measured
        self.sources = dict(weights.sources)
        self.comparison = comparison or Comparison()
        self._leaves = {weights.paths[place]: leaf for place, leaf in held}
        if not self._leaves:
            raise TryAgain(
                f"the weights of {staged.revision} were released before they could be copied: "
                "the engine that held them has ended",
                code="original_gone",
            )

    def take(self, path: str) -> Any:
        """Return a leaf, and drop the reference to it."""
        return self._leaves.pop(path)

    def drop_references(self) -> None:
        """Drop the leaves: an error keeps its frames, and they keep this object."""
        self._leaves.clear()

    def check_fits(self, layout: Layout, live: Sequence[Any], *, any_dtype: bool = False) -> None:
        """Raise CheckpointIncompatible unless the original has a leaf like each live one."""
        for place in layout.places:
            path, old = layout.paths[place], live[place]
            leaf = self._leaves.get(path)
            if leaf is None:
                raise CheckpointIncompatible(f"the engine that is copied has no {path}")
            if leaf.shape != old.shape or not (any_dtype or leaf.dtype == old.dtype):
                raise CheckpointIncompatible(
                    f"{path} is {leaf.dtype}{list(leaf.shape)} in the engine that is copied, and "
                    f"{old.dtype}{list(old.shape)} here"
                )

    def check_same(self, copy: Measured) -> None:
        """Raise TryAgain if a copy differs from the figures that the original had when made.

        The copy is at fault, or the memory it was made from: both engines may have damaged
        weights. The files may still be good, therefore the checkpoint is not refused.
        """
        other = sorted(path for path, sums in copy.sums.items() if sums != self.measured.sums[path])
        if other:
            raise TryAgain(
                f"{other[0]} of {self.revision} is another one after it was copied from device to "
                "device: a memory or the way between the devices is at fault (`hotreload "
                "checksums` says whether what is live there still is what went live)",
                code="copy_differs",
                findings=other,
            )


class TwinCopier:
    """Copies an original's weights; leaves that are in a set here already are shared."""

    def __init__(self, layout: Layout, parts: Ingredients, live: Weights, quiet: Quiet) -> None:
        self._layout = layout
        self._parts = parts
        self._live = live
        self._quiet = quiet

    def copy_weights(
        self, original: Original, place: Destination, *, cancel: threading.Event
    ) -> Weights:
        """Copy the weights to the place of spare ones; after an error nothing is left behind."""
        failpoints.reach_in_thread("reading")
        original.check_fits(self._layout, self._live.leaves)
        copy = self._to_host if place.is_host else partial(self._beside, place=place)
        with raise_not_enough_memory():
            made = copy(original, cancel)
        try:
            original.check_same(made.measured)
            if made.leaves:
                check_signatures(self._layout, made.leaves, self._live.leaves)
        except BaseException:
            made.leaves.clear()
            made.drop()
            raise
        made.sources = original.sources
        return made

    def _beside(
        self, original: Original, cancel: threading.Event, *, place: Destination
    ) -> Weights:
        live, paths, sets = self._live, self._layout.paths, (self._live, *place.held)
        leaves, ones = at_hand(self._layout, self._parts, original.sources, sets)
        fresh = [at for at in self._layout.places if paths[at] not in ones]
        try:
            check_headroom([live.leaves[at] for at in fresh], beside=place.beside)
            for at, leaf, one in self._make_leaves(original, fresh, _placed_like, cancel):
                leaves[at], ones[paths[at]] = leaf, one
        except BaseException:
            leaves.clear()
            raise
        return Weights(leaves, join_measures(ones))

    def _to_host(self, original: Original, cancel: threading.Event) -> Weights:
        """Copy every leaf to the host; none is shared, as with checkpoints that wait there."""
        paths = self._layout.paths
        check_headroom((), on_host=size_of(self._layout.by_path(self._live.leaves)))
        made, ones = Weights([], self._live.measured), dict[str, One]()
        try:
            for at, leaf, one in self._make_leaves(original, self._layout.places, _on_host, cancel):
                made.host[at], ones[paths[at]] = leaf, one
        except BaseException:
            made.drop()
            raise
        made.measured = join_measures(ones)
        return made

    def _make_leaves(
        self,
        original: Original,
        places: Sequence[int],
        make: Callable[[Any, Any], Any],
        cancel: threading.Event,
    ) -> Iterator[tuple[int, Any, One]]:
        """Copy and measure each leaf in quiet threads; yield its place, copy and figures."""

        def copy(place: int) -> tuple[int, Any, One]:
            if cancel.is_set():
                raise Cancelled
            path = self._layout.paths[place]
            leaf = make(original.take(path), self._live.leaves[place])
            return place, leaf, measure({path: leaf}, self._parts).one(path)

        def worker() -> AbstractContextManager[Callable[[int], tuple[int, Any, One]]]:
            return nullcontext(copy)

        def bytes_of(place: int) -> int:
            return int(self._live.leaves[place].nbytes)

        return do_quietly(places, worker, self._quiet, bytes_of)


def _placed_like(leaf: Any, live: Any) -> Any:
    return like(leaf, live).block_until_ready()


def _on_host(leaf: Any, live: Any) -> Any:
    return copy_to_host(leaf)


def take_the_place(original: Original, leaves: list[Any], layout: Layout) -> None:
    """Put an original's leaves where random ones are, each placed like the one it replaces.

    Nothing is computed yet: the list may change in place. The original's dtypes count, because
    0.0.2 makes some random leaves bfloat16 even if another dtype was asked for.
    """
    original.check_fits(layout, leaves, any_dtype=True)
    for place, variable in enumerate(layout.variables):
        if variable is not None:
            leaves[place] = like(original.take(layout.paths[place]), leaves[place])
            variable.set_raw_value(leaves[place])
    wait_for(layout, leaves)
