"""Has upstream build an engine without weights, and reads them into it with our own loader.

So a start reads each byte once, and into memory of our own: nothing is copied on a disk for
upstream's loader to map, and what it read need not be copied again. Only what upstream's was found
to make just so is loaded like this (`trust`).
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import jax.numpy as jnp
from flax import nnx

from hotreload import failpoints
from hotreload.engine.weights.bytes_read import Count
from hotreload.engine.weights.headroom import telling_lack_of_memory
from hotreload.engine.weights.host_arrays import fresh
from hotreload.engine.weights.leaf_rules import Plan
from hotreload.engine.weights.leaves import Layout, is_placeholder, layout_of
from hotreload.engine.weights.measuring import One, gathered
from hotreload.engine.weights.own import Made, Reader, batches, why_not_by_rules
from hotreload.engine.weights.plan import Recorded, loading_by, plan_of
from hotreload.engine.weights.quiet import Quiet, done_quietly
from hotreload.engine.weights.trust import mark_of
from hotreload.engine.weights.weights import Weights, sources_of
from hotreload.errors import TryAgain
from hotreload.types import Checkpoint, HowFar


class NotByOurs(TryAgain):
    """Our own loader may not load this one into a fresh engine; upstream's can."""


@dataclass(slots=True)
class Unfilled:
    """The weights that an engine is built without, and what is known of our way to load them."""

    checkpoint: Checkpoint
    mark: str
    """What our own loader was trusted with by an earlier life."""
    within: float | None
    """Seconds that reading them may take."""
    so_far: HowFar | None = None
    """Progress of the reading; None before it begins."""
    _models: int = field(default=0, init=False)

    @contextmanager
    def left_empty(self) -> Iterator[None]:
        """Have an engine that is built in here, by this thread, get zeros for its weights.

        The build fails with NotByOurs where it must be upstream's loader.
        """
        with loading_by(self._leave_empty):
            yield

    def _leave_empty(self, loader: Any, mappings: Recorded) -> None:
        self._models += 1
        if self._models > 1:
            raise NotByOurs("the engine loads more than one model")
        _place_zeros(loader, mappings)
        layout = layout_of(loader.model)
        leaves = [
            None if variable is None else variable.get_raw_value() for variable in layout.variables
        ]
        plan = plan_of(mappings, loader, layout)
        why = plan.why_not or why_not_by_rules(self.checkpoint, plan.parts, layout.dtypes)
        if why is not None:
            raise NotByOurs(why)
        if mark_of(layout, leaves, plan, self.checkpoint) != self.mark:
            raise NotByOurs("ours was compared with it on another model, version or device")

    def fill(
        self,
        weights: Weights,
        *,
        layout: Layout,
        plan: Plan,
        quiet: Quiet,
        cancel: threading.Event,
    ) -> Weights:
        """Read each leaf into its place: at no time is all of a set there twice."""
        failpoints.reach_in_thread("reading")
        ones: dict[str, One] = {}
        with telling_lack_of_memory("the weights"):
            for at, made in self._made(weights, layout, plan, quiet, cancel):
                weights.leaves[at], ones[layout.paths[at]] = made.leaf, made.one
                variable = layout.variables[at]
                assert variable is not None, "only weights are filled in"
                variable.set_raw_value(made.leaf)
        weights.measured, weights.sources = gathered(ones), sources_of(self.checkpoint)
        return weights

    def _made(
        self,
        weights: Weights,
        layout: Layout,
        plan: Plan,
        quiet: Quiet,
        cancel: threading.Event,
    ) -> Iterator[tuple[int, Made]]:
        count = Count(self._note)

        @contextmanager
        def worker() -> Iterator[Callable[[list[int]], list[tuple[int, Made]]]]:
            with closing(Reader(self.checkpoint, cancel, count)) as reader:

                def make(places: list[int]) -> list[tuple[int, Made]]:
                    recipes = [(plan.parts[layout.paths[at]], weights.leaves[at]) for at in places]
                    return list(zip(places, reader.made(recipes), strict=True))

                yield make

        # Nobody is answered yet who would have to be left any processor time.
        at_once = replace(quiet, priority="normal")
        for together in done_quietly(batches(layout.places, weights.leaves), worker, at_once):
            yield from together

    def _note(self, done: int) -> None:
        self.so_far = HowFar(done, self.checkpoint.bytes)


def _place_zeros(loader: Any, mappings: Recorded) -> None:
    """Give each leaf that is mapped zeros, placed as this loader would place what it loads."""
    empty = {
        ".".join(map(str, path)): variable
        for path, variable in nnx.iter_graph(loader.model)
        if isinstance(variable, nnx.Variable) and is_placeholder(variable.get_raw_value())
    }
    for mapping in mappings.values():
        path = getattr(mapping, "target_path", mapping)
        path = path if isinstance(path, str) else path[0]
        variable, sharding = empty.pop(path, None), getattr(mapping, "sharding", None)
        if variable is not None and sharding is not None:
            described = variable.get_raw_value()
            # 0.0.2 casts to the loader's dtype, main to what the model says.
            dtype = jnp.dtype(described.dtype if hasattr(loader, "dummy_mode") else loader.dtype)
            zeros = fresh(described.size * dtype.itemsize).view(dtype).reshape(described.shape)
            zeros[...] = 0  # memory that was never written does not count as taken
            variable.set_raw_value(loader._shard_weight(zeros, sharding))
