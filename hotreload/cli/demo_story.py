"""The story of the demo: which checkpoints are dropped, and what must come of each."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Chapter:
    """A checkpoint that is dropped, and what must come of it."""

    number: int
    what: str
    outcome: str = "live"
    code: str | None = None
    damage: str | None = None

    @property
    def label(self) -> str:
        """The folder's name."""
        return f"step_{self.number}"


STORY = (
    Chapter(2, "a good checkpoint"),
    Chapter(3, "the next one"),
    Chapter(4, "one cut short", "rejected", "truncated", "truncated"),
    Chapter(5, "one of another shape", "rejected", "shape", "wrong-shape"),
    Chapter(6, "one with a NaN in it", "rejected", "nonfinite", "nan"),
    Chapter(7, "one that talks nonsense", "rejected", "probe", "gibberish"),
)


def words(number: int) -> str:
    """What the checkpoint of a step says."""
    return f"served by step {number}"
