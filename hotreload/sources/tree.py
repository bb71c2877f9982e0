"""The folders of a tree over time: which of them are complete, and which one is the newest.

Asks the callables it is given what makes a checkpoint complete; wishes and waits for nothing.
"""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from hotreload.errors import SourceUnavailable
from hotreload.sources.places import Entry, Place, places
from hotreload.sources.seen import Seen, SurveyLike
from hotreload.types import Revision

_LONG_AGO = 60.0  # a margin that no network file system's clock is expected to be off by

_Rank = tuple[int, int, str]


@dataclass(slots=True)
class Look:
    """What one look came to; times are those of our own clock."""

    now: float = 0.0
    best: Revision | None = None
    """The newest complete one."""
    rank: _Rank | None = None
    """Where the best one stands among the others."""
    overdue: Revision | None = None
    """One that is newer still and should have been complete by now."""
    waiting: str | None = None
    error: str | None = None
    settled_at: float | None = None
    """When the best will be there, if it only needs to stay as it is."""
    due: float | None = None
    """When another look would come to something else, though nothing happens."""

    def wake_at(self, at: float) -> None:
        """Another look then comes to something else."""
        if at > self.now:
            self.due = at if self.due is None else min(self.due, at)


@dataclass(slots=True)
class _Candidate:
    """A place followed over time; `since` is when our own clock last saw it change."""

    place: Place
    since: float
    survey: SurveyLike | None = None
    claimed: bool = False
    """It came by a rename, and whoever renames a folder has finished it."""
    has_changed: bool = False
    """It was seen to change: then the times of its files, and a clock that jumps, say nothing."""
    revision: Revision | None = None

    @property
    def is_incomplete(self) -> bool:
        return self.survey is not None and self.survey.waiting_for is not None


