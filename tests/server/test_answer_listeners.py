"""Whatever the route, each answer is counted once for its generation, by how it ended."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from hotreload.errors import AnswerNonfinite, EngineLost
from hotreload.features.bake.conduct import Conduct, Conducts
from hotreload.features.bake.signals import Signal
from hotreload.server_limits import Limits
from tests.server.test_request_counts import ROUTES, WHOLE_OR_NOT
from tests.server.world import FIRST, World, serve

ALL = {**ROUTES, "/": {"inputs": "hi"}}
EACH_ROUTE = pytest.mark.parametrize("path", ALL)


@pytest.fixture
async def world(tmp_path: Path) -> Any:
    async with serve(tmp_path) as world:
        world.listener(Conducts).is_counting = True
        yield world


def answers_of(world: World) -> Conduct:
    return world.listener(Conducts).of(FIRST)


async def ask(world: World, path: str, *, stream: bool, **more: Any) -> None:
    async with world.client() as client:
        await client.post(path, json=ALL[path] | more | {"stream": stream})
    await world.until(lambda: bool(world.metrics.finished))


@EACH_ROUTE
@WHOLE_OR_NOT
async def test_it_is_counted_once_with_its_signs(world: World, path: str, stream: bool) -> None:
    world.engine.end = {"type": "length"}
    await ask(world, path, stream=stream)
    [seen] = answers_of(world).recent
    assert seen.signals == {Signal.LENGTH}
    assert seen.tokens == len(world.engine.words)
    assert answers_of(world).running == 0


@WHOLE_OR_NOT
async def test_each_prompt_counts_by_its_first_answer(world: World, stream: bool) -> None:
    more = {"text": ["a", "b"], "sampling_params": {"n": 3}}
    await ask(world, "/generate", stream=stream, **more)
    assert len(answers_of(world).recent) == 2
    assert answers_of(world).running == 0


@WHOLE_OR_NOT
async def test_one_that_was_withheld_is_an_error(world: World, stream: bool) -> None:
    world.engine.steps.faults["generate"] = AnswerNonfinite("no numbers")
    await ask(world, "/generate", stream=stream)
    [seen] = answers_of(world).recent
    assert seen.signals == {Signal.ERROR}


@WHOLE_OR_NOT
@pytest.mark.parametrize("code", ["swap", "asked"])
async def test_one_that_a_swap_or_a_client_ended_is_not(
    world: World, stream: bool, code: str
) -> None:
    world.engine.end = {"type": "abort", "code": code, "message": "Aborted"}
    await ask(world, "/generate", stream=stream)
    assert (len(answers_of(world).recent), answers_of(world).running) == (0, 0)


@WHOLE_OR_NOT
async def test_nor_is_one_of_an_engine_that_is_lost(world: World, stream: bool) -> None:
    world.engine.steps.faults["generate"] = EngineLost("a thread died")
    await ask(world, "/generate", stream=stream)
    assert (len(answers_of(world).recent), answers_of(world).running) == (0, 0)


@WHOLE_OR_NOT
async def test_nor_is_one_whose_client_left(world: World, stream: bool) -> None:
    world.engine.may_answer.clear()
    _, writer = await world.ask_raw({"text": "hi", "stream": stream})
    await world.until(lambda: world.engine.running == 1)
    assert answers_of(world).running == 1
    writer.close()
    await world.until(lambda: bool(world.metrics.finished))
    await world.until(lambda: (len(answers_of(world).recent), answers_of(world).running) == (0, 0))


async def test_one_that_ran_out_of_time_had_no_stop(tmp_path: Path) -> None:
    async with serve(tmp_path, limits=Limits(request_seconds=0.5)) as world:
        world.listener(Conducts).is_counting = True
        world.engine.may_answer.clear()
        await ask(world, "/generate", stream=True)
        await world.until(lambda: bool(answers_of(world).recent))
        [seen] = answers_of(world).recent
        assert seen.signals == {Signal.LENGTH}


async def test_one_that_is_run_again_counts_once(tmp_path: Path) -> None:
    async with serve(tmp_path, replay=True) as world:
        world.listener(Conducts).is_counting = True
        world.engine.swaps_ahead = 1
        await ask(world, "/generate", stream=False)
        assert (len(answers_of(world).recent), answers_of(world).running) == (1, 0)


async def test_nobody_counts_where_nobody_wants_to_know(world: World) -> None:
    world.listener(Conducts).is_counting = False
    await asyncio.gather(*(ask(world, "/generate", stream=each) for each in (True, False)))
    assert len(answers_of(world).recent) == 0
