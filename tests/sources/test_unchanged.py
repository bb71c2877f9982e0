"""A rescan reads few of thousands of folders, and misses nothing for long."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hotreload.checkpoint.digests import Digests
from hotreload.sources import places
from hotreload.sources.place import FolderOptions
from hotreload.sources.places import TURNS
from hotreload.sources.seen_revisions import SeenRevisions
from hotreload.sources.tree import Tree
from tests.clock import Clock
from tests.sources.watching import forget, taken, write

COUNT = 200


@pytest.fixture
def many(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders whose times are older than those that may not tell of a second change."""
    for step in range(COUNT):
        write(root / f"step_{step}")
    monkeypatch.setattr(places, "_FRESH_NS", -(10**12))
    return root


def tree_of(root: Path, clock: Clock) -> Tree:
    options = FolderOptions(**taken(FolderOptions, {"settle": 1.0}))
    tree = Tree(
        root,
        options,
        SeenRevisions(Digests(), lambda: False),
        clock=clock,
    )
    tree.look(set())
    clock.now += 2
    look = tree.look(set())
    assert look.best is not None
    assert look.best.label == f"step_{COUNT - 1}"
    tree.leave_older(look)
    return tree


def folders_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    read, really = list[str](), os.scandir

    def scandir(path: str) -> object:
        read.append(str(path))
        return really(path)

    monkeypatch.setattr(os, "scandir", scandir)
    return read


def test_a_rescan_reads_few_of_many_folders(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = tree_of(many, Clock())
    tree.look(set(), quick=True)
    read = folders_read(monkeypatch)
    for _ in range(TURNS):
        look = tree.look(set(), quick=True)
        assert look.best is not None
    assert len(read) < COUNT * 2
    assert set(read) == {str(many), *map(str, many.iterdir())}
    read.clear()
    tree.look(set())
    assert len(read) == COUNT + 1


def in_place(folder: Path) -> None:
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"!")


def one_more(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "old")
    write(folder, "other")


@pytest.mark.parametrize(("change", "looks"), [(one_more, 1), (in_place, TURNS)])
def test_what_is_changed_in_an_old_folder_is_seen(
    many: Path, change: Callable[[Path], None], looks: int
) -> None:
    clock = Clock()
    tree = tree_of(many, clock)
    tree.look(set(), quick=True)
    change(many / "step_7")
    forget(many / f"step_{COUNT - 1}")
    for _ in range(looks):
        tree.look(set(), quick=True)
    clock.now += 2
    look = tree.look(set(), quick=True)
    assert look.best is not None
    assert look.best.label == "step_7"


def test_what_is_changed_in_the_newest_is_seen_at_once(many: Path) -> None:
    clock = Clock()
    tree = tree_of(many, clock)
    before = tree.look(set(), quick=True).best
    in_place(many / f"step_{COUNT - 1}")
    assert tree.look(set(), quick=True).best is None
    clock.now += 2
    after = tree.look(set(), quick=True).best
    assert before is not None
    assert after is not None
    assert (after.label, after.id != before.id) == (before.label, True)
