"""Two lanes at rest, and the end of what one held: with and without what guards it."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import pytest_asyncio

from hotreload import failpoints
from hotreload.behaviour import Led, Question
from hotreload.engine.lanes.lanes import Lanes
from hotreload.errors import BadRequest, EngineLost
from hotreload.types import Staged
from tests.engine import real
from tests.engine.lanes.crowd import (
    ARGS,
    ROWS,
    Voices,
    at_a_turn,
    begun,
    check_memory,
    end,
    holds,
    idle,
    scheduler_of,
    spoiled,
    standing_still,
    tell,
)

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.real_engine]

Engine = Any
EACH_KIND = ("runs", "in part", "waits")


@pytest.fixture(scope="module")
def voices(tmp_path_factory: pytest.TempPathFactory) -> Voices:
    return Voices(tmp_path_factory.mktemp("checkpoints"))


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def engine(voices: Voices) -> AsyncIterator[Engine]:
    sizes = {"args": ARGS, "compares": True}
    async with real.engine_of(voices.folder(1), voices.root / "spool", **sizes) as engine:
        yield engine


# 3: the idle self-check


async def rests_with_two_lanes(engine: Engine, voices: Voices) -> None:
    """Two lanes, both with prefixes in their caches and nothing to do, and then one answers."""
    await tell(engine, 5, prompt="cached by the first")
    staged = await engine.weights.stage(voices.checkpoint(2))
    before = await engine.switch.flip(staged)
    await tell(engine, 5, prompt="cached by the second")
    await idle(engine)
    for _ in range(4):  # each lane looks at itself when it has nothing to do
        await at_a_turn(engine, lambda: None)
    assert (await tell(engine, 5)).is_whole
    await end(engine, before)


async def test_two_lanes_may_rest_with_what_they_have_cached(
    engine: Engine, voices: Voices
) -> None:
    await rests_with_two_lanes(engine, voices)
    await check_memory(engine)


async def test_an_idle_check_that_counts_one_lane_ends_the_engine(
    voices: Voices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lanes, "_when_alone", lambda self, check: check)
    async with spoiled(voices) as engine:
        with pytest.raises(EngineLost, match="leak"):
            await rests_with_two_lanes(engine, voices)


# 4: the idle sleep


@contextmanager
def noted_rests(
    engine: Engine, lane: int, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[list[str]]]:
    """What the lane has left, whenever the scheduler thread lies down to sleep."""
    rests: list[list[str]] = []
    with monkeypatch.context() as noting:
        noting.setattr(failpoints, "reach_in_thread", lambda _: rests.append(holds(engine, lane)))
        yield rests


async def rests_in_an_answer_of_the_old(
    engine: Engine, voices: Voices, monkeypatch: pytest.MonkeyPatch
) -> int:
    """How often it slept while the old lane had an answer under way and the new one had none."""
    staged = await engine.weights.stage(voices.checkpoint(3))
    before = await engine.switch.flip(staged)
    with noted_rests(engine, before.weights.lane, monkeypatch) as rests:
        assert (await tell(engine, 4, before)).is_whole
    await end(engine, before)
    return sum(map(bool, rests))


async def test_it_does_not_sleep_while_one_of_two_lanes_is_busy(
    engine: Engine, voices: Voices, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await rests_in_an_answer_of_the_old(engine, voices, monkeypatch) == 0


async def test_a_sleep_that_looks_at_one_lane_comes_in_the_midst_of_an_answer(
    engine: Engine, voices: Voices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lanes, "are_others_idle", True)
    assert await rests_in_an_answer_of_the_old(engine, voices, monkeypatch) > 0


async def test_it_sleeps_when_both_lanes_have_nothing_to_do(engine: Engine, voices: Voices) -> None:
    before = await engine.switch.flip(await engine.weights.stage(voices.checkpoint(4)))
    await idle(engine)
    clock = time.pthread_getcpuclockid(engine._scheduler._thread.ident)
    spent = time.clock_gettime(clock)
    await asyncio.sleep(1.2)  # that it does nothing, no event tells
    assert time.clock_gettime(clock) - spent < 0.3
    await end(engine, before)


# 5: what a lane that ended had cached


async def ends_clean(engine: Engine, before: Staged) -> None:
    """End a lane; upstream's check raises if it left anything."""
    await end(engine, before)
    assert (await tell(engine, 9)).is_whole
    await check_memory(engine)


async def test_all_tokens_are_free_when_a_lane_has_ended(engine: Engine, voices: Voices) -> None:
    allocator, scheduler = engine._scheduler.lanes.allocator, scheduler_of(engine)
    before = await engine.switch.flip(await engine.weights.stage(voices.checkpoint(5)))
    await asyncio.gather(*(tell(engine, 9, before, f"prefix {n}" * 9) for n in range(6)))
    await idle(engine)
    with_both = allocator.available_size()
    await end(engine, before)
    await idle(engine)
    assert allocator.available_size() > with_both
    assert allocator.available_size() == scheduler.max_total_num_tokens
    await check_memory(engine)


async def test_pages_that_nobody_will_match_again_are_a_leak(
    voices: Voices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lanes, "_end_lane", lambda self, lane: lane.ended.set_result(None))
    async with spoiled(voices) as engine:
        before = await engine.switch.flip(await engine.weights.stage(voices.checkpoint(2)))
        await tell(engine, 9, before)
        with pytest.raises((EngineLost, ValueError), match="leak"):
            await ends_clean(engine, before)


