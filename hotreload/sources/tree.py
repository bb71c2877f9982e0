"""Follows the folders of a tree over time: which ones are complete, and which one is the newest.

A survey of its files says whether a checkpoint is complete. A tree never waits, and leaves it to
its caller what to wish.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from hotreload.checkpoint.survey import survey
from hotreload.errors import SourceUnavailable
from hotreload.facts.listed import Listed, ListedState
from hotreload.sources import passed_over
from hotreload.sources.look import LastLook, Look, judge, list_places, make_row
from hotreload.sources.passed_over import PassedOverFolders
from hotreload.sources.place import (
    Entry,
    FolderOptions,
    FollowedPlace,
    Oddity,
    Place,
    SortKey,
    is_newer,
    lacks_a_step,
    sort_key,
)
from hotreload.sources.places import UnchangedPlaces, walk
from hotreload.sources.seen_revisions import SeenRevisions
from hotreload.types import Revision


class Tree:
    """Follows the places below a folder from one look to the next. Looks must not overlap."""

    def __init__(
        self,
        path: Path,
        options: FolderOptions,
        seen: SeenRevisions,
        *,
        is_refused: Callable[[str], bool] = lambda id: False,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._path, self._options, self._seen = path, options, seen
        self._clock, self._wall = clock, wall
        self._roots, self._is_refused = [path, *options.roots], is_refused
        self.passed_over = PassedOverFolders(options.settle, options.patience)
        self._cancel: threading.Event | None = None
        self._followed: dict[Path, FollowedPlace] = {}
        self._best: FollowedPlace | None = None
        self._was_best: str | None = None
        self._rows: list[Listed] = []
        self._unmatched: list[Place] = []
        self._left: dict[Path, tuple[Entry, ...]] = {}
        self._left_below: SortKey | None = None
        self._doubted: set[Path] = set()
        self._unchanged = UnchangedPlaces()
        self._last: LastLook | None = None
        self._has_looked = False
        self.named: tuple[str, ...] = ()
        """The ids of revisions that the last look named, the newest first."""

    def look(
        self,
        came: set[str],
        *,
        at_all: bool = False,
        quick: bool = False,
        cancel: threading.Event | None = None,
    ) -> Look:
        """Judge the places that are there now; `came` are paths that appeared in one step.

        Checkpoints that `leave_older` left count only with `at_all`; a `quick` look reads few of
        them. OSError when the root cannot be listed; the next look goes on from the last one that
        worked. Cancelled at `cancel`, where bytes are read.
        """
        now, self._cancel = self._clock(), cancel
        self._unchanged.begin(self._left if quick else ())
        walked = walk(Path(os.path.realpath(self._path)), self._options.depth, self._unchanged)
        may_hold = quick and not came and not self._doubted
        may_hold = not self._seen.learn(self._followed.values()) and may_hold
        last = self._last if may_hold else None
        if last is not None and (same := last.again(walked, self._refused_now, now)) is not None:
            return same
        look = self._look_anew(walked, came, now, at_all=at_all)
        self._has_looked = True
        may_be_spared = not at_all and not look.is_to_be_named
        self._last = LastLook(walked, self._refused_now, look) if may_be_spared else None
        return look

    @property
    def _refused_now(self) -> frozenset[str]:
        return frozenset(filter(self._is_refused, self.named))

    def _look_anew(
        self, walked: Sequence[Place], came: set[str], now: float, *, at_all: bool
    ) -> Look:
        self._follow(walked, came, now)
        ranked = sorted(self._followed.values(), key=self._rank, reverse=True)
        allowed = [each for each in ranked if at_all or not self._was_left(each)]
        look = self._judge([each for each in allowed if each.oddity is None], now)
        unfit = self._newest_unfit(ranked if self._best else allowed, look)
        self._report_passed_over([*unfit, *self._hidden_by_a_refused_one(ranked)], look)
        if look.settled_at is None:  # else a whole one only has to be quiet, and goes first
            look.overdue = self._to_refuse(unfit, look)
        self._rows = judge(ranked, look, self._best, self._was_left)
        sound = [each for each in ranked if each.oddity is None]
        look.checkpoints = len(sound) + len(self._unmatched)
        look.newest = sound[0].place.name if sound else ""
        known = [look.overdue, *(each.revision for each in ranked)]
        self.named = tuple(dict.fromkeys(each.id for each in known if each is not None))
        return look

    def list_places(self) -> list[Listed]:
        """List every place as the last whole look left it, the newest first; for any thread."""
        words = f"the pattern {self._options.pattern!r} ([source] pattern) leaves it out"
        unmatched = (make_row(each, ListedState.ODD, words, "pattern") for each in self._unmatched)
        return [*list_places(self._rows, self._followed), *unmatched]

    def stand_in(self, folder: Path) -> Revision | None:
        """Return the revision that stands for a folder of foreign weights; else None."""
        each = self._followed.get(folder)
        if each is None or each.place.oddity is None or each.place.oddity.code != "format":
            return None
        return self.passed_over.revision(each)

    def doubt(self, folder: Path) -> None:
        """Name it again at the next look, once it is quiet: its bytes have changed."""
        self._doubted.add(folder)

    def leave_older(self, look: Look) -> None:
        """Ignore checkpoints older than this look's best until their files change.

        Otherwise a best one that is overwritten or deleted would bring back the one before it.
        """
        assert look.rank is not None
        older = [c.place for c in self._followed.values() if self._rank(c) < look.rank]
        self._left = {place.folder: place.weights for place in older}
        self._left_below = look.rank

    # --- what is there -----------------------------------------------------------------

    def _follow(self, walked: Sequence[Place], came: set[str], now: float) -> None:
        """Bring the followed places up to date with what the tree shows now."""
        root = Path(os.path.realpath(self._path))
        roots = [Path(os.path.realpath(each)) for each in self._roots]
        followed: dict[Path, FollowedPlace] = {}
        matching = [each for each in walked if self._matches(each.path, root)]
        self._unmatched = [each for each in walked if not self._matches(each.path, root)]
        for place in passed_over.choose_root_or_below(matching, root):
            if place.oddity is not None and place.folder in followed:
                continue  # a link to a place that is followed already
            each = self._followed.get(place.folder) or FollowedPlace(place, now, now)
            if each.place.entries != place.entries:
                self._note_change(each, now)
            if place.folder in self._doubted:
                each.begin_anew(now)
                each.has_changed = True
                self._doubted.discard(place.folder)
            each.place = place
            each.oddity = passed_over.describe_outside(place, roots) or place.oddity
            above = (place.path, *place.path.parents)
            each.claimed = each.claimed or any(str(part) in came for part in above)
            followed[place.folder] = each
        self._followed = followed

    def _note_change(self, candidate: FollowedPlace, now: float) -> None:
        """Note that something changed; if it would be loaded, the quiet time begins again."""
        seen, candidate.has_changed, candidate.touched = candidate.survey, True, now
        candidate.survey = survey(candidate.place.folder, self._roots) if seen is not None else None
        if seen is None or candidate.survey is None or candidate.survey.files != seen.files:
            candidate.begin_anew(now)

    def _matches(self, path: Path, root: Path) -> bool:
        if path == root:
            return fnmatchcase(self._path.name, self._options.pattern)
        name = str(path.relative_to(root)) if "/" in self._options.pattern else path.name
        return fnmatchcase(name, self._options.pattern)

    def _rank(self, candidate: FollowedPlace) -> SortKey:
        return sort_key(self._options.order, candidate.place)

    def _was_left(self, candidate: FollowedPlace) -> bool:
        if self._left_below is None or self._rank(candidate) >= self._left_below:
            return False
        return self._left.get(candidate.place.folder) == candidate.place.weights

    # --- what can be wished ------------------------------------------------------------

    def _judge(self, ranked: Sequence[FollowedPlace], now: float) -> Look:
        """Find the newest place that can be wished, and say what the newer ones still lack."""
        look, self._best = Look(now), None
        if not any(map(passed_over.is_begun, self._followed.values())):
            look.waiting = f"no checkpoint in {self._path} matches {self._options.pattern!r} yet"
        for candidate in ranked:
            missing = self._find_missing(candidate, look)
            if missing is None:
                look.best, look.rank = self._revision(candidate), self._rank(candidate)
            if look.best is not None:
                self._best = candidate
                break
            look.is_to_be_named = look.is_to_be_named or missing is None
            missing = missing or "is being written to"
            look.lacking[candidate.place.folder] = missing
            look.waiting = look.waiting or f"{candidate.place.label}: {missing}"
        return look

    def _find_missing(self, candidate: FollowedPlace, look: Look) -> str | None:
        """Say in words why the candidate cannot be wished yet; None when it can."""
        if candidate.survey is None:
            candidate.survey = survey(candidate.place.folder, self._roots)
        if candidate.survey.waiting_for is not None:
            look.wake_at(candidate.since + self._span(candidate))
            if not candidate.place.weights:
                candidate.oddity = passed_over.WITHOUT_WEIGHTS
            return candidate.survey.waiting_for
        marker, settle = self._options.marker, self._options.settle
        if marker and not candidate.place.holds(marker):
            candidate.oddity = passed_over.describe_unmarked(marker)
            return f"waiting for its marker {marker}"
        if candidate.is_vouched_for(marker) or self._is_quiet(candidate, settle):
            return None
        look.settled_at = candidate.since + settle
        look.wake_at(look.settled_at)
        return f"complete once it has been quiet for {settle:g} s"

    def _is_quiet(self, candidate: FollowedPlace, span: float) -> bool:
        """Say whether the files to load stood still for `span`, by our clock or by their times."""
        return self._clock() - candidate.since >= span or candidate.is_old(span, self._wall())

    def _span(self, candidate: FollowedPlace) -> float:
        """Return the seconds that a folder may stay incomplete before it is handed over."""
        is_finished = candidate.is_vouched_for(self._options.marker)
        return self._options.settle if is_finished else self._options.patience

    def _revision(self, candidate: FollowedPlace) -> Revision | None:
        """Return the candidate's revision; None if it changes while it is being hashed."""
        assert candidate.survey is not None
        if candidate.revision is None:
            # A folder of before may have been judged in an earlier life, by its content.
            is_new = self._has_looked and candidate.is_vouched_for(self._options.marker)
            name = partial(self._seen.name, candidate.survey, is_finished=is_new)
            with suppress(SourceUnavailable):
                candidate.revision = name(self._cancel)
        if candidate.revision is None:
            candidate.begin_anew(self._clock())
        else:
            self._seen.note(candidate.revision.id, candidate.place.folder)
        return candidate.revision

    # --- what is passed over -----------------------------------------------------------

    def _newest_unfit(self, ranked: Sequence[FollowedPlace], look: Look) -> list[FollowedPlace]:
        """List the folders that would be wished before the best if they were sound and complete."""
        best, was_best = self._best, self._was_best
        self._was_best = look.best.id if look.best is not None else None
        if best is None:
            unsound = (each for each in ranked if not passed_over.is_sound(each.oddity))
            return [each for each in unsound if each.oddity or each.is_incomplete]
        for each in ranked:
            nameless = each.oddity is None and lacks_a_step(
                self._options.order, each.place, best.place
            )
            oddity = passed_over.describe_stepless(best.place) if nameless else each.oddity
            if oddity is not None and passed_over.is_sound(oddity):
                each.oddity = self._unless_a_copy(each, oddity, look, was_best)
        return [each for each in ranked if self._is_unfit(each, best)]

    def _hidden_by_a_refused_one(self, ranked: Sequence[FollowedPlace]) -> list[FollowedPlace]:
        """List odd folders older than a refused best, but newer than a checkpoint that may be good.

        They are reported too: otherwise the refused best would hide them.
        """
        best = self._best
        if best is None or not self._was_refused(best):
            return []
        below = [each for each in ranked if each is not best and not self._is_unfit(each, best)]
        sound = (each for each in below if each.oddity is None and not each.is_incomplete)
        good = next((each for each in sound if not self._was_refused(each)), None)
        odd = [each for each in below if each.oddity is not None]
        return odd if good is None else [each for each in odd if self._is_unfit(each, good)]

    def _was_refused(self, each: FollowedPlace) -> bool:
        return each.revision is not None and self._is_refused(each.revision.id)

    def _is_unfit(self, each: FollowedPlace, best: FollowedPlace) -> bool:
        if each.oddity is None:
            return each.is_incomplete and self._rank(each) > self._rank(best)
        is_none = each.oddity.code == "missing" and each.place.step is None
        return is_newer(self._options.order, each.place, best.place) and not is_none

    def _unless_a_copy(
        self, each: FollowedPlace, oddity: Oddity, look: Look, was_best: str | None
    ) -> Oddity | None:
        """Return the oddity; None while the folder is written, or copies a seen checkpoint."""
        each.oddity = None
        missing = self._find_missing(each, look)
        if each.is_incomplete and each.place.weights:
            return oddity if self._is_quiet(each, self._span(each)) else None
        if missing is not None or each.survey is None:
            return each.oddity
        if look.best is None or look.best.id != was_best:
            look.due = look.now  # hashing takes long, so the best is wished first
            return None
        with suppress(SourceUnavailable):
            id = self._seen.id_of(each.survey, self._cancel)
            return None if self._seen.find(id) else oddity
        return None

    def _report_passed_over(self, unfit: Sequence[FollowedPlace], look: Look) -> None:
        """Put the folders that have been odd for long enough into the look."""
        odd = [each for each in unfit if each.oddity]
        ready = [e for e in odd if self._is_odd_for(e, self.passed_over.report_after(e), look)]
        look.passed_over = passed_over.report(ready)
        look.reported = {each.place.folder for each in ready}
        if look.best is None and not ready and odd:
            look.waiting = look.waiting or odd[0].reason.message

    def _to_refuse(self, unfit: Sequence[FollowedPlace], look: Look) -> Revision | None:
        """Return the newest unfit folder to refuse, once it has been quiet for long enough."""
        for each in unfit:
            if each.oddity is None and each.place.weights:
                return self._revision(each) if self._is_quiet(each, self._span(each)) else None
            after = self.passed_over.refuse_after(each) if each.oddity else None
            if after is not None:
                is_due = self._is_odd_for(each, after, look)
                return self.passed_over.revision(each) if is_due else None
        return None

    def _is_odd_for(self, each: FollowedPlace, span: float, look: Look) -> bool:
        """Say whether all in the folder stood still for `span`, by our clock or by its times."""
        look.wake_at(each.touched + span)
        return look.now - each.touched >= span or each.is_old(span, self._wall())
