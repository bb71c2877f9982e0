import asyncio
import os
import time
from pathlib import Path

import pytest

from tests.sources.watching import (
    arrive,
    watching,
    write,
)


@pytest.mark.parametrize(("order", "expected"), [("step", "b_3"), ("time", "a_2"), ("name", "c_1")])
async def test_newest_is_by_the_rule(root: Path, order: str, expected: str) -> None:
    for name, age in (("c_1", 300), ("b_3", 200), ("a_2", 100)):
        file = write(root / name) / "model.safetensors"
        os.utime(file, (time.time() - age,) * 2)
    async with watching(root, order=order) as watch:
        await watch.until(lambda: bool(watch.wishes))
        await watch.wished(expected)


async def test_times_in_the_future_hide_nothing(root: Path) -> None:
    file = write(root / "a") / "model.safetensors"
    os.utime(file, (4e9, 4e9))
    async with watching(root, order="time") as watch:
        await watch.wished("a")
        arrive(root / "b")
        await watch.wished("a", "b")
    os.utime(write(root / "step_1") / "model.safetensors", (4e9, 4e9))
    write(root / "step_2")
    async with watching(root) as watch:
        await watch.wished("step_2")


async def test_of_two_at_once_the_newest_is_wished(root: Path) -> None:
    async with watching(root) as watch:
        arrive(root / "step_2")
        arrive(root / "step_1")
        await watch.wishes_for("step_2")
        await watch.look()
        assert watch.labels == ["step_2"]


async def test_of_a_hundred_in_a_moment_the_newest_is_wished(root: Path) -> None:
    async with watching(root) as watch:
        for step in range(100):
            arrive(root / f"step_{step}")
            await asyncio.sleep(0)
        await watch.wishes_for("step_99")
        assert watch.labels[-1] == "step_99"
        assert watch.looks() < 110


async def test_a_newer_incomplete_one_does_not_hide_an_older_one(root: Path) -> None:
    async with watching(root) as watch:
        write(root / "step_2", shards=4)
        (root / "step_2" / "model-00003-of-00004.safetensors").unlink()
        arrive(root / "step_1")
        await watch.wished("step_1")
        await watch.waits_for("step_2: waiting for model-00003-of-00004.safetensors")


async def test_identical_bytes_under_a_new_name_and_touched_files_are_no_news(root: Path) -> None:
    write(root / "step_1", "same")
    async with watching(root) as watch:
        await watch.wished("step_1")
        os.utime(root / "step_1" / "model.safetensors")
        await watch.look()
        arrive(root / "step_2", "same")
        await watch.look()
        arrive(root / "step_3", "other")
        await watch.wished("step_1", "step_3")
