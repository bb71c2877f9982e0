"""Reads files that others may be rewriting, replacing, or have laid out as traps.

Nothing here maps a file (a truncated mapping kills the process) or opens one blocking.
"""

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hotreload.checks.findings import Finding, Unfit, shown, size_words
from hotreload.errors import NotEnoughMemory

_TRIES = 3
_PAUSE = 0.1
_PASSING = frozenset({errno.EIO, errno.ESTALE})
_OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})  # they say nothing of a file
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


@dataclass(frozen=True, slots=True)
class Identity:
    """What changes when a file does: equal identities mean nobody touched it."""

    dev: int
    ino: int
    size: int
    mtime_ns: int
    ctime_ns: int


def identity_of(status: os.stat_result) -> Identity:
    """The identity a stat result shows."""
    return Identity(
        status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
    )


def not_regular(name: str, status: os.stat_result) -> Finding | None:
    """Why this cannot be a checkpoint's file, told before anything opens it."""
    if stat.S_ISREG(status.st_mode):
        return None
    kind = _KINDS.get(stat.S_IFMT(status.st_mode), "no regular file")
    words = f"{shown(name)}: is {kind}, a checkpoint holds regular files only"
    return Finding("unsafe_path", words, name, expected="a regular file", got=kind)


class Opened:
    """An open regular file and the identity it had when it was opened."""

    def __init__(self, fd: int, name: str, identity: Identity) -> None:
        self.fd = fd
        self.name = name
        self.identity = identity

    def read(self, size: int, offset: int) -> bytes:
        """Exactly `size` bytes; the caller has held `size` against the file's size."""
        held = bytearray(size)
        self.read_into(memoryview(held), offset)
        return bytes(held)

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill the buffer from `offset`; Unfit `changed` when the file ends before it is full."""
        filled = 0
        while filled < len(buffer):
            got = os.preadv(self.fd, [buffer[filled:]], offset + filled)
            if got == 0:
                raise changed(self.name, "it became shorter while it was read")
            filled += got

    def check_unchanged(self) -> None:
        """Unfit `changed` when the file is no longer what was opened."""
        if identity_of(os.fstat(self.fd)) != self.identity:
            raise changed(self.name, "it was written to while it was read")


def changed(name: str, what: str) -> Unfit:
    """The finding that a file changed under our hands."""
    return Unfit(Finding("changed", f"{shown(name)}: {what}", name))


@contextmanager
def opened(path: Path, name: str) -> Iterator[Opened]:
    """Open a regular file, never following a link at its end and never waiting for a writer."""
    trap = not_regular(name, os.lstat(path))
    if trap is not None:
        raise Unfit(trap)
    fd = os.open(path, _FLAGS)
    try:
        status = os.fstat(fd)
        trap = not_regular(name, status)  # it may have been exchanged since the look above
        if trap is not None:
            raise Unfit(trap)
        yield Opened(fd, name, identity_of(status))
    finally:
        os.close(fd)


def with_file[T](path: Path, name: str, work: Callable[[Opened], T]) -> T:
    """Do the work on the open file and see that it did not change meanwhile.

    A passing fault of the storage is tried again, anew from the opening: a stale handle
    stays stale.
    """
    for attempt in range(1, _TRIES + 1):
        try:
            with opened(path, name) as file:
                result = work(file)
                file.check_unchanged()
                return result
        except FileNotFoundError as gone:
            raise changed(name, "it is not there any more") from gone
        except OSError as error:
            if error.errno in _OURS:
                words = f"{shown(name)}: cannot be read now: {error.strerror}"
                raise NotEnoughMemory(words) from error
            if error.errno not in _PASSING or attempt == _TRIES:
                words = f"{shown(name)}: cannot be read: {error.strerror}"
                raise Unfit(Finding("io", words, name)) from error
            time.sleep(_PAUSE * attempt)
    raise AssertionError("unreachable: the last try returns or raises")


def too_large(name: str, size: int, limit: int) -> Finding:
    """The finding that a file is larger than any such file has reason to be."""
    words = f"{shown(name)}: is {size_words(size)}, no more than {size_words(limit)} are read"
    return Finding("io", words, name)


def read_whole(path: Path, name: str, limit: int) -> bytes:
    """A small file's bytes; Unfit `io` when it is larger than any such file has reason to be."""

    def work(file: Opened) -> bytes:
        if file.identity.size > limit:
            raise Unfit(too_large(name, file.identity.size, limit))
        return file.read(file.identity.size, 0)

    return with_file(path, name, work)
