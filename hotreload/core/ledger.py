"""What was tried and what came of it; what to try next. Survives a restart as plain data.

The reconciler alone writes it; `decide` only reads, so the same ledger and time give the
same answer. Where the data lie on disk is not known here.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import pydantic_core
from pydantic import TypeAdapter

from hotreload.types import Attempt, Generation, Outcome, Reason, Refusal, Revision

VERSION = 2
"""Of the state file; a change of `Memory` raises it and adds a line to `_MIGRATIONS`."""
KEPT_ATTEMPTS = 200
KEPT_GENERATIONS = 50
KEPT_REFUSALS = 500


@dataclass(frozen=True, slots=True)
class Try:
    """Attempt this revision now."""

    revision: Revision


@dataclass(frozen=True, slots=True)
class Sleep:
    """Nothing to do until `until` (None: until something changes); `why` in words."""

    until: float | None
    why: str | None


@dataclass(frozen=True, slots=True)
class Place:
    """Where the files of a generation lay when it went live, to find them again."""

    number: int
    revision: Revision
    fingerprint: str
    path: str
    """Empty when there are none: the weights were made in memory."""
    since: float


@dataclass(slots=True)
class Ledger:
    """Times are monotonic seconds where they order things, wall-clock where people read them."""

    live: Generation | None = None
    wanted: Revision | None = None
    refused: dict[str, Refusal] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    not_before: dict[str, float] = field(default_factory=dict)
    rest_until: float = 0.0
    pinned: bool = False
    generations: deque[Place] = field(default_factory=lambda: deque(maxlen=KEPT_GENERATIONS))
    history: deque[Attempt] = field(default_factory=lambda: deque(maxlen=KEPT_ATTEMPTS))
    under_way: Revision | None = None
    crashes: dict[str, int] = field(default_factory=dict)
    lost_at: float = 0.0
    """When an engine was last lost; 0 for never."""
    superseded_last: bool = False
    numbers_given: int = 0
    """Up to here numbers may have been given in attempts that died before they were written."""

    @property
    def next_number(self) -> int:
        """The number of the next generation; it never falls, not even by a rollback or a crash."""
        return max(self.numbers_given, *(place.number for place in self.generations), 0) + 1

    @property
    def last_good(self) -> Place | None:
        """The generation with files that went live last and was not refused since."""
        loadable = (p for p in reversed(self.generations) if p.path)
        return next((p for p in loadable if p.revision.id not in self.refused), None)

    def place_of(self, number: int) -> Place | None:
        """Where generation `number` came from, if it is still remembered."""
        return next((place for place in self.generations if place.number == number), None)

    def place_before(self, live: Generation | Place) -> Place | None:
        """The generation before this one that has files, other weights, and is not refused."""
        older = (p for p in reversed(self.generations) if p.number < live.number and p.path)
        others = (p for p in older if p.fingerprint != live.fingerprint)
        return next((p for p in others if p.revision.id not in self.refused), None)

    def place_of_revision(self, revision: Revision) -> Place | None:
        """Where a revision that was live came from."""
        return next((p for p in reversed(self.generations) if p.revision == revision), None)

    @property
    def worth_keeping(self) -> set[str]:
        """The revisions whose files may be needed again: live, before it, wanted.

        At a start nothing is live; the last good generation is about to be.
        """
        live = self.live or self.last_good
        before = self.place_before(live) if live else None
        places = [place.revision for place in (self.last_good, before) if place]
        known = [each for each in (self.live and self.live.revision, self.wanted) if each]
        return {revision.id for revision in (*places, *known)}

    def drains_in_vain(self, revision: Revision) -> int:
        """How often in a row a drain for this revision has not ended in time."""
        own = (each for each in self.history if each.revision == revision)
        reasons = (each.reason for each in own)
        return len(list(takewhile(lambda why: why is not None and why.code == "drain", reasons)))

    def went_live(self, generation: Generation, path: str) -> None:
        """Record what answers from now on; it is no longer refused."""
        path = path if path.isprintable() else ""  # bytes that are no text cannot be remembered
        self.live = generation
        if self.under_way == generation.revision:  # it no longer matters how the attempt ends
            self.under_way = None
        self.refused.pop(generation.revision.id, None)
        if self.place_of(generation.number) is None:
            where = (generation.revision, generation.fingerprint, path, generation.since)
            self.generations.append(Place(generation.number, *where))

    def begin(self, revision: Revision) -> None:
        """An attempt starts; if the process dies in it, the next start will know."""
        self.under_way = revision

    def finish(
        self, attempt: Attempt, *, now: float, backoff: Callable[[int], float], rest: float
    ) -> None:
        """Record how an attempt ended, and with that what may be tried when."""
        key = attempt.revision.id
        self.history.appendleft(attempt)
        if attempt.outcome is Outcome.LOST:
            return  # still under way: the next start counts it as the death it is
        self.under_way = None
        self.crashes.pop(key, None)
        self.superseded_last = attempt.outcome is Outcome.SUPERSEDED
        if attempt.outcome is Outcome.POSTPONED:
            self.failures[key] = self.failures.get(key, 0) + 1
            self.not_before[key] = now + backoff(self.failures[key])
        elif attempt.outcome is not Outcome.SUPERSEDED:
            self.failures.pop(key, None)
            self.not_before.pop(key, None)
        if attempt.outcome is Outcome.REJECTED and attempt.reason:
            self.refuse(attempt.revision, attempt.reason, attempt.finished_at)
        if attempt.outcome is Outcome.LIVE:
            self.rest_until = now + rest

    def abandon(self) -> None:
        """The attempt under way was cancelled by us: it says nothing about the checkpoint."""
        self.under_way = None

    def refuse(self, revision: Revision, reason: Reason, at: float) -> None:
        """Never try this again until its bytes change or an operator forces it."""
        self.refused.pop(revision.id, None)
        self.refused[revision.id] = Refusal(revision, reason, at)
        while len(self.refused) > KEPT_REFUSALS:
            del self.refused[next(iter(self.refused))]

    def count_crash(self, at: float) -> None:
        """After a restart: blame a death on the attempt it ended; the second one refuses it."""
        died_on, self.under_way = self.under_way, None
        if died_on is None:
            return
        # It may have been live, and have answered, before the file could be written.
        self.numbers_given = self.next_number
        self.crashes[died_on.id] = self.crashes.get(died_on.id, 0) + 1
        if self.crashes[died_on.id] >= 2:
            reason = Reason("crashed", "the process died twice while this revision was tried")
            self.refuse(died_on, reason, at)


def decide(ledger: Ledger, now: float) -> Try | Sleep:
    """Say what the source's wish calls for at this moment."""
    wanted = ledger.wanted
    if wanted is None:
        return Sleep(None, None)
    if ledger.live is not None and wanted == ledger.live.revision:
        return Sleep(None, None)
    if ledger.pinned:
        return Sleep(None, f"{wanted} is wanted, and a pin holds {_name(ledger.live)}")
    if refusal := ledger.refused.get(wanted.id):
        return Sleep(None, f"{wanted} is refused ({refusal.reason.code}); waiting for another")
    earliest = max(ledger.rest_until, ledger.not_before.get(wanted.id, 0.0))
    if now < earliest:
        return Sleep(earliest, f"{wanted} is tried again in {earliest - now:.0f} s")
    return Try(wanted)


