"""The names by which a request asks for certain weights."""

from dataclasses import dataclass

from hotreload.errors import cut
from hotreload.types import Generation


@dataclass(frozen=True, slots=True)
class ExactWeights:
    """The weights that a request asks for, by generation number, fingerprint or version."""

    number: int | None = None
    fingerprint: str | None = None
    weight_version: str | None = None

    def fits(self, generation: Generation) -> bool:
        """Return True if this generation has all the given names."""
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
