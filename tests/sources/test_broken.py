import os
import time
from pathlib import Path

import pytest

from hotreload.checkpoint.check import check_checkpoint
from hotreload.checkpoint.fit import Policy
from hotreload.errors import CheckpointChanged, CheckpointCorrupt
from hotreload.sources import seen_revisions
from tests.clock import Clock
from tests.sources.watching import (
    arrive,
    refused_as,
    watching,
    write,
)


async def test_a_copy_that_stays_half_is_handed_over_and_the_good_one_wished_again(
    root: Path,
) -> None:
    clock = Clock()
    write(root / "step_1")
    async with watching(root, clock=clock, settle=1.0, patience=50.0, rescan=30.0) as watch:
        clock.now += 1
        await watch.look()
        await watch.wished("step_1")
        os.truncate(write(root / "step_2") / "model.safetensors", 100)
        await watch.waits_for("step_2: model.safetensors: 100 B of")
        clock.now += 49
        await watch.look()
        assert watch.labels == ["step_1"]
        clock.now += 1
        await watch.look()
        await watch.wished("step_1", "step_2")
        folder = await watch.source.fetch(watch.wishes[-1])
        with pytest.raises(CheckpointCorrupt) as caught:
            check_checkpoint(watch.wishes[-1], folder, served=None, policy=Policy())
        assert caught.value.code == "truncated"
        clock.now += 30
        await watch.look()
        await watch.look()
        await watch.wished("step_1", "step_2", "step_1")
        clock.now += 1000
        await watch.look()
        assert len(watch.wishes) == 3


async def test_what_arrived_whole_and_is_broken_is_handed_over_after_settle(root: Path) -> None:
    async with watching(root, settle=0.1, patience=1000.0) as watch:
        aside = write(root.parent / "aside")
        os.truncate(aside / "model.safetensors", 100)
        aside.rename(root / "step_1")
        await watch.wished("step_1")


async def test_what_was_broken_long_before_the_start_is_handed_over_after_the_good_one(
    root: Path,
) -> None:
    write(root / "step_1")
    os.truncate(write(root / "step_2") / "model.safetensors", 100)
    next_week = time.time() + 7 * 86400
    async with watching(root, settle=1000.0, patience=1000.0, wall=lambda: next_week) as watch:
        await watch.wished("step_1")
        watch.source.wake()
        await watch.wished("step_1", "step_2")


async def test_a_folder_without_weights_is_said_and_never_handed_over(root: Path) -> None:
    clock = Clock()
    (root / "step_1").mkdir()
    (root / "step_1" / "config.json").write_text("{}")
    async with watching(root, clock=clock) as watch:
        await watch.waits_for("step_1: no *.safetensors or index yet")
        clock.now += 1e6
        await watch.look()
        assert watch.wishes == []


async def test_an_unsafe_folder_is_handed_over_for_its_own_reason(
    tmp_path: Path, root: Path
) -> None:
    write(tmp_path / "elsewhere")
    async with watching(root) as watch:
        (root / "step_1").symlink_to(tmp_path / "elsewhere")
        await watch.wished("step_1")
        await refused_as("unsafe_path", watch.wishes[0], watch, root)


@pytest.mark.parametrize("kind", ["fifo", "folder"])
async def test_a_trap_for_a_shard_blocks_nothing(root: Path, kind: str) -> None:
    async with watching(root) as watch:
        (root / "step_1").mkdir()
        path = root / "step_1" / "model.safetensors"
        os.mkfifo(path) if kind == "fifo" else path.mkdir()
        await watch.wished("step_1")
        await refused_as("unsafe_path", watch.wishes[0], watch, root)


async def test_unreadable_bytes_are_handed_over_to_be_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def identify(*_: object) -> str:
        raise CheckpointCorrupt("model.safetensors: cannot be read", code="io")

    monkeypatch.setattr(seen_revisions, "content_id", identify)
    async with watching(root) as watch:
        arrive(root / "step_1")
        await watch.wished("step_1")
        assert await watch.source.fetch(watch.wishes[0]) == root / "step_1"


async def test_a_checkpoint_rewritten_while_it_is_hashed_is_looked_at_again(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter(range(2))

    def identify(*_: object) -> str:
        if next(times, None) is not None:
            raise CheckpointChanged("model.safetensors: it was written to")
        return "0" * 32

    monkeypatch.setattr(seen_revisions, "content_id", identify)
    async with watching(root, rescan=0.05) as watch:
        arrive(root / "step_1")
        await watch.wished("step_1")
        assert watch.wishes[0].id == "0" * 32


async def test_links_that_lead_nowhere_hide_no_checkpoint(root: Path) -> None:
    (write(root / "step_1") / "notes").symlink_to("nowhere")
    (root / "loop").symlink_to("loop")
    async with watching(root) as watch:
        await watch.wished("step_1")


@pytest.mark.parametrize("link", ["loop", "dangling"])
async def test_a_link_that_leads_nowhere_is_waited_for(root: Path, link: str) -> None:
    (root / "latest").symlink_to("latest" if link == "loop" else "step_1")
    async with watching(root, pattern="latest") as watch:
        assert watch.waiting is not None
        arrive(root / "step_1")
        (root / "new").symlink_to("step_1")
        (root / "new").rename(root / "latest")
        await watch.wished("step_1")
