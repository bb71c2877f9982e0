"""A set of weights with its figures and sources, and the place where a set is made."""

import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from hotreload.engine.weights.leaf.leaf_rules import Ingredient, Ingredients
from hotreload.engine.weights.leaf.leaves import Layout
from hotreload.engine.weights.leaf.measures import Measured, One
from hotreload.facts.heap import give_back
from hotreload.types import Checkpoint


@dataclass(slots=True, eq=False, weakref_slot=True)
class Weights:
    """A set of leaves: the engine's whole list on the device, or copies in host memory.

    Sets may share leaves. A leaf never changes, and lives as long as one set holds it.
    """

    leaves: list[Any]
    measured: Measured
    host: dict[int, np.ndarray[Any, Any] | jax.Array] = field(default_factory=dict)
    """Copies by place; a leaf that the live weights share is held itself."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """The content of each tensor that leaves were made of, by its name, if it is known."""
    paths: tuple[str, ...] = ()
    """The path at each place; another engine of the same model may have another order."""
    lane: int | None = None
    """The number of the lane that answers with these weights; None while they are spare."""

    def drop(self) -> None:
        """Drop all leaves; an engine that still runs may hold the list itself."""
        self.leaves, self.host = [], {}

    def free(self) -> None:
        """Free leaf after leaf of weights that are not used any more: all at once takes long."""
        while self.leaves:
            self.leaves.pop()
        while self.host:
            self.host.popitem()
        gc.collect(0)  # until then JAX may hold the memory of a hundred arrays that are gone
        give_back()

    def same(self, parts: tuple[Ingredient, ...], sources: Mapping[str, str]) -> bool:
        """Say if a leaf's tensors have the same content in `sources`; unknown ones never do."""
        names = [part.tensor for part in parts]
        return all(
            name in self.sources and self.sources[name] == sources.get(name) for name in names
        )

    def leaf_of(
        self, place: int, parts: tuple[Ingredient, ...], sources: Mapping[str, str]
    ) -> Any | None:
        """Return the leaf at this place if it is on the device and was made of these sources."""
        for leaf in self.leaves[place : place + 1]:  # another thread may free this set meanwhile
            return leaf if self.same(parts, sources) else None
        return None


@dataclass(frozen=True, slots=True)
class Destination:
    """The place where a set is made."""

    is_host: bool = False
    """True if the set is made in host memory, and no second one lies on the device."""
    beside: Sequence[Any] = ()
    """Arrays that must fit beside a set on the device: the KV pool for proving it."""
    held: Sequence[Weights] = ()
    """Sets that lie there beside the live one: their leaves are shared, not made again."""


def at_hand(
    layout: Layout, parts: Ingredients, sources: Mapping[str, str], sets: Sequence[Weights]
) -> tuple[list[Any], dict[str, One]]:
    """Return the first set's leaves, with each leaf of these sources that one of the sets has.

    The second result has the figures of those leaves, by path; all others are still to be made.
    """
    leaves, ones = list(sets[0].leaves), dict[str, One]()
    for place in layout.places:
        path = layout.paths[place]
        made_of = parts.get(path)
        for each in sets if made_of is not None else ():
            if (leaf := each.leaf_of(place, made_of or (), sources)) is not None:
                leaves[place], ones[path] = leaf, each.measured.one(path)
                break
    return leaves, ones


def held_bytes(layout: Layout, sets: Sequence[Sequence[Any]]) -> list[int]:
    """Return each set's bytes; a leaf counts in the first set that has it."""
    counted, taken = set[int](), list[int]()
    for leaves in sets:
        places = (leaves[place : place + 1] for place in layout.places)  # it may be freed meanwhile
        held = (leaf for here in places for leaf in here if leaf is not None)  # or be traded
        own = {id(leaf): leaf.nbytes for leaf in held}
        taken.append(sum(size for leaf, size in own.items() if leaf not in counted))
        counted |= own.keys()
    return taken


def sources_of(checkpoint: Checkpoint) -> dict[str, str]:
    """Return the content of each tensor of a checkpoint: equal content makes equal leaves.

    Tensors that have not been read are left out.
    """
    specs, read = (
        checkpoint.tensors,
        {n: held for n, held in checkpoint.held.items() if held.digest},
    )
    return {name: f"{specs[name].dtype}:{held.digest}" for name, held in read.items()}


def sources_upon(live: Weights, checkpoint: Checkpoint) -> Mapping[str, str]:
    """Return the sources of the set that a checkpoint makes; a part keeps the other live ones."""
    given = sources_of(checkpoint)
    if not checkpoint.is_part:
        return given
    stay = {n: source for n, source in live.sources.items() if n not in checkpoint.held}
    return stay | given


def left_out(layout: Layout, parts: Ingredients, checkpoint: Checkpoint) -> set[int]:
    """Return the places of the leaves that stay live: a part has no tensor of them."""
    if not checkpoint.is_part:
        return set()
    given, paths = checkpoint.held, layout.paths
    touched = {p for p, made_of in parts.items() if any(each.tensor in given for each in made_of)}
    return {at for at in layout.places if paths[at] not in touched}
