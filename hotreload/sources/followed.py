"""A place followed from look to look: how long it has been quiet, and what is known of it."""

from dataclasses import dataclass

from hotreload.checkpoint.survey import Survey
from hotreload.sources.place import Oddity, Place
from hotreload.types import Revision

_LONG_AGO = 60.0  # no network file system's clock is expected to be off by more


@dataclass(slots=True)
class Followed:
    """One place, and what the looks so far found; times are those of our own clock."""

    place: Place
    since: float
    """The time when a look last saw a change in the files that would be loaded."""
    touched: float
    """The time when a look last saw a change of anything in the folder."""
    survey: Survey | None = None
    claimed: bool = False
    """The folder came by a rename, which says that its writer has finished it."""
    has_changed: bool = False
    """A look saw it change. From then on its files' own times, which may be wrong, do not count."""
    revision: Revision | None = None
    oddity: Oddity | None = None
    """The reason why the source cannot wish for it, as far as that is known."""

    @property
    def is_incomplete(self) -> bool:
        """True while some file of the checkpoint is still missing."""
        return self.survey is not None and self.survey.waiting_for is not None

    def is_vouched_for(self, marker: str | None) -> bool:
        """Say whether its writer has called it finished, so that nothing need settle.

        A rename vouches for what the folder held on arrival, a marker for what was there before
        it (a plain copy of a finished folder may well bring the marker first).
        """
        marked = self.place.changed_at(marker) if marker else None
        return self.claimed or (marked is not None and marked >= self.place.last_change(but=marker))

    def begin_anew(self, now: float) -> None:
        """Have the quiet time begin anew: what is in it may be finished by nobody now."""
        self.since, self.claimed, self.revision = now, False, None

    def was_quiet(self, span: float, now: float, wall: float) -> bool:
        """Say whether the files to load stood still for `span`, by our clock or by their times."""
        return now - self.since >= span or self._is_old(span, wall)

    def was_untouched(self, span: float, now: float, wall: float) -> bool:
        """Say whether all in the folder stood still for `span`, by our clock or by its times."""
        return now - self.touched >= span or self._is_old(span, wall)

    def _is_old(self, span: float, wall: float) -> bool:
        age = wall - self.place.last_change() / 1e9
        return not self.has_changed and age >= span + _LONG_AGO
