"""Decides the next thing to try: the same ledger and time always give the same decision.

A folder that was not read yet has an id made from a stat. An attempt may be the first to read its
content. A decision about that content holds for every id of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hotreload.attempts import Refusal
from hotreload.core.ledger import LEFT_BY_HAND, Ledger
from hotreload.errors import Misbehaved, Recognized
from hotreload.types import Generation, Revision


@dataclass(frozen=True, slots=True)
class Sleep:
    """Do nothing before `until` (None: until something changes); `why` is the reason in words."""

    until: float | None
    why: str | None


def list_newer_refusals(ledger: Ledger, named: Sequence[str]) -> list[Refusal]:
    """List the refusals of revisions newer than all that went live, the newest first.

    `named` has the ids that the source saw last, the newest first; a revision that is not among
    them is placed by time. A revision that an operator left counts as good, and ends the row.
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


def decide(ledger: Ledger, now: float) -> Revision | Sleep:
    """Return the revision to try now, or how long to wait."""
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
    return wanted


def _name(live: Generation | None) -> str:
    return f"generation {live.number}" if live else "what is live"


def list_worth_keeping(ledger: Ledger) -> set[str]:
    """Return the ids of revisions whose files may be needed again: live, before it, wanted, missed.

    At a start none is live, and the last good generation stands in its place.
    """
    live = ledger.live or ledger.last_good
    before = ledger.past_before(live) if live else None
    places = [place.revision for place in (ledger.last_good, before, ledger.missed) if place]
    known = [each for each in (ledger.live and ledger.live.revision, ledger.wanted) if each]
    return {revision.id for revision in (*places, *known)}


# --- decisions about the same content by another name -------------------------------------------


def learn(ledger: Ledger, revision: Revision) -> Revision:
    """Return the revision named by its content, if that is known; move its failures there, too.

    Only a name that a stat gave is replaced: a hub's commit keeps its own.
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
    """Name by content the revisions that earlier lives died on: a restart may know the content."""
    died_on = [*map(Revision, ledger.crashes), *filter(None, [ledger.under_way])]
    for revision in died_on:
        learn(ledger, revision)


def check_undecided(ledger: Ledger, revision: Revision) -> None:
    """Raise Recognized if this revision is live, or was refused, by whatever name."""
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
