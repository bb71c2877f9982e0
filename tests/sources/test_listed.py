"""What a source lists: every folder or commit it sees, and what it makes of each."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hotreload.checkpoint.survey import Roots, survey
from hotreload.facts.listed import ListedState
from hotreload.sources import tree
from tests.clock import Clock
from tests.hub.local_hub import LocalHub, local_hub
from tests.sources.following import LONG, checkpoint, following
from tests.sources.watching import Watching, arrive, forget, watching, write
from tests.waiting import turn_until

NEWEST, WAITING, OLDER, ODD = ListedState


def standings(watch: Watching) -> dict[str, ListedState]:
    return {each.name: each.standing for each in watch.source.list_seen()}


def why(watch: Watching, name: str) -> str:
    return next(each.why for each in watch.source.list_seen() if each.name == name)


@pytest.fixture
def hub() -> Iterator[LocalHub]:
    with local_hub() as made:
        yield made


async def test_folders_are_listed_newest_first_with_step_size_and_time(root: Path) -> None:
    for name in ("step_2", "epoch_1-step_10", "step_1"):
        write(root / name, shards=2)
    async with watching(root) as watch:
        await watch.wished("epoch_1-step_10")
        newest, *older = watch.source.list_seen()
    assert [each.name for each in older] == ["step_2", "step_1"]
    assert [each.step for each in (newest, *older)] == [(1, 10), (0, 2), (0, 1)]
    assert newest.revision == watch.wishes[0]
    assert newest.path == str(root / "epoch_1-step_10")
    files = list((root / "epoch_1-step_10").iterdir())
    assert newest.bytes == sum(file.stat().st_size for file in files)
    assert newest.written_at == max(file.stat().st_mtime_ns for file in files) / 1e9
    assert {each.why for each in older} == {"older than epoch_1-step_10"}


async def test_each_folder_that_is_not_the_newest_says_why(root: Path) -> None:
    write(root / "step_1")
    arrive(root / "step_2")
    write(root / "step_3", shards=2)
    (root / "step_3" / "model-00002-of-00002.safetensors").unlink()
    write(root / "step_4.tmp")
    (root / "step_5").mkdir()
    (root / "step_5" / "pytorch_model.bin").write_bytes(b"pickle")
    async with watching(root) as watch:
        await watch.wished("step_2")
        assert standings(watch) == {
            "step_1": OLDER,
            "step_2": NEWEST,
            "step_3": WAITING,
            "step_4.tmp": WAITING,
            "step_5": ODD,
        }
        assert "model-00002-of-00002.safetensors" in why(watch, "step_3")
        assert why(watch, "step_4.tmp").startswith("is named as unfinished")
        assert why(watch, "step_5").startswith("holds pytorch_model.bin")


async def test_what_the_pattern_leaves_out_is_listed_last_and_says_so(root: Path) -> None:
    write(root / "run-9")
    write(root / "step_1")
    async with watching(root, pattern="step_*") as watch:
        await watch.wished("step_1")
        assert list(standings(watch).items()) == [("step_1", NEWEST), ("run-9", ODD)]
        assert "'step_*' ([source] pattern) leaves it out" in why(watch, "run-9")


async def test_one_without_its_marker_waits_for_it_and_is_no_checkpoint_once_passed_over(
    root: Path,
) -> None:
    write(root / "step_1")
    clock = Clock()
    async with watching(root, marker="DONE", clock=clock, patience=50.0) as watch:
        await watch.look()
        assert (standings(watch), why(watch, "step_1")) == (
            {"step_1": WAITING},
            "waiting for its marker DONE",
        )
        clock.now += 60
        await watch.look()
        assert standings(watch) == {"step_1": ODD}
        assert "has no DONE" in why(watch, "step_1")


async def test_when_the_newest_is_gone_those_before_it_are_still_older(root: Path) -> None:
    write(root / "step_1")
    write(root / "step_2")
    async with watching(root) as watch:
        await watch.wished("step_2")
        forget(root / "step_2")
        await watch.look()
        assert standings(watch) == {"step_1": OLDER}
        assert why(watch, "step_1").startswith("older than what was wished last")


async def test_a_folder_that_came_is_listed_while_its_bytes_are_still_read(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, may_end = threading.Event(), threading.Event()

    def slow(folder: Path, roots: Roots) -> Any:
        if folder.name == "step_2":
            reads.set()
            assert may_end.wait(10)
        return survey(folder, roots)

    monkeypatch.setattr(tree, "survey", slow)
    write(root / "step_1")
    async with watching(root) as watch:
        await watch.wished("step_1")
        arrive(root / "step_2")
        watch.source.wake()
        await turn_until(reads.is_set)
        assert standings(watch) == {"step_2": WAITING, "step_1": NEWEST}
        may_end.set()
        await watch.wished("step_1", "step_2")
        assert standings(watch) == {"step_2": NEWEST, "step_1": OLDER}


async def test_listing_reads_nothing_of_the_disk(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(root / "step_1")
    async with watching(root) as watch:
        await watch.wished("step_1")

        def never(*_: object, **__: object) -> Any:
            raise AssertionError("it looked")

        for name in ("stat", "scandir", "open", "listdir"):
            monkeypatch.setattr(os, name, never)
        listed = watch.source.list_seen()
        monkeypatch.undo()
    assert [each.name for each in listed] == ["step_1"]


async def test_of_a_hub_the_wished_commit_is_listed_and_those_that_lie_here(
    hub: LocalHub, tmp_path: Path
) -> None:
    first = hub.push(checkpoint("one"))
    async with following(hub, tmp_path, poll=LONG) as follow:
        await follow.wished_shas(first)
        (absent,) = follow.source.list_seen()
        assert (absent.standing, absent.why, absent.path) == (NEWEST, "not downloaded yet", "")
        folder = await follow.source.fetch(follow.wishes[0])
        (here,) = follow.source.list_seen()
        assert (here.standing, here.path) == (NEWEST, str(folder))
        assert here.bytes == (folder / "model.safetensors").stat().st_size
        second = hub.push(checkpoint("two"))
        follow.source.wake()
        await follow.wished_shas(first, second)
        newest, older = follow.source.list_seen()
        assert (newest.revision.id, newest.standing) == (second, NEWEST)
        assert (older.revision.id, older.standing) == (first, OLDER)
        assert older.why == "the hub names another commit now"
