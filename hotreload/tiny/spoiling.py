"""One kind of damage to a tiny checkpoint."""

from collections.abc import Callable
from dataclasses import dataclass

from hotreload.tiny.weights import Arrays

Index = dict[str, str]
"""Each tensor's name, and the name of the file that holds it."""


def _unchanged[T](value: T) -> T:
    return value


@dataclass(frozen=True, slots=True)
class Damage:
    """One kind of damage: its name, a line that says it, and what it does at each stage."""

    kind: str
    meaning: str
    to_tensors: Callable[[Arrays], Arrays] = _unchanged
    to_index: Callable[[Index], Index] | None = None
    """If it is given, the checkpoint gets an index even if it has one weight file."""
    to_last_file: Callable[[bytes], bytes] = _unchanged
