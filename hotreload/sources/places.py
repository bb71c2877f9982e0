"""Walks a tree once and lists its places: folders that may hold a checkpoint, finished or not, and
odd ones, which were probably meant to.

Looks at names, sizes and times only, and opens no file.
"""

import os
import time
from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from hotreload.checkpoint.known_names import CONFIG, as_one_line, foreign_weights
from hotreload.sources.place import Entry, Oddity, Place, is_unfinished, says_step

_ITSELF = "."
_NO_FURTHER = -1
_NEVER_MEANT = ("lost+found",)
TURNS = 16
"""Each folder is read at every so many looks, whatever its times say."""
_FRESH_NS = 2 * 10**9
"""Times as new as this may hide a second change: on some disks they tick by seconds."""


class _Known(NamedTuple):
    itself: Entry
    """The folder as it was found when its place was read."""
    place: Place


class UnchangedPlaces:
    """The places of folders as they were read last; for one look after the other.

    A look skips folders that seem untouched: reading thousands would cost a core. Making, renaming
    or deleting a file moves the folder's times. Writing into a file moves only the file's, so each
    folder is read now and then, in turns.
    """

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._may_be_spared: Container[Path] = ()
        self._turn = 0

    def begin(self, may_be_spared: Container[Path]) -> None:
        """Begin a look that may spare these folders; the others are read."""
        self._may_be_spared = may_be_spared
        self._turn = (self._turn + 1) % TURNS

    def place(self, found: os.DirEntry[str]) -> Place | None:
        """Return the place as it was read last; None if it must be read."""
        known = self._known.get(found.path)
        if known is None or known.place.folder not in self._may_be_spared:
            return None
        if hash(found.path) % TURNS == self._turn or _entry(found) != known.itself:
            return None
        return known.place

    def read_and_note(
        self, found: os.DirEntry[str], read: Callable[[], list[Place]]
    ) -> list[Place]:
        """Read the places of a folder; one that is a checkpoint itself is remembered."""
        path = found.path
        itself, known = _entry(found), self._known.pop(path, None)
        places = read()
        if not itself.inode or max(itself.mtime, itself.ctime) >= time.time_ns() - _FRESH_NS:
            return places
        if len(places) == 1 and places[0].weights and str(places[0].path) == path:
            is_same = known is not None and known.place == places[0]
            place = known.place if known is not None and is_same else places[0]
            self._known[path] = _Known(itself, place)
            return [place]
        return places


def walk(root: Path, depth: int, unchanged: UnchangedPlaces | None = None) -> list[Place]:
    """List every place from the root down, odd ones too; OSError if the root cannot be listed.

    Places that `unchanged` knows are not read again.
    """
    return _Walk(root, unchanged).below(root, depth, root)


