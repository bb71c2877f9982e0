"""A place: a folder that may hold a checkpoint, as one look at a tree shows it."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hotreload.checkpoint.formats import shown
from hotreload.sources.names import Step, is_unfinished, step_of

_WEIGHTS = (".safetensors", ".safetensors.index.json")


class Entry(NamedTuple):
    """The file or folder of one name in a folder; equal entries mean that nobody has touched it."""

    name: str
    device: int = 0
    inode: int = 0
    size: int = 0
    mtime: int = 0
    ctime: int = 0


class Oddity(NamedTuple):
    """The reason why a folder that was probably meant as a checkpoint is passed over."""

    code: str
    words: str
    telling: tuple[str, ...] = ()
    """The names of the files that make the folder odd."""


@dataclass(frozen=True, slots=True)
class Place:
    """A folder that may hold a checkpoint, as one look at the tree shows it."""

    path: Path
    folder: Path  # links resolved: where `latest` leads now
    entries: tuple[Entry, ...]
    root: Path
    oddity: Oddity | None = None

    @property
    def label(self) -> str:
        """The place's name for people: its folder's."""
        return self.folder.name

    @property
    def name(self) -> str:
        """Its path below the root, fit for a line of the log."""
        return shown("/".join(self._parts(self.path)))

    @property
    def weights(self) -> tuple[Entry, ...]:
        """Its weight files, as only a writer changes them."""
        return self.files(is_weights(entry.name) for entry in self.entries)

    @property
    def has_foreign_weights(self) -> bool:
        """True if it holds weights in a format that hotreload does not read."""
        return self.oddity is not None and self.oddity.code == "format"

    @property
    def is_outside(self) -> bool:
        """True if a link led out of the root to it."""
        return below_root(self.folder, self.root) is None

    @property
    def step(self) -> Step | None:
        """The step that its path names; of a link that leads out of the root, the link's own path.

        The root's name does not count: it is the name of a run.
        """
        if self.folder == self.root:
            return None
        return step_of(self._parts(self.path if self.is_outside else self.folder))

    @property
    def time(self) -> int:
        """When it was last written to, by the times of its files."""
        # A copy may carry any mtime along, one in the future too; ctime is this machine's own.
        return max((min(entry.mtime, entry.ctime) for entry in self.entries), default=0)

    def files(self, chosen: Iterable[bool]) -> tuple[Entry, ...]:
        """The chosen entries, without what a remount, a chmod or a backup may change."""
        pairs = zip(self.entries, chosen, strict=True)
        return tuple(entry._replace(device=0, ctime=0) for entry, is_chosen in pairs if is_chosen)

    def holds(self, name: str) -> bool:
        """True if there is an entry of this name."""
        return any(entry.name == name for entry in self.entries)

    def changed_at(self, name: str) -> int | None:
        """When this entry was last touched; None when there is no such entry."""
        return next((entry.ctime for entry in self.entries if entry.name == name), None)

    def last_change(self, but: str | None = None) -> int:
        """When any entry other than `but` was last touched."""
        return max((entry.ctime for entry in self.entries if entry.name != but), default=0)

    def _parts(self, path: Path) -> tuple[str, ...]:
        inside = below_root(path, self.root)
        return tuple(inside.split("/")) if inside else (path.name,)


def below_root(path: Path, root: Path) -> str | None:
    """The path below a root, empty for the root itself; None for one that lies elsewhere.

    Both are absolute and plain. pathlib would take a second for some thousand paths.
    """
    whole, above = str(path), str(root).rstrip("/")
    if whole == str(root):
        return ""
    return whole[len(above) + 1 :] if whole.startswith(f"{above}/") else None


def is_weights(name: str) -> bool:
    return name.endswith(_WEIGHTS) and not is_unfinished(name)
