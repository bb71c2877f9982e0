"""What two lanes in one scheduler run into, each with and without what guards against it."""

import asyncio
import copy
import random
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from fractions import Fraction
from typing import Any
from unittest.mock import patch

import pytest
import pytest_asyncio

from hotreload.engine.lanes import kinds, pool_shares
from hotreload.engine.lanes.lane import Lane, Rotation
from hotreload.engine.lanes.lanes import Lanes
from hotreload.engine.lanes.pool_shares import PoolShares
from tests.engine import real
from tests.engine.lanes.crowd import (
    ARGS,
    ROWS,
    Crowd,
    Voices,
    begun,
    check_memory,
    end,
    holds,
    lanes_of,
    replace,
    scheduler_of,
    spoiled,
    standing_still,
    tell,
    until,
)

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.real_engine]

Engine = Any
LONG = 200
"""Tokens of an answer that outlasts a probe; as many as there are rows find room in the pool."""


@pytest.fixture(scope="module")
def voices(tmp_path_factory: pytest.TempPathFactory) -> Voices:
    return Voices(tmp_path_factory.mktemp("checkpoints"))


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def engine(voices: Voices) -> AsyncIterator[Engine]:
    async with real.engine_of(voices.folder(1), voices.root / "spool", args=ARGS) as engine:
        yield engine


@contextmanager
def uneven_steps(engine: Engine) -> Iterator[None]:
    """Some steps take long: which of launches and results comes first is shuffled."""
    worker, chance = scheduler_of(engine).tp_worker.worker, random.Random(7)
    forward = worker.forward_batch_generation

    def forward_unevenly(*args: Any, **more: Any) -> Any:
        time.sleep(chance.choice((0, 0, 0, 0.003, 0.01)))
        return forward(*args, **more)

    worker.forward_batch_generation = forward_unevenly
    try:
        yield
    finally:
        worker.forward_batch_generation = forward


# 1: strict rotation


async def test_no_answer_mixes_however_launches_and_results_are_shuffled(
    engine: Engine, voices: Voices
) -> None:
    with uneven_steps(engine):
        async with Crowd(engine).asking() as crowd:
            for number in (2, 3, 4):
                await replace(engine, voices, number, crowd)
    assert crowd.mixed == []
    await check_memory(engine)


