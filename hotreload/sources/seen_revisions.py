"""Remembers which folder each revision was last seen in, and names revisions.

A revision's id is made of its bytes. If its writer has finished and the bytes are unread, the id is
made of what a stat reports (`unread-…`), and staging reads it first.
"""

import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

from hotreload.checkpoint.digests import Digests, content_id, unread_id
from hotreload.checkpoint.survey import Survey
from hotreload.errors import HotReloadError, SourceUnavailable
from hotreload.facts.listed import Listed
from hotreload.sources.alarm import remote_file_system
from hotreload.sources.place import FollowedPlace
from hotreload.types import Revision

_REMEMBERED = 256


class SeenRevisions:
    """The revisions seen lately."""

    def __init__(self, digests: Digests, reads_once: Callable[[], bool]) -> None:
        """`reads_once()` is true if staging may be the first to read a finished folder."""
        self._digests, self._reads_once = digests, reads_once
        self._folders: dict[str, Path] = {}
        self._lock = threading.Lock()  # an operator's wish may be hashed while a look runs

    def find(self, id: str) -> Path | None:
        """Find the folder where the revision was last seen; None if nowhere."""
        with self._lock:
            return self._folders.get(id)

    def name(
        self, survey: Survey, cancel: threading.Event | None = None, *, is_finished: bool = False
    ) -> Revision:
        """Name and note the surveyed folder; SourceUnavailable if it changes meanwhile."""
        id = self.id_of(survey, cancel, is_finished=is_finished)
        self.note(id, survey.folder)
        return Revision(id, survey.folder.name)

    def id_of(
        self, survey: Survey, cancel: threading.Event | None = None, *, is_finished: bool = False
    ) -> str:
        """Return the id of the surveyed files and note no folder; Cancelled at `cancel`.

        It is made of their bytes; if the folder `is_finished`, of what a stat reports.
        """
        known_by = repr((survey.folder, survey.files))
        stand_in = blake2b(known_by.encode(), digest_size=16).hexdigest()
        if not survey.files:
            return stand_in
        try:
            by_stat = None
            if any(self._digests.find(file) is None for file in survey.files):
                by_stat = unread_id(survey, self._digests, cancel)
            if by_stat is not None and (id := self._digests.read_before(by_stat)) is not None:
                return id
            may_wait = is_finished and self._reads_once()
            return id_of_files(survey, by_stat, self._digests, cancel, may_wait=may_wait)
        except HotReloadError as error:
            if error.code != "io":
                raise SourceUnavailable(str(error)) from error
            return stand_in  # unreadable bytes have no hash, and a refusal still needs an id

    def by_content(self, id: str) -> str:
        """Return the content id of the files with this id if they were read since, else the id."""
        return self._digests.contents.get(id, id)

    def with_content_id(self, each: Listed) -> Listed:
        """Return the row with the content id, if its files were read since its look."""
        if each.revision is None or not each.revision.is_unread:
            return each
        return replace(each, revision=replace(each.revision, id=self.by_content(each.revision.id)))

    def learn(self, followed: Iterable[FollowedPlace]) -> bool:
        """Rename revisions that were read since by their content; return whether there were any."""
        learned = False
        for each in followed:
            if each.revision is None or each.survey is None or not each.revision.is_unread:
                continue
            if (id := self.by_content(each.revision.id)) != each.revision.id:
                each.revision, learned = replace(each.revision, id=id), True
                self.note(id, each.place.folder)
        return learned

    def note(self, id: str, folder: Path) -> None:
        """Remember that the revision lies in this folder now."""
        with self._lock:
            self._folders[id] = folder
            while len(self._folders) > _REMEMBERED:
                self._folders.pop(next(iter(self._folders)))


def id_of_files(
    survey: Survey,
    by_stat: str | None,
    digests: Digests,
    cancel: threading.Event | None,
    *,
    may_wait: bool,
) -> str:
    """Return the id of the content; `by_stat`, made of a stat, if the reading `may_wait`.

    It does not wait for files that were read before. Raises as `content_id` does.
    """
    if by_stat is None:
        return content_id(survey, digests, cancel)
    # On a network other hosts may write, and no stat here would show it. Files that were read
    # before and touched since may be the same: then there is nothing to try.
    is_new = may_wait and by_stat not in digests.contents
    if is_new and remote_file_system(survey.folder) is None:
        return by_stat
    id = content_id(survey, digests, cancel)
    digests.note_content(by_stat, id)
    return id
