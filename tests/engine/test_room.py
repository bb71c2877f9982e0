"""A loading that was left behind keeps its room: there are never three sets on the device."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from hotreload import threads
from hotreload.engine.weights import staged_set
from hotreload.engine.weights.leaf.measures import Measured
from hotreload.engine.weights.memory.room_for_a_set import Room
from hotreload.engine.weights.weights import Weights
from hotreload.errors import NotEnoughMemory, TryAgain
from hotreload.types import Noise, Revision, Staged
from tests.engine import real

NOISE = Noise(seed=1, scale=0.01, num_leaves=1)
Engine = Any


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "LEAVE_AFTER", 0.02)
    monkeypatch.setattr(threads, "LEFT_BEHIND_SECONDS", 0.05)


class Hanging:
    """Makes a set that is there, and does not come back with it."""

    def __init__(self) -> None:
        self.is_there = threading.Event()
        self.go = threading.Event()
        self.made = Weights([1, 2], Measured({}, {}))

    def __call__(self, cancel: threading.Event) -> Weights:
        self.is_there.set()
        self.go.wait()
        return self.made


def quick(cancel: threading.Event) -> Weights:
    return Weights([3], Measured({}, {}))


async def left_behind(making: Awaitable[Any], is_there: threading.Event) -> None:
    task = asyncio.ensure_future(making)
    await asyncio.to_thread(is_there.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_what_was_left_behind_keeps_its_room_until_it_has_freed_its_set() -> None:
    room, hanging = Room(), Hanging()
    await left_behind(room.make(hanging, name="the loading of 2", leave=True), hanging.is_there)
    with pytest.raises(NotEnoughMemory, match="the loading of 2 was given up and still hangs"):
        await room.make(quick, name="noise")
    waiting = asyncio.create_task(room.make(quick, name="noise"))
    await asyncio.sleep(0)
    hanging.go.set()
    assert (await waiting).leaves == [3]
    assert hanging.made.leaves == []


def fail(cancel: threading.Event) -> Weights:
    raise ValueError("cut short")


async def test_what_failed_or_was_handed_out_leaves_the_room_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    room = Room()
    with pytest.raises(ValueError, match="cut short"):
        await room.make(fail, name="one")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", lambda self: fail_to_start())
        with pytest.raises(NotEnoughMemory, match="no thread"):
            await room.make(quick, name="two")
    for _ in range(2):
        assert (await room.make(quick, name="three")).leaves == [3]


def fail_to_start() -> None:
    raise RuntimeError("can't start new thread")


async def noise(engine: Engine, stowed: Staged) -> Staged:
    made: Staged = await engine.weights.perturb(Revision("noise"), NOISE)
    return made


async def way_back(engine: Engine, stowed: Staged) -> Staged:
    back: Staged = await engine.weights.unstow(stowed)
    return back


Another = Callable[[Engine, Staged], Awaitable[Staged]]


@pytest.mark.real_engine
async def test_neither_noise_nor_a_way_back_makes_a_third_set_beside_one_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders, hanging = real.Folders(tmp_path), Hanging()

    def hang_with_the_set_made(*args: object) -> None:
        hanging(threading.Event())

    async with real.engine_of(folders.folder(1), tmp_path / "spool") as engine:
        one_set = await real.device_bytes()
        stowed = await engine.weights.stow(await engine.weights.stage(folders.checkpoint(2)))
        monkeypatch.setattr(staged_set, "check_signatures", hang_with_the_set_made)
        await left_behind(engine.weights.stage(folders.checkpoint(3)), hanging.is_there)
        two_sets = await real.device_bytes()
        for another in (noise, way_back):
            with pytest.raises(TryAgain, match="still hangs") as refused:
                await another(engine, stowed)
            assert refused.value.code == "hanging"
            assert await real.device_bytes() == two_sets > one_set
        monkeypatch.setattr(threads, "LEFT_BEHIND_SECONDS", 30)
        hanging.go.set()
        for another in (noise, way_back):
            await engine.weights.release(await another(engine, stowed))
        del refused
        assert await real.device_bytes() == one_set
