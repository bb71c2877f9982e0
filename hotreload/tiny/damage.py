"""One kind of damage to a tiny checkpoint."""

from collections.abc import Callable
from dataclasses import dataclass

from hotreload.tiny.weights import Arrays

Index = dict[str, str]
"""Each tensor's name, and the name of the file that holds it."""


def _keep[T](value: T) -> T:
    return value


@dataclass(frozen=True, slots=True)
class Damage:
    """One kind of damage: its name, a line that describes it, and its change at each stage."""

    kind: str
    meaning: str
    to_tensors: Callable[[Arrays], Arrays] = _keep
    to_index: Callable[[Index], Index] | None = None
    """The change of the index; a checkpoint of one weight file gets an index for it."""
    to_last_file: Callable[[bytes], bytes] = _keep
