"""The verdict on the last wanted revision: whether it is live, and nothing objects to it.

Rollout controllers ask for it (`GET /gate`): they take any 2xx for a yes.
"""

from typing import TypedDict

from hotreload.json_fields import Fields, GenerationFields, generation_fields
from hotreload.picture.history import AttemptFields
from hotreload.picture.picture import Picture
from hotreload.picture.report import WishVerdict
from hotreload.picture.words import goes_back
from hotreload.types import Attempt, By, Outcome, Refusal, Revision

PASS = "pass"
VerdictFields = TypedDict(
    "VerdictFields",
    {
        "pass": bool,
        "verdict": str,
        "why": str,
        "wanted": str | None,
        "wanted_label": str | None,
        "live": GenerationFields | None,
        "attempt": AttemptFields | None,
    },
)
"""The /gate document; features add theirs."""


def verdict_of(
    picture: Picture, asked: str | None = None, newest: Refusal | None = None
) -> WishVerdict:
    """Judge by the live generation, the wish, the last attempt, and features' objections.

    `newest` is the refusal of a revision newer than the live one. With `asked`, the id or label of
    one revision, the others do not matter.
    """
    live, wanted, last = picture.live, picture.wishes.wanted, picture.history.last
    is_ready, reasons = picture.ready()
    if live is None or not is_ready:
        return WishVerdict("not_serving", "; ".join(reasons) or "nothing is live yet")
    if asked is not None:
        return _of_the_one(picture, live.revision, asked)
    if wanted is not None and wanted != live.revision:
        return _of_what_is_not_live(picture, wanted)
    if last is not None and last.outcome is not Outcome.LIVE:
        return _as_ended(last)
    if (back := _went_back(picture)) is not None:
        return WishVerdict("rolled_back", f"back to {live.revision}: {back.reason or 'as ordered'}")
    return _as_refused(newest) if newest else _as_it_lives(picture, live.revision)


def verdict_fields(picture: Picture, newest: Refusal | None, asked: str | None = None) -> Fields:
    """Return the /gate document; of one revision, where it is named by its id or label."""
    verdict, last, live = verdict_of(picture, asked, newest), picture.history.last, picture.live
    wanted = picture.wishes.wanted
    return {
        "pass": verdict.word == PASS,
        "verdict": verdict.word,
        "why": verdict.why,
        "wanted": wanted.id if wanted else None,
        "wanted_label": wanted.label if wanted else None,
        "live": generation_fields(live) if live else None,
        "attempt": picture.history.describe(last) if last else None,
        **{name: told for each in picture.reports for name, told in each.gate_fields(last).items()},
    }


def _of_the_one(picture: Picture, live: Revision, asked: str) -> WishVerdict:
    meant = _find_meant(picture, live, asked)
    if meant is None:
        return WishVerdict("waiting", f"{asked} was not tried yet; {live} is live")
    if meant == live:
        return _as_it_lives(picture, live)
    tried = picture.history.last_of(meant.id)
    if tried is None:
        return _of_what_is_not_live(picture, meant)
    if tried.outcome is not Outcome.LIVE:
        return _as_ended(tried)
    return WishVerdict("replaced", f"{tried.revision} was live, and {live} is now")


def _find_meant(picture: Picture, live: Revision, asked: str) -> Revision | None:
    """Of several revisions of one label the newest: a folder is written anew, a branch moves on."""
    tried = picture.history.last_of(asked)
    known = (picture.wishes.wanted, tried.revision if tried else None, live)
    named = (each for each in known if each is not None and asked in (each.id, each.label))
    return next(named, None)


def _of_what_is_not_live(picture: Picture, wanted: Revision) -> WishVerdict:
    last = picture.history.last
    if last is not None and last.revision == wanted and last.outcome is not Outcome.LIVE:
        return _as_ended(last)
    if (refusal := picture.ledger.refused.get(wanted.id)) is not None:
        return _as_refused(refusal)
    return WishVerdict("waiting", picture.wishes.waiting_for or f"{wanted} is not live yet")


def _as_refused(refusal: Refusal) -> WishVerdict:
    return WishVerdict(Outcome.REJECTED.value, f"{refusal.revision}: {refusal.reason.message}")


def _as_it_lives(picture: Picture, live: Revision) -> WishVerdict:
    """Judge the live generation, which is the wanted one."""
    objections = (report.objection_to(live) for report in picture.reports)
    return next(filter(None, objections), None) or WishVerdict(PASS, f"{live} is live")


def _as_ended(last: Attempt) -> WishVerdict:
    words = last.reason.message if last.reason else "no reason is known"
    return WishVerdict(last.outcome.value, f"{last.revision}: {words}")


def _went_back(picture: Picture) -> By | None:
    """Return the caller of the rollback to the live weights, if one brought them back."""
    last, overruled = picture.history.last, picture.ledger.overruled
    both = (last.by if last else None, overruled.by if overruled else None)
    return next((by for by in both if by is not None and goes_back(by.verb)), None)
