"""One kind of damage, and what it may need: the weights a checkpoint was made from."""

from collections.abc import Callable
from dataclasses import dataclass

from hotreload.tiny.weights import Arrays

Index = dict[str, str]
"""Each tensor's name, and the name of the file that holds it."""


@dataclass(frozen=True, slots=True)
class Past:
    """Sound weights of the same model from before: those it was tuned from, and some long ago."""

    base: Arrays
    early: Arrays


def _unchanged[T](value: T) -> T:
    return value


@dataclass(frozen=True, slots=True)
class Damage:
    """One kind of damage: its name, a line that says it, and what it does at each stage."""

    kind: str
    meaning: str
    to_tensors: Callable[[Arrays], Arrays] = _unchanged
    from_past: Callable[[Arrays, Past], Arrays] | None = None
    """Instead of `to_tensors`, where it takes older weights, too."""
    to_index: Callable[[Index], Index] | None = None
    """If it is given, the checkpoint gets an index even if it has one weight file."""
    to_last_file: Callable[[bytes], bytes] = _unchanged

    def spoiled(self, tensors: Arrays, past: Callable[[], Past]) -> Arrays:
        """Return the tensors as they are with this damage; the past is made only if it counts."""
        if self.from_past:
            return self.from_past(tensors, past())
        return self.to_tensors(tensors)
