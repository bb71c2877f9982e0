"""Loads new weights beside the live ones: complete, on the device, with the same signatures.

Runs in a worker thread of its own. Nothing here touches what serves.
"""

import gc
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from hotreload.engine.weights.headroom import check_headroom, telling_lack_of_memory
from hotreload.engine.weights.leaves import (
    Layout,
    Measured,
    is_placeholder,
    leaves_by_path,
    like,
    measure,
    signature,
)
from hotreload.engine.weights.shadow import Plan, load_shadow
from hotreload.engine.weights.spool import private_copy
from hotreload.errors import CheckpointIncompatible, CheckpointRejected
from hotreload.reading import Cancelled
from hotreload.types import Checkpoint

NAMED = 10
"""How many leaves or tensors a message names."""


@dataclass(slots=True, eq=False)
class Weights:
    """A set of leaves: the engine's whole list on the device, or copies in host memory."""

    leaves: list[Any]
    measured: Measured
    host: dict[int, np.ndarray[Any, Any]] = field(default_factory=dict)
    lane: int | None = None
    """The number of the lane in which they answer; None while they are spare."""

    def drop(self) -> None:
        """Let go of all memory; nothing else holds these leaves."""
        self.leaves, self.host = [], {}


def stage(
    checkpoint: Checkpoint,
    *,
    model_runner: Any,
    layout: Layout,
    live: Weights,
    plan: Plan,
    spool: Path,
    max_drift: float | None,
    beside: int,
    cancel: threading.Event,
) -> Weights:
    """Load a checkpoint beside the live weights; whatever goes wrong, nothing is left behind.

    `beside` is how many bytes must be free beside them, for the KV pool they are proven in.
    """
    check_headroom(layout.named(live.leaves), beside)
    _check_complete(checkpoint, plan)
    with telling_lack_of_memory():
        with private_copy(checkpoint, spool, cancel) as folder:
            loaded = _load(model_runner, folder, checkpoint)
            with _emptied_at_the_end(loaded):
                _check_written(loaded, layout, plan)
                leaves = _fit(loaded, layout, live.leaves, cancel)
        measured = measure(layout.named(leaves))
    if max_drift is not None:
        check_drift(measured, live.measured, max_drift)
    gc.collect()  # now, rather than while the gate is closed
    return Weights(leaves, measured)


@contextmanager
def _emptied_at_the_end(loaded: dict[str, Any]) -> Iterator[None]:
    """Empty it: an error keeps the frames it passed, and they must not keep a set of weights."""
    try:
        yield
    finally:
        loaded.clear()


def _load(model_runner: Any, folder: Path, checkpoint: Checkpoint) -> dict[str, Any]:
    try:
        return leaves_by_path(load_shadow(model_runner, folder))
    except (MemoryError, jax.errors.JaxRuntimeError):
        raise
    except Exception as fault:
        raise CheckpointIncompatible(
            f"{checkpoint.path}: the engine's loader fails on it: {type(fault).__name__}: {fault}"
        ) from fault


def _check_complete(checkpoint: Checkpoint, plan: Plan) -> None:
    missing = sorted(plan.targets.keys() - checkpoint.tensors.keys())
    if missing:
        raise _incomplete("tensors the model needs", missing)


def _check_written(loaded: Mapping[str, Any], layout: Layout, plan: Plan) -> None:
    """Refuse leaves written never or twice: the loader raises nothing where a tensor is missing."""
    paths = (layout.paths[place] for place in layout.places)
    unwritten = [path for path in paths if path not in loaded or is_placeholder(loaded[path])]
    written = Counter(path for paths in plan.targets.values() for path in paths)
    twice = sorted({path for path in written if written[path] > 1} - _stacked(plan))
    if unwritten:
        raise _incomplete("tensors for the leaves", unwritten)
    if twice:
        raise _incomplete("one tensor each for the leaves", twice)


def _stacked(plan: Plan) -> set[str]:
    """Leaves that are made of many tensors by design: experts."""
    return {paths[0] for name, paths in plan.targets.items() if ".experts." in name}


def _incomplete(what: str, names: list[str]) -> CheckpointIncompatible:
    shown = ", ".join(names[:NAMED]) + (", …" if len(names) > NAMED else "")
    return CheckpointIncompatible(
        f"the checkpoint lacks {what} {shown}", code="missing", findings=names[:NAMED]
    )


def _fit(
    loaded: dict[str, Any], layout: Layout, live: list[Any], cancel: threading.Event
) -> list[Any]:
    """The engine's list with the loaded weights, matched by path; the others are live ones."""
    fitted = list(live)
    try:
        for place in layout.places:
            if cancel.is_set():
                raise Cancelled
            fitted[place] = _place(layout.paths[place], loaded, live[place])
        wait_for(layout, fitted)
        check_signatures(layout, fitted, live)
    except BaseException:
        fitted.clear()
        raise
    return fitted


def _place(path: str, loaded: dict[str, Any], live: jax.Array) -> jax.Array:
    leaf = loaded.pop(path)
    _check_shape(path, leaf, live)
    return like(leaf, live)


def wait_for(layout: Layout, leaves: list[jax.Array]) -> None:
    """Wait until all weights among the leaves are on their devices."""
    for place in layout.places:
        leaves[place].block_until_ready()


def _check_shape(path: str, leaf: Any, live: Any) -> None:
    """Refuse a leaf of another shape or dtype: the loader would assign it."""
    if leaf.shape != live.shape or leaf.dtype != live.dtype:
        raise CheckpointIncompatible(
            f"{path} would be {leaf.dtype}{list(leaf.shape)}, "
            f"the engine serves {live.dtype}{list(live.shape)}",
            code="shape" if leaf.shape != live.shape else "dtype",
        )


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
            findings=far[-NAMED:],
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


def stow(weights: Weights, layout: Layout) -> Weights:
    """The same weights in host memory of our own; the given set is emptied."""
    # np.array copies: np.asarray would alias device memory on CPU.
    host = {place: np.array(weights.leaves[place]) for place in layout.places}
    stowed = Weights([], weights.measured, host)
    weights.drop()
    return stowed


def unstow(stowed: Weights, layout: Layout, live: list[Any]) -> Weights:
    """The stowed weights on the device again, placed like the live ones."""
    check_headroom(layout.named(live))
    leaves = list(live)
    with telling_lack_of_memory():
        for place in layout.places:
            leaves[place] = like(stowed.host[place], live[place])
        wait_for(layout, leaves)
    check_signatures(layout, leaves, live)
    stowed.drop()
    return Weights(leaves, stowed.measured)


def put_into(layout: Layout, weights: Weights) -> list[tuple[nnx.Variable[Any], Any]]:
    """Each variable of the model with its new value: paired before the pause, set in it."""
    pairs = zip(layout.variables, weights.leaves, strict=True)
    return [(variable, leaf) for variable, leaf in pairs if variable is not None]
