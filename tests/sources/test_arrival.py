import time
from pathlib import Path
from typing import Any

import pytest

from hotreload.checkpoint import digests
from hotreload.checkpoint import survey as files
from hotreload.checkpoint.digests import content_id
from hotreload.checkpoint.survey import survey
from tests.clock import Clock
from tests.sources.watching import (
    arrive,
    shard,
    watching,
    write,
)


async def test_what_is_there_at_the_start_is_wished_newest_step_first(root: Path) -> None:
    for step in (90, 100, 20):
        write(root / f"step_{step}")
    async with watching(root) as watch:
        await watch.wished("step_100")


async def test_a_folder_renamed_into_the_root_is_wished_at_once(root: Path) -> None:
    async with watching(root, settle=1000.0) as watch:
        arrive(root / "step_1", shards=3)
        await watch.wished("step_1")


async def test_a_folder_renamed_within_the_root_is_wished_at_once(root: Path) -> None:
    async with watching(root, settle=1000.0) as watch:
        write(root / ".step_1.partial").rename(root / "step_1")
        await watch.wished("step_1")


async def test_a_nested_run_renamed_in_is_wished_at_once(tmp_path: Path, root: Path) -> None:
    write(tmp_path / "aside" / "a" / "step_7")
    async with watching(root, settle=1000.0) as watch:
        (tmp_path / "aside").rename(root / "run1")
        await watch.wished("step_7")


async def test_a_marker_completes_a_folder_at_once(root: Path) -> None:
    async with watching(root, settle=1000.0, marker="_SUCCESS") as watch:
        folder = write(root / "step_1")
        await watch.waits_for("step_1: waiting for its marker _SUCCESS")
        (folder / "_SUCCESS").touch()
        await watch.wished("step_1")


async def test_without_its_marker_a_folder_is_never_taken(root: Path) -> None:
    clock = Clock()
    async with watching(root, marker="_SUCCESS", clock=clock) as watch:
        arrive(root / "step_1")
        await watch.waits_for("waiting for its marker")
        clock.now += 1e6
        await watch.look()
        assert watch.wishes == []


async def test_a_marker_older_than_the_files_vouches_for_nothing(root: Path) -> None:
    clock = Clock()
    async with watching(root, settle=100.0, marker="_SUCCESS", clock=clock) as watch:
        (root / "step_1").mkdir()
        (root / "step_1" / "_SUCCESS").touch()
        later = time.time_ns()
        while time.time_ns() < later + 20_000_000:  # the kernel's file times tick every 4 ms
            await watch.look()
        write(root / "step_1")
        await watch.waits_for("complete once it has been quiet for 100 s")
        clock.now += 100
        await watch.look()
        await watch.wished("step_1")


async def test_a_wall_clock_that_jumps_in_the_middle_of_a_copy_ends_no_wait(root: Path) -> None:
    clock, jump = Clock(), [0.0]
    folder = root / "step_1"
    async with watching(
        root, settle=10.0, clock=clock, wall=lambda: time.time() + jump[0]
    ) as watch:
        whole = (write(root.parent / "aside") / "model.safetensors").read_bytes()
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(whole[:-20])
        await watch.waits_for(f"{len(whole) - 20} B of")
        (folder / "model.safetensors").write_bytes(whole[:-10])
        await watch.waits_for(f"{len(whole) - 10} B of")
        jump[0] = 7 * 86400.0
        await watch.look()
        assert watch.wishes == []
        (folder / "model.safetensors").write_bytes(whole)
        await watch.waits_for("complete once it has been quiet for 10 s")
        assert watch.wishes == []
        clock.now += 10
        await watch.look()
        await watch.wished("step_1")


async def test_files_copied_slowly_are_waited_for_by_name_and_then_for_quiet(root: Path) -> None:
    clock = Clock()
    folder = root / "step_1"
    async with watching(root, settle=10.0, clock=clock) as watch:
        whole = write(root.parent / "aside", "x", shards=3)
        folder.mkdir()
        for name in ("model.safetensors.index.json", "model-00001-of-00003.safetensors"):
            (folder / name).write_bytes((whole / name).read_bytes())
        await watch.waits_for("step_1: waiting for model-00002-of-00003.safetensors")
        half = (whole / "model-00002-of-00003.safetensors").read_bytes()
        (folder / "model-00002-of-00003.safetensors").write_bytes(half[:-10])
        third = "model-00003-of-00003.safetensors"
        (folder / third).write_bytes((whole / third).read_bytes())
        written = f"{len(half) - 10} B of {len(half)} B written"
        await watch.waits_for(f"step_1: model-00002-of-00003.safetensors: {written}")
        clock.now += 9
        (folder / "model-00002-of-00003.safetensors").write_bytes(half)
        await watch.waits_for("complete once it has been quiet for 10 s")
        clock.now += 9
        await watch.look()
        assert watch.wishes == []
        clock.now += 1
        await watch.look()
        await watch.wished("step_1")


