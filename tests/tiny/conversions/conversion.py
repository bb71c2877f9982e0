"""One wrong conversion, and what it may need: the weights a checkpoint was made from."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from hotreload.tiny import Damage
from hotreload.tiny.trainer import BASE_STEPS, train_and_keep
from hotreload.tiny.weights import Arrays


@dataclass(frozen=True, slots=True)
class Past:
    """Sound weights of the same model from before: those it was tuned from, and some long ago."""

    base: Arrays
    early: Arrays


@cache
def past_of(arch: str, steps: int) -> Past:
    """The weights of the same run before tuning, or halfway to it, and those before them."""
    base = BASE_STEPS if steps > BASE_STEPS else steps // 2
    found = train_and_keep(arch, {base, base // 3})
    return Past(found[base], found[base // 3])


@dataclass(frozen=True, slots=True)
class Conversion:
    """What a converter did wrong: sound files of the right shapes, which only behaviour tells."""

    kind: str
    meaning: str
    to_tensors: Callable[[Arrays], Arrays] = lambda tensors: tensors
    from_past: Callable[[Arrays, Past], Arrays] | None = None
    """Instead of `to_tensors`, where it takes older weights, too."""

    def spoiled(self, tensors: Arrays, past: Callable[[], Past]) -> Arrays:
        """The tensors after it; the past is made only if it counts."""
        return self.from_past(tensors, past()) if self.from_past else self.to_tensors(tensors)

    def damage(self, arch: str, steps: int) -> Damage:
        """It as a damage to the checkpoint of so many steps of training."""

        def spoil(tensors: Arrays) -> Arrays:
            return self.spoiled(tensors, lambda: past_of(arch, steps))

        return Damage(self.kind, self.meaning, spoil)
