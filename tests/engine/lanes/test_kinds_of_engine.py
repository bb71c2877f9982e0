"""Generations come and go in engines that are set up in other ways."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from hotreload.engine.upstream import build
from hotreload.errors import ProbeFailed
from tests.engine import real
from tests.engine.lanes.crowd import Crowd, Voices, check_memory, replace, tell

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.real_engine,
    pytest.mark.at_night,
]

Engine = Any
SETUPS: dict[str, dict[str, Any]] = {
    "two devices, pages of 4": {"tp": 2, "args": {"page_size": 4}},
    "no prefix cache": {"args": {"disable_radix_cache": True, "chunked_prefill_size": 64}},
    "pages of 4, in turn": {
        "args": {"page_size": 4, "disable_overlap_schedule": True, "max_total_tokens": 1024}
    },
}


@pytest.fixture(scope="module")
def voices(tmp_path_factory: pytest.TempPathFactory) -> Voices:
    return Voices(tmp_path_factory.mktemp("checkpoints"))


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=SETUPS)
async def engine(request: pytest.FixtureRequest, voices: Voices) -> AsyncIterator[Engine]:
    setup = SETUPS[request.param]
    with pytest.MonkeyPatch.context() as patch:
        # The answers of these weights do not depend on the cache: the lanes' pages are tested.
        patch.setattr(build, "check_pages", lambda *_, **__: None)
        async with real.engine_of(voices.folder(1), voices.root / "spool", **setup) as engine:
            assert engine.switch.cannot_overlap is None
            yield engine


async def test_answers_stay_whole_through_flips(engine: Engine, voices: Voices) -> None:
    crowd = Crowd(engine, clients=4, tokens=(5, 30, 60), prompts=("hello", "x" * 150))
    async with crowd.asking():
        for number in (2, 3):
            await replace(engine, voices, number, crowd)
    assert crowd.mixed == []
    await check_memory(engine)


async def test_nan_that_is_proven_reaches_nobody(engine: Engine, voices: Voices) -> None:
    staged = await engine.weights.stage(voices.checkpoint(9, "nan"))
    crowd = Crowd(engine, clients=4)
    async with crowd.asking():
        await crowd.more(2)
        with pytest.raises(ProbeFailed):
            await engine.unseen.prove(staged)
        await crowd.more(2)
    assert crowd.mixed == []
    await engine.weights.release(staged)
    await check_memory(engine)
    assert (await tell(engine, 20)).is_whole