async def test_settling_needs_no_event_to_end(root: Path) -> None:
    async with watching(root, settle=0.2) as watch:
        write(root / "step_1")
        await watch.wished("step_1")


@pytest.mark.parametrize("pattern", ["latest", "*"])
async def test_a_flipped_link_is_followed_at_once(root: Path, pattern: str) -> None:
    for step in (1, 2, 3):
        write(root / "runs" / f"step_{step}" if pattern == "latest" else root / f"step_{step}")
    base = root / "runs" if pattern == "latest" else root
    (root / "latest").symlink_to(base / "step_2")
    async with watching(root, settle=1000.0, pattern=pattern) as watch:
        (root / "new").symlink_to(base / "step_3")
        (root / "new").rename(root / "latest")
        await watch.wishes_for("step_3")
        assert (await watch.source.resolve(None)).label == "step_3"


@pytest.mark.parametrize("between_two", ["headers", "digests"])
async def test_a_link_flipped_in_the_middle_of_a_look_mixes_no_two_steps(
    root: Path, monkeypatch: pytest.MonkeyPatch, between_two: str
) -> None:
    steps = {f"step_{n}": write(root / "runs" / f"step_{n}", shards=2) for n in (2, 3)}
    ids = {name: content_id(survey(folder)) for name, folder in steps.items()}
    (root / "latest").symlink_to(steps["step_2"])
    (root / "next").symlink_to(steps["step_3"])
    module, reads = {"headers": (files, "read_header"), "digests": (digests, "examine")}[
        between_two
    ]
    really = getattr(module, reads)

    def read_and_flip(*given: Any, **more: Any) -> Any:
        result = really(*given, **more)
        if (root / "next").is_symlink():
            (root / "next").rename(root / "latest")
        return result

    monkeypatch.setattr(module, reads, read_and_flip)
    async with watching(root, pattern="latest") as watch:
        await watch.wishes_for("step_3")
    assert not (root / "next").is_symlink()
    assert {revision.id for revision in watch.wishes} <= set(ids.values())
    assert all(revision.id == ids[revision.label] for revision in watch.wishes)


async def test_a_root_that_is_a_link_is_followed_when_it_is_flipped(tmp_path: Path) -> None:
    for step in (1, 2):
        write(tmp_path / f"step_{step}")
    link = tmp_path / "current"
    link.symlink_to("step_1")
    async with watching(link, settle=0.05) as watch:
        await watch.wished("step_1")
        (tmp_path / "new").symlink_to("step_2")
        (tmp_path / "new").rename(link)
        await watch.wished("step_1", "step_2")


async def test_a_single_folder_overwritten_is_wished_anew(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", "one")
    async with watching(folder) as watch:
        await watch.wished("model")
        write(folder, "two")
        await watch.wished("model", "model")
        (tmp_path / "aside").write_bytes(shard("three", "model.safetensors"))
        (tmp_path / "aside").rename(folder / "model.safetensors")
        await watch.wished("model", "model", "model")
        assert len({revision.id for revision in watch.wishes}) == 3


async def test_nested_step_folders_are_found(root: Path) -> None:
    write(root / "run1" / "a" / "step_5")
    write(root / "run2" / "step_3")
    write(root / "too" / "deep" / "for" / "us" / "step_9")
    async with watching(root) as watch:
        await watch.wished("step_5")
        write(root / "run3" / "step_6")
        await watch.wished("step_5", "step_6")


async def test_a_pattern_chooses_by_name_or_by_path(root: Path) -> None:
    write(root / "run1" / "step_5")
    write(root / "run2" / "step_3")
    write(root / "run2" / "other_9")
    async with watching(root, pattern="step_*") as watch:
        await watch.wished("step_5")
    async with watching(root, pattern="run2/step_*") as watch:
        await watch.wished("step_3")


async def test_folders_named_as_unfinished_are_left_alone(root: Path) -> None:
    for name in (".step_9", "step_9.tmp", "tmp-checkpoint-9", "step_9.partial"):
        arrive(root / name)
    arrive(root / "step_1")
    async with watching(root) as watch:
        await watch.wished("step_1")
        assert watch.waiting is None
