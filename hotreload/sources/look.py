"""The result of a look at a tree: for each place why it is not live, and whether all are gone.

A list is made of the last look's result and reads no disk.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from hotreload.core.ledger import PastGeneration
from hotreload.facts.listed import Listed, ListedState
from hotreload.facts.mount_table import Mount, mount_of
from hotreload.sources.passed_over import PassedOverReport
from hotreload.sources.place import FollowedPlace, Place, SortKey
from hotreload.types import Revision

EMPTIED_TODO = (
    "look at its mount, and mount it again or copy the checkpoints back; the next checkpoint ends "
    "this, too"
)


@dataclass(slots=True)
class Look:
    """The result of one look; times are those of our own clock."""

    now: float = 0.0
    best: Revision | None = None
    """The newest complete checkpoint."""
    rank: SortKey | None = None
    """The rank of the best one among the others."""
    overdue: Revision | None = None
    """A newer one that should have been complete by now, or never will be."""
    passed_over: PassedOverReport = field(default_factory=PassedOverReport)
    reported: set[Path] = field(default_factory=set)
    """The folders of all that are passed over; not all of them are named."""
    checkpoints: int = 0
    """The number of places with a checkpoint, whole or not, or left out by the pattern."""
    newest: str = ""
    """The name of the newest of them."""
    emptied: str | None = None
    """The trouble in words, if there were checkpoints before and are none now."""
    lacking: dict[Path, str] = field(default_factory=dict)
    """The part that each folder newer than the best still lacks, in words."""
    is_to_be_named: bool = False
    """True if a complete checkpoint could not be named: the next look tries again."""
    waiting: str | None = None
    error: str | None = None
    settled_at: float | None = None
    """When a whole checkpoint that only has to stay quiet will count as complete."""
    due: float | None = None
    """When the next look would find something else even if nothing changes."""

    def wake_at(self, at: float) -> None:
        """Note that a look at that time would find something else."""
        if at > self.now:
            self.due = at if self.due is None else min(self.due, at)


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
        """Return the last result if a look now would find the same; else None."""
        look = self._look
        if look is None or (look.due is not None and now >= look.due):
            return None
        is_same = self._refused == refused and self._walked == walked
        return replace(look, now=now) if is_same else None


class EmptiedFolder:
    """Notices that a folder which held checkpoints holds none any more: its mount may be gone.

    To a look an unmounted folder is an empty one, in which no checkpoint has arrived yet. It reads
    disks, so a look calls it in its thread.
    """

    def __init__(self, path: Path, generations: Callable[[], Iterable[PastGeneration]]) -> None:
        """`generations` are those that went live, in earlier lives too."""
        self._path = path
        self._generations = generations
        self._held = ""
        """The checkpoints of the last look that found any, in words."""
        self._device = 0
        self._mount: Mount | None = None

    def judge(self, look: Look) -> str | None:
        """Return the trouble in words; None while there are checkpoints, or if none ever were."""
        if look.checkpoints:
            self._remember(look)
            return None
        held = self._held or self._lay_here()
        if not held:
            return None
        now = look.error or f"{self._path} holds no checkpoint now"
        return f"{now}; {held}{self._where()}"

    def _remember(self, look: Look) -> None:
        count = look.checkpoints
        self._held = f"it held {count} {'checkpoint' if count == 1 else 'checkpoints'}"
        if look.newest:
            self._held += f", {'' if count == 1 else 'the newest '}{look.newest}"
        device = os.stat(self._path).st_dev
        if device != self._device:
            self._device, self._mount = device, mount_of(self._path)

    def _lay_here(self) -> str:
        """Return in words which generations lay here; empty for none."""
        roots = (self._path, Path(os.path.realpath(self._path)))
        here = [
            each
            for each in self._generations()
            if each.path and any(Path(each.path).is_relative_to(root) for root in roots)
        ]
        if not here:
            return ""
        newest = f"generation {here[-1].number} ({here[-1].revision.label})"
        return f"{newest} lay there" + (f", and {len(here) - 1} before it" if here[1:] else "")

    def _where(self) -> str:
        now, before = mount_of(self._path), self._mount
        if before is None or before == now:
            return f"; it lies on {now}"
        return f"; it lay on {before}, and lies on {now} now"


class Sight(NamedTuple):
    """The verdict of a look on one place; `why` in words, and as a code if the place is odd."""

    followed: FollowedPlace
    standing: ListedState
    why: str
    code: str = ""


def judge(
    ranked: Sequence[FollowedPlace],
    look: Look,
    best: FollowedPlace | None,
    was_left: Callable[[FollowedPlace], bool],
) -> tuple[Sight, ...]:
    """Give the look's verdict on each place; the places are sorted newest first."""
    sights, older_than = list[Sight](), ""
    for each in ranked:
        if each is best:
            sights.append(Sight(each, ListedState.NEWEST, ""))
            older_than = f"older than {each.place.name}"
        else:
            sights.append(_sight(each, look, older_than or _left_words(was_left(each))))
    return tuple(sights)


def _left_words(was_left: bool) -> str:
    return "older than what was wished last, and nobody has touched it since" if was_left else ""


def _sight(each: FollowedPlace, look: Look, older: str) -> Sight:
    is_reported = each.place.folder in look.reported
    lacks = look.lacking.get(each.place.folder)
    if lacks is not None and not is_reported:
        return Sight(each, ListedState.WAITING, lacks)
    if each.oddity is not None and each.oddity.code == "unfinished" and not is_reported:
        return Sight(each, ListedState.WAITING, "is named as unfinished: its writer renames it")
    if each.oddity is not None:
        return Sight(each, ListedState.ODD, each.oddity.words, each.oddity.code)
    return Sight(each, ListedState.OLDER if older else ListedState.WAITING, older or _lacks(each))


def _lacks(each: FollowedPlace) -> str:
    waits = each.survey.waiting_for if each.survey is not None else None
    return waits or "the next look judges it"


def list_places(sights: Iterable[Sight], followed: Mapping[Path, FollowedPlace]) -> list[Listed]:
    """List the places that are still there; those that came since the last whole look go first.

    A look takes long while it reads new bytes, and an operator may wait for just those.
    """
    known = [sight for sight in sights if sight.followed.place.folder in followed]
    folders = {sight.followed.place.folder for sight in known}
    new = (each for folder, each in followed.items() if folder not in folders)
    words = "the look under way judges it: new bytes are read for their name"
    come = (Sight(each, ListedState.WAITING, words) for each in new)
    return [_row_of(sight) for sight in (*come, *known)]


def describe_unmatched(place: Place, pattern: str) -> Listed:
    """Describe a place that the pattern leaves out."""
    words = f"the pattern {pattern!r} ([source] pattern) leaves it out"
    return _make_row(place, ListedState.ODD, words, "pattern", None)


def _row_of(sight: Sight) -> Listed:
    each = sight.followed
    return _make_row(each.place, sight.standing, sight.why, sight.code, each.revision)


def _make_row(
    place: Place, standing: ListedState, why: str, code: str, revision: Revision | None
) -> Listed:
    return Listed(
        name=place.name,
        standing=standing,
        why=why,
        code=code,
        revision=revision,
        path=str(place.folder),
        step=place.step,
        bytes=sum(entry.size for entry in place.weights or place.entries),
        written_at=place.time / 1e9 or None,
    )
