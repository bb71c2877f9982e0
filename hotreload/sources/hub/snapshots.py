"""The folder of one repo's snapshots: one folder per commit, made whole under another name first.

A snapshot counts as verified when its manifest is there: the manifest is written only after every
file was compared with the hub's digest. It holds the files' stat results of then. While these are
the same the snapshot is sound without a reading: the one reading is that of staging.
"""

import errno
import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from urllib.parse import quote

from hotreload.checkpoint.digests import Digests, unread_id
from hotreload.checkpoint.file_reader import Changed, NotRegular, Pieces, open_file
from hotreload.checkpoint.survey import Survey, survey
from hotreload.errors import CheckpointChanged, CheckpointRejected, SourceUnavailable
from hotreload.facts.files import hold_lock, put_folder, replace
from hotreload.facts.listed import Listed, ListedState
from hotreload.sources.hub.client import DOWNLOAD_CHUNK, HubFile
from hotreload.sources.hub.faults import BY_SETTINGS, Remedies
from hotreload.sources.seen_revisions import id_of_files
from hotreload.types import UNREAD, Revision, holds_weights

MANIFEST = ".snapshot.json"
PARTIAL = ".partial-"
MANIFEST_VERSION = 1


class HubDigest:
    """The digest of one file as the hub gave it, while its bytes come in order.

    It is sha256 for LFS files, git's blob id for all others.
    """

    def __init__(self, file: HubFile, cancel: threading.Event) -> None:
        self._file, self._cancel = file, cancel
        self._begin()

    def _begin(self) -> None:
        self._taken, self._hash = 0, hashlib.sha256()
        if self._file.digest.startswith("git:"):
            head = b"blob %d\0" % self._file.size
            self._hash = hashlib.sha1(head, usedforsecurity=False)

    def update(self, piece: bytes) -> None:
        """Take in the next bytes, which the caller writes to the disk."""
        self._hash.update(piece)
        self._taken += len(piece)

    def catch_up(self, path: Path) -> None:
        """Read what lies on the disk and was not taken in; begin again if the file did.

        Raises Cancelled at `cancel`.
        """
        try:
            with open_file(path, path.name, self._cancel) as file:
                size = file.identity.size
                if size < self._taken:
                    self._begin()
                for _, piece in Pieces(file, DOWNLOAD_CHUNK, self._cancel).pieces(
                    self._taken, size
                ):
                    self._hash.update(piece)
                self._taken = size
        except (Changed, NotRegular) as why:
            raise OSError(errno.EIO, f"{path.name}: {why}") from why

    def is_right(self, path: Path) -> bool:
        """Say if the file on the disk has the hub's own digest; reads what was not taken in."""
        self.catch_up(path)
        return self._file.digest.partition(":")[2] == self._hash.hexdigest()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A commit's files on this disk, each of which has had the hub's own digest."""

    folder: Path
    files: tuple[HubFile, ...]
    by_stat: str
    """The `unread-` id of the files when they were verified.

    In older manifests, and for files that a survey condemns, it is their content id.
    """
    seen: str
    """A digest of all stat results then, with the times that a link moves; empty if unknown."""

    @property
    def sha(self) -> str:
        """The commit."""
        return self.folder.name

    def place_of(self, digest: str) -> Path | None:
        """Find a file in it with this digest; else None."""
        names = (file.name for file in self.files if file.digest == digest)
        return next((self.folder / name for name in names), None)


def folder_of(repo: str, cache: Path) -> Path:
    """Return the folder of a repo's snapshots, below a cache folder."""
    return cache / repo.replace("/", "--")


