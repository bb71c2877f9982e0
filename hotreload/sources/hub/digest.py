"""Computes a file's digest as a hub does: sha256 for LFS files, git's blob id for all others."""

import errno
import hashlib
import threading
from pathlib import Path

from hotreload.checkpoint.file_reader import Changed, NotRegular, Pieces, open_file
from hotreload.sources.hub.client import DOWNLOAD_CHUNK, HubFile


class HubDigest:
    """The digest of one file, of the kind that the hub gave, while its bytes come in order."""

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
