"""Makes a checkpoint's id of its bytes: of the digest of each file.

A shard that is read for its id is examined, too: the checks need not read it again.
"""

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial

import xxhash

from hotreload.checkpoint.content import Content, examine, head_of
from hotreload.checkpoint.file_reader import Identity
from hotreload.checkpoint.findings import Unfit, error_of
from hotreload.checkpoint.safetensors import LONGEST_HEAD, Header
from hotreload.checkpoint.survey import ServingFile, Survey
from hotreload.quiet import LOUD, Quiet
from hotreload.types import UNREAD, CheckpointFile

_KEPT_DIGESTS = 4096
KEPT_CONTENTS = 1024
"""Names whose content is known: more than are ever refused or live."""
KEPT_TENSORS = 2**18
"""Tensors whose digests wait for the checks: those of twice the largest models, 0.2 GB at most."""


class Digests:
    """Each file's digest by its identity: a rescan reads nothing twice.

    `contents` has the content id of whole checkpoints by their `unread-` id; it outlives us.

    The other findings of a reading for a name wait for the checks, which take them once. The next
    check of the same bytes reads them again: stores through a mapping move no time of a file.
    """

    def __init__(
        self, contents: dict[str, str] | None = None, quiet: Callable[[], Quiet] = lambda: LOUD
    ) -> None:
        """`quiet` is what of the machine a reading may take when it begins."""
        self.quiet = quiet
        self.contents = {} if contents is None else contents
        """The content id of what was named by what a stat says, once it was read."""
        self._before = dict(self.contents)
        self._known: OrderedDict[Identity, str] = OrderedDict()
        self._waiting: OrderedDict[Identity, tuple[Header, Content]] = OrderedDict()
        self._lock = threading.Lock()  # an operator's wish may be hashed beside the source's

    def of(
        self,
        file: ServingFile,
        header: Header | None = None,
        cancel: threading.Event | None = None,
    ) -> str:
        """Return the file's digest; Unfit `changed` if it is not the file that the survey saw.

        A file whose header is given is examined while it is read.
        """
        digest = self.find(file)
        if digest is None:
            work = partial(examine, header=header, cancel=cancel, quiet=self.quiet())
            content = file.read_by(work)
            digest = content.digest
            if header is not None:
                self._keep(file, header, content)
        self.note(file, digest)
        return digest

    def find(self, file: ServingFile) -> str | None:
        """Return the digest of the file when it was last read; None if it was touched since."""
        with self._lock:
            return self._known.get(file.identity)

    def note(self, file: ServingFile, digest: str) -> None:
        """Remember the digest of a file that was read whole and did not change meanwhile."""
        with self._lock:
            self._known[file.identity] = digest
            self._known.move_to_end(file.identity)
            if len(self._known) > _KEPT_DIGESTS:
                self._known.popitem(last=False)

    def read_before(self, unread_id: str) -> str | None:
        """Return the content id that an earlier life noted for this `unread-` id; else None.

        In this life the files' own digests count: they show a rewriting that keeps the times.
        """
        return self._before.get(unread_id)

    def note_content(self, name: str, content_id: str) -> None:
        """Note the content id of the files that had this `unread-` id, or of a hub's commit."""
        with self._lock:
            self._before.pop(name, None)
            self.contents.pop(name, None)
            self.contents[name] = content_id
            if len(self.contents) > KEPT_CONTENTS:
                del self.contents[next(iter(self.contents))]

    def take_content(self, file: ServingFile, header: Header) -> Content | None:
        """Hand out, once, the findings of the reading for the file's name.

        None if there are none, or if they were made by another header.
        """
        with self._lock:
            by, content = self._waiting.pop(file.identity, (None, None))
        return content if by == header else None

    def _keep(self, file: ServingFile, header: Header, content: Content) -> None:
        with self._lock:
            self._waiting[file.identity] = header, content
            while sum(1 + len(each.held) for _, each in self._waiting.values()) > KEPT_TENSORS:
                self._waiting.popitem(last=False)


def content_id(
    survey: Survey, digests: Digests | None = None, cancel: threading.Event | None = None
) -> str:
    """Return the revision id of a checkpoint's bytes; CheckpointChanged, or CheckpointCorrupt `io`.

    Neither touching a file nor renaming the folder changes the id. Of one that the survey condemns
    only the heads of the files count. Raises Cancelled at `cancel`.
    """
    digests = digests or Digests()

    def digest_of(file: ServingFile) -> str:
        if survey.findings:
            return head_digest(survey, file)
        return digests.of(file, survey.header_of(file), cancel)

    return _identify_with(survey.files, digest_of)


def unread_id(
    survey: Survey, digests: Digests, cancel: threading.Event | None = None
) -> str | None:
    """Make an `unread-` id of the shards' stat results, their heads, and the other files.

    A write to a shard changes it, a chmod or a backup does not. None if the survey condemned the
    checkpoint: then `content_id` reads only heads. Raises as `content_id` does.
    """
    if survey.findings or not survey.whole:
        return None

    def digest_of(file: ServingFile) -> str:
        if file.name not in survey.headers:
            return digests.of(file, cancel=cancel)
        seen = file.identity
        return f"{seen.dev} {seen.ino} {seen.mtime_ns} {head_digest(survey, file)}"

    return UNREAD + _identify_with(survey.files, digest_of)


def _identify_with(files: Iterable[ServingFile], digest_of: Callable[[ServingFile], str]) -> str:
    try:
        return identify([CheckpointFile(f.name, f.identity.size, digest_of(f)) for f in files])
    except Unfit as unfit:
        raise error_of(unfit.finding) from unfit


def head_digest(survey: Survey, file: ServingFile) -> str:
    """Return the digest of a file's head, for a checkpoint that a survey has condemned.

    The head is as much as the survey may have read: with the names and sizes it decides the
    verdict. The rest may be many gigabytes and is not read.
    """
    header = survey.headers.get(file.name)
    end = min(file.identity.size, header.data_start if header else LONGEST_HEAD)

    return f"head {file.read_by(lambda opened: head_of(opened, end))}"


def identify(files: Iterable[CheckpointFile]) -> str:
    """Make the id of these names, sizes and digests: 32 hex characters."""
    digest = xxhash.xxh3_128()
    for file in sorted(files, key=lambda file: file.name):
        digest.update(json.dumps([file.name, file.size, file.digest]).encode())
    return digest.hexdigest()
