"""Reads tensors that no leaf is made of, and checkpoints that have not been read before."""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

from hotreload.engine.weights.leaf.leaf_rules import Ingredient
from hotreload.engine.weights.load.own import Made, Reader
from hotreload.engine.weights.memory.headroom import check_headroom, why_no_further
from hotreload.engine.weights.weights import Destination, Weights
from hotreload.errors import NotEnoughMemory
from hotreload.quiet import Quiet, do_quietly
from hotreload.types import Checkpoint

log = logging.getLogger("hotreload.engine")


def check_again(
    checkpoint: Checkpoint,
    parts: Iterable[Ingredient],
    cancel: threading.Event,
    report: Callable[[int], None],
    quiet: Quiet,
) -> None:
    """Refuse tensors in memory if the bytes of shared leaves differ from those that were checked.

    Only this read shows that a caller wrote to them: the check may have read half of an update.
    """
    tensors = dict.fromkeys(part.tensor for part in parts if part.tensor in checkpoint.held)
    _read_beside(checkpoint, tensors, cancel, report, quiet)


def _read_beside(
    checkpoint: Checkpoint,
    tensors: Iterable[str],
    cancel: threading.Event,
    report: Callable[[int], None],
    quiet: Quiet,
) -> None:
    @contextmanager
    def worker() -> Iterator[Callable[[str], None]]:
        with closing(Reader(checkpoint, cancel, report)) as reader:
            yield reader.check

    def bytes_of(tensor: str) -> int:
        held = checkpoint.held[tensor]
        return held.end - held.begin

    for _ in do_quietly(tensors, worker, quiet, bytes_of):
        pass


def read_first(checkpoint: Checkpoint, why: str, cancel: threading.Event) -> Checkpoint:
    """Read an unread checkpoint before it is loaded: then each byte is read twice."""
    log.info("staging.read_first", extra={"revision": str(checkpoint.revision), "why": why})
    read: Checkpoint = checkpoint.first_read.read(cancel)
    return read


def read_as_needed(
    checkpoint: Checkpoint, loaders: Any, live: Weights, place: Destination, cancel: threading.Event
) -> Checkpoint:
    """Read it first where it cannot be read and placed at once.

    Which leaves are shared shows while they are read, so there must be room for all of them.
    """
    checkpoint = checkpoint.as_read
    if checkpoint.first_read is None:
        return checkpoint
    why = loaders.why_not_ours(checkpoint)
    if why is None and not place.is_host:
        need, on_host = loaders.need(checkpoint, live, place)
        try:
            check_headroom(need, beside=place.beside, on_host=on_host)
        except NotEnoughMemory as lack:
            why = str(lack)
    return checkpoint if why is None else read_first(checkpoint, why, cancel)


def why_no_room(
    checkpoint: Checkpoint | None,
    loaders: Any,
    live: Weights,
    place: Destination,
    cancel: threading.Event,
) -> str | None:
    """Say what memory is missing for one more set of weights; None when it is there."""
    need, on_host = loaders.need(checkpoint, live, place)
    lack = why_no_further([*need, *place.beside], on_host)
    if lack is None or checkpoint is None or checkpoint.as_read.first_read is None:
        return lack
    read_first(checkpoint, lack, cancel)  # what it shares may be what is missing
    return why_no_room(checkpoint, loaders, live, place, cancel)


def judge_what_passed(
    checkpoint: Checkpoint, cancel: threading.Event, report: Callable[[int], None], quiet: Quiet
) -> None:
    """Judge a checkpoint that was read for the first time, also what no leaf is made of."""
    if (first := checkpoint.first_read) is not None:
        _read_beside(checkpoint, first.tensors_left, cancel, report, quiet)
        first.judge()


# --- what is there already -----------------------------------------------------------------------


class SameLeaves:
    """Finds leaves that are there already while they are read for the first time."""

    def __init__(self, checkpoint: Checkpoint, paths: Sequence[str], sets: Sequence[Weights]):
        """Of a checkpoint that was read before it finds none, as it is known then what to read."""
        self._first, self._tensors = checkpoint.first_read, checkpoint.tensors
        self._paths, self._sets = paths, sets if self._first is not None else ()
        self._places = {
            id(leaf): at for each in self._sets[:1] for at, leaf in enumerate(each.leaves)
        }

    def find(self, parts: Sequence[Ingredient], live: Any) -> Made | None:
        """The leaf in the place of this live one, once its tensors have passed; else None."""
        if (place := self._places.get(id(live))) is None:
            return None
        given = [part.tensor for part in parts if part.tensor in self._tensors]
        sources = {t: f"{self._tensors[t].dtype}:{self._first.digest_of(t)}" for t in given}
        for each in self._sets:
            if (leaf := each.leaf_of(place, tuple(parts), sources)) is not None:
                return Made(leaf, each.measured.one(self._paths[place]), is_shared=True)
        return None
