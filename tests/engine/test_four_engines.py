"""Four engines in one process, each on a device of its own: none takes anything from another.

They are started, closed and killed while the others answer. That the process ends cleanly is seen
from outside, in a process that runs this file as a program.
"""

import asyncio
import gc
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from hotreload.engine.upstream import frozen
from hotreload.errors import EngineLost, TryAgain
from hotreload.types import Staged
from tests.engine import real

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.real_engine,
    pytest.mark.at_night,
]

Engine = Any
COUNT = 4


class Engines:
    """The first loads its weights, each other begins with a copy of them."""

    def __init__(self, root: Path, count: int = COUNT) -> None:
        self.folders = real.Folders(root)
        self._first = self.folders.folder(1)
        self.each: list[Engine] = []
        self._stacks = [AsyncExitStack() for _ in range(count)]

    async def begin(self) -> None:
        self.each.append(await self._entered(0))
        for place in range(1, len(self._stacks)):
            self.each.append(await self._entered(place, twin=self.each[0]))

    async def close(self, place: int) -> None:
        await self._stacks[place].aclose()

    async def begin_again(self, place: int, *, twin: int) -> Engine:
        self.each[place] = await self._entered(place, twin=self.each[twin])
        return self.each[place]

    async def end(self) -> None:
        for place in range(len(self._stacks)):
            await self.close(place)

    async def _entered(self, place: int, **more: Any) -> Engine:
        # One spool for all: what one copies there, another's start leaves alone.
        spool = self.folders.root / "spool"
        starting = real.engine_of(self._first, spool, first_device=place, **more)
        return await self._stacks[place].enter_async_context(starting)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def engines(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Engines]:
    engines = Engines(tmp_path_factory.mktemp("engines"))
    try:
        await engines.begin()
        await texts(engines.each)
        yield engines
    finally:
        await engines.end()


async def texts(engines: Sequence[Engine]) -> list[str]:
    answers = await asyncio.gather(*map(real.ask, engines))
    return [answer["text"] for answer in answers]


def says(*numbers: int) -> list[str]:
    return [f"served by step {number}" for number in numbers]


@asynccontextmanager
async def asked_all_the_time(engines: Sequence[Engine], number: int) -> AsyncIterator[None]:
    """Clients of each of these get the right answers, and no compilation, as long as it is open."""
    compiled, done = [engine.recompiles for engine in engines], asyncio.Event()
    answered: list[str] = []

    async def keep_asking(engine: Engine) -> None:
        while not done.is_set():
            answered.append((await real.ask(engine))["text"])

    async with asyncio.TaskGroup() as clients:
        for engine in engines:
            clients.create_task(keep_asking(engine))
        yield
        done.set()
    assert len(answered) >= len(engines)
    assert {*answered} == {*says(number)}
    assert [engine.recompiles for engine in engines] == compiled


def devices_of(engine: Engine) -> set[int]:
    leaves = engine.weights.layout.by_path(engine.weights.live.weights.leaves).values()
    return {device.id for leaf in leaves for device in leaf.devices()}


async def test_each_is_a_twin_of_the_first_on_a_device_of_its_own(engines: Engines) -> None:
    first = engines.each[0]
    assert [devices_of(engine) for engine in engines.each] == [{0}, {1}, {2}, {3}]
    for engine in engines.each[1:]:
        assert engine.weights.live.revision == first.weights.live.revision
        assert await engine.weights.checksums() == first.weights.live.leaves
        assert engine.weights.live.weights.sources == first.weights.live.weights.sources
    assert await real.device_bytes() % COUNT == 0  # nothing is left of the weights they replaced


async def test_each_answers_by_weights_of_its_own_and_compiles_nothing_for_others(
    engines: Engines,
) -> None:
    staged = await asyncio.gather(
        *(
            engine.weights.stage(engines.folders.checkpoint(number))
            for number, engine in enumerate(engines.each, start=11)
        )
    )
    assert {each.loading.loader for each in staged} == {
        "own"
    }  # twins share what came of the comparison
    compiled = [engine.recompiles for engine in engines.each]
    old = await flipped(engines.each, staged)
    assert await texts(engines.each) == says(11, 12, 13, 14)
    new = await flipped(engines.each, old)
    assert await texts(engines.each) == says(1, 1, 1, 1)
    assert [engine.recompiles for engine in engines.each] == compiled
    for engine, each in zip(engines.each, new, strict=True):
        await engine.weights.release(each)


async def flipped(engines: Sequence[Engine], staged: Sequence[Staged]) -> list[Staged]:
    old = []
    for engine, each in zip(engines, staged, strict=True):
        old.append(await engine.switch.exchange(each))
    return old


async def test_four_answer_at_the_same_time_in_about_the_time_of_one(engines: Engines) -> None:
    began = time.monotonic()
    await texts(engines.each[:1])
    alone = time.monotonic() - began
    began = time.monotonic()
    assert await texts(engines.each) == says(1, 1, 1, 1)
    # Two cores are shared by all: one after the other would be the worst.
    assert time.monotonic() - began < COUNT * max(1.0, 2 * alone)


async def test_one_is_closed_and_started_again_while_the_others_answer(engines: Engines) -> None:
    before = await real.device_bytes()
    others = [engines.each[0], *engines.each[2:]]
    async with asked_all_the_time(others, number=1):
        await engines.close(1)
        assert gc.get_freeze_count() > 100_000
        with pytest.raises(TryAgain):
            await engines.begin_again(3, twin=1)
        again = await engines.begin_again(1, twin=2)
        assert await texts([again]) == says(1)
    assert await again.weights.checksums() == engines.each[0].weights.live.leaves
    assert len(frozen._running) == COUNT
    assert await real.device_bytes() == before


async def test_two_that_start_at_the_same_time_do_not_mix_up_their_devices(
    engines: Engines,
) -> None:
    await engines.close(2)
    await engines.close(3)
    async with asked_all_the_time(engines.each[:2], number=1):
        await asyncio.gather(engines.begin_again(2, twin=0), engines.begin_again(3, twin=1))
    assert [devices_of(engine) for engine in engines.each] == [{0}, {1}, {2}, {3}]
    assert await texts(engines.each) == says(1, 1, 1, 1)


async def test_one_that_dies_leaves_the_others_answering(engines: Engines) -> None:
    def fail(*args: Any) -> None:
        raise RuntimeError("a fault of the engine's own")

    others, dying = engines.each[:3], engines.each[3]
    async with asked_all_the_time(others, number=1):
        dying._scheduler.scheduler.get_next_batch_to_run = fail
        with pytest.raises(EngineLost):
            await real.ask(dying)
        with pytest.raises(TryAgain):
            await engines.begin_again(2, twin=3)
        await engines.close(3)
        again = await engines.begin_again(3, twin=0)
        assert await texts([again]) == says(1)


async def serve_and_end() -> None:
    """What the test below looks at from outside."""
    with tempfile.TemporaryDirectory() as root:
        engines = Engines(Path(root), count=2)
        await engines.begin()
        print(await texts(engines.each), flush=True)
        await engines.end()


async def test_the_process_ends_cleanly_afterwards() -> None:
    command = [sys.executable, "-m", "tests.engine.test_four_engines"]
    ended = await asyncio.create_subprocess_exec(
        *command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ
    )
    out, err = await asyncio.wait_for(ended.communicate(), 120)
    assert (ended.returncode, out.decode()) == (0, f"{says(1, 1)}\n"), err.decode()


if __name__ == "__main__":
    asyncio.run(serve_and_end())
