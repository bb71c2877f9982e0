"""Folders and commits as a source sees them, with the reason why each is not live."""

from dataclasses import dataclass
from enum import StrEnum

from hotreload.types import Revision


class ListedState(StrEnum):
    """The state of something that a source lists."""

    NEWEST = "newest"
    """Whole, and the newest: the source wishes it, or is about to."""
    WAITING = "waiting"
    """Not whole yet, or not quiet."""
    OLDER = "older"
    ODD = "odd"
    """No checkpoint, or none that the source can take."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A folder or commit that a source knows of, as its last look showed it."""

    name: str
    standing: ListedState
    why: str = ""
    """The reason why it is not wished for: it waits, is older than another, or is no checkpoint."""
    code: str = ""
    """The reason why it is no checkpoint, as a word for machines."""
    revision: Revision | None = None
    """None while its bytes were not read."""
    path: str = ""
    """The folder of its files; empty if they are not here."""
    step: tuple[int, int] | None = None
    """The epoch (0 where none is named) and the step."""
    bytes: int | None = None
    """Of its weights."""
    written_at: float | None = None
    """Wall-clock seconds."""
