"""An operator's choices for a source: what it looks for, how often, and where."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hotreload.sources.hub.faults import BY_SETTINGS, Remedies
from hotreload.sources.place import Ordering


@dataclass(frozen=True, slots=True)
class FolderOptions:
    """Rules for a watched folder: which ones below it are checkpoints, and when one is complete."""

    pattern: str
    settle: float
    rescan: float
    order: Ordering
    patience: float
    marker: str | None = None
    depth: int = 3
    roots: Sequence[Path] = ()
    """Folders in which checkpoints may lie, beside the watched one."""
    reads_once: Callable[[], bool] = lambda: False
    """Say if staging may be the first to read the bytes of a finished folder."""


@dataclass(frozen=True, slots=True)
class HubOptions:
    """Rules for a repo: its revision and files, how often to ask the hub, and with which token."""

    revision: str
    poll: float
    allow: Sequence[str]
    endpoint: str | None = None
    token: Callable[[], str | None] = lambda: None
    remedies: Remedies = BY_SETTINGS
    reads_once: Callable[[], bool] = lambda: False
    """Say if staging may be the first to read the bytes of a commit."""
