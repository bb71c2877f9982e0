"""The folder of one repo's snapshots: one folder per commit, made whole under another name first.

A snapshot counts as verified when its manifest is there: the manifest is written only after every
file was compared with the hub's digest.
"""

import json
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import quote

from hotreload.errors import SourceUnavailable
from hotreload.facts.files import locked, put_folder, replace
from hotreload.facts.listed import Listed, Standing
from hotreload.sources.hub.client import HubFile
from hotreload.sources.hub.faults import BY_SETTINGS, Remedies
from hotreload.types import Revision, holds_weights

MANIFEST = ".snapshot.json"
PARTIAL = ".partial-"
MANIFEST_VERSION = 1


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A commit's files on this disk, and the content id they had when they were verified."""

    folder: Path
    files: tuple[HubFile, ...]
    content: str

    @property
    def sha(self) -> str:
        """The commit."""
        return self.folder.name

    def place_of(self, digest: str) -> Path | None:
        """The path of a file in it that has these bytes."""
        names = (file.name for file in self.files if file.digest == digest)
        return next((self.folder / name for name in names), None)


def folder_of(repo: str, cache: Path) -> Path:
    """The folder of a repo's snapshots, below a cache folder."""
    return cache / repo.replace("/", "--")


class Snapshots:
    """The snapshots of one repo below a cache folder."""

    def __init__(self, cache: Path, repo: str, remedies: Remedies = BY_SETTINGS) -> None:
        self.folder = folder_of(repo, cache)
        self._remedies = remedies

    def find(self, sha: str) -> Snapshot | None:
        """The verified snapshot of a commit, if all of its files still have their sizes."""
        folder = self.folder / sha
        try:
            said = json.loads((folder / MANIFEST).read_bytes())
            files = tuple(HubFile(**each) for each in said["files"])
            is_whole = all((folder / file.name).stat().st_size == file.size for file in files)
            return Snapshot(folder, files, str(said["content"])) if is_whole else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def all(self) -> list[Snapshot]:
        """Every verified snapshot."""
        with suppress(OSError):
            return [found for name in os.listdir(self.folder) if (found := self.find(name))]
        return []

    def by_age(self) -> list[tuple[Snapshot, float]]:
        """Every verified snapshot and when it was finished, the newest first."""
        found = list[tuple[Snapshot, float]]()
        for snapshot in self.all():
            with suppress(OSError):
                found.append((snapshot, (snapshot.folder / MANIFEST).stat().st_mtime))
        return sorted(found, key=lambda each: each[1], reverse=True)

    def partial(self, sha: str) -> Path:
        """The folder where a commit is put together; it still holds what an earlier try left."""
        folder = self.folder / f"{PARTIAL}{sha}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def give_up(self, sha: str) -> None:
        """Delete the unfinished snapshot of a commit."""
        shutil.rmtree(self.folder / f"{PARTIAL}{sha}", ignore_errors=True)

    def finish(self, sha: str, files: Sequence[HubFile], content: str) -> Snapshot:
        """Give the unfinished snapshot its manifest, then its name, in this order on disk too."""
        partial, folder = self.partial(sha), self.folder / sha
        manifest = {
            "version": MANIFEST_VERSION,
            "content": content,
            "files": [asdict(f) for f in files],
        }
        (partial / MANIFEST).write_text(json.dumps(manifest, indent=1))
        put_folder(partial, folder)  # in the place of one that is no longer whole
        return Snapshot(folder, tuple(files), content)

    def prune(self, kept: Collection[str]) -> None:
        """Delete the snapshots, finished or not, of all other commits than these."""
        with suppress(OSError):
            for name in os.listdir(self.folder):
                is_one = len(name.removeprefix(PARTIAL)) == 40
                if is_one and name.removeprefix(PARTIAL) not in kept:
                    shutil.rmtree(self.folder / name, ignore_errors=True)

    def note_head(self, revision: str, sha: str) -> None:
        """Remember which commit a name meant last, for a start without the hub."""
        if self.last_head(revision) == sha:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        replace(self._head_file(revision), sha.encode())

    def last_head(self, revision: str) -> str | None:
        """Which commit a name meant last, as far as is known here."""
        with suppress(OSError, ValueError):
            return self._head_file(revision).read_text()
        return None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep everybody else from putting snapshots together here; SourceUnavailable if one is."""
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            with locked(self.folder / ".lock", os.O_CREAT | os.O_RDWR):
                yield
        except BlockingIOError:
            raise SourceUnavailable(
                f"{self.folder}: a download into it is still under way; if it is another "
                f"process's, give each its own {self._remedies.cache}"
            ) from None

    def _head_file(self, revision: str) -> Path:
        return self.folder / f".head-{quote(revision, safe='')}"


def listed_commits(
    wished: str | None,
    here: Iterable[tuple[Snapshot, float]],
    named: Callable[[str], Revision],
) -> list[Listed]:
    """The wished commit first, then the others as they came."""
    commits = [_commit(snapshot, at, wished, named(snapshot.sha)) for snapshot, at in here]
    newest = [each for each in commits if each.standing is Standing.NEWEST]
    if wished is not None and not newest:
        revision = named(wished)
        newest = [Listed(revision.label, Standing.NEWEST, "not downloaded yet", revision=revision)]
    return [*newest, *(each for each in commits if each.standing is not Standing.NEWEST)]


def _commit(snapshot: Snapshot, at: float, wished: str | None, revision: Revision) -> Listed:
    is_wished = snapshot.sha == wished
    return Listed(
        revision.label,
        Standing.NEWEST if is_wished else Standing.OLDER,
        "" if is_wished else "the hub names another commit now",
        revision=revision,
        path=str(snapshot.folder),
        bytes=sum(file.size for file in snapshot.files if holds_weights(file.name)),
        written_at=at,
    )
