"""An older checkpoint comes back only when somebody brings it back."""

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hotreload.sources import alarm
from hotreload.sources.place import Entry, Place
from tests.clock import Clock
from tests.sources.watching import Watching, arrive, forget, shard, watching, write


@pytest.fixture
def both(root: Path) -> Path:
    """The root with two checkpoints in it."""
    write(root / "step_1")
    write(root / "step_2")
    return root


async def test_when_the_newest_is_deleted_no_older_one_is_wished(both: Path) -> None:
    async with watching(both) as watch:
        await watch.wished("step_2")
        forget(both / "step_2")
        await watch.look()
        assert watch.labels == ["step_2"]
        assert watch.waiting is None


@pytest.mark.parametrize("order", ["step", "time", "name"])
async def test_while_the_newest_is_overwritten_no_older_one_is_wished(
    both: Path, order: str
) -> None:
    path = both / "step_2" / "model.safetensors"
    content = shard("anew", path.name)
    async with watching(both, order=order) as watch:
        await watch.wished("step_2")
        for size in (0, 50, 100):
            path.write_bytes(content[:size])
            await watch.look()
            await watch.waits_for("step_2: model.safetensors: ")
        assert watch.labels == ["step_2"]
        path.write_bytes(content)
        await watch.wished("step_2", "step_2")
        assert watch.wishes[0] != watch.wishes[1]


async def test_when_the_newest_stays_broken_no_older_one_is_wished(both: Path) -> None:
    clock = Clock()
    async with watching(both, clock=clock, settle=1.0, patience=50.0, rescan=30.0) as watch:
        clock.now += 1
        await watch.look()
        await watch.wished("step_2")
        os.truncate(both / "step_2" / "model.safetensors", 100)
        await watch.look()
        clock.now += 50
        await watch.look()
        await watch.wished("step_2", "step_2")  # handed over to be refused
        clock.now += 1000
        await watch.look()
        assert len(watch.wishes) == 2


async def test_a_run_that_starts_again_at_a_lower_step_is_wished(root: Path) -> None:
    for step in (90, 100):
        write(root / f"step_{step}")
    async with watching(root) as watch:
        await watch.wished("step_100")
        forget(root / "step_90")
        forget(root / "step_100")
        await watch.look()
        arrive(root / "step_10")
        await watch.wished("step_100", "step_10")
        arrive(root / "step_90", "the new run's")
        await watch.wished("step_100", "step_10", "step_90")


@pytest.mark.parametrize("order", ["first deleted", "first changed"])
async def test_an_older_one_that_is_changed_is_wished_when_the_newest_is_gone(
    both: Path, order: str
) -> None:
    async with watching(both) as watch:
        await watch.wished("step_2")
        if order == "first deleted":
            forget(both / "step_2")
            await watch.look()
        write(both / "step_1", "another")
        if order == "first changed":
            await watch.look()
            assert watch.labels == ["step_2"]
            forget(both / "step_2")
        await watch.wished("step_2", "step_1")


async def test_what_is_written_beside_an_older_ones_weights_does_not_bring_it_back(
    both: Path,
) -> None:
    (both / "step_1" / "optimizer.bin").touch()
    async with watching(both) as watch:
        await watch.wished("step_2")
        forget(both / "step_2")
        (both / "step_1" / "optimizer.bin").unlink()
        (both / "step_1" / "scores.json").write_text("{}")
        await watch.look()
        assert watch.labels == ["step_2"]


async def test_a_chmod_of_all_brings_no_older_one_back(both: Path) -> None:
    clock = Clock()
    async with watching(both, clock=clock) as watch:
        clock.now += 1
        await watch.look()
        await watch.wished("step_2")
        for file in both.glob("*/*"):
            file.chmod(0o600)
        await watch.look()
        forget(both / "step_2")
        await watch.look()
        clock.now += 1
        await watch.look()
        assert watch.labels == ["step_2"]


async def test_after_a_restart_the_newest_that_exists_is_wished(both: Path) -> None:
    async with watching(both) as watch:
        await watch.wished("step_2")
        forget(both / "step_2")
        await watch.look()
    async with watching(both) as anew:
        await anew.wished("step_1")


async def test_at_a_start_no_older_one_goes_before_a_new_one_that_has_to_be_quiet(
    root: Path,
) -> None:
    """The new one is often live already: a restart soon after it went back for a moment."""
    clock, wall = Clock(), an_old_and_a_new_one(root, settle=5.0)
    async with watching(root, clock=clock, settle=5.0, wall=wall) as watch:
        await watch.look()
        assert watch.labels == []
        await watch.waits_for("step_2: complete once it has been quiet for 5 s")
        clock.now += 5
        await watch.look()
        await watch.wished("step_2")


async def test_one_that_is_never_quiet_holds_up_the_first_wish_for_no_longer(root: Path) -> None:
    clock, wall = Clock(), an_old_and_a_new_one(root, settle=5.0)
    async with watching(root, clock=clock, settle=5.0, wall=wall) as watch:
        for _ in range(2):
            clock.now += 3
            os.utime(root / "step_2" / "model.safetensors")
            await watch.look()
        await watch.wished("step_1")


def an_old_and_a_new_one(root: Path, *, settle: float) -> Callable[[], float]:
    """Write both, and return a wall clock by which only the first has been quiet for long."""
    written = (write(root / "step_1") / "model.safetensors").stat().st_ctime
    while time.time() < written + 0.02:
        (root / "step_1").stat()
    write(root / "step_2")
    return lambda: written + settle + 60.001


async def test_an_operator_may_ask_for_the_older_one(both: Path) -> None:
    async with watching(both) as watch:
        await watch.wished("step_2")
        forget(both / "step_2")
        await watch.look()
        assert (await watch.source.resolve(None)).label == "step_1"
        assert (await watch.source.resolve("step_1")).label == "step_1"
        await watch.look()
        assert watch.labels == ["step_2"]


@pytest.mark.parametrize("how", ["renamed", "unlistable", "emptied"])
async def test_a_root_that_is_away_for_a_while_brings_no_older_one_back(
    root: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The newest has to be quiet for a while again, the older one has been for long."""
    monkeypatch.setattr(alarm, "remote_file_system", lambda _: "nfs4")  # nothing is heard
    clock, settle, wall = Clock(), 1000.0, an_old_and_a_new_one(root, settle=1000.0)
    async with watching(root, clock=clock, settle=settle, wall=wall) as watch:
        clock.now += settle
        await watch.look()
        await watch.wished("step_2")
        clock.now += 1
        await away_and_back(root, how, watch, monkeypatch)
        clock.now += settle
        await watch.look()
        assert watch.labels == ["step_2"]
        assert watch.waiting is None


async def away_and_back(
    root: Path, how: str, watch: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(_: object) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    aside = root.with_name("aside")
    with monkeypatch.context() as patch:
        if how == "unlistable":
            patch.setattr("os.scandir", gone)
        else:
            root.rename(aside)
        if how == "emptied":  # as a mount point is while nothing is mounted
            root.mkdir()
        await watch.look()
        assert watch.waiting is not None
    if aside.exists():
        aside.rename(root)
    await watch.look()


def test_a_remount_touches_no_weights() -> None:
    def place(device: int, size: int = 7) -> Place:
        entries = (Entry("model.safetensors", device, 1, size, 2, 3), Entry("config.json", device))
        return Place(Path("/x"), Path("/x"), entries, Path("/"))

    assert place(1).weights == place(2).weights
    assert place(1).weights != place(1, size=8).weights
