"""Loads checkpoints with our own loader where it is known to make what upstream's makes.

That is tried once, on a checkpoint that upstream's loader has loaded: each leaf is made again and
compared bit by bit.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hotreload import failpoints
from hotreload.engine.weights.leaf.differences import change_of, same_bits, with_changes
from hotreload.engine.weights.leaf.from_arrays import (
    Copier,
    are_taken_unread,
    check_not_empty,
    maker_of,
)
from hotreload.engine.weights.leaf.leaf_rules import Plan
from hotreload.engine.weights.leaf.leaves import Layout
from hotreload.engine.weights.leaf.measures import Measured, One, join_measures, measure
from hotreload.engine.weights.load.bytes_read import Count, ReportBytes
from hotreload.engine.weights.load.extra_reads import (
    SameLeaves,
    check_again,
    judge_what_passed,
    read_as_needed,
)
from hotreload.engine.weights.load.own import Made, Reader, Recipe, why_not_by_rules
from hotreload.engine.weights.load.room_to_load import room_for_leaves, room_to_read
from hotreload.engine.weights.load.upstream_loader import load_upstream
from hotreload.engine.weights.memory.headroom import check_headroom, size_of
from hotreload.engine.weights.memory.host_arrays import copy_to_host
from hotreload.engine.weights.weights import Destination, Weights, at_hand, left_out, sources_upon
from hotreload.errors import BadRequest, HotReloadError
from hotreload.quiet import Quiet, do_quietly
from hotreload.types import Checkpoint, LoadFacts

log = logging.getLogger("hotreload.engine")


@dataclass(slots=True)
class Comparison:
    """Result of comparing our own loader with upstream's on a model; twins share one."""

    is_tried: bool = False
    """True once the two were compared."""
    distrust: str = ""
    """The leaf that ours made otherwise, in words, once it did."""


