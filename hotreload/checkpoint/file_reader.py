"""Reads and hashes files that others may be rewriting, replacing, or have laid out as traps.

The one reader of the checks and of the private copy; each explains a fault in its own words.
Nothing here maps a file (a truncated mapping kills the process) or opens one blocking.
"""

import errno
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Protocol, override

import xxhash

TRIES_OF_A_READ = 4
FIRST_READ_PAUSE = 0.05
PASSING = frozenset({errno.EIO, errno.ESTALE})
"""Faults of the storage that may be over in a moment."""
OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Faults of this process or machine, which say nothing about a file."""

_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class NotRegular(Exception):
    """The path leads to something other than a regular file: the words say what."""


class Changed(Exception):
    """The file changed while it was read: the words say how."""


class Cancelled(Exception):
    """The caller no longer wants the bytes or the result."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A file as the file system describes it: equal identities mean that it was not touched."""

    dev: int
    ino: int
    size: int
    mtime_ns: int
    ctime_ns: int

    def is_written_like(self, other: "Identity") -> bool:
        """Return whether its times show no write in between.

        ctime alone moves with its mode, owner and links: a chmod or a backup changes no byte.
        """
        return self == replace(other, ctime_ns=self.ctime_ns)


def identity_of(status: os.stat_result) -> Identity:
    """Make the identity of a stat result."""
    return Identity(
        status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
    )


def other_than_regular(status: os.stat_result) -> str | None:
    """In words what a path leads to, if not to a regular file; asked before anything opens it."""
    if stat.S_ISREG(status.st_mode):
        return None
    return _KINDS.get(stat.S_IFMT(status.st_mode), "no regular file")


class Readable(Protocol):
    """Something that can be read like an open file: one on a disk, or its like in memory."""

    name: str
    """Its name in messages."""
    identity: Identity
    """The identity it had when it was opened."""

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill the buffer from `offset`; Changed when that cannot be done any more."""

    def close(self) -> None:
        """Let go of it."""


class OpenFile:
    """An open regular file and the identity it had when it was opened.

    After a passing fault of the storage it opens the file anew, since a stale handle stays stale,
    and tries again. It does not read again what it has read.
    """

    def __init__(self, path: Path, name: str, cancel: threading.Event | None = None) -> None:
        self.path = path
        self.name = name
        self._cancel = cancel or threading.Event()
        self._fd: int | None = None
        self._seen: Identity | None = None
        self.identity = self._seen = self._again(lambda fd: identity_of(os.fstat(fd)))

    def close(self) -> None:
        """Let go of the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def read(self, size: int, offset: int) -> bytes:
        """Exactly `size` bytes; the caller has checked `size` against the file's size."""
        held = bytearray(size)
        self.read_into(memoryview(held), offset)
        return bytes(held)

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill the buffer from `offset`; Changed when the file ends before it is full."""
        filled = 0
        while filled < len(buffer):
            got = self._read_once(buffer[filled:], offset + filled)
            if got == 0:
                raise Changed("it became shorter while it was read")
            filled += got

    def _read_once(self, buffer: memoryview, offset: int) -> int:
        return self._again(lambda fd: os.preadv(fd, [buffer], offset))

    def check_unchanged(self) -> None:
        """Changed when the file is no longer what was opened."""
        if self._again(lambda fd: identity_of(os.fstat(fd))) != self.identity:
            raise Changed("it was written to while it was read")

    def _again[T](self, work: Callable[[int], T]) -> T:
        pause = FIRST_READ_PAUSE
        for tries_left in reversed(range(TRIES_OF_A_READ)):
            try:
                return work(self._open())
            except OSError as fault:
                self.close()
                if fault.errno not in PASSING or not tries_left:
                    raise
            if self._cancel.wait(pause):
                raise Cancelled
            pause *= 4
        raise AssertionError("the last try returns or raises")

    def _open(self) -> int:
        if self._fd is None:
            self._fd = _regular(self.path)
            # The path may lead to another file now; `check_unchanged` sees writes.
            before, now = self._seen, identity_of(os.fstat(self._fd))
            if before and (before.dev, before.ino, before.size) != (now.dev, now.ino, now.size):
                raise Changed("it was replaced while it was read")
        return self._fd


def _regular(path: Path) -> int:
    _refuse_traps(os.lstat(path))
    fd = os.open(path, _FLAGS)
    try:
        _refuse_traps(os.fstat(fd))  # the file may have been replaced since the look above
    except BaseException:
        os.close(fd)
        raise
    return fd


def _refuse_traps(status: os.stat_result) -> None:
    if (kind := other_than_regular(status)) is not None:
        raise NotRegular(kind)


def open_file(path: Path, name: str, cancel: threading.Event | None = None) -> closing[OpenFile]:
    """Open a regular file, never following a link at its end and never waiting for a writer."""
    return closing(OpenFile(path, name, cancel))


class Pieces:
    """Reads an open file piece by piece."""

    def __init__(self, file: Readable, piece: int, cancel: threading.Event | None = None) -> None:
        self._file = file
        self._piece = min(piece, file.identity.size) or 1
        self._cancel = cancel
        self.reads, self.seconds = 0, 0.0
        """The number of reads, and the time that they took."""

    def pieces(self, begin: int, end: int) -> Iterator[tuple[int, memoryview]]:
        """Yield each piece between two offsets, and where it begins; the next overwrites it.

        Raises Cancelled at `cancel`, before the next piece.
        """
        for offset in range(begin, end, self._piece):
            piece = self._buffer[: min(self._piece, end - offset)]
            self._take(piece, offset)
            yield offset, piece

    def into(self, memory: memoryview, begin: int) -> Iterator[memoryview]:
        """Fill the caller's memory from an offset on; yield each piece."""
        for at in range(0, len(memory), self._piece):
            piece = memory[at : at + self._piece]
            self._take(piece, begin + at)
            yield piece

    @cached_property
    def _buffer(self) -> memoryview:
        return memoryview(bytearray(self._piece))

    def _take(self, piece: memoryview, offset: int) -> None:
        if self._cancel is not None and self._cancel.is_set():
            raise Cancelled
        began = time.perf_counter()
        self._file.read_into(piece, offset)
        self.seconds += time.perf_counter() - began
        self.reads += 1


class HashedPieces(Pieces):
    """Hashes what it reads, too."""

    def __init__(self, file: Readable, piece: int, cancel: threading.Event | None = None) -> None:
        super().__init__(file, piece, cancel)
        self._digest = xxhash.xxh3_128()

    @override
    def _take(self, piece: memoryview, offset: int) -> None:
        super()._take(piece, offset)
        self._digest.update(piece)

    def digest(self) -> str:
        """Return the digest of all pieces so far."""
        return self._digest.hexdigest()


def join_digests(digests: Sequence[str]) -> str:
    """Make a file's digest of those of its head and of each tensor behind it, in order.

    Tensors may be read in any order, by many threads. A single digest stays as it is.
    """
    if len(digests) == 1:
        return digests[0]
    return xxhash.xxh3_128("\n".join(digests).encode()).hexdigest()
