"""How an operator has checkpoints looked for: what a source is told and does not find out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hotreload.checkpoint.file_names import SERVED_FILES
from hotreload.sources.hub.remedies import BY_SETTINGS, Remedies
from hotreload.sources.order import Order


@dataclass(frozen=True, slots=True)
class FolderOptions:
    """Which folders below the watched one are checkpoints, and when they count as complete."""

    pattern: str = "*"
    marker: str | None = None
    settle: float = 2.0
    rescan: float = 5.0
    order: Order = "step"
    patience: float = 60.0
    depth: int = 3
    roots: Sequence[Path] = ()
    """Where checkpoints may lie beside the watched folder."""


@dataclass(frozen=True, slots=True)
class HubOptions:
    """What of a repo is followed, how often the hub is asked, and by which name."""

    revision: str = "main"
    poll: float = 60.0
    allow: Sequence[str] = SERVED_FILES
    endpoint: str | None = None
    token: Callable[[], str | None] = lambda: None
    remedies: Remedies = BY_SETTINGS
