"""The words by which a request names the weights that are to answer it."""

from dataclasses import dataclass

from hotreload.errors import cut
from hotreload.types import Generation


@dataclass(frozen=True, slots=True)
class ExactWeights:
    """The weights that a request wants to be answered by, as one of its words for them says."""

    number: int | None = None
    fingerprint: str | None = None
    weight_version: str | None = None

    def fits(self, generation: Generation) -> bool:
        """True if it is this generation."""
        return (
            self.number in (None, generation.number)
            and self.fingerprint in (None, generation.fingerprint)
            and self.weight_version in (None, generation.weight_version)
        )

    def __str__(self) -> str:
        words = {"generation": self.number, "fingerprint": self.fingerprint}
        words["weight_version"] = self.weight_version
        return ", ".join(
            f"{name} {cut(str(word))}" for name, word in words.items() if word is not None
        )
