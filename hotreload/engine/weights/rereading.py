"""Reads tensors in memory again of which nothing is made."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager

from hotreload.engine.weights.leaf_rules import Ingredient
from hotreload.engine.weights.own import Reader
from hotreload.quiet import Quiet, done_quietly
from hotreload.types import Checkpoint


def check_again(
    checkpoint: Checkpoint,
    parts: Iterable[Ingredient],
    cancel: threading.Event,
    told: Callable[[int], None],
    quiet: Quiet,
) -> None:
    """Refuse a mapping when what is shared is other bytes than were checked.

    Nothing else says whether a caller wrote to it: the check may have read the half of a step.
    """
    tensors = dict.fromkeys(part.tensor for part in parts if part.tensor in checkpoint.held)

    @contextmanager
    def worker() -> Iterator[Callable[[str], None]]:
        with closing(Reader(checkpoint, cancel, told)) as reader:
            yield reader.check

    for _ in done_quietly(tensors, worker, quiet):
        pass
