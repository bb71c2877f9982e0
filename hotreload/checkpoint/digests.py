"""Names a checkpoint by its bytes: the digest of each file, and the id that all of them give."""

import json
import threading
from collections import OrderedDict
from collections.abc import Iterable

import xxhash

from hotreload.checkpoint.file_findings import with_file
from hotreload.checkpoint.findings import Finding, Unfit, error_of, shown
from hotreload.checkpoint.reading import Identity, Opened, Readable, digest_of
from hotreload.checkpoint.survey import ServingFile, Survey
from hotreload.types import CheckpointFile

_CHUNK = 8 * 2**20
_KEPT_DIGESTS = 4096


class Digests:
    """Each file's digest, remembered by its identity, so that a rescan reads nothing twice."""

    def __init__(self) -> None:
        self._known: OrderedDict[Identity, str] = OrderedDict()
        self._lock = threading.Lock()  # an operator's wish may be hashed beside the source's

    def of(self, file: ServingFile) -> str:
        """The file's digest; Unfit `changed` when it is not what the survey saw."""
        digest = self.known(file)
        if digest is None:
            digest = with_file(file.path, file.name, lambda opened: _digest(opened, file))
        self.note(file, digest)
        return digest

    def known(self, file: ServingFile) -> str | None:
        """The digest of the file as it was when it was last read; None if it was touched since."""
        with self._lock:
            return self._known.get(file.identity)

    def note(self, file: ServingFile, digest: str) -> None:
        """Remember the digest of a file that was read whole and did not change meanwhile."""
        with self._lock:
            self._known[file.identity] = digest
            self._known.move_to_end(file.identity)
            if len(self._known) > _KEPT_DIGESTS:
                self._known.popitem(last=False)


def require_same(opened: Readable, file: ServingFile) -> None:
    """Unfit `changed` when the open file is not the one the survey saw, or was written to."""
    if not opened.identity.is_written_like(file.identity):
        words = f"{shown(file.name)}: it was replaced or written to since it was looked at"
        raise Unfit(Finding("changed", words, file.name))


def _digest(opened: Opened, file: ServingFile) -> str:
    require_same(opened, file)
    return digest_of(opened, _CHUNK)


def content_id(survey: Survey, digests: Digests | None = None) -> str:
    """The revision id of a checkpoint's bytes; CheckpointChanged, or CheckpointCorrupt `io`.

    Neither touching a file nor renaming the folder changes the id.
    """
    digests = digests or Digests()
    try:
        return identify(
            CheckpointFile(file.name, file.identity.size, digests.of(file)) for file in survey.files
        )
    except Unfit as unfit:
        raise error_of(unfit.finding) from unfit


def identify(files: Iterable[CheckpointFile]) -> str:
    """The id that these names, sizes and digests give: 32 hex characters."""
    digest = xxhash.xxh3_128()
    for file in sorted(files, key=lambda file: file.name):
        digest.update(json.dumps([file.name, file.size, file.digest]).encode())
    return digest.hexdigest()