class Loaders:
    """Belongs to one engine; used by one thread at a time."""

    def __init__(
        self,
        model_runner: Any,
        layout: Layout,
        plan: Plan,
        *,
        spool: Path,
        choice: Literal["auto", "upstream"],
        quiet: Quiet,
        comparison: Comparison,
    ) -> None:
        self.comparison = comparison
        self.quiet = quiet
        self._runner = model_runner
        self._layout = layout
        self._plan = plan
        self._spool = spool
        self._why_upstream = "[engine] loader = 'upstream'" if choice == "upstream" else None
        self._why_upstream = self._why_upstream or plan.why_not

    @property
    def why_upstream(self) -> str | None:
        """Reason why checkpoints are loaded by upstream's loader; None while our own does it."""
        if self._why_upstream is None and not self.comparison.is_tried:
            return "ours has not been compared with it yet"
        return self._why_upstream or self.comparison.distrust or None

    def why_not_ours(self, checkpoint: Checkpoint) -> str | None:
        """Say why upstream's loader loads this one; None when our own does."""
        return self.why_upstream or self._not_for_us(checkpoint)

    def load(
        self,
        checkpoint: Checkpoint,
        live: Weights,
        place: Destination,
        cancel: threading.Event,
        report: ReportBytes,
    ) -> tuple[Weights, LoadFacts]:
        """All leaves of a checkpoint, placed like the live ones or on the host, and measured."""
        self.check_takes(checkpoint)
        checkpoint = read_as_needed(checkpoint, self, live, place, cancel)
        why, count = self.why_not_ours(checkpoint), Count(report)
        if why is not None:
            made = self._by_upstream(checkpoint, live, place, cancel, count)
            how = LoadFacts("upstream", why, len(self._layout.places), 0, count.total)
            return made, with_changes(how, self._changes(made, live))
        failpoints.reach_in_thread("reading")
        if place.is_host:
            return self._to_host(checkpoint, live, cancel, count)
        return self._beside(checkpoint, live, place, cancel, count)

    def compare(self, checkpoint: Checkpoint, made: Weights, cancel: threading.Event) -> None:
        """Make each leaf again of what upstream made these of; say whether ours can be trusted.

        It stays unknown while the files cannot be read.
        """
        if (
            self._why_upstream
            or self.comparison.distrust
            or self._not_for_us(checkpoint) is not None
        ):
            return
        places = self._layout.places
        try:
            for at, ours, _ in self._make_leaves(
                checkpoint, places, made, _placed_by, cancel=cancel, report=lambda size: None
            ):
                if not same_bits(ours.leaf, made.leaves[at]):
                    self._distrust(checkpoint, self._layout.paths[at])
                    return
        except HotReloadError as fault:
            log.warning("loader.not_compared", extra={"why": str(fault)})
            return
        self.comparison.is_tried = True
        log.info("loader.trusted", extra={"revision": str(checkpoint.revision)})

    def _distrust(self, checkpoint: Checkpoint, path: str) -> None:
        self.comparison.is_tried = True
        self.comparison.distrust = f"ours made another {path} of {checkpoint.revision}"

    def _not_for_us(self, checkpoint: Checkpoint) -> str | None:
        return why_not_by_rules(checkpoint, self._plan.parts, self._layout.dtypes)

    def check_takes(self, checkpoint: Checkpoint) -> None:
        """BadRequest for a part of the tensors that our own loader does not load: no other can."""
        why = self.why_not_ours(checkpoint) if checkpoint.is_part else None
        if why is not None:
            raise BadRequest(
                "a part of the tensors is loaded by hotreload's own loader alone, and here "
                f"sglang-jax's does it ({why}): give all of them"
            )

    def takes_unread(self, checkpoint: Checkpoint, live: Weights) -> bool:
        """Say if arrays of JAX can be taken over from where they lie."""
        if self.why_not_ours(checkpoint) is not None:
            return False
        leaves = self._layout.by_path(live.leaves)
        return are_taken_unread(checkpoint, self._plan.parts, leaves)

    def _beside(
        self,
        checkpoint: Checkpoint,
        live: Weights,
        place: Destination,
        cancel: threading.Event,
        count: Count,
    ) -> tuple[Weights, LoadFacts]:
        """Load next to the live set. A leaf whose bytes did not change is shared, not loaded."""
        paths, (leaves, ones) = self._layout.paths, self._at_hand(checkpoint, live, place)
        shared = [at for at in self._layout.places if paths[at] in ones]
        fresh = [at for at in self._layout.places if paths[at] not in ones]
        try:
            like = [live.leaves[at] for at in fresh]
            need, on_host = room_for_leaves(like, checkpoint, self.quiet.threads)
            check_headroom(need, beside=place.beside, on_host=on_host)
            places = {paths[at]: at for at in shared}
            changes = {p: self._change(p, leaves[at], ones[p], live) for p, at in places.items()}
            sets = (live, *place.held)
            for at, made, change in self._make_leaves(
                checkpoint, fresh, live, _placed_by, cancel=cancel, report=count, sets=sets
            ):
                if checkpoint.is_unread and not change and same_bits(made.leaf, live.leaves[at]):
                    made.leaf, made.is_shared = live.leaves[at], True
                if made.is_shared:
                    shared.append(at)
                leaves[at], ones[paths[at]], changes[paths[at]] = made.leaf, made.one, change
            if checkpoint.is_unread:
                check_not_empty(checkpoint, join_measures(ones))
            elif checkpoint.memory is not None:
                parts = (part for at in shared for part in self._plan.parts[paths[at]])
                check_again(checkpoint, parts, cancel, count, self.quiet)
            judge_what_passed(checkpoint, cancel, count, self.quiet)
        except BaseException:
            leaves.clear()  # an error keeps the frames it passed, and they must not keep weights
            raise
        made_anew = len(self._layout.places) - len(shared)
        how = LoadFacts("own", "", made_anew, len(shared), count.total)
        return Weights(leaves, join_measures(ones)), with_changes(how, changes)

    def need(
        self, checkpoint: Checkpoint | None, live: Weights, place: Destination
    ) -> tuple[list[Any], int]:
        """Arrays that a set beside the live one takes room for, and the host's bytes for making it.

        None stands for a set that is no checkpoint's. A leaf is described by the live one.
        """
        alive = self._layout.by_path(live.leaves)
        checkpoint = checkpoint and checkpoint.as_read
        if checkpoint is None or self.why_not_ours(checkpoint) is not None:
            return [*alive.values()], size_of(alive) if checkpoint is not None else 0
        _, ones = self._at_hand(checkpoint, live, place)
        fresh = [leaf for path, leaf in alive.items() if path not in ones]
        return room_for_leaves(fresh, checkpoint, self.quiet.threads)

    def _at_hand(
        self, checkpoint: Checkpoint, live: Weights, place: Destination
    ) -> tuple[list[Any], dict[str, One]]:
        parts, sources = self._plan.parts, sources_upon(live, checkpoint)
        leaves, ones = at_hand(self._layout, parts, sources, (live, *place.held))
        # Of these it may be unknown what the live ones were made of.
        stay = (self._layout.paths[at] for at in left_out(self._layout, parts, checkpoint))
        return leaves, ones | {path: live.measured.one(path) for path in stay}

    def _to_host(
        self, checkpoint: Checkpoint, live: Weights, cancel: threading.Event, count: Count
    ) -> tuple[Weights, LoadFacts]:
        """None is shared: a set that waits on the host is whole, whatever is live when it goes."""
        paths, stay = self._layout.paths, left_out(self._layout, self._plan.parts, checkpoint)
        places = [at for at in self._layout.places if at not in stay]
        size = size_of(self._layout.by_path(live.leaves))
        check_headroom((), on_host=size + room_to_read(checkpoint, self.quiet.threads))
        made, ones, changes = Weights([], live.measured), dict[str, One](), dict[str, float]()
        try:
            for at in stay:
                made.host[at] = copy_to_host(live.leaves[at])
                ones[paths[at]], changes[paths[at]] = live.measured.one(paths[at]), 0.0
            make = Reader.make_on_host
            for at, each, change in self._make_leaves(
                checkpoint, places, live, make, cancel=cancel, report=count
            ):
                made.host[at], ones[paths[at]], changes[paths[at]] = each.leaf, each.one, change
            judge_what_passed(checkpoint, cancel, count, self.quiet)
        except BaseException:
            made.drop()
            raise
        made.measured = join_measures(ones)
        how = LoadFacts("own", "", len(places), len(stay), count.total)
        return made, with_changes(how, changes)

    def _by_upstream(
        self,
        checkpoint: Checkpoint,
        live: Weights,
        place: Destination,
        cancel: threading.Event,
        count: Count,
    ) -> Weights:
        """It knows no other way than beside the live ones, and has all its tensors on the host."""
        alive = self._layout.by_path(live.leaves)
        check_headroom(alive.values(), beside=place.beside, on_host=size_of(alive))
        load = partial(load_upstream, checkpoint, model_runner=self._runner, layout=self._layout)
        load = partial(load, live=live.leaves, plan=self._plan, spool=self._spool)
        leaves = load(cancel=cancel, report=count)
        try:
            made = Weights(leaves, self.measure(leaves))
            if not self.comparison.is_tried:
                self.compare(checkpoint, made, cancel)
            if place.is_host:
                made.host = {at: np.array(leaves[at]) for at in self._layout.places}
                made.leaves = []
        except BaseException:
            leaves.clear()
            raise
        return made

    def _changes(self, made: Weights, live: Weights) -> dict[str, float]:
        """Return each leaf's distance from the live one."""
        return {
            path: self._change(path, made.leaves[at] if made.leaves else made.host[at], one, live)
            for at in self._layout.places
            for path in self._layout.paths[at : at + 1]
            for one in [made.measured.one(path)]
        }

    def measure(self, leaves: Sequence[Any]) -> Measured:
        """Measure a set where it is."""
        return measure(self._layout.by_path(leaves), self._plan.parts)

    def _make_leaves(
        self,
        checkpoint: Checkpoint,
        places: Sequence[int],
        live: Weights,
        make: Callable[[Any, list[Recipe]], list[Made]],
        *,
        cancel: threading.Event,
        report: ReportBytes,
        sets: Sequence[Weights] = (),
    ) -> Iterator[tuple[int, Made, float]]:
        """Each leaf made of the checkpoint, in quiet threads, and how far it is from the live."""
        maker, divided = maker_of(checkpoint)
        same = SameLeaves(checkpoint, self._layout.paths, sets)

        @contextmanager
        def worker() -> Iterator[Callable[[list[int]], list[tuple[int, Made, float]]]]:
            with closing(maker(checkpoint, cancel, report)) as reader:
                if isinstance(reader, Reader):
                    reader.there = same.find
                yield partial(self._make, partial(make, reader), live)

        def bytes_of(places: list[int]) -> int:
            return sum(int(live.leaves[at].nbytes) for at in places)

        jobs = divided(places, live.leaves)
        for together in do_quietly(jobs, worker, self.quiet, bytes_of):
            yield from together

    def _make(
        self, make: Callable[[list[Recipe]], list[Made]], live: Weights, places: list[int]
    ) -> list[tuple[int, Made, float]]:
        paths = [self._layout.paths[place] for place in places]
        pairs = zip(paths, places, strict=True)
        made = make([(self._plan.parts[path], live.leaves[place]) for path, place in pairs])
        return [
            (place, each, self._change(path, each.leaf, each.one, live, each.change))
            for place, path, each in zip(places, paths, made, strict=True)
        ]

    def _change(
        self, path: str, leaf: Any, one: One, live: Weights, known: float | None = None
    ) -> float:
        """Return a leaf's distance from the live one."""
        if one.sums == live.measured.sums[path]:
            return 0.0
        return change_of(leaf, live.leaves[self._layout.place_of(path)]) if known is None else known


def _placed_by(maker: Reader | Copier, recipes: Sequence[Recipe]) -> list[Made]:
    """The leaves that it makes, each placed like its live one."""
    return maker.make_leaves(recipes)