# 7: an abort


async def endings_of_what_the_old_lane_had(engine: Engine, voices: Voices) -> set[str]:
    """How answers of the old lane end when they are aborted while the new one has its turn.

    Some run, one has a part of its prompt computed, and some wait.
    """
    from sgl_jax.srt.managers.io_struct import AbortReq

    before = await engine.switch.flip(await engine.weights.stage(voices.checkpoint(6)))
    few = [tell(engine, 60, before) for _ in range(3)]
    many = [tell(engine, 60, before) for _ in range(ROWS)]
    long = tell(engine, 60, before, "x" * 400)
    lanes, done = engine._scheduler.lanes, list[bool]()
    serving = lanes._lane(engine.weights.live.weights.lane)

    def abort_when_there_is_each_kind() -> None:
        there = set(holds(engine, before.weights.lane))
        if not done and lanes._rotation.current is serving and there == {*EACH_KIND}:
            done.append(True)
            of_the_old = f"{before.weights.lane:x}."
            scheduler_of(engine).abort_request(AbortReq(rid=of_the_old))
        Lanes.turn(lanes)

    lanes.turn = abort_when_there_is_each_kind
    async with standing_still(engine):
        new, *asked = await begun(engine, tell(engine, 60), *few, long, *many)
    told = await asyncio.gather(*asked)
    del lanes.turn
    assert done, "all three kinds were there at once"
    assert (await new).is_whole
    await end(engine, before)
    return {each.answer["meta_info"]["finish_reason"]["type"] for each in told}


async def aborted_in_part_while_its_lane_rests(engine: Engine, voices: Voices) -> None:
    """Abort a prompt of which a piece is computed; its lane then rests while the piece ends."""
    from sgl_jax.srt.managers.io_struct import AbortReq

    before = await engine.switch.flip(await engine.weights.stage(voices.checkpoint(7)))
    lanes, rests = engine._scheduler.lanes, list[bool]()
    rotation, old = lanes._rotation, lanes._lane(before.weights.lane)
    may_launch = rotation._may_launch

    def abort_what_is_in_part() -> None:
        there = holds(engine, old.number)
        if not rests and rotation.current is old and "in part" in there:
            rests.append(True)
            scheduler_of(engine).abort_request(AbortReq(rid=f"{old.number:x}."))
        Lanes.turn(lanes)

    def rest_once(lane: Any) -> bool:
        if lane is old and rests == [True]:
            rests[0] = False
            return False
        return bool(may_launch(lane))

    lanes.turn, rotation._may_launch = abort_what_is_in_part, rest_once
    try:
        new, long = await begun(engine, tell(engine, 60), tell(engine, 60, before, "x" * 400))
        told = await long
    finally:
        del lanes.turn
        rotation._may_launch = may_launch
    assert rests == [False]
    assert told.answer["meta_info"]["finish_reason"]["type"] == "abort"
    assert (await tell(engine, 9, before)).is_whole
    assert (await new).is_whole
    await end(engine, before)


async def test_a_prompt_in_pieces_may_be_aborted_while_its_lane_rests(
    engine: Engine, voices: Voices
) -> None:
    await aborted_in_part_while_its_lane_rests(engine, voices)
    await check_memory(engine)


async def test_an_abort_finds_what_another_lane_than_the_one_at_work_holds(
    engine: Engine, voices: Voices
) -> None:
    assert await endings_of_what_the_old_lane_had(engine, voices) == {"abort"}
    await check_memory(engine)


async def test_an_abort_in_the_lane_at_work_alone_misses_all_of_them(
    voices: Voices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lanes, "_hook_abort", lambda self, abort: abort)
    async with spoiled(voices) as engine:
        assert await endings_of_what_the_old_lane_had(engine, voices) == {"length"}


async def test_a_question_that_finds_no_room_costs_no_engine(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [Question("x" * 150, 6)]
    monkeypatch.setattr(engine._shadows.pool, "_places", 45)
    with pytest.raises(BadRequest, match="no room for it"):
        await engine.unseen.ask(engine.weights.live, asked)
    monkeypatch.undo()
    [answer] = await engine.unseen.ask(engine.weights.live, asked)
    assert len(answer.tokens) == 6


async def test_answers_to_prompts_that_come_in_pieces_are_noted_from_their_first_token(
    engine: Engine,
) -> None:
    """What is sampled for a piece of a prompt that is not the last is no part of an answer."""
    asked = [Question("x" * (150 - at), 6) for at in range(5)]
    free = await engine.unseen.ask(engine.weights.live, asked)
    for one in free:
        assert len(one.tokens) == 6
        assert [max(e.likeliest, key=e.likeliest.__getitem__) for e in one.expected] == [
            *one.tokens
        ]
    led = [Led(q.prompt, q.tokens, answer=a.tokens) for q, a in zip(asked, free, strict=True)]
    again = await engine.unseen.ask(engine.weights.live, led[::-1])
    for one, other in zip(free, again[::-1], strict=True):
        assert other.tokens == one.tokens
        tokens = [each.token for each in one.expected]
        assert [each.token for each in other.expected] == pytest.approx(tokens, abs=0.05)
