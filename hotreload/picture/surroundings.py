"""The things around the engines: wishes, source, folders passed over, settings, state, troubles."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypedDict

from hotreload import events
from hotreload.errors import PASSED_OVER
from hotreload.json_fields import Fields, iso
from hotreload.picture.report import Family, counter, gauge, shorten
from hotreload.picture.words import NOT_SEEN
from hotreload.types import Revision

Wall = Callable[[], float]
"""Wall-clock seconds."""
TOLD_SECONDS = 3600.0
"""Seconds for which the death of the life before is shown."""


class LatestEvent[E: events.Event]:
    """Keeps the last event of one kind, and the time at which it came."""

    def __init__(self, kind: type[E], wall: Wall = time.time) -> None:
        self._kind, self._wall = kind, wall
        self.event: E | None = None
        self.at = 0.0

    def observe(self, event: events.Event) -> None:
        """Keep the event, if it is of this kind."""
        if isinstance(event, self._kind):
            self.event, self.at = event, self._wall()

    @property
    def age(self) -> float:
        """Seconds since it came."""
        return self._wall() - self.at


class Wishes:
    """Knows the wanted revision, and the present waits."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.wanted: Revision | None = None
        self._waits: dict[str, str | None] = {}
        self._since = 0.0

    def observe(self, event: events.Event) -> None:
        """Take in a wish, or a wait."""
        match event:
            case events.RevisionWanted(revision):
                self.wanted = revision
            case events.Wait(waiting_for, who):
                before, self._waits[who] = self.waiting_for, waiting_for
                self._since = self._clock() if self.waiting_for != before else self._since

    @property
    def waiting_for(self) -> str | None:
        """Words for what a newer checkpoint still lacks, and why a complete one is not tried."""
        return "; ".join(words for words in self._waits.values() if words) or None

    @property
    def waiting_seconds(self) -> float | None:
        """The time for which it has been waited for that; None while it is for nothing."""
        return None if self.waiting_for is None else round(self._clock() - self._since, 3)


class SourceNow:
    """Knows how the last look at the source went.

    After one that failed (stale) the wish may no longer be the newest.
    """

    def __init__(self, kind: str, wall: Wall = time.time) -> None:
        self._kind, self._wall = kind, wall
        self.looked_at: str | None = None
        """The time of the last look that worked."""
        self.error: str | None = None
        """The reason why the last look failed."""
        # A folder answers the first look; a hub may be out of reach from the start.
        self._is_unseen = kind != "directory"

    def observe(self, event: events.Event) -> None:
        """Take in a look."""
        if isinstance(event, events.SourceScanned):
            self._is_unseen, self.error = False, event.error
            self.looked_at = self.looked_at if event.error else iso(self._wall())

    def fields(self) -> Fields:
        """Return it as /status shows it."""
        error = NOT_SEEN if self._is_unseen else self.error
        stale = {"kind": self._kind, "stale": error is not None}
        return {**stale, "error": error, "last_seen": self.looked_at}


class StateFileFields(TypedDict):
    """True if all that must survive a restart is on the disk; else why not, and since when."""

    saved: bool
    error: str | None
    since: str | None


def state_file_fields(last: LatestEvent[events.StateSaved]) -> StateFileFields:
    """Return whether the state is on the disk, as /status shows it."""
    error = last.event.error if last.event else None
    return {"saved": error is None, "error": error, "since": iso(last.at) if error else None}


def last_life_fields(last: LatestEvent[events.LastLifeDied]) -> Fields | None:
    """Return the death of the life before; None where it ended in order, or is shown no more."""
    if (died := last.event) is None or last.age > TOLD_SECONDS:
        return None
    return {"message": died.message, "todo": died.todo, "noticed_at": iso(last.at)}


class WorkersNow:
    """Knows which of the processes that answer HTTP serve, and how often one was lost."""

    def __init__(self, wanted: int) -> None:
        """`wanted` is how many there are to be; 0 where this process answers by itself."""
        self.wanted = wanted
        self.lost = 0
        self._serving: set[int] = set()

    def observe(self, event: events.Event) -> None:
        """Take in what became of one."""
        match event:
            case events.WorkerMoved(worker, is_serving=True):
                self._serving.add(worker)
            case events.WorkerMoved(worker):
                self._serving.discard(worker)
                self.lost += 1

    @property
    def serving_count(self) -> int:
        """Count those that serve."""
        return len(self._serving)

    def fields(self) -> Fields:
        """Return it as /status shows it."""
        return {"wanted": self.wanted, "serving": self.serving_count, "lost": self.lost}

    def families(self) -> Iterator[Family]:
        """Return their metrics."""
        words = "Processes that answer HTTP beside the engine's own."
        yield gauge("workers", words, self.serving_count)
        yield counter("workers_lost", "Such processes that ended or hung.", self.lost)


class SettingsFields(TypedDict):
    """Settings that were read again: those that wait for a restart, or the fault in them."""

    read_at: str | None
    waiting: list[str]
    error: str | None


def settings_fields(last: LatestEvent[events.SettingsRead]) -> SettingsFields:
    """Return what became of settings that were read again, as /status shows it."""
    if (read := last.event) is None:
        return {"read_at": None, "waiting": [], "error": None}
    return {"read_at": iso(last.at), "waiting": list(read.waiting), "error": read.error}


NONE_PASSED_OVER = events.FoldersPassedOver((), {})


def passed_over_families(last: events.FoldersPassedOver | None) -> Iterator[Family]:
    """Return the number of folders that are passed over by reason, and the newest of each."""
    passed = last or NONE_PASSED_OVER
    words = "Folders that look like newer checkpoints and are passed over, by reason."
    counts = {**dict.fromkeys(PASSED_OVER, 0), **passed.counts}
    yield gauge("source_passed_over", words, counts, "reason")
    words = "The newest folder that is passed over, and the beginning of what to do; always 1."
    newest = {each.reason.code: each for each in reversed(passed.folders)}
    said = {
        (shorten(each.label), code, shorten(each.reason.message)): 1
        for code, each in newest.items()
    }
    yield gauge("source_passed_over_info", words, said, "label", "reason", "message")


class TroublesNow:
    """Knows the troubles that stand until they are mended."""

    def __init__(self, wall: Wall = time.time) -> None:
        self._wall = wall
        self._standing: dict[str, tuple[events.TroubleNews, float]] = {}

    def observe(self, event: events.Event) -> None:
        """Take in a trouble that begins, goes on in other words, or is over."""
        if not isinstance(event, events.TroubleNews):
            return
        if event.message is None:
            self._standing = {c: s for c, s in self._standing.items() if c != event.code}
        else:
            _, since = self._standing.get(event.code, (event, self._wall()))
            self._standing = {**self._standing, event.code: (event, since)}

    def fields(self) -> list[Fields]:
        """Return them as the status shows them, the oldest first."""
        return [
            {"code": told.code, "message": told.message, "todo": told.todo, "since": iso(since)}
            for told, since in self._standing.values()
        ]

    def families(self, codes: Iterable[str]) -> Iterator[Family]:
        """Return whether each trouble of these codes stands, and the last word on those."""
        standing = self._standing
        stand = {code: code in standing for code in codes}
        yield gauge("trouble", "1 while this trouble stands, else 0.", stand, "code")
        words = "What is wrong, and the beginning of what to do; always 1."
        said = {
            (code, shorten(told.message or ""), shorten(told.todo)): 1
            for code, (told, _) in standing.items()
        }
        yield gauge("trouble_info", words, said, "code", "message", "todo")
