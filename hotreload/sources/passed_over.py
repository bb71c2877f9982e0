"""Folders that were probably meant as checkpoints and are passed over, each with the reason.

A passed-over folder newer than the best checkpoint is reported: its trainer may wait for it. The
newest one that looks like a checkpoint becomes a revision, so that it can be refused.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple

from hotreload.attempts import PassedOver
from hotreload.checkpoint.known_names import CONFIG, as_one_line
from hotreload.errors import PASSED_OVER
from hotreload.sources.place import FollowedPlace, Oddity, Place
from hotreload.types import Reason, Revision

MOST_PASSED_OVER = 32
"""At most this many passed-over folders are named; the others are only counted."""
_KEPT = 256
_LONG = 10.0
"""A folder named as unfinished is an old leftover after this many times the patience."""

Span = Literal["settle", "patience", "long"]


class _After(NamedTuple):
    """Seconds a folder must be quiet before it is reported, and refused (None: never)."""

    report: Span
    refuse: Span | None = None


AFTER = {
    "format": _After("settle", "patience"),
    "no_step": _After("settle", "patience"),
    "stray": _After("settle", "patience"),
    "unsafe_path": _After("settle", "settle"),
    "io": _After("settle"),
    "missing": _After("patience"),
    "no_marker": _After("patience"),  # its writer may yet write it
    "too_deep": _After("settle"),
    "unfinished": _After("long"),
}
"""The spans of each code, in the order of the table in docs/checkpoints.md."""
assert (*AFTER,) == PASSED_OVER


class PassedOverReport(NamedTuple):
    """The report of one look: the newest passed-over folders, and how many have each code."""

    named: tuple[PassedOver, ...] = ()
    counts: Mapping[str, int] = MappingProxyType({})


class PassedOverFolders:
    """The odd folders: when each is reported and refused, and the revisions made of some."""

    def __init__(self, settle: float, patience: float) -> None:
        long = max(settle, _LONG * patience)
        self._spans = {"settle": settle, "patience": max(settle, patience), "long": long}
        self._reasons: OrderedDict[str, Reason] = OrderedDict()

    def why(self, revision: Revision) -> Reason | None:
        """Return why this revision cannot be loaded, if it stands for a passed-over folder."""
        return self._reasons.get(revision.id)

    def report_after(self, odd: FollowedPlace) -> float:
        """Return how many seconds the folder must be quiet before it is reported."""
        return self._spans[AFTER[odd.reason.code].report]

    def refuse_after(self, odd: FollowedPlace) -> float | None:
        """Return how many seconds it must be quiet before it is refused; None for never.

        A folder that came by a rename is finished: waiting longer would change nothing.
        """
        code = odd.reason.code
        report, refuse = AFTER[code]
        if refuse is None or (code == "unsafe_path" and not odd.place.weights):
            return None
        return self._spans["settle" if odd.claimed and report == "settle" else refuse]

    def revision(self, odd: FollowedPlace) -> Revision:
        """Make the revision that stands for the folder in the ledger.

        It stays the same until the files that make the folder odd change. A content id would not
        do: the same bytes may be good under another name, or with a marker.
        """
        place, reason = odd.place, odd.reason
        known_by = repr((place.name, reason.code, _odd_files(odd)))
        id = blake2b(known_by.encode(errors="backslashreplace"), digest_size=16).hexdigest()
        self._reasons[id] = reason
        while len(self._reasons) > _KEPT:
            self._reasons.popitem(last=False)
        return Revision(id, place.name)


def report(odd: Sequence[FollowedPlace]) -> PassedOverReport:
    """Report these odd folders, which are sorted newest first."""
    named = tuple(PassedOver(each.place.name, each.reason) for each in odd[:MOST_PASSED_OVER])
    return PassedOverReport(named, Counter(each.oddity.code for each in odd if each.oddity))


def describe_outside(place: Place, roots: Iterable[Path]) -> Oddity | None:
    """Describe a link that leads out of every allowed folder; None for any other place."""
    if not place.is_outside or any(place.folder.is_relative_to(root) for root in roots):
        return None
    words = (
        f"is a link that leads out of the watched folder, to {as_one_line(str(place.folder))}: "
        "move or copy the checkpoint into the watched folder"
    )
    return Oddity("unsafe_path", words)


def describe_stepless(best: Place) -> Oddity:
    """Describe a sound checkpoint that is not the newest only because its name has no step."""
    words = (
        f"has no step in its name, so {best.name} counts as newer: rename it as step_N, or "
        'set [source] order = "time", or a pattern that leaves it out'
    )
    return Oddity("no_step", words)


def describe_stray_root(place: Place) -> Oddity:
    """Describe a root that holds weights although the folders in it are the checkpoints."""
    words = (
        f"holds {place.weights[0].name} beside folders that are checkpoints, so it is not one "
        "itself: move that file to a folder of its own, or delete it"
    )
    return Oddity("stray", words)


def choose_root_or_below(found: list[Place], root: Path) -> list[Place]:
    """Decide whether the root is the checkpoint, or the folders below it are.

    A stray weights file does not make the root a checkpoint. The folder of a whole model is one,
    and may hold the model in another form below, such as `original`. An odd folder there is
    reported all the same if its name names a step.
    """
    below = [place for place in found if place.path != root]
    own = next((place for place in found if place.path == root), None)
    if own is None or not below:
        return found
    if not own.weights:
        return below
    rivals = [place for place in below if place.weights]
    if rivals and (not own.holds(CONFIG) or any(place.step is not None for place in rivals)):
        return [replace(own, oddity=describe_stray_root(own)), *below]
    return [own, *(place for place in below if place.oddity and place.step is not None)]


def describe_unmarked(marker: str) -> Oddity:
    """Describe a folder that looks complete but lacks its marker."""
    words = (
        f"looks complete and has no {marker}: write that file last, or take [source] marker out of "
        "the settings"
    )
    return Oddity("no_marker", words)


WITHOUT_WEIGHTS = Oddity("missing", "holds config.json and no *.safetensors")
"""The oddity of a folder whose writer began it and brought no weights."""


def is_sound(oddity: Oddity | None) -> bool:
    """Return whether the folder is passed over although its files are sound."""
    return oddity is not None and oddity.code in ("no_step", "stray")


def is_begun(each: FollowedPlace) -> bool:
    """Return whether this is more than a folder that is named as unfinished."""
    return each.oddity is None or each.oddity.code != "unfinished"


def _odd_files(odd: FollowedPlace) -> list[tuple[str, int, int]]:
    assert odd.oddity is not None
    place, names = odd.place, odd.oddity.telling
    files = place.weights or [e for e in place.entries if e.name in names] or place.entries
    return [(each.name, each.size, each.mtime) for each in files]
