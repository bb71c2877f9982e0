"""Remembers which folder each revision was last seen in, and names revisions by their bytes."""

import threading
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from hotreload.checkpoint.digests import Digests, content_id
from hotreload.checkpoint.survey import ServingFile, Survey
from hotreload.errors import HotReloadError, SourceUnavailable
from hotreload.types import Revision

_REMEMBERED = 256


class Sighting(NamedTuple):
    """A folder in which a revision was seen, and its files as they were then."""

    folder: Path
    files: tuple[ServingFile, ...]


class Seen:
    """The revisions seen lately."""

    def __init__(self, digests: Digests) -> None:
        self._digests = digests
        self._sightings: dict[str, Sighting] = {}
        self._lock = threading.Lock()  # an operator's wish may be hashed while a look runs

    def find(self, id: str) -> Sighting | None:
        """Find where the revision was last seen; None if nowhere."""
        with self._lock:
            return self._sightings.get(id)

    def name(self, folder: Path, survey: Survey, cancel: threading.Event | None = None) -> Revision:
        """Name and note the surveyed folder; SourceUnavailable if it changes meanwhile."""
        id = self.id_of(folder, survey, cancel)
        self.note(id, folder, survey)
        return Revision(id, folder.name)

    def id_of(self, folder: Path, survey: Survey, cancel: threading.Event | None = None) -> str:
        """The id of the surveyed files, by their bytes. Notes nothing; Cancelled at `cancel`."""
        stand_in = blake2b(repr((folder, survey.files)).encode(), digest_size=16).hexdigest()
        try:
            return content_id(survey, self._digests, cancel) if survey.files else stand_in
        except HotReloadError as error:
            if error.code != "io":
                raise SourceUnavailable(str(error)) from error
            return stand_in  # unreadable bytes have no hash, and a refusal still needs an id

    def note(self, id: str, folder: Path, survey: Survey) -> None:
        """Remember that the revision lies in this folder now."""
        with self._lock:
            self._sightings[id] = Sighting(folder, survey.files)
            while len(self._sightings) > _REMEMBERED:
                self._sightings.pop(next(iter(self._sightings)))