class Snapshots:
    """The snapshots of one repo below a cache folder."""

    def __init__(
        self,
        cache: Path,
        repo: str,
        remedies: Remedies = BY_SETTINGS,
        *,
        digests: Digests,
        reads_once: Callable[[], bool] = lambda: False,
    ) -> None:
        """`reads_once`: whether staging a snapshot may be the first to read it."""
        self.folder = folder_of(repo, cache)
        self._remedies, self._digests, self._reads_once = remedies, digests, reads_once

    def find(self, sha: str) -> Snapshot | None:
        """Return the verified snapshot of a commit, if all its files still have their sizes."""
        folder = self.folder / sha
        try:
            said = json.loads((folder / MANIFEST).read_bytes())
            files = tuple(HubFile(**each) for each in said["files"])
            is_whole = all((folder / file.name).stat().st_size == file.size for file in files)
            known_by = said["content"], said.get("seen", "")
            return Snapshot(folder, files, *known_by) if is_whole else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def find_sound(self, sha: str, cancel: threading.Event) -> Snapshot | None:
        """Find the snapshot of a commit that still holds the hub's bytes; else None.

        It is read if its content was known before or must be known now. Else, if a stat result
        changed, its files are compared with the hub's digests.
        """
        snapshot = self.find(sha)
        if snapshot is None:
            return None
        folder, was = snapshot.folder, snapshot.by_stat
        known = self._digests.contents.get(was)
        try:
            by_stat, seen, id = self._identify(folder, cancel)
            is_as_verified = known is None and seen == snapshot.seen
            is_known = not id.startswith(UNREAD) and id in (known, was)
            is_sound = (
                is_as_verified
                or is_known
                or all(
                    HubDigest(file, cancel).is_right(folder / file.name) for file in snapshot.files
                )
            )
        except (CheckpointRejected, CheckpointChanged, OSError):
            is_sound = False
        if not is_sound:
            by_stat = seen = ""  # each file is compared before it is used again
        now = Snapshot(folder, snapshot.files, by_stat, seen)
        if now != snapshot:
            self._note(now)
        return now if is_sound else None

    def is_untouched(self, snapshot: Snapshot) -> bool:
        """Return whether no stat result of its files has changed since they were verified."""
        return _seen_of(survey(snapshot.folder)) == snapshot.seen

    def content_of(self, sha: str) -> str | None:
        """Return the content id of a snapshot; an id made by a stat, if it was not read yet."""
        if (snapshot := self.find(sha)) is None:
            return None
        return self._digests.contents.get(snapshot.by_stat, snapshot.by_stat)

    def _identify(self, folder: Path, cancel: threading.Event) -> tuple[str, str, str]:
        """Return the `unread-` id, the digest of stat results, and the id to use now."""
        looked = survey(folder)
        by_stat = unread_id(looked, self._digests, cancel)
        may_wait = self._reads_once()
        id = id_of_files(looked, by_stat, self._digests, cancel, may_wait=may_wait)
        return by_stat or id, _seen_of(looked), id

    def _note(self, snapshot: Snapshot) -> None:
        """Write its manifest anew and keep its time, which is when it was finished."""
        path = snapshot.folder / MANIFEST
        with suppress(OSError):
            finished = path.stat()
            replace(path, _manifest_of(snapshot))
            os.utime(path, ns=(finished.st_atime_ns, finished.st_mtime_ns))

    def by_age(self) -> list[tuple[Snapshot, float]]:
        """List every verified snapshot and when it was finished, the newest first."""
        found = list[tuple[Snapshot, float]]()
        with suppress(OSError):
            for snapshot in filter(None, map(self.find, os.listdir(self.folder))):
                with suppress(OSError):  # it was deleted meanwhile
                    found.append((snapshot, (snapshot.folder / MANIFEST).stat().st_mtime))
        return sorted(found, key=lambda each: each[1], reverse=True)

    def partial(self, sha: str) -> Path:
        """Return the folder where a commit is put together, with an earlier try's files."""
        folder = self.folder / f"{PARTIAL}{sha}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def give_up(self, sha: str) -> None:
        """Delete the unfinished snapshot of a commit."""
        shutil.rmtree(self.folder / f"{PARTIAL}{sha}", ignore_errors=True)

    def finish(self, sha: str, files: Sequence[HubFile], cancel: threading.Event) -> Snapshot:
        """Give the unfinished snapshot its manifest, then its name, in this order on disk too."""
        partial, folder = self.partial(sha), self.folder / sha
        by_stat, seen, _ = self._identify(partial, cancel)
        snapshot = Snapshot(folder, tuple(files), by_stat, seen)
        (partial / MANIFEST).write_bytes(_manifest_of(snapshot))
        put_folder(partial, folder)  # in the place of one that is no longer whole
        return snapshot

    def prune(self, kept: Collection[str]) -> None:
        """Delete the snapshots, finished or not, of all other commits than these."""
        with suppress(OSError):
            for name in os.listdir(self.folder):
                is_one = len(name.removeprefix(PARTIAL)) == 40
                if is_one and name.removeprefix(PARTIAL) not in kept:
                    shutil.rmtree(self.folder / name, ignore_errors=True)

    def note_head(self, revision: str, sha: str) -> None:
        """Note which commit a name meant last, for a start without the hub."""
        if self.last_head(revision) == sha:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        replace(self._head_file(revision), sha.encode())

    def last_head(self, revision: str) -> str | None:
        """Return which commit a name meant last; None if that is unknown here."""
        with suppress(OSError, ValueError):
            return self._head_file(revision).read_text()
        return None

    @contextmanager
    def hold_lock(self) -> Iterator[None]:
        """Lock the folder for a download; SourceUnavailable if another one is under way."""
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            with hold_lock(self.folder / ".lock", os.O_CREAT | os.O_RDWR):
                yield
        except BlockingIOError:
            raise SourceUnavailable(
                f"{self.folder}: a download into it is still under way; if it is another "
                f"process's, give each its own {self._remedies.cache}"
            ) from None

    def _head_file(self, revision: str) -> Path:
        return self.folder / f".head-{quote(revision, safe='')}"


def _manifest_of(snapshot: Snapshot) -> bytes:
    files = [asdict(file) for file in snapshot.files]
    known_by = {"content": snapshot.by_stat, "seen": snapshot.seen}
    return json.dumps({"version": MANIFEST_VERSION, **known_by, "files": files}, indent=1).encode()


def _seen_of(looked: Survey) -> str:
    """Digest a survey's stat results without the device, whose number a restart may change."""
    each = [(file.name, file.identity) for file in looked.files]
    said = sorted((name, at.ino, at.size, at.mtime_ns, at.ctime_ns) for name, at in each)
    return blake2b(repr(said).encode(), digest_size=16).hexdigest()


def list_commits(
    wished: str | None,
    here: Iterable[tuple[Snapshot, float]],
    named: Callable[[str], Revision],
) -> list[Listed]:
    """List the wished commit first, then the others as they came."""
    newest, older = list[Listed](), list[Listed]()
    for snapshot, at in here:
        revision, is_wished = named(snapshot.sha), snapshot.sha == wished
        row = Listed(
            revision.label,
            ListedState.NEWEST if is_wished else ListedState.OLDER,
            "" if is_wished else "the hub names another commit now",
            revision=revision,
            path=str(snapshot.folder),
            bytes=sum(file.size for file in snapshot.files if holds_weights(file.name)),
            written_at=at,
        )
        (newest if is_wished else older).append(row)
    if wished is not None and not newest:
        label, why = named(wished).label, "not downloaded yet"
        newest = [Listed(label, ListedState.NEWEST, why, revision=named(wished))]
    return [*newest, *older]
