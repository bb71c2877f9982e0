"""The result of a look at a tree: for each place why it is not live, and whether all are gone.

A list is made of the last look's result and reads no disk.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from hotreload.core.ledger import PastGeneration
from hotreload.facts.files import Mount, mount_of
from hotreload.facts.listed import Listed, ListedState
from hotreload.sources.passed_over import PassedOverReport
from hotreload.sources.place import FollowedPlace, Place, SortKey
from hotreload.types import Revision

_OLDER_AND_LEFT = "older than what was wished last, and nobody has touched it since"
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


class LastLook(NamedTuple):
    """The last look and what it went by; a look that would find the same is spared."""

    walked: list[Place]
    refused: frozenset[str]
    """The named revisions that were refused then."""
    found: Look

    def again(self, walked: list[Place], refused: frozenset[str], now: float) -> Look | None:
        """Return what it found if a look now would find the same; else None."""
        is_due = self.found.due is not None and now >= self.found.due
        if is_due or (self.walked, self.refused) != (walked, refused):
            return None
        return replace(self.found, now=now)


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


def judge(
    ranked: Sequence[FollowedPlace],
    look: Look,
    best: FollowedPlace | None,
    was_left: Callable[[FollowedPlace], bool],
) -> list[Listed]:
    """List the look's verdict on each place; the places are sorted newest first."""
    rows, older_than = list[Listed](), ""
    for each in ranked:
        if each is best:
            rows.append(make_row(each.place, ListedState.NEWEST, revision=each.revision))
            older_than = f"older than {each.place.name}"
        else:
            older = older_than or (_OLDER_AND_LEFT if was_left(each) else "")
            rows.append(_judge_one(each, look, older))
    return rows


def _judge_one(each: FollowedPlace, look: Look, older: str) -> Listed:
    row = partial(make_row, each.place, revision=each.revision)
    is_reported = each.place.folder in look.reported
    lacks = look.lacking.get(each.place.folder)
    if lacks is not None and not is_reported:
        return row(ListedState.WAITING, lacks)
    if each.oddity is not None and each.oddity.code == "unfinished" and not is_reported:
        return row(ListedState.WAITING, "is named as unfinished: its writer renames it")
    if each.oddity is not None:
        return row(ListedState.ODD, each.oddity.words, each.oddity.code)
    if older:
        return row(ListedState.OLDER, older)
    waits = each.survey.waiting_for if each.survey is not None else None
    return row(ListedState.WAITING, waits or "the next look judges it")


def list_places(rows: Sequence[Listed], followed: Mapping[Path, FollowedPlace]) -> list[Listed]:
    """List the places that are still there; those that came since the last whole look go first.

    A look takes long while it reads new bytes, and an operator may wait for just those.
    """
    there = {str(folder) for folder in followed}
    judged = {row.path for row in rows}
    words = "the look under way judges it: new bytes are read for their name"
    new = (
        make_row(each.place, ListedState.WAITING, words, revision=each.revision)
        for folder, each in followed.items()
        if str(folder) not in judged
    )
    return [*new, *(row for row in rows if row.path in there)]


def make_row(
    place: Place,
    standing: ListedState,
    why: str = "",
    code: str = "",
    revision: Revision | None = None,
) -> Listed:
    """Make a place's row in the list."""
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
