"""What every Engine promises the core; the same tests run on the fake and on the real one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest
import pytest_asyncio

from hotreload.core.ports import Engine
from hotreload.errors import ProbeFailed
from hotreload.types import Checkpoint, Noise, Revision
from tests.engine import real
from tests.fakes import FakeEngine, Steps

pytestmark = pytest.mark.asyncio(loop_scope="module")

SWAPS = 20


class EngineCase(Protocol):
    """An engine that serves number 1, and what a test needs to look at it from outside."""

    @property
    def engine(self) -> Engine: ...

    def checkpoint(self, number: int) -> Checkpoint:
        """A good checkpoint."""
        ...

    def bad_checkpoint(self) -> Checkpoint:
        """One that loads, answers nonsense, and leaves poison in the caches."""
        ...

    async def answer(self) -> object:
        """What the live weights answer, always to the same prompt."""
        ...

    async def fresh_answer(self, number: int) -> object:
        """What a fresh engine that booted from the checkpoint answers to it."""
        ...

    async def held(self) -> int:
        """How much is held: sets of weights, or bytes."""
        ...


class FakeCase:
    def __init__(self) -> None:
        self._fake = FakeEngine(Steps(), Revision("1", "step_1"))

    @property
    def engine(self) -> Engine:
        return self._fake

    def checkpoint(self, number: int) -> Checkpoint:
        return Checkpoint(Revision(str(number), f"step_{number}"), Path(), (), {}, 0)

    def bad_checkpoint(self) -> Checkpoint:
        return Checkpoint(Revision("bad", "bad"), Path(), (), {}, 0)

    async def answer(self) -> object:
        return self._fake.answer()

    async def fresh_answer(self, number: int) -> object:
        return FakeEngine(Steps(), Revision(str(number), f"step_{number}")).answer()

    async def held(self) -> int:
        return self._fake.sets_held


class RealCase:
    def __init__(self, engine: Any, folders: real.Folders) -> None:
        self.engine = engine
        self._folders = folders

    def checkpoint(self, number: int) -> Checkpoint:
        return self._folders.checkpoint(number)

    def bad_checkpoint(self) -> Checkpoint:
        return self._folders.checkpoint(9, "nan")

    async def answer(self) -> object:
        return real.said(await real.ask(self.engine))

    async def fresh_answer(self, number: int) -> object:
        folder = self._folders.folder(number)
        async with real.engine_of(folder, self._folders.root / "fresh") as fresh:
            return real.said(await real.ask(fresh))

    async def held(self) -> int:
        await self.answer()
        await self.engine.scrub()  # comes when the last step is over, and its arrays are gone
        return await real.device_bytes()


@asynccontextmanager
async def real_case(root: Path, tp: int) -> AsyncIterator[RealCase]:
    folders = real.Folders(root)
    async with real.engine_of(folders.folder(1), root / "spool", tp=tp) as engine:
        case = RealCase(engine, folders)
        await case.answer()  # compiles, which leaves small constants behind
        yield case


@pytest_asyncio.fixture(
    loop_scope="module",
    scope="module",
    params=[
        "fake",
        pytest.param("real", marks=pytest.mark.real_engine),
        pytest.param("real on two devices", marks=pytest.mark.real_engine),
    ],
)
async def engine_case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[EngineCase]:
    if request.param == "fake":
        yield FakeCase()
        return
    tp = 1 if request.param == "real" else 2
    async with real_case(tmp_path_factory.mktemp("engine"), tp) as case:
        yield case


async def test_exchange_twice_is_the_identity(engine_case: EngineCase) -> None:
    engine, before = engine_case.engine, await engine_case.answer()
    staged = await engine.stage(engine_case.checkpoint(2))
    first = await engine.exchange(staged)
    second = await engine.exchange(first)
    assert second is staged
    assert await engine_case.answer() == before
    await engine.release(second)


async def test_staging_leaves_the_live_answers_as_they_are(engine_case: EngineCase) -> None:
    before = await engine_case.answer()
    staging = asyncio.create_task(engine_case.engine.stage(engine_case.checkpoint(2)))
    during = await engine_case.answer()
    staged = await staging
    assert [during, await engine_case.answer()] == [before, before]
    await engine_case.engine.release(staged)


async def test_exchanged_weights_answer_like_a_fresh_engine(engine_case: EngineCase) -> None:
    engine = engine_case.engine
    await engine_case.answer()  # fills the caches with what the old weights computed
    old = await engine.exchange(await engine.stage(engine_case.checkpoint(2)))
    assert await engine_case.answer() == await engine_case.fresh_answer(2)
    await engine.release(await engine.exchange(old))


async def test_exchange_names_what_was_live(engine_case: EngineCase) -> None:
    engine = engine_case.engine
    staged = await engine.stage(engine_case.checkpoint(2))
    old = await engine.exchange(staged)
    assert await engine.exchange(old) is staged
    assert staged.revision == engine_case.checkpoint(2).revision
    assert old.fingerprint != staged.fingerprint
    await engine.release(staged)


async def test_a_cancelled_stage_leaves_nothing(engine_case: EngineCase) -> None:
    engine, before = engine_case.engine, await engine_case.held()
    staging = asyncio.create_task(engine.stage(engine_case.checkpoint(2)))
    await asyncio.sleep(0)
    staging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await staging
    assert await engine_case.held() == before


async def test_many_swaps_hold_no_more_than_one_set(engine_case: EngineCase) -> None:
    engine, before, answer = (
        engine_case.engine,
        await engine_case.held(),
        await engine_case.answer(),
    )
    checkpoints = [engine_case.checkpoint(2), engine_case.checkpoint(1)]
    for swap in range(SWAPS):
        await engine.release(await engine.exchange(await engine.stage(checkpoints[swap % 2])))
    assert await engine_case.answer() == answer
    assert await engine_case.held() == before


async def test_bad_weights_fail_the_probe_and_a_rollback_leaves_no_trace(
    engine_case: EngineCase,
) -> None:
    engine, before = engine_case.engine, await engine_case.answer()
    await engine.probe()
    old = await engine.exchange(await engine.stage(engine_case.bad_checkpoint()))
    with pytest.raises(ProbeFailed):
        await engine.probe()
    bad = await engine.exchange(old)
    await engine.scrub()
    assert await engine_case.answer() == before
    await engine.probe()
    await engine.release(bad)


async def test_stowed_weights_come_back_as_they_were(engine_case: EngineCase) -> None:
    engine, before, answer = (
        engine_case.engine,
        await engine_case.held(),
        await engine_case.answer(),
    )
    old = await engine.exchange(await engine.stage(engine_case.checkpoint(2)))
    fingerprint = old.fingerprint
    back = await engine.unstow(await engine.stow(old))
    assert back.fingerprint == fingerprint
    await engine.release(await engine.exchange(back))
    assert await engine_case.answer() == answer
    assert await engine_case.held() == before


async def test_unstow_keeps_what_is_on_the_device(engine_case: EngineCase) -> None:
    staged = await engine_case.engine.stage(engine_case.checkpoint(2))
    assert await engine_case.engine.unstow(staged) is staged
    await engine_case.engine.release(staged)


async def test_equal_noise_makes_equal_weights_and_other_noise_others(
    engine_case: EngineCase,
) -> None:
    engine, name = engine_case.engine, Revision("noisy")
    same = [await engine.perturb(name, Noise(7, 0.01, 1)) for _ in range(2)]
    other = [await engine.perturb(name, n) for n in (Noise(8, 0.01, 1), Noise(7, 0.02, 1))]
    old = await engine.exchange(same[0])
    found = [staged.fingerprint for staged in (old, *same, *other)]
    assert found[1] == found[2]
    assert len(set(found)) == 4
    assert same[0].revision == name
    for staged in (await engine.exchange(old), same[1], *other):
        await engine.release(staged)


async def test_noise_touches_nothing_that_is_live_and_leaves_nothing(
    engine_case: EngineCase,
) -> None:
    engine, before = engine_case.engine, await engine_case.held()
    answer = await engine_case.answer()
    noisy = await engine.perturb(Revision("noisy"), Noise(7, 0.5, 1))
    assert await engine_case.answer() == answer
    old = await engine.exchange(noisy)
    assert await engine.exchange(old) is noisy
    await engine.scrub()
    await engine.release(noisy)
    assert await engine_case.answer() == answer
    assert await engine_case.held() == before
