"""The one reader: traps, faults of the storage, and files that change under our hands."""

import errno
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import xxhash

from hotreload.checkpoint import file_reader
from hotreload.checkpoint.file_reader import (
    Cancelled,
    Changed,
    HashedPieces,
    NotRegular,
    OpenFile,
    open_file,
)

CONTENT = os.urandom(10_000)
PIECE = 1000


def digest_of(file: OpenFile, piece: int) -> str:
    hashing = HashedPieces(file, piece)
    for _ in hashing.pieces(0, file.identity.size):
        pass
    return hashing.digest()


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    before = len(os.listdir("/proc/self/fd"))
    path = tmp_path / "model.safetensors"
    path.write_bytes(CONTENT)
    yield path
    assert len(os.listdir("/proc/self/fd")) <= before  # garbage of others may go meanwhile


class Storage:
    """Reads fail at one place, so often; before that something may be done to the file."""

    def __init__(
        self, patch: pytest.MonkeyPatch, code: int, *, times: int = 1, first: Any = lambda: None
    ) -> None:
        self.read: list[tuple[int, int]] = []
        """The descriptor and the place of each read that went well."""
        self._real, self._code, self._left, self._first = os.preadv, code, times, first
        patch.setattr(os, "preadv", self._preadv)
        patch.setattr(file_reader, "FIRST_READ_PAUSE", 0)

    def _preadv(self, fd: int, buffers: Any, offset: int) -> int:
        if offset == 5 * PIECE and self._left:
            self._left -= 1
            self._first()
            raise OSError(self._code, os.strerror(self._code))
        self.read.append((fd, offset))
        return self._real(fd, buffers, offset)


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE])
def test_after_a_passing_fault_the_reading_goes_on_where_it_was(
    file: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    opens, real = itertools.count(), os.open

    def counted(*args: Any) -> int:
        next(opens)
        return real(*args)

    monkeypatch.setattr(os, "open", counted)
    storage = Storage(monkeypatch, code, times=file_reader.TRIES_OF_A_READ - 1)
    with open_file(file, file.name) as source:
        assert digest_of(source, PIECE) == xxhash.xxh3_128_hexdigest(CONTENT)
        source.check_unchanged()
    assert [offset for _, offset in storage.read] == list(range(0, len(CONTENT), PIECE))
    assert next(opens) == file_reader.TRIES_OF_A_READ  # a stale handle stays stale


@pytest.mark.parametrize(
    ("code", "times"), [(errno.EIO, file_reader.TRIES_OF_A_READ), (errno.EMFILE, 1)]
)
def test_a_fault_that_stays_is_told(
    file: Path, monkeypatch: pytest.MonkeyPatch, code: int, times: int
) -> None:
    Storage(monkeypatch, code, times=times)
    with (
        pytest.raises(OSError, match=os.strerror(code)) as told,
        open_file(file, file.name) as source,
    ):
        digest_of(source, PIECE)
    assert told.value.errno == code


def replace(file: Path) -> None:
    (file.parent / "new").write_bytes(CONTENT)
    (file.parent / "new").rename(file)


def swap_for_fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


@pytest.mark.parametrize(
    ("change", "told"), [(replace, Changed), (swap_for_fifo, NotRegular), (Path.unlink, OSError)]
)
def test_what_lies_there_after_a_fault_must_be_the_same_file(
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Path], None],
    told: type[Exception],
) -> None:
    Storage(monkeypatch, errno.ESTALE, first=lambda: change(file))
    with pytest.raises(told), open_file(file, file.name) as source:
        digest_of(source, PIECE)


def test_a_link_to_the_same_file_is_no_change(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub's snapshots share files by hard links, while one of them is copied."""
    Storage(monkeypatch, errno.EIO, first=lambda: os.link(file, file.parent / "linked"))
    with open_file(file, file.name) as source:
        assert digest_of(source, PIECE) == xxhash.xxh3_128_hexdigest(CONTENT)


def test_nobody_waits_for_the_storage_once_it_is_cancelled(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancel = threading.Event()
    Storage(monkeypatch, errno.EIO, times=10**6, first=cancel.set)
    monkeypatch.setattr(file_reader, "FIRST_READ_PAUSE", 3600.0)
    with pytest.raises(Cancelled), open_file(file, file.name, cancel) as source:
        digest_of(source, PIECE)


def test_a_cancel_ends_at_the_next_piece(file: Path) -> None:
    cancel = threading.Event()
    with open_file(file, file.name) as source:
        pieces = HashedPieces(source, PIECE, cancel).pieces(0, len(CONTENT))
        assert next(pieces)[0] == 0
        cancel.set()
        with pytest.raises(Cancelled):
            next(pieces)


@pytest.mark.parametrize("size", [0, 1, PIECE])
def test_small_files_are_hashed_whole(tmp_path: Path, size: int) -> None:
    (tmp_path / "small").write_bytes(CONTENT[:size])
    with open_file(tmp_path / "small", "small") as source:
        assert digest_of(source, PIECE) == xxhash.xxh3_128_hexdigest(CONTENT[:size])


@pytest.mark.parametrize("lay", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
def test_traps_are_never_opened(tmp_path: Path, lay: Callable[[Path], None]) -> None:
    lay(tmp_path / "trap")
    with pytest.raises(NotRegular), open_file(tmp_path / "trap", "trap"):
        pass
