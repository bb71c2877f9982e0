"""What is written is there whole or not at all, and who holds a lock holds it alone."""

import os
from pathlib import Path

import pytest

from hotreload.facts import files
from hotreload.facts.files import hold_lock, put_folder, replace


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was flushed and renamed, in this order; a power cut keeps what was flushed before."""
    told, rename = list[str](), os.rename

    def renamed(old: Path | str, new: Path | str, **where: int) -> None:
        told.append(f"{Path(old).name} to {Path(new).name}")
        rename(old, new, **where)

    def flushed(opened: int) -> None:
        told.append(Path(os.readlink(f"/proc/self/fd/{opened}")).name)

    monkeypatch.setattr(os, "rename", renamed)
    monkeypatch.setattr(os, "fsync", flushed)
    return told


def test_a_file_has_its_name_when_its_bytes_are_on_the_disk(
    tmp_path: Path, told: list[str]
) -> None:
    (tmp_path / "file").write_bytes(b"old")
    replace(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"
    assert told == [".file.new", ".file.new to file", tmp_path.name]


def test_a_folder_has_its_name_when_all_in_it_is_on_the_disk(
    tmp_path: Path, told: list[str]
) -> None:
    fresh, place = tmp_path / "fresh", tmp_path / "place"
    for folder, name in ((fresh, "a"), (fresh, "b"), (place, "old")):
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(name)
    put_folder(fresh, place)
    assert sorted(told[:2]) == ["a", "b"]
    assert told[2:] == ["fresh", "fresh to place", tmp_path.name]
    assert sorted(path.name for path in place.iterdir()) == ["a", "b"]


def test_one_at_a_time_holds_a_lock(tmp_path: Path) -> None:
    with hold_lock(tmp_path), pytest.raises(BlockingIOError), hold_lock(tmp_path):
        pytest.fail("it was held")
    with hold_lock(tmp_path / "file", os.O_CREAT | os.O_RDWR):
        assert (tmp_path / "file").exists()
    opened = os.open(tmp_path, os.O_RDONLY)
    try:
        files.lock(opened)
    finally:
        os.close(opened)