class _Walk:
    """Lists the places below one root.

    Does not search inside a checkpoint (but the root may be one and hold others), behind a link
    (links may lead in a circle), or in a folder named as unfinished.
    """

    def __init__(self, root: Path, unchanged: UnchangedPlaces | None) -> None:
        self._root = root
        self._unchanged = unchanged

    def below(self, path: Path, depth: int, folder: Path) -> list[Place]:
        try:
            with os.scandir(path) as listing:
                found = list(listing)
        except OSError as error:
            if path == self._root:
                raise
            return self._find_unreadable(path, folder, error)
        place = self._place(path, folder, map(_entry, found))
        if place.weights or place.holds(CONFIG):
            own = place if place.weights else _mark_foreign(place)
            return [own, *self._inside(found, path, depth)] if path == self._root else [own]
        return self._inside_or_odd(place, self._inside(found, path, depth))

    def _inside(self, found: Iterable[os.DirEntry[str]], path: Path, depth: int) -> list[Place]:
        inside: list[Place] = []
        for entry in found if depth >= 0 else ():
            known = self._unchanged.place(entry) if self._unchanged else None
            if known is not None:
                inside.append(known)
                continue
            with suppress(OSError):
                inside += self._of(entry, path / entry.name, depth)
        return inside

    def _of(self, entry: os.DirEntry[str], path: Path, depth: int) -> list[Place]:
        if not entry.is_dir():
            return self._file(entry, path)
        if depth == 0:
            return self._find_too_deep(path)
        if is_unfinished(entry.name):
            return self._find_unfinished(path)
        if entry.is_symlink():
            return self.below(path, _NO_FURTHER, Path(os.path.realpath(path)))
        if self._unchanged is None:
            return self.below(path, depth - 1, path)
        return self._unchanged.read_and_note(entry, lambda: self.below(path, depth - 1, path))

    def _inside_or_odd(self, place: Place, inside: list[Place]) -> list[Place]:
        """List the places in a folder that is no checkpoint; without any, itself if odd."""
        if any(each.weights for each in inside):
            return inside  # the names of thousands are not even looked at
        is_meant = says_step(place.path.name)
        own = _mark_foreign(place)
        if inside and not (own.oddity and is_meant):
            return inside
        if own.oddity is not None:
            return [own]
        is_run = place.is_outside and any(says_step(entry.name) for entry in place.entries)
        if not is_meant and not is_run:
            return []
        words = "holds no *.safetensors" if place.entries else "is empty"
        return [self._odd(place.path, place.folder, "missing", words, place.entries)]

    def _find_unreadable(self, path: Path, folder: Path, error: OSError) -> list[Place]:
        if path.name in _NEVER_MEANT:
            return []
        words = f"cannot be read: {error.strerror or error}; let the daemon's user read it"
        return [self._odd(path, folder, "io", words)]

    def _find_unfinished(self, path: Path) -> list[Place]:
        if not says_step(path.name):
            return []
        words = (
            "is named as unfinished, but nobody has written to it for a long time: look at its "
            "trainer, then rename or delete it"
        )
        with suppress(OSError), os.scandir(path) as listing:
            return [self._odd(path, path, "unfinished", words, map(_entry, listing))]
        return [self._odd(path, path, "unfinished", words)]

    def _find_too_deep(self, path: Path) -> list[Place]:
        if not says_step(path.name) or is_unfinished(path.name):
            return []
        words = "lies too deep to be looked at: move it up, or set [source] path nearer to it"
        return [self._odd(path, path, "too_deep", words)]

    def _file(self, entry: os.DirEntry[str], path: Path) -> list[Place]:
        """List a file that is meant as a checkpoint, or a link to one that is gone, as odd."""
        if not says_step(entry.name) or is_unfinished(entry.name):
            return []
        if entry.is_symlink() and not path.exists():
            words = f"is a link that leads nowhere: {as_one_line(os.readlink(path))}"
            return [self._odd(path, path, "missing", words)]
        if foreign_weights([entry.name], is_meant=True) is None:
            return []
        words = "is a file that hotreload does not read: save a folder of safetensors instead"
        return [self._odd(path, path, "format", words, [_entry(entry)])]

    def _odd(
        self, path: Path, folder: Path, code: str, words: str, entries: Iterable[Entry] = ()
    ) -> Place:
        """Make an odd place; without files it is followed by the folder's own times."""
        place = self._place(path, folder, entries or [_itself(path)])
        return replace(place, oddity=Oddity(code, words))

    def _place(self, path: Path, folder: Path, entries: Iterable[Entry]) -> Place:
        return Place(path, folder, tuple(sorted(entries)), self._root)


def _mark_foreign(place: Place) -> Place:
    """Mark a place without safetensors as odd if it holds weights of another format."""
    names = (entry.name for entry in place.entries)
    found = foreign_weights(names, is_meant=says_step(place.path.name))
    return replace(place, oddity=Oddity("format", found.words, found.names) if found else None)


def _itself(path: Path) -> Entry:
    with suppress(OSError):
        status = path.lstat()
        return Entry(_ITSELF, mtime=status.st_mtime_ns, ctime=status.st_ctime_ns)
    return Entry(_ITSELF)


def _entry(found: os.DirEntry[str]) -> Entry:
    try:
        status = found.stat()
    except OSError:
        return Entry(found.name)
    times = status.st_mtime_ns, status.st_ctime_ns
    return Entry(found.name, status.st_dev, status.st_ino, status.st_size, *times)
