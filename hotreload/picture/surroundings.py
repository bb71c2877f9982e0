"""Wishes and waits, and the state of the source, the settings and the state file."""

import time
from collections.abc import Callable

from hotreload.events import (
    Event,
    RevisionWanted,
    SettingsRead,
    SourceScanned,
    StateSaved,
    Waiting,
)
from hotreload.json_fields import Fields, iso
from hotreload.picture.words import NOT_SEEN
from hotreload.types import Revision

Wall = Callable[[], float]
"""Wall-clock seconds."""


class Wishes:
    """Knows which revision is wanted, and what somebody waits for."""

    def __init__(self) -> None:
        self.wanted: Revision | None = None
        self._waits: dict[str, str | None] = {}

    def observe(self, event: Event) -> None:
        """Take in a wish, or what is waited for."""
        match event:
            case RevisionWanted(revision):
                self.wanted = revision
            case Waiting(waiting_for, who):
                self._waits[who] = waiting_for

    @property
    def waiting_for(self) -> str | None:
        """Words for what a newer checkpoint still lacks, and why a complete one is not tried."""
        return "; ".join(words for words in self._waits.values() if words) or None


class SourceNow:
    """Knows how the last look at the source went.

    After one that failed (stale) nobody knows whether the wish is still the newest.
    """

    def __init__(self, kind: str, wall: Wall = time.time) -> None:
        self._kind, self._wall = kind, wall
        self.looked_at: str | None = None
        """The time of the last look that worked."""
        self.error: str | None = None
        """The reason why the last look failed."""
        # A folder answers the first look; a hub may be out of reach from the start.
        self._is_unseen = kind != "directory"

    def observe(self, event: Event) -> None:
        """Take in a look."""
        if isinstance(event, SourceScanned):
            self._is_unseen, self.error = False, event.error
            self.looked_at = self.looked_at if event.error else iso(self._wall())

    def fields(self) -> Fields:
        """Return it as /status shows it."""
        error = NOT_SEEN if self._is_unseen else self.error
        stale = {"kind": self._kind, "stale": error is not None}
        return {**stale, "error": error, "last_seen": self.looked_at}


class StateFileNow:
    """Knows whether what must survive a restart is on the disk."""

    def __init__(self, wall: Wall = time.time) -> None:
        self._wall = wall
        self._fields: Fields = {"saved": True, "error": None, "since": None}

    def observe(self, event: Event) -> None:
        """Take in that it was written, or why not."""
        if isinstance(event, StateSaved):
            since = iso(self._wall()) if event.error else None
            self._fields = {"saved": event.error is None, "error": event.error, "since": since}

    def fields(self) -> Fields:
        """Return it as /status shows it."""
        return dict(self._fields)


class SettingsNow:
    """Knows what became of settings that were read again."""

    def __init__(self, wall: Wall = time.time) -> None:
        self._wall = wall
        self._fields: Fields = {"read_at": None, "waiting": [], "error": None}

    def observe(self, event: Event) -> None:
        """Take in that they were read."""
        if isinstance(event, SettingsRead):
            at, waiting = iso(self._wall()), list(event.waiting)
            self._fields = {"read_at": at, "waiting": waiting, "error": event.error}

    def fields(self) -> Fields:
        """Return them as /status shows them."""
        return dict(self._fields)
