"""The /checkpoints document: each folder or commit that the source sees, and why it is not live.

Holds what the source saw at its last look against the ledger. Reads no disk and asks no hub.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypedDict

from hotreload.core.decision import Sleep, decide
from hotreload.core.ledger import Ledger, PastGeneration
from hotreload.errors import cut
from hotreload.facts.listed import Listed, ListedState
from hotreload.json_fields import iso
from hotreload.picture.picture import Picture
from hotreload.threads import in_thread
from hotreload.types import Outcome, Revision

LONGEST_WHY = 400
UNSEEN = "the source does not see it"
WRITTEN_ANEW = "its files were written anew since, and not read again: a newer one is wished"


class Situation(StrEnum):
    """The kind of reason for which something is not live; or that it is."""

    LIVE = "live"
    PREVIOUS = "previous"
    TRYING = "trying"
    WAITING = "waiting"
    REFUSED = "refused"
    OLDER = "older"
    NO_CHECKPOINT = "not a checkpoint"


OF_NOTE = (Situation.LIVE, Situation.PREVIOUS, Situation.TRYING)
"""Shown however many others there are."""


class ListedFields(TypedDict):
    """Something that the source lists, and why it is not live."""

    name: str
    state: Situation
    why: str | None
    code: str | None
    since: str | None
    generation: int | None
    step: int | None
    epoch: int | None
    bytes: int | None
    written_at: str | None
    revision: str | None
    path: str | None


class ListingFields(TypedDict):
    """The checkpoints that the source lists: all counted, some shown."""

    checkpoints: list[ListedFields]
    total: int
    states: dict[str, int]
    looked_at: str | None
    error: str | None


@dataclass(frozen=True, slots=True)
class Explained:
    """Something that the source lists, and why it is not live."""

    listed: Listed
    situation: Situation
    why: str = ""
    code: str = ""
    since: float | None = None
    """Wall-clock seconds: since when it is, or was, live, or refused."""
    generation: int | None = None
    """The last one that was made of it."""

    def fields(self) -> ListedFields:
        """Return it as /checkpoints shows it."""
        listed, revision = self.listed, self.listed.revision
        epoch, step = listed.step or (None, None)
        return {
            "name": listed.name,
            "state": self.situation,
            "why": cut(self.why, LONGEST_WHY) or None,
            "code": self.code or None,
            "since": _iso(self.since),
            "generation": self.generation,
            "step": step,
            "epoch": epoch or None,
            "bytes": listed.bytes,
            "written_at": _iso(listed.written_at),
            "revision": revision.id if revision else None,
            "path": listed.path or None,
        }


def _iso(at: float | None) -> str | None:
    return None if at is None else iso(at)


@dataclass(eq=False)
class Checkpoints:
    """Asks the source and the picture when asked itself."""

    picture: Picture
    listed: Callable[[], Sequence[Listed]]
    clock: Callable[[], float] = time.monotonic
    asked: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the source is asked."""

    async def snapshot(self, most: int) -> ListingFields:
        """Return the /checkpoints document: all are counted, about so many shown, newest first.

        Thousands of folders take a moment, so they are listed in a thread, for one client
        after the other.
        """
        async with self.asked:
            listed = await in_thread(lambda cancel: self.listed(), is_read=False)
        rows = [*self._explain_all(listed)]
        shown = [row for at, row in enumerate(rows) if at < most or row.situation in OF_NOTE]
        return {
            "checkpoints": [row.fields() for row in shown],
            "total": len(rows),
            "states": dict(Counter(row.situation.value for row in rows)),
            "looked_at": self.picture.source.looked_at,
            "error": self.picture.source.error,
        }

    def _explain_all(self, listed: Sequence[Listed]) -> Iterator[Explained]:
        under_way = self.picture.under_way
        trying = under_way.fields()
        tried = (trying["revision"], str(under_way.phase)) if trying else None
        held = HeldAgainst(self.picture.ledger, self.clock(), tried)
        rows = [held.explain(each) for each in listed]
        seen = {row.situation for row in rows}
        yield from (row for row in held.of_generations() if row.situation not in seen)
        yield from rows


