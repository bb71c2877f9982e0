"""The next thing to try: the same ledger and the same time give the same answer.

A folder that nobody has read yet is named by what a stat says of it. Its content is known once it
was read, which may be in the midst of its attempt; what was decided of that holds for any name.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hotreload.core.ledger import LEFT_BY_HAND, Ledger
from hotreload.errors import Misbehaved, Recognized
from hotreload.types import Generation, Refusal, Revision


@dataclass(frozen=True, slots=True)
class Try:
    """Attempt this revision now."""

    revision: Revision


@dataclass(frozen=True, slots=True)
class Sleep:
    """Nothing to do until `until` (None: until something changes); `why` in words."""

    until: float | None
    why: str | None


def list_newer_refusals(ledger: Ledger, named: Sequence[str]) -> list[Refusal]:
    """The refusals of what is newer than all that went live, the newest first.

    `named` is what the source saw last, the newest first; of what is not there the time decides.
    What an operator left counts as good, and so ends a row.
    """
    at = {id: place for place, id in enumerate(named)}
    refused = [each for each in ledger.refused.values() if each.reason.code != LEFT_BY_HAND]
    bad = {each.revision.id for each in refused}
    began: dict[str, float] = {}
    for place in ledger.generations:
        if not place.revision.is_noise and place.revision.id not in bad:
            began.setdefault(place.revision.id, place.since)
    newest = min((at[id] for id in began if id in at), default=len(at))
    last = max((since for id, since in began.items()), default=0.0)
    last_unseen = max((since for id, since in began.items() if id not in at), default=0.0)

    def is_newer(each: Refusal) -> bool:
        if each.revision.id in at:
            return at[each.revision.id] < newest and each.at >= last_unseen
        return each.at >= last

    newer = sorted(filter(is_newer, refused), key=lambda each: -each.at)
    if newer and newer[0].revision.id in at:  # the one refused last may not be the newest there
        newer.sort(key=lambda each: at.get(each.revision.id, len(at)))
    return newer


def decide(ledger: Ledger, now: float) -> Try | Sleep:
    """Decide what to do now about what is wanted."""
    wanted = ledger.wanted
    if wanted is None:
        return Sleep(None, None)
    if ledger.live is not None and wanted == ledger.live.revision:
        return Sleep(None, None)
    if ledger.pinned:
        return Sleep(None, f"{wanted} is wanted, and {ledger.held_by} holds {_name(ledger.live)}")
    if refusal := ledger.refused.get(wanted.id):
        return Sleep(None, f"{wanted} is refused ({refusal.reason.code}); waiting for another")
    earliest = max(ledger.rest_until, ledger.not_before.get(wanted.id, 0.0))
    if now < earliest:
        return Sleep(earliest, f"{wanted} is tried again in {earliest - now:.0f} s")
    return Try(wanted)


def _name(live: Generation | None) -> str:
    return f"generation {live.number}" if live else "what is live"


# --- what was decided by another name ---------------------------------------------------------


def learn(ledger: Ledger, revision: Revision) -> Revision:
    """Return the revision by its content where that is known; what is known of it moves there.

    Only a name that a stat gave is given up: a commit of a hub keeps its own.
    """
    id = ledger.contents.get(revision.id)
    if id is None or not revision.is_unread:
        return revision
    for counts in (ledger.failures, ledger.crashes):
        if (count := counts.pop(revision.id, 0)) > 0:
            counts[id] = counts.get(id, 0) + count
    if (earliest := ledger.not_before.pop(revision.id, None)) is not None:
        ledger.not_before[id] = earliest
    named = replace(revision, id=id)
    ledger.wanted = named if ledger.wanted == revision else ledger.wanted
    ledger.wished = named if ledger.wished == revision else ledger.wished
    ledger.under_way = named if ledger.under_way == revision else ledger.under_way
    return named


def learn_all(ledger: Ledger) -> None:
    """Learn what earlier lives died on: a restart may know it by its content."""
    died_on = [*map(Revision, ledger.crashes), *filter(None, [ledger.under_way])]
    for revision in died_on:
        learn(ledger, revision)


def check_undecided(ledger: Ledger, revision: Revision) -> None:
    """Raise Recognized where it is what is live, or was refused: that holds for any name of it."""
    if ledger.live is not None and ledger.live.revision == revision:
        raise Recognized(f"{revision} is live already")
    if (refusal := ledger.refused.get(revision.id)) is not None:
        raise Recognized(f"{revision} was refused before ({refusal.reason.code})")


def check_content(ledger: Ledger, revision: Revision) -> None:
    """Raise Misbehaved where another commit of the same content was refused, and none is live."""
    content = ledger.contents.get(revision.id)
    if content is None or (ledger.live and ledger.contents.get(ledger.live.revision.id) == content):
        return
    for refusal in ledger.refused.values():
        other, reason = refusal.revision, refusal.reason
        if ledger.contents.get(other.id, other.id) == content and other != revision:
            words = f"the same files were refused as {other}: {reason.message}"
            raise Misbehaved(words, code=reason.code)
