"""Spares looks what nobody seems to have touched: thousands of folders cost a core else.

What is made, renamed or deleted in a folder moves the folder's own times. What is written into a
file moves the file's alone, so each folder is read anyhow now and then, in turns.
"""

import os
import time
from collections.abc import Callable, Container
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from hotreload.sources.look import Look
from hotreload.sources.place import Place

TURNS = 16
"""Each folder is read at every so many looks, whatever its times say."""
_FRESH_NS = 2 * 10**9
"""Times as new as this may not tell of a second change: they tick, on some disks by seconds."""


class _Known(NamedTuple):
    stamp: tuple[int, ...]
    place: Place


class Unchanged:
    """The places of folders as they were read last; for one look after the other."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._may_be_spared: Container[Path] = ()
        self._turn = 0

    def begin(self, may_be_spared: Container[Path]) -> None:
        """Begin a look that may spare these folders; the others are read."""
        self._may_be_spared = may_be_spared
        self._turn = (self._turn + 1) % TURNS

    def place(self, found: os.DirEntry[str]) -> Place | None:
        """The place there as it was read last; None where it must be read."""
        known = self._known.get(found.path)
        if known is None or known.place.folder not in self._may_be_spared:
            return None
        if hash(found.path) % TURNS == self._turn or _stamp_of(found) != known.stamp:
            return None
        return known.place

    def noted(self, found: os.DirEntry[str], read: Callable[[], list[Place]]) -> list[Place]:
        """Read the places of a folder; one that is a checkpoint itself is remembered."""
        path = found.path
        stamp, known = _stamp_of(found), self._known.pop(path, None)
        places = read()
        if not stamp or max(stamp[:2]) >= time.time_ns() - _FRESH_NS:
            return places
        if len(places) == 1 and places[0].weights and str(places[0].path) == path:
            is_same = known is not None and known.place == places[0]
            place = known.place if known is not None and is_same else places[0]
            self._known[path] = _Known(stamp, place)
            return [place]
        return places


class LastLook:
    """The last look and what it went by; a look that would find the same is spared."""

    def __init__(self) -> None:
        self._look: Look | None = None
        self._walked: list[Place] = []
        self._refused: frozenset[str] = frozenset()

    def remember(self, walked: list[Place], refused: frozenset[str], look: Look) -> None:
        """Note what it found, of these places and while these revisions were refused."""
        self._walked, self._refused, self._look = walked, refused, look

    def forget(self) -> None:
        """Have the next look judge everything."""
        self._look = None

    def again(self, walked: list[Place], refused: frozenset[str], now: float) -> Look | None:
        """The result of a look now, if it is the same; None when something moved or is due."""
        look = self._look
        if look is None or (look.due is not None and now >= look.due):
            return None
        is_same = self._refused == refused and self._walked == walked
        return replace(look, now=now) if is_same else None


def _stamp_of(found: os.DirEntry[str]) -> tuple[int, ...]:
    """The folder's own times as it was found; empty if it is gone."""
    try:
        status = found.stat()
    except OSError:
        return ()
    return status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev
