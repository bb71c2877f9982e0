"""Two lanes in a KV pool that has not room for both: requests wait or begin again, none is lost."""

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from hotreload.behaviour import Question
from hotreload.features.compare.comparison import BothWeights, KnownAnswers, compare_both
from tests.engine import real
from tests.engine.lanes.crowd import (
    Crowd,
    Voices,
    check_memory,
    end,
    idle,
    is_said_by,
    tell,
    until,
)

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.real_engine,
    pytest.mark.at_night,
]

Engine = Any
SMALL = {"max_total_tokens": 700, "chunked_prefill_size": 64, "context_length": 512}
PROMPTS = ("p" * 5, "q" * 60, "r" * 170)


@pytest.fixture(scope="module")
def voices(tmp_path_factory: pytest.TempPathFactory) -> Voices:
    return Voices(tmp_path_factory.mktemp("checkpoints"))


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=["overlapped", "in turn"])
async def engine(request: pytest.FixtureRequest, voices: Voices) -> AsyncIterator[Engine]:
    args = {**SMALL, "disable_overlap_schedule": request.param == "in turn"}
    folder, spool = voices.folder(1), voices.root / "spool"
    async with real.engine_of(folder, spool, args=args, compares=True) as engine:
        yield engine


async def test_questions_that_find_no_room_together_are_asked_one_batch_after_another(
    engine: Engine, voices: Voices
) -> None:
    staged = await engine.weights.stage(voices.checkpoint(2))
    both, asked = BothWeights(engine, engine.weights.live, staged), [Question("q" * 100, 100)] * 9
    found = await compare_both(both, KnownAnswers(), asked)
    await engine.weights.release(staged)
    assert found is not None
    assert (found.questions, found.live_empty, found.empty) == (15, 0, 0)
    assert found.noise_kl == pytest.approx(0, abs=1e-3)


def times_given_way(engine: Engine) -> int:
    times: int = engine._scheduler.lanes._sharing.times_given_way
    return times


async def test_long_answers_in_both_lanes_are_all_given_whole(
    engine: Engine, voices: Voices
) -> None:
    before, live = engine.weights.live, await engine.weights.stage(voices.checkpoint(2))
    await engine.switch.flip(live)
    chance = random.Random(1)
    told = await asyncio.gather(
        *(
            tell(engine, chance.choice((30, 120, 250)), weights, f"{chance.choice(PROMPTS)} {at}")
            for at in range(5)
            for weights in (before, live)
        )
    )
    assert [each for each in told if not each.is_whole] == []
    await end(engine, before)
    await check_memory(engine)


async def test_it_goes_on_so_while_generations_come_and_go(engine: Engine, voices: Voices) -> None:
    crowd = Crowd(engine, clients=7, tokens=(20, 60, 150), prompts=PROMPTS)
    async with crowd.asking():
        for number in (3, 4):
            await crowd.more(2)
            staged = await engine.weights.stage(voices.checkpoint(number))
            await engine.unseen.prove(staged)
            await end(engine, await engine.switch.flip(staged), crowd)
    assert crowd.mixed == []
    await check_memory(engine)


async def test_an_answer_of_the_old_lane_is_never_held_up_by_the_new(
    engine: Engine, voices: Voices
) -> None:
    """It ends though the new lane was given all it asked for first."""
    before = engine.weights.live
    live = await engine.weights.stage(voices.checkpoint(5))
    await engine.switch.flip(live)
    young = [asyncio.create_task(tell(engine, 150, live, f"y {at}")) for at in range(5)]
    old = await asyncio.gather(*(tell(engine, 200, before, f"o {at}") for at in range(2)))
    assert all(each.is_whole for each in old)
    assert all(each.is_whole for each in await asyncio.gather(*young))
    await end(engine, before)
    await check_memory(engine)


async def test_what_was_sent_back_can_be_aborted(engine: Engine, voices: Voices) -> None:
    before, live = engine.weights.live, await engine.weights.stage(voices.checkpoint(6))
    await engine.switch.flip(live)
    asked = [
        asyncio.create_task(tell(engine, 300, weights, f"{PROMPTS[-1]} {at}"))
        for at in range(3)
        for weights in (before, live)
    ]
    seen = times_given_way(engine)
    await until(lambda: times_given_way(engine) > seen)
    await engine.answers.abort()
    for each in await asyncio.gather(*asked):
        assert each.answer["meta_info"]["finish_reason"]["type"] in ("abort", "length")
        assert not each.answer["text"] or is_said_by(each.weights, each.answer["text"])
    assert engine.answers.under_way == 0
    await end(engine, before)
    await idle(engine)
    await check_memory(engine)