class Tree:
    """Follows what is below a folder from one look to the next. Looks must not overlap."""

    def __init__(
        self,
        path: Path,
        *,
        survey: Callable[[Path], SurveyLike],
        seen: Seen,
        pattern: str = "*",
        marker: str | None = None,
        settle: float = 2.0,
        order: Literal["step", "time", "name"] = "step",
        patience: float = 60.0,
        depth: int = 3,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._path, self._survey, self._seen = path, survey, seen
        self._pattern, self._order, self._depth = pattern, order, depth
        self._marker, self._settle, self._patience = marker, settle, patience
        self._clock, self._wall = clock, wall
        self._candidates: dict[Path, _Candidate] = {}
        self._left: dict[Path, tuple[Entry, ...]] = {}
        self._left_below: _Rank | None = None

    def look(self, came: set[str], *, at_all: bool = False) -> Look:
        """Judge what is there now; `came` are paths that appeared whole since the last look.

        What `leave_older` left counts only when asked for. OSError when the root is away; the
        look after that goes on from the last one that could be had.
        """
        now = self._clock()
        self._follow(came, now)
        ranked = sorted(self._candidates.values(), key=self._rank, reverse=True)
        return self._judge([c for c in ranked if at_all or not self._was_left(c)], now)

    def leave_older(self, look: Look) -> None:
        """The best of this last look was wished: older ones are left until somebody touches them.

        Or a checkpoint that is overwritten or deleted would bring back the one before it.
        """
        assert look.rank is not None
        older = [c.place for c in self._candidates.values() if self._rank(c) < look.rank]
        self._left = {place.folder: place.weights for place in older}
        self._left_below = look.rank

    # --- what is there -----------------------------------------------------------------

    def _follow(self, came: set[str], now: float) -> None:
        """Bring the candidates up to what the tree shows now."""
        root = Path(os.path.realpath(self._path))
        followed: dict[Path, _Candidate] = {}
        for place in places(root, self._depth):
            if not self._matches(place.path, root):
                continue
            candidate = self._candidates.get(place.folder) or _Candidate(place, now)
            if candidate.place.entries != place.entries:
                self._note_change(candidate, now)
            candidate.place = place
            candidate.claimed = candidate.claimed or _came_by(place.path, came)
            followed[place.folder] = candidate
        self._candidates = followed

    def _note_change(self, candidate: _Candidate, now: float) -> None:
        """Something in the folder is another; start anew if it is what would be loaded."""
        seen, candidate.has_changed = candidate.survey, True
        candidate.survey = self._survey(candidate.place.folder) if seen is not None else None
        if seen is None or candidate.survey is None or candidate.survey.files != seen.files:
            candidate.since, candidate.claimed, candidate.revision = now, False, None

    def _matches(self, path: Path, root: Path) -> bool:
        if path == root:
            return fnmatchcase(self._path.name, self._pattern)
        name = str(path.relative_to(root)) if "/" in self._pattern else path.name
        return fnmatchcase(name, self._pattern)

    def _rank(self, candidate: _Candidate) -> _Rank:
        place = candidate.place
        step = place.step if self._order == "step" else 0
        return step, 0 if self._order == "name" else place.time, place.label

    def _was_left(self, candidate: _Candidate) -> bool:
        if self._left_below is None or self._rank(candidate) >= self._left_below:
            return False
        return self._left.get(candidate.place.folder) == candidate.place.weights

    # --- what can be wished of it ------------------------------------------------------

    def _judge(self, ranked: Sequence[_Candidate], now: float) -> Look:
        """Newest first: the first that can be wished, and what is missing of the newer ones."""
        look = Look(now)
        if not self._candidates:
            look.waiting = f"no checkpoint in {self._path} matches {self._pattern!r} yet"
        for candidate in ranked:
            missing = self._missing(candidate, look)
            if missing is None:
                look.best, look.rank = self._revision(candidate), self._rank(candidate)
            if look.best is not None:
                break
            missing = missing or "is being written to"
            look.waiting = look.waiting or f"{candidate.place.label}: {missing}"
            if candidate is ranked[0] and self._is_overdue(candidate, now):
                look.overdue = self._revision(candidate)
        return look

    def _missing(self, candidate: _Candidate, look: Look) -> str | None:
        """Why it cannot be wished yet, in words; None when it can."""
        if candidate.survey is None:
            candidate.survey = self._survey(candidate.place.folder)
        if candidate.survey.waiting_for is not None:
            look.wake_at(candidate.since + self._span(candidate))
            return candidate.survey.waiting_for
        if self._marker and candidate.place.changed_at(self._marker) is None:
            return f"waiting for its marker {self._marker}"
        if self._is_vouched_for(candidate) or self._is_quiet(candidate, self._settle, look.now):
            return None
        look.settled_at = candidate.since + self._settle
        look.wake_at(look.settled_at)
        return f"complete, until it has been quiet for {self._settle:g} s"

    def _is_vouched_for(self, candidate: _Candidate) -> bool:
        """Its writer has said that it is finished: nothing else need be waited for.

        A rename vouches for what the folder held on arrival, a marker for what was there before
        it (a plain copy of a finished folder may well bring the marker first).
        """
        marked = candidate.place.changed_at(self._marker) if self._marker else None
        return candidate.claimed or (
            marked is not None and marked >= candidate.place.last_change(but=self._marker)
        )

    def _is_quiet(self, candidate: _Candidate, span: float, now: float) -> bool:
        """Unchanged for that long by our own clock, or since long ago by the files' times."""
        if now - candidate.since >= span:
            return True
        age = self._wall() - candidate.place.last_change() / 1e9
        return not candidate.has_changed and age >= span + _LONG_AGO

    def _span(self, candidate: _Candidate) -> float:
        """How long an incomplete folder may stay so until it is handed over to be refused."""
        return self._settle if self._is_vouched_for(candidate) else self._patience

    def _is_overdue(self, candidate: _Candidate, now: float) -> bool:
        broken = candidate.is_incomplete and bool(candidate.place.weights)
        return broken and self._is_quiet(candidate, self._span(candidate), now)

    def _revision(self, candidate: _Candidate) -> Revision | None:
        """The candidate's revision; None when it changes while it is being hashed."""
        assert candidate.survey is not None
        folder = candidate.place.folder
        if candidate.revision is None:
            with suppress(SourceUnavailable):
                candidate.revision = self._seen.name(folder, candidate.survey)
        if candidate.revision is None:
            candidate.since, candidate.claimed = self._clock(), False
        else:
            self._seen.note(candidate.revision.id, folder, candidate.survey)
        return candidate.revision


def _came_by(path: Path, came: set[str]) -> bool:
    """Whether it, or a folder that holds it, is among the paths that came by a rename."""
    return bool(came) and any(str(part) in came for part in (path, *path.parents))
