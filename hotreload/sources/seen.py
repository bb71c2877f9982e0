"""Which folder each revision was seen in. Names revisions by their bytes, for looks and people."""

import threading
from collections.abc import Callable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple, Protocol

from hotreload.errors import HotReloadError, SourceUnavailable
from hotreload.types import Revision

_REMEMBERED = 256


class SurveyLike(Protocol):
    """A folder looked at as a checkpoint; equal `files` mean that nothing was touched."""

    @property
    def files(self) -> Sequence[object]: ...

    @property
    def waiting_for(self) -> str | None: ...


class Sighting(NamedTuple):
    """Where a revision was seen, and its files as they were then."""

    folder: Path
    files: Sequence[object]


class Seen:
    """The revisions seen lately."""

    def __init__(self, identify: Callable[[SurveyLike], str]) -> None:
        self._identify = identify
        self._sightings: dict[str, Sighting] = {}
        self._lock = threading.Lock()  # an operator's wish is named beside a look

    def find(self, id: str) -> Sighting | None:
        """Where the revision was seen last, if it was."""
        with self._lock:
            return self._sightings.get(id)

    def name(self, folder: Path, survey: SurveyLike) -> Revision:
        """Hash what the survey saw; SourceUnavailable when it changes meanwhile."""
        stand_in = blake2b(repr((folder, survey.files)).encode(), digest_size=16).hexdigest()
        try:
            id = self._identify(survey) if survey.files else stand_in
        except HotReloadError as error:
            if error.code != "io":
                raise SourceUnavailable(str(error)) from error
            id = stand_in  # Unreadable bytes tell nothing; they still must be refused by name.
        self.note(id, folder, survey)
        return Revision(id, folder.name)

    def note(self, id: str, folder: Path, survey: SurveyLike) -> None:
        """The revision lies there now."""
        with self._lock:
            self._sightings[id] = Sighting(folder, survey.files)
            while len(self._sightings) > _REMEMBERED:
                self._sightings.pop(next(iter(self._sightings)))
