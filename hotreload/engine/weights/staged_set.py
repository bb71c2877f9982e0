"""Loads new weights beside the live ones: complete, on the device, with the same signatures.

Runs in a worker thread of its own. Nothing here touches what serves.
"""

import gc
import threading
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from hotreload.engine.weights.leaf.leaves import Layout, like, signature, wait_for
from hotreload.engine.weights.leaf.measures import Measured
from hotreload.engine.weights.load.bytes_read import ReportBytes
from hotreload.engine.weights.load.loaders import Loaders
from hotreload.engine.weights.load.upstream_loader import MOST_NAMED
from hotreload.engine.weights.memory.headroom import check_headroom, raise_not_enough_memory
from hotreload.engine.weights.weights import Destination, Weights, sources_upon
from hotreload.errors import CheckpointIncompatible, CheckpointRejected
from hotreload.types import Checkpoint, LoadFacts

YOUNG = 1
"""The generation of objects that loading made, for the garbage collector."""
SLICE = 128
"""Leaves that the model's own variables are given at once, 2.6 us each; the loop waits for it."""


def load_weights(
    checkpoint: Checkpoint,
    *,
    loaders: Loaders,
    layout: Layout,
    live: Weights,
    max_drift: float | None,
    place: Destination,
    report: ReportBytes,
    cancel: threading.Event,
) -> tuple[Weights, LoadFacts]:
    """Load a checkpoint to the place of spare weights; after an error nothing is left behind."""
    with raise_not_enough_memory():
        made, loading = loaders.load(checkpoint, live, place, cancel, report)
    try:
        if made.leaves:
            check_signatures(layout, made.leaves, live.leaves)
        if max_drift is not None:
            check_drift(made.measured, live.measured, max_drift)
    except BaseException:
        made.leaves.clear()
        made.drop()
        raise
    made.sources = sources_upon(live, checkpoint.as_read)
    # Collected now, before the gate is closed, and young objects alone: a whole collection stops
    # all threads for tenths of a second.
    gc.collect(YOUNG)
    return made, loading


def check_signatures(layout: Layout, leaves: list[Any], live: list[Any]) -> None:
    """Refuse a leaf of another signature: the model would recompile while clients wait."""
    for place in layout.places:
        new, old = signature(leaves[place]), signature(live[place])
        if new != old:
            raise CheckpointIncompatible(
                f"{layout.paths[place]} cannot be placed like the live one: {new}, not {old}"
            )


def check_drift(new: Measured, live: Measured, most: float) -> None:
    """Refuse weights when a leaf's root mean square changed by more than a factor of `most`."""
    drifts = {path: _drift(new.rms[path], live.rms[path]) for path in new.rms}
    # Written so that NaN is too far as well.
    far = sorted((path for path in drifts if not drifts[path] <= most), key=drifts.__getitem__)
    if far:
        raise CheckpointRejected(
            f"{far[-1]}: its root mean square went from {live.rms[far[-1]]:.3g} to "
            f"{new.rms[far[-1]]:.3g}, more than a factor of {most:g} ([checks] max_drift)",
            code="drift",
            findings=far[-MOST_NAMED:],
        )


def _drift(new: float, old: float) -> float:
    if new == old:
        return 1.0
    if new == 0 or old == 0:
        return float("inf")
    return max(new / old, old / new)


def take_over(leaves: list[Any], layout: Layout) -> None:
    """Copy the weights an engine started with into memory of our own, one leaf at a time.

    Nothing is served yet, so the list may change in place: at no time is all of it there twice.
    """
    for place, variable in enumerate(layout.variables):
        if variable is not None:
            leaves[place] = like(leaves[place], leaves[place])
            variable.set_raw_value(leaves[place])
    wait_for(layout, leaves)


def move_to_host(weights: Weights, layout: Layout, live: list[Any]) -> Weights:
    """Move weights to host memory of our own; the given set is emptied.

    A leaf that the live weights share stays where it is: a copy would free nothing.
    """
    # np.array copies: np.asarray would alias device memory on CPU.
    host = {
        place: leaf if leaf is live[place] else np.array(leaf)
        for place in layout.places
        for leaf in weights.leaves[place : place + 1]
    }
    stowed = Weights([], weights.measured, host, weights.sources, weights.paths)
    weights.drop()
    return stowed


def bring_back(stowed: Weights, layout: Layout, live: list[Any]) -> Weights:
    """Bring stowed weights back to the device, placed like the live ones."""
    check_headroom(layout.by_path(live).values())
    leaves = list(live)
    with raise_not_enough_memory():
        for place in layout.places:
            kept = stowed.host[place]
            leaves[place] = kept if isinstance(kept, jax.Array) else like(kept, live[place])
        wait_for(layout, leaves)
    check_signatures(layout, leaves, live)
    stowed.drop()
    return Weights(leaves, stowed.measured, sources=stowed.sources, paths=stowed.paths)


def give_to_model(layout: Layout, leaves: list[Any]) -> Iterator[None]:
    """Put leaves into the model's variables, in slices: other threads may work between two."""
    for at, (variable, leaf) in enumerate(zip(layout.variables, leaves, strict=True), 1):
        if variable is not None:
            variable.set_raw_value(leaf)
        if at % SLICE == 0:
            yield
