"""Downloads one commit's files, resuming earlier tries, and compares each with the hub's digest.

Runs in a thread, and looks at `cancel` between pieces.
"""

import errno
import json
import os
import random
import shutil
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hotreload.checkpoint.file_reader import Cancelled
from hotreload.checkpoint.known_names import (
    INDEX,
    LARGEST_INDEX,
    PICKLES,
    SINGLE,
    WEIGHTS,
    as_one_line,
    foreign_weights,
    matches,
)
from hotreload.errors import CheckpointCorrupt, NotEnoughMemory, SourceUnavailable
from hotreload.figures import size as size_words
from hotreload.sources.hub.client import HubClient, HubFile
from hotreload.sources.hub.faults import FaultKind, HubFault
from hotreload.sources.hub.snapshots import HubDigest, Snapshot, Snapshots
from hotreload.types import HowFar

TRIES_WITHOUT_A_BYTE = 4
TRIES_OF_BAD_BYTES = 3
FIRST_RETRY_PAUSE = 0.5
ROOM_LEFT = 64 * 2**20
"""Bytes of the disk that stay free, because others write to it, too."""


@dataclass(slots=True)
class DownloadedBytes:
    """The bytes of a download; written by its thread, read by the loop."""

    there: int = 0
    """Bytes that lay here before the download began."""
    done: int = 0
    total: int = 0
    is_looked_at: bool = False

    def look(self) -> HowFar | None:
        """Return how far the download is; the first look has the base from which bytes count."""
        if not self.total:
            return None
        done, self.is_looked_at = self.done if self.is_looked_at else self.there, True
        return HowFar(done, self.total)