def _name(live: Generation | None) -> str:
    return f"generation {live.number}" if live else "what is live"


@dataclass(frozen=True, slots=True)
class Memory:
    """The part of a ledger that survives a restart; its fields are the state file's."""

    version: int
    generations: list[Place]
    refused: list[Refusal]
    history: list[Attempt]
    pinned: bool
    under_way: Revision | None
    crashes: dict[str, int]
    lost_at: float
    numbers_given: int


_MEMORY = TypeAdapter(Memory)


def to_json(ledger: Ledger) -> bytes:
    """Return what must survive a restart."""
    memory = Memory(
        version=VERSION,
        generations=list(ledger.generations),
        refused=list(ledger.refused.values()),
        history=list(ledger.history),
        pinned=ledger.pinned,
        under_way=ledger.under_way,
        crashes=ledger.crashes,
        lost_at=ledger.lost_at,
        numbers_given=ledger.numbers_given,
    )
    return _MEMORY.dump_json(memory, indent=1)


class NewerState(ValueError):
    """Written by a later hotreload, to which it is still of use."""


def _from_1(memory: dict[str, Any]) -> dict[str, Any]:
    return {"lost_at": 0.0, "numbers_given": 0, **memory}


_MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {1: _from_1}
"""One line a version that is no more: how to make the next one of it."""


def _migrated(memory: Any) -> dict[str, Any]:
    version = memory.get("version") if isinstance(memory, dict) else None
    if not isinstance(version, int):
        raise ValueError("it has no version")
    if version > VERSION:
        raise NewerState(f"it has version {version}, and this hotreload knows {VERSION}")
    for older in range(version, VERSION):
        if older not in _MIGRATIONS:
            raise ValueError(f"version {older} is not known")
        memory = _MIGRATIONS[older](memory)
    return {**memory, "version": VERSION}


def from_json(data: bytes) -> Ledger:
    """Rebuild a ledger, from an older version's data too.

    ValueError says what is wrong with the data; NewerState is the one that time mends.
    """
    memory = _MEMORY.validate_python(_migrated(pydantic_core.from_json(data)))
    return Ledger(
        refused={refusal.revision.id: refusal for refusal in memory.refused},
        pinned=memory.pinned,
        generations=deque(memory.generations, maxlen=KEPT_GENERATIONS),
        history=deque(memory.history, maxlen=KEPT_ATTEMPTS),
        under_way=memory.under_way,
        crashes=memory.crashes,
        lost_at=memory.lost_at,
        numbers_given=memory.numbers_given,
    )
