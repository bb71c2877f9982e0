"""Answers that weights gave when they were new: once live they need not be asked them again."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from hotreload.behaviour import Answered, Question

KEPT_SETS = 2
"""Sets of weights whose answers are kept: the live ones, and new ones."""


@dataclass(frozen=True, slots=True)
class KnownOfWeights:
    """Answers of one set of weights."""

    asked: Sequence[Question]
    answers: Sequence[Answered]
    read: Sequence[Answered] | None = None
    """Expectations along the texts; None where these were not read yet."""
    again: Sequence[Answered] | None = None
    """Expectations along its own answers: what it differs by from itself; None if not asked yet."""


class KnownAnswers:
    """The answers of a few sets of weights, by their fingerprints."""

    def __init__(self) -> None:
        self._by_weights = OrderedDict[str, KnownOfWeights]()

    def find(self, fingerprint: str, asked: Sequence[Question]) -> KnownOfWeights | None:
        """Find what these weights answered to just these questions."""
        said = self.of(fingerprint)
        return said if said is not None and tuple(said.asked) == tuple(asked) else None

    def of(self, fingerprint: str) -> KnownOfWeights | None:
        """Return what these weights answered last."""
        if fingerprint in self._by_weights:
            self._by_weights.move_to_end(fingerprint)
        return self._by_weights.get(fingerprint)

    def keep(self, fingerprint: str, said: KnownOfWeights) -> None:
        """Replace the kept answers of these weights."""
        self._by_weights[fingerprint] = said
        self._by_weights.move_to_end(fingerprint)
        if len(self._by_weights) > KEPT_SETS:
            self._by_weights.popitem(last=False)
