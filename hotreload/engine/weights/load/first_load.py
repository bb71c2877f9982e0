"""Loads the first weights of an engine with our own loader, while upstream builds it.

So a start reads each byte of the files once, into memory of our own: nothing is copied on a disk
for upstream's loader to map, and nothing that it made need be copied again. Only what upstream's
was found to make just so is loaded like this (`trust`).
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from types import FunctionType, SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from hotreload import failpoints
from hotreload.engine.weights.leaf.leaf_rules import Plan
from hotreload.engine.weights.leaf.leaves import Layout, is_placeholder, paths_of
from hotreload.engine.weights.leaf.measures import Measured, One, join_measures
from hotreload.engine.weights.load.bytes_read import Count
from hotreload.engine.weights.load.own import Made, Reader, batches, why_not_by_rules
from hotreload.engine.weights.load.plan import Recorded, loading_by, plan_of
from hotreload.engine.weights.load.trust import mark_of
from hotreload.engine.weights.memory.headroom import raise_not_enough_memory
from hotreload.errors import ConfigError, TryAgain
from hotreload.quiet import Quiet, do_quietly
from hotreload.types import Checkpoint, HowFar

AT_LEAST = 2
"""Threads that read: while one waits for the files or for the GIL another goes on."""


class NotByOurs(TryAgain):
    """Our own loader may not load this one into a fresh engine; upstream's can."""


@dataclass(frozen=True, slots=True)
class Outline:
    """A leaf as upstream's loader would place it: what our own goes by where none is live."""

    shape: tuple[int, ...]
    dtype: Any
    sharding: jax.sharding.Sharding
    committed: bool = True

    @property
    def nbytes(self) -> int:
        """The size of the leaf."""
        return prod(self.shape) * int(self.dtype.itemsize)

    @property
    def is_fully_addressable(self) -> bool:
        """True if no other host holds a part of it."""
        return self.sharding.is_fully_addressable

    def devices(self) -> set[Any]:
        """The devices that it is to lie on."""
        return self.sharding.device_set


@dataclass(slots=True)
class FirstLoad:
    """A checkpoint that an engine gets while it is built, with the progress and the result."""

    checkpoint: Checkpoint
    mark: str
    """The mark of what an earlier life trusted our own loader with."""
    within: float
    """Seconds that an engine may take until it has its weights and is built."""
    so_far: HowFar | None = None
    """Progress of the reading; None before it begins."""
    plan: Plan | None = None
    """The way to make them, found while the engine is built."""
    measured: Measured | None = None
    """Figures of the leaves, once they are in the model."""

    def hook_loader(self, quiet: Quiet, cancel: threading.Event) -> AbstractContextManager[None]:
        """Give these weights to an engine that this thread builds within the context.

        The build fails with NotByOurs where upstream's loader must load them.
        """
        # Nobody is answered yet who would have to be left any processor time.
        loud = replace(quiet, threads=max(quiet.threads, AT_LEAST), priority="normal")
        return loading_by(partial(self._fill, loud, cancel))

    def _fill(self, quiet: Quiet, cancel: threading.Event, loader: Any, mappings: Recorded) -> None:
        if self.measured is not None:
            raise NotByOurs("the engine loads more than one model")
        empty = _empty(loader.model)
        outlines = dict(_outlines(loader, mappings, empty))
        paths = paths_of(loader.model)
        layout = Layout(paths, tuple(empty[p] if p in outlines else None for p in paths))
        recipes = self._recipes(layout, outlines, loader, mappings)
        failpoints.reach_in_thread("reading")
        ones: dict[str, One] = {}
        with raise_not_enough_memory("the weights"):
            for path, made in self._make_leaves(recipes, quiet, cancel):
                empty[path].set_raw_value(made.leaf)
                ones[path] = made.one
        self.measured = join_measures(ones)

    def _recipes(
        self, layout: Layout, outlines: Mapping[str, Outline], loader: Any, mappings: Recorded
    ) -> dict[str, tuple[Any, Any]]:
        """The parts of each leaf; NotByOurs unless all is as it was when ours was compared."""
        try:
            self.plan = plan = plan_of(mappings, loader, layout)
        except ConfigError as fault:  # 0.0.2 may load other shapes than its models describe
            raise NotByOurs(str(fault)) from fault
        dtypes = {path: outline.dtype for path, outline in outlines.items()}
        why = plan.why_not or why_not_by_rules(self.checkpoint, plan.parts, dtypes)
        if why is not None:
            raise NotByOurs(why)
        leaves = [outlines.get(path) for path in layout.paths]
        if mark_of(layout, leaves, plan, self.checkpoint) != self.mark:
            raise NotByOurs("ours was compared with it on another model, version or device")
        return {path: (plan.parts[path], outline) for path, outline in outlines.items()}

    def _make_leaves(
        self, recipes: Mapping[str, tuple[Any, Any]], quiet: Quiet, cancel: threading.Event
    ) -> Iterator[tuple[str, Made]]:
        count, paths = Count(self._note), list(recipes)

        @contextmanager
        def worker() -> Iterator[Callable[[list[int]], list[tuple[str, Made]]]]:
            with closing(Reader(self.checkpoint, cancel, count)) as reader:

                def make(places: list[int]) -> list[tuple[str, Made]]:
                    named = [paths[at] for at in places]
                    made = reader.make_leaves([recipes[path] for path in named])
                    return list(zip(named, made, strict=True))

                yield make

        sizes = [outline for _, outline in recipes.values()]
        for together in do_quietly(batches(range(len(paths)), sizes), worker, quiet):
            yield from together

    def _note(self, done: int) -> None:
        self.so_far = HowFar(done, self.checkpoint.bytes)


def _empty(model: nnx.Module) -> dict[str, nnx.Variable[Any]]:
    """The variables of a model that are only described, by their paths."""
    return {
        ".".join(map(str, path)): variable
        for path, variable in nnx.iter_graph(model)
        if isinstance(variable, nnx.Variable) and is_placeholder(variable.get_raw_value())
    }


def _outlines(
    loader: Any, mappings: Recorded, empty: Mapping[str, nnx.Variable[Any]]
) -> Iterator[tuple[str, Outline]]:
    """Each leaf that is mapped, as this loader of upstream's would make it."""
    for mapping in mappings.values():
        path: Any = getattr(mapping, "target_path", mapping)
        path = path if isinstance(path, str) else path[0]
        if path in empty and getattr(mapping, "sharding", None) is not None:
            described = empty[path].get_raw_value()
            # 0.0.2 casts to the loader's dtype, main to what the model says.
            dtype = described.dtype if hasattr(loader, "dummy_mode") else loader.dtype
            yield path, Outline(described.shape, jnp.dtype(dtype), _sharding(loader, mapping))


def _sharding(loader: Any, mapping: Any) -> jax.sharding.Sharding:
    """Ask the loader where it would put the leaf: its own code, with nothing to put."""
    shard = type(loader)._shard_weight
    told = SimpleNamespace(device_put=lambda leaf, where: where, sharding=jax.sharding)
    asked = FunctionType(
        shard.__code__, {**shard.__globals__, "jax": told}, argdefs=shard.__defaults__
    )
    where = asked(loader, None, mapping.sharding)
    is_sharding = isinstance(where, jax.sharding.Sharding)
    return where if is_sharding else jax.sharding.SingleDeviceSharding(where)