@dataclass
class Download:
    """One commit on its way to this disk."""

    client: HubClient
    snapshots: Snapshots
    sha: str
    allow: Sequence[str]
    """Patterns of the files to download."""
    kept: Collection[str] | None
    """The commits whose snapshots stay; None for all."""
    count: DownloadedBytes
    cancel: threading.Event

    def __post_init__(self) -> None:
        self._remedies = self.client.remedies
        self._verified = set[str]()
        self._name = f"{self.client.repo}@{self.sha[:12]}"

    def run(self) -> Snapshot:
        """Download the files that serving needs and verify each byte as it comes.

        The snapshot is whole or not there.
        """
        with self._translate_faults(), self.snapshots.hold_lock():
            self._folder = self.snapshots.partial(self.sha)
            files = self._choose()
            self._reuse(files)
            self._leave_if_cancelled()  # a newer wish may need what prune would delete
            if self.kept is not None:
                self.snapshots.prune(self.kept)
            self._check_room(files)
            for file in files:
                self._get(file)
            self._drop_strays(files)
            self._leave_if_cancelled()
            return self.snapshots.finish(self.sha, files, self.cancel)

    # --- which files, and what is there of them ------------------------------------------

    def _choose(self) -> list[HubFile]:
        """Choose the files to download; the index comes first, since it names the shards."""
        there = self.client.files(self.sha)
        files = listed_files(there, self.allow)
        index = next((file for file in files if file.name == INDEX), None)
        text = None
        if index is not None:
            if index.size > LARGEST_INDEX:  # the checks would refuse it after every shard came
                is_large = f"{INDEX} is {size_words(index.size)}"
                words = f"{is_large}, no more than {size_words(LARGEST_INDEX)} are read"
                raise CheckpointCorrupt(f"{self._name}: {words}", code="io")
            self._get(index)
            text = (self._folder / INDEX).read_bytes()
        chosen = serving_files(files, text)
        if not any(file.name.endswith(".safetensors") for file in chosen):
            code, instead = instead_of_weights(there)
            words = f"{self._name}: holds no safetensors file {self._remedies.files}{instead}"
            raise CheckpointCorrupt(words, code=code)
        return chosen

    def _reuse(self, files: Sequence[HubFile]) -> None:
        """Reuse the files that are here already: from an earlier try, or from a snapshot."""
        # Before the first link, which moves times. Untouched snapshots come first.
        there = {each: self.snapshots.is_untouched(each) for each, _ in self.snapshots.by_age()}
        snapshots = dict(sorted(there.items(), key=lambda each: not each[1]))
        for file in files:
            path = self._folder / file.name
            if not path.exists():
                self._link(file, path, snapshots)
            if _size(path) >= file.size and path.exists():
                self._keep_if_right(file, path)
        self.count.there = sum(_size(self._folder / file.name) for file in files)
        self.count.done = self.count.there
        self.count.total = sum(file.size for file in files)

    def _link(self, file: HubFile, path: Path, snapshots: Mapping[Snapshot, bool]) -> None:
        """Link the same file of a snapshot; it counts as verified if the snapshot is untouched."""
        for snapshot, is_untouched in snapshots.items():
            if (place := snapshot.place_of(file.digest)) is None:
                continue
            with suppress(OSError):  # not every disk can link; then it is downloaded
                os.link(place, path)
                if is_untouched:
                    self._verified.add(file.name)
            return

    def _keep_if_right(self, file: HubFile, path: Path) -> None:
        if file.name in self._verified:
            return
        if HubDigest(file, self.cancel).is_right(path):
            self._verified.add(file.name)
        else:
            path.unlink()  # never write to it: a snapshot may share its bytes

    def _check_room(self, files: Sequence[HubFile]) -> None:
        need = self.count.total - self.count.done
        free = shutil.disk_usage(self._folder).free
        if need and need + ROOM_LEFT > free:
            raise self._no_room(f"{size_words(need)} more are needed, {size_words(free)} are free")

    def _drop_strays(self, files: Sequence[HubFile]) -> None:
        """Delete files that an earlier try with other settings left; they would be loaded, too."""
        known = {file.name for file in files}
        for entry in self._folder.iterdir():
            if entry.name not in known:
                entry.unlink()

    # --- one file ----------------------------------------------------------------------

    def _get(self, file: HubFile) -> None:
        """Have the file whole, with the hub's own digest; bad bytes are asked for again."""
        if file.name in self._verified:
            return
        path = self._folder / file.name
        for _ in range(TRIES_OF_BAD_BYTES):
            digest = HubDigest(file, self.cancel)
            self._complete(file, path, digest)
            if digest.is_right(path):
                self._verified.add(file.name)
                return
            self._start_over(path)
        raise CheckpointCorrupt(
            f"{self._name}: {file.name}: came {TRIES_OF_BAD_BYTES} times with other bytes than "
            f"the hub's own digest says; {self._remedies.again} asks for it again",
            code="digest",
        )

    def _complete(self, file: HubFile, path: Path, digest: HubDigest) -> None:
        """Request the missing bytes, again and again as long as some arrive."""
        in_vain, best = 0, _size(path)
        if not path.exists():
            path.touch()
        while (there := _size(path)) < file.size:
            try:
                digest.catch_up(path)
                self._pour(file, path, there, digest)
            except HubFault as fault:
                in_vain = 0 if _size(path) > best else in_vain + 1
                best = max(best, _size(path))
                is_passing = fault.kind is FaultKind.PASSING and fault.retry_after is None
                if not is_passing or in_vain >= TRIES_WITHOUT_A_BYTE:
                    raise
                self.cancel.wait(FIRST_RETRY_PAUSE * 2**in_vain * (0.5 + random.random()))
            self._leave_if_cancelled()

    def _pour(self, file: HubFile, path: Path, offset: int, digest: HubDigest) -> None:
        came, room = 0, file.size - offset
        with self.client.open_at(self.sha, file, offset) as pieces, path.open("ab", 0) as held:
            for piece in pieces:
                left = piece[: room - came]
                while left:  # a disk that is nearly full takes a part of it
                    written = held.write(left)
                    digest.update(left[:written])
                    left = left[written:]
                came += len(piece)
                self.count.done += len(piece)
                self._leave_if_cancelled()
                if came > room:  # longer than the hub says it is; the digest will not match
                    self.count.done -= came - room
                    return
        if offset and not came:  # the hub cannot start at an offset
            self._start_over(path)
        elif came < room:
            raise HubFault(f"{self._name}: {file.name}: the hub ended it {room - came} bytes early")

    def _start_over(self, path: Path) -> None:
        self.count.done -= _size(path)
        path.unlink()
        path.touch()

    def _leave_if_cancelled(self) -> None:
        if self.cancel.is_set():
            raise SourceUnavailable(f"{self._name}: the download was given up", code="cancelled")

    # --- the disk's own faults -----------------------------------------------------------

    @contextmanager
    def _translate_faults(self) -> Iterator[None]:
        try:
            yield
        except Cancelled:
            self._leave_if_cancelled()
            raise
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                self.snapshots.give_up(self.sha)  # a full disk hurts others, too
                raise self._no_room(str(error.strerror)) from None
            words = f"{self.snapshots.folder}: cannot be written to: {error.strerror}"
            raise SourceUnavailable(f"{words}; check {self._remedies.cache}") from error

    def _no_room(self, why: str) -> NotEnoughMemory:
        words = f"free some space, or set {self._remedies.cache} to a larger disk"
        return NotEnoughMemory(
            f"{self._name}: no room for it in {self.snapshots.folder}: {why}; {words}", code="disk"
        )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def listed_files(files: Sequence[HubFile], allow: Sequence[str]) -> list[HubFile]:
    """List the files at the top of the repo that the patterns allow; never pickles."""
    plain = [file for file in files if _is_plain(file) and not file.name.lower().endswith(PICKLES)]
    return [file for file in plain if matches(file.name, allow)]


def serving_files(files: Sequence[HubFile], index: bytes | None) -> list[HubFile]:
    """Leave out weights that are not the checkpoint's: many repos hold their weights twice."""
    chosen = _shards(index) if index is not None else None
    if chosen is None and any(file.name == SINGLE for file in files):
        chosen = {SINGLE}
    if chosen is None:
        return list(files)
    return [file for file in files if not file.name.endswith(WEIGHTS) or file.name in chosen]


def instead_of_weights(files: Sequence[HubFile]) -> tuple[str, str]:
    """Say why a commit holds no weights that we read: a code, and what it holds in their place."""
    names = [file.name for file in files]
    if foreign := foreign_weights(names, is_meant=False):
        return "format", f"; it {foreign.words}"
    nested = [name for name in names if name.endswith(WEIGHTS) and "/" in name]
    there = f"; only files at its top count, not {as_one_line(nested[0])}" if nested else ""
    return "missing", there


def _is_plain(file: HubFile) -> bool:
    """Return whether the name is safe: the hub gives it, and it becomes a path here."""
    name = file.name
    return name.isprintable() and not name.startswith(".") and not {"/", "\\"} & set(name)


def _shards(index: bytes) -> set[str] | None:
    """Return the files that the index names; None if it is malformed: the checks refuse it."""
    try:
        names = set(json.loads(index[:LARGEST_INDEX])["weight_map"].values())
        return {str(name) for name in names}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