@pytest.mark.at_night  # why it is done otherwise; by day the one before shows how it is
async def test_a_lane_that_is_skipped_now_and_then_mixes_answers(
    voices: Voices, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn, chance = Rotation.turn, random.Random(3)

    def turn_or_skip(rotation: Rotation) -> None:
        turn(rotation)
        if chance.random() < 0.1:
            turn(rotation)

    async with spoiled(voices) as engine:
        staged = await engine.weights.stage(voices.checkpoint(2))
        before = await engine.switch.flip(staged)
        both = [tell(engine, 60, weights) for weights in (before, staged)]
        monkeypatch.setattr(Rotation, "turn", turn_or_skip)
        told = await asyncio.gather(*both, return_exceptions=True)
    assert not all(not isinstance(each, BaseException) and each.is_whole for each in told)


@contextmanager
def older_ones_rest(engine: Engine, share: Fraction) -> Iterator[None]:
    """Older weights may have as little of their turns meanwhile."""
    resting = engine._scheduler.lanes._resting
    before, resting._fading = resting._fading, share
    try:
        yield
    finally:
        resting._fading = before


async def test_no_answer_mixes_in_lanes_that_rest_for_long(engine: Engine, voices: Voices) -> None:
    """Prompts computed in one piece or several, and answers that join others after a rest."""
    before, live = engine.weights.live, await engine.weights.stage(voices.checkpoint(2))
    await engine.switch.flip(live)
    with uneven_steps(engine), older_ones_rest(engine, Fraction(1, 20)):
        async with Crowd(engine, clients=5).asking() as crowd:
            asked = [
                asyncio.create_task(tell(engine, tokens, before, prompt))
                for tokens in (1, 2, 9)
                for prompt in ("hello", "r" * 170)
            ]
            assert all(each.is_whole for each in await asyncio.gather(*asked))
    assert crowd.mixed == []
    await end(engine, before)
    await check_memory(engine)


@contextmanager
def resting_after_its_prompt(engine: Engine, lane: Lane) -> Iterator[None]:
    """This lane launches a request's prompt, and then nothing, however late we look."""
    resting = engine._scheduler.lanes._resting
    may_launch, launched = resting.may_launch, False

    def its_prompt_alone(asked: Lane, lanes: Sequence[Lane]) -> bool:
        nonlocal launched
        if asked is not lane:
            return bool(may_launch(asked, lanes))
        may = not launched and bool(may_launch(asked, lanes))
        launched = launched or (may and resting._has_work(lane))
        return may

    with patch.object(resting, "may_launch", its_prompt_alone):
        yield


async def test_what_rests_after_its_prompt_can_be_aborted(engine: Engine, voices: Voices) -> None:
    before, live = engine.weights.live, await engine.weights.stage(voices.checkpoint(3))
    await engine.switch.flip(live)
    (lane,) = (each for each in lanes_of(engine) if each.number == before.weights.lane)
    with resting_after_its_prompt(engine, lane):
        others = [asyncio.create_task(tell(engine, LONG, live, f"{at}")) for at in range(3)]
        await until(lambda: holds(engine, live.weights.lane).count("runs") == 3)
        rests = asyncio.create_task(tell(engine, LONG, before))
        await until(lambda: lane._unmerged is not None)
        await engine.answers.abort(before)
        assert not any(each.done() for each in others)
    aborted = (await rests).answer["meta_info"]
    assert aborted["finish_reason"]["type"] == "abort"
    assert aborted["completion_tokens"] <= 2
    assert all(each.is_whole for each in await asyncio.gather(*others))
    await end(engine, before)
    await check_memory(engine)


# 2: one numbering of rows


@contextmanager
def rows_in_use(engine: Engine) -> Iterator[list[dict[int, list[int]]]]:
    """The rows that each lane holds, by its number, whenever a batch is launched."""
    seen: list[dict[int, list[int]]] = []
    lanes, worker = engine._scheduler.lanes, scheduler_of(engine).tp_worker
    launch = worker.forward_batch_generation

    def launch_and_look(*args: Any, **more: Any) -> Any:
        seen.append(
            {
                lane.number: [each.req_pool_idx for each in lanes._kind.list_running(lane.look)]
                for lane in lanes_of(engine)
            }
        )
        return launch(*args, **more)

    worker.forward_batch_generation = launch_and_look
    try:
        yield seen
    finally:
        worker.forward_batch_generation = launch


async def prove_beside_clients(engine: Engine, voices: Voices) -> None:
    staged = await engine.weights.stage(voices.checkpoint(7))
    async with Crowd(engine, tokens=(60,)).asking() as crowd:
        await crowd.more(1)
        await engine.unseen.prove(staged)
    assert crowd.mixed == []
    await engine.weights.release(staged)


def held_together(seen: list[dict[int, list[int]]]) -> list[list[int]]:
    """The rows of all lanes, at each launch at which more than one held any."""
    several = [held for held in seen if sum(map(bool, held.values())) > 1]
    return [[row for rows in held.values() for row in rows] for held in several]


async def test_the_shadow_numbers_its_rows_as_all_others_do(engine: Engine, voices: Voices) -> None:
    with rows_in_use(engine) as seen:
        await prove_beside_clients(engine, voices)
    together = held_together(seen)
    assert together, "clients were answered beside the probe"
    assert all(len(rows) == len(set(rows)) for rows in together)


@pytest.mark.at_night  # why it is done otherwise; by day the one before shows how it is
async def test_a_shadow_with_rows_of_its_own_takes_the_numbers_of_clients(
    voices: Voices, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_shadow = Lanes.open_shadow

    def open_with_rows(lanes: Lanes, *with_what: Any, **more: Any) -> int:
        number = open_shadow(lanes, *with_what, **more)
        rows = copy.copy(lanes._scheduler.req_to_token_pool)
        rows.req_to_token, rows.free_slots = rows.req_to_token.copy(), list(range(rows.size))
        state = lanes._lane(number)._state
        assert state is not None
        state["req_to_token_pool"] = rows
        return number

    monkeypatch.setattr(pool_shares, "SHADOW_ROWS", 1)  # so that clients hold nearly all rows
    monkeypatch.setattr(Lanes, "open_shadow", open_with_rows)
    monkeypatch.setattr(kinds, "COMMON_FIELDS", (*kinds.COMMON_FIELDS, "req_to_token_pool"))
    async with spoiled(voices) as engine:
        with rows_in_use(engine) as seen, suppress(Exception):  # 0.1.0rc0 may end
            await prove_beside_clients(engine, voices)
    assert any(len(rows) > len(set(rows)) for rows in held_together(seen))


async def proves_while_both_are_full(engine: Engine, voices: Voices) -> bool:
    """Whether weights can be proven while as many are answered as may be, and more wait."""
    staged = await engine.weights.stage(voices.checkpoint(2))
    first = await engine.switch.flip(staged)
    next_one = await engine.weights.stage(voices.checkpoint(3))
    asks = (
        tell(engine, LONG, weights, f"{number}")
        for number in range(ROWS)
        for weights in (first, staged)
    )
    async with standing_still(engine):
        clients = await begun(engine, *asks)
    spare = pool_shares.SHADOW_ROWS
    await until(lambda: len(scheduler_of(engine).req_to_token_pool.free_slots) <= spare)
    proving = asyncio.create_task(engine.unseen.prove(next_one))
    await asyncio.wait((proving, *clients), return_when=asyncio.FIRST_COMPLETED)
    was_first = proving.done() and not any(each.done() for each in clients)
    for each in (proving, *clients):
        each.cancel()
    await asyncio.gather(proving, *clients, return_exceptions=True)
    await end(engine, first)
    await engine.weights.release(next_one)
    return was_first


async def test_a_row_is_free_for_the_probe_however_many_are_answered(
    engine: Engine, voices: Voices
) -> None:
    assert await proves_while_both_are_full(engine, voices)
    await check_memory(engine)


async def test_a_row_is_free_for_it_beside_a_lane_that_is_full(
    engine: Engine, voices: Voices
) -> None:
    staged = await engine.weights.stage(voices.checkpoint(7))
    async with standing_still(engine):
        clients = await begun(engine, *(tell(engine, LONG) for _ in range(ROWS + 2)))
    await until(lambda: holds(engine, engine.weights.live.weights.lane).count("runs") == ROWS)
    await engine.unseen.prove(staged)
    assert not any(each.done() for each in clients)
    assert all(each.is_whole for each in await asyncio.gather(*clients))
    await engine.weights.release(staged)
    await check_memory(engine)


@pytest.mark.at_night  # why it is done otherwise; by day the one before shows how it is
async def test_without_a_row_that_is_kept_the_probe_waits_for_an_answer(
    voices: Voices, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def all_rows_for(self: PoolShares, lane: Any) -> Iterator[None]:
        scheduler, name = self._scheduler, self._kind.row_limit
        running = scheduler.running_batch.batch_size()
        free, most = len(scheduler.req_to_token_pool.free_slots), getattr(scheduler, name)
        setattr(scheduler, name, min(most, running + free))
        yield
        setattr(scheduler, name, most)

    monkeypatch.setattr(pool_shares, "SHADOW_ROWS", 1)
    monkeypatch.setattr(PoolShares, "_rows_for", all_rows_for)
    async with spoiled(voices) as engine:
        assert not await proves_while_both_are_full(engine, voices)
