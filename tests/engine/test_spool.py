"""The private copy: verified bytes or a clear refusal, and no trace afterwards."""

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import xxhash

from hotreload.checkpoint import file_reader
from hotreload.engine.weights.load import spool
from hotreload.errors import CheckpointChanged, CheckpointCorrupt, NotEnoughMemory
from hotreload.types import Checkpoint, CheckpointFile, Revision

CONTENT = os.urandom(100_000)
NAME = "model.safetensors"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    source = tmp_path / "step_1"
    source.mkdir()
    (source / NAME).write_bytes(CONTENT)
    (source / "stray.safetensors").write_bytes(b"still being written")
    file = CheckpointFile(NAME, len(CONTENT), xxhash.xxh3_128_hexdigest(CONTENT))
    beside = CheckpointFile("generation_config.json", 2, "not even read")
    return Checkpoint(Revision("1"), source, (file, beside), {}, len(CONTENT), {})


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "spool"
    spool.clear_leftovers(folder)
    yield folder
    assert list(folder.iterdir()) == []


def copy(checkpoint: Checkpoint, room: Path, cancel: threading.Event | None = None) -> Any:
    return spool.private_copy(checkpoint, room, cancel or threading.Event())


def test_the_checked_weights_are_copied_and_nothing_beside_them(
    checkpoint: Checkpoint, room: Path
) -> None:
    with copy(checkpoint, room) as folder:
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == {NAME: CONTENT}


def test_a_shard_that_is_a_link_is_copied_as_what_it_leads_to(
    checkpoint: Checkpoint, room: Path
) -> None:
    (checkpoint.path / NAME).rename(checkpoint.path / "blob")
    (checkpoint.path / NAME).symlink_to("blob")
    with copy(checkpoint, room) as folder:
        assert not (folder / NAME).is_symlink()
        assert (folder / NAME).read_bytes() == CONTENT


def truncate(file: Path) -> None:
    os.truncate(file, 50_000)


def rewrite(file: Path) -> None:
    file.write_bytes(CONTENT[:-1] + bytes([CONTENT[-1] ^ 1]))


def swap_for_fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def swap_for_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize("change", [truncate, rewrite, Path.unlink, swap_for_fifo, swap_for_folder])
def test_a_file_that_changed_after_the_check_is_refused(
    checkpoint: Checkpoint, room: Path, change: Any
) -> None:
    change(checkpoint.path / NAME)
    with pytest.raises(CheckpointChanged, match=NAME) as refused, copy(checkpoint, room):
        pass
    assert refused.value.code == "changed"


def failing_reads(monkeypatch: pytest.MonkeyPatch, code: int, times: int) -> None:
    real, left = os.preadv, [times]

    def preadv(*args: Any) -> int:
        if left[0]:
            left[0] -= 1
            raise OSError(code, os.strerror(code))
        return real(*args)

    monkeypatch.setattr(os, "preadv", preadv)
    monkeypatch.setattr(file_reader, "FIRST_READ_PAUSE", 0)


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE])
def test_a_storage_fault_that_passes_is_not_noticed(
    checkpoint: Checkpoint, room: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    failing_reads(monkeypatch, code, file_reader.TRIES_OF_A_READ - 1)
    with copy(checkpoint, room) as folder:
        assert (folder / NAME).read_bytes() == CONTENT


def test_a_storage_fault_that_stays_is_refused_as_io(
    checkpoint: Checkpoint, room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing_reads(monkeypatch, errno.EIO, 10**6)
    with pytest.raises(CheckpointCorrupt, match=NAME) as refused, copy(checkpoint, room):
        pass
    assert refused.value.code == "io"


def test_a_spool_without_room_is_named_before_anything_is_read(
    checkpoint: Checkpoint, room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=10))
    with pytest.raises(NotEnoughMemory, match=str(room)), copy(checkpoint, room):
        pass


def test_a_disk_that_fills_up_meanwhile_is_named(
    checkpoint: Checkpoint, room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing_reads(monkeypatch, errno.ENOSPC, 1)
    with pytest.raises(NotEnoughMemory, match=str(room)), copy(checkpoint, room):
        pass


def test_a_cancelled_copy_ends_at_the_next_chunk(checkpoint: Checkpoint, room: Path) -> None:
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(file_reader.Cancelled), copy(checkpoint, room, cancel):
        pass


def test_leftovers_of_a_killed_process_go_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "stage-abc").mkdir()
    (tmp_path / "stage-abc" / NAME).write_bytes(CONTENT)
    (tmp_path / "state.json").write_text("{}")
    spool.clear_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]