class HeldAgainst:
    """Explains what a source lists by a ledger as it is now."""

    def __init__(self, ledger: Ledger, now: float, tried: tuple[str, str] | None) -> None:
        """`tried` is the revision whose attempt is under way, and its phase."""
        self._ledger, self._now, self._tried = ledger, now, tried
        live = ledger.live
        answering = {
            Situation.LIVE: ledger.past(live.number) if live else None,
            Situation.PREVIOUS: ledger.past_before(live) if live else None,
        }
        self._of_note = {each: place for each, place in answering.items() if place is not None}
        self._places = {place.path: place for place in ledger.generations if place.path}
        self._past = {place.revision.id: place for place in ledger.generations}

    def explain(self, each: Listed) -> Explained:
        """Say why it is not live, or that it is."""
        revision = each.revision or self._by_path(each)
        place = self._past.get(revision.id) if revision else None
        row = self._row(replace(each, revision=revision), revision)
        return (
            row
            if place is None
            else replace(row, generation=place.number, since=row.since or place.since)
        )

    def _row(self, each: Listed, revision: Revision | None) -> Explained:
        if revision is not None and (row := self._explain_by_ledger(each, revision)) is not None:
            return row
        if each.standing is ListedState.ODD:
            return Explained(each, Situation.NO_CHECKPOINT, each.why, each.code)
        if each.standing is ListedState.OLDER:
            return self._written_anew(each) or Explained(each, Situation.OLDER, each.why)
        if each.standing is ListedState.NEWEST and revision is not None:
            return Explained(each, Situation.WAITING, self._why_not_tried(revision))
        return Explained(each, Situation.WAITING, each.why)

    def _explain_by_ledger(self, each: Listed, revision: Revision) -> Explained | None:
        """Explain the revision by the ledger; None where it says nothing."""
        for situation, place in self._of_note.items():
            if place.revision == revision:
                return Explained(each, situation)
        if self._tried is not None and self._tried[0] == revision.id:
            return Explained(each, Situation.TRYING, self._tried[1])
        if (refusal := self._ledger.refused.get(revision.id)) is not None:
            why = refusal.reason
            return Explained(each, Situation.REFUSED, why.message, why.code, refusal.at)
        return None

    def _written_anew(self, each: Listed) -> Explained | None:
        """Explain an unread folder that the live generation came from, or the one before it."""
        places = self._of_note.items() if each.revision is None and each.path else ()
        found = (note for note, place in places if place.path == each.path)
        if (situation := next(found, None)) is None:
            return None
        place = self._of_note[situation]
        return Explained(each, situation, WRITTEN_ANEW, "", place.since, place.number)

    def _by_path(self, each: Listed) -> Revision | None:
        """Return the revision that went live from this folder, if it was not written to since.

        After a restart the source has read the newest folder alone.
        """
        place = self._places.get(each.path)
        is_same = place is not None and (each.written_at or 0.0) <= place.since
        return place.revision if place is not None and is_same else None

    def _why_not_tried(self, revision: Revision) -> str:
        """Say why the newest is not live, though nothing is known against it."""
        ledger = self._ledger
        if ledger.live is None:
            return "the daemon starts: nothing is live yet"
        if (choice := ledger.overruled) is not None and choice.wish == revision:
            words = f"{choice.by.verb} made {choice.choice} live instead"
            until = "hotreload unpin" if ledger.pinned else "the source wishes something new"
            return f"{words}; it stays until {until}"
        if ledger.wanted != revision:
            return "the source has not wished for it yet"
        next_step = decide(ledger, self._now)
        why = next_step.why if isinstance(next_step, Sleep) else None
        return self._put_off(revision) + (why or "its attempt is next")

    def _put_off(self, revision: Revision) -> str:
        own = (a for a in self._ledger.attempts if a.revision == revision and not a.dry_run)
        last = next(own, None)
        if last is None or last.outcome is not Outcome.POSTPONED or last.reason is None:
            return ""
        return f"put off: {last.reason.code}: {last.reason.message}; "

    def of_generations(self) -> Iterator[Explained]:
        """Explain the live generation and the one before it, as the ledger knows them."""
        for situation, place in self._of_note.items():
            why = f"{UNSEEN}; it came from {place.path}" if place.path else UNSEEN
            yield Explained(_of(place), situation, why, "", place.since, place.number)


def _of(place: PastGeneration) -> Listed:
    name = place.revision.label or place.revision.id
    return Listed(name, ListedState.OLDER, revision=place.revision, path=place.path)
