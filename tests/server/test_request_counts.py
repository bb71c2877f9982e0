"""Requests are counted by how they really ended, whatever status their answer began with."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from hotreload.errors import EngineLost, HotReloadError
from hotreload.server_limits import Limits
from hotreload.types import Staged
from tests.server.world import World, serve
from tests.waiting import PATIENCE

ROUTES: dict[str, dict[str, Any]] = {
    "/generate": {"text": "hi"},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
}
EACH_ROUTE = pytest.mark.parametrize("path", ROUTES)
WHOLE_OR_NOT = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


async def count_request(world: World, path: str, *, stream: bool, **more: Any) -> int:
    """Ask, read all of the answer, which begins with 200, and see what it counts as."""
    async with world.client() as client:
        answer = await client.post(path, json=ROUTES[path] | more | {"stream": stream})
    assert answer.status_code == 200, answer.text
    await world.until(lambda: bool(world.metrics.finished))
    [(route, code)] = world.metrics.finished
    assert route == path
    return code


@EACH_ROUTE
@WHOLE_OR_NOT
async def test_what_ended_well_is_a_200(world: World, path: str, stream: bool) -> None:
    assert await count_request(world, path, stream=stream) == 200


@EACH_ROUTE
@pytest.mark.parametrize(
    ("fault", "code"),
    [(EngineLost("the scheduler died"), 503), (HotReloadError("odd"), 500)],
    ids=["lost", "ours"],
)
async def test_a_stream_that_ends_in_a_problem_counts_as_that_problem(
    world: World, path: str, fault: Exception, code: int
) -> None:
    world.engine.breaks_after = (2, fault)
    assert await count_request(world, path, stream=True) == code


@EACH_ROUTE
async def test_a_stream_that_takes_too_long_counts_as_a_504(tmp_path: Path, path: str) -> None:
    async with serve(tmp_path, limits=Limits(request_seconds=0.1)) as world:
        world.engine.may_answer.clear()
        assert await count_request(world, path, stream=True) == 504


async def test_a_stream_that_breaks_off_for_a_fault_of_ours_counts_as_a_500(world: World) -> None:
    world.engine.breaks_after = (2, ValueError("a fault of ours"))
    reader, writer = await world.ask_raw({"text": "hi", "stream": True})
    await asyncio.wait_for(reader.read(), PATIENCE)
    await world.until(lambda: bool(world.metrics.finished))
    assert world.metrics.finished == [("/generate", 500)]
    writer.close()


@EACH_ROUTE
@WHOLE_OR_NOT
async def test_what_was_ended_for_a_swap_or_a_stop_is_a_503(
    world: World, path: str, stream: bool
) -> None:
    world.engine.end = {"type": "abort", "code": "swap", "message": "ended early"}
    assert await count_request(world, path, stream=stream) == 503


@WHOLE_OR_NOT
async def test_one_that_was_ended_early_makes_a_503_of_a_batch(world: World, stream: bool) -> None:
    ends = iter([{"type": "stop"}, {"type": "abort"}, {"type": "stop"}])
    chunk = world.engine._chunk

    def ended_each_its_way(weights: Staged, words: int) -> dict[str, Any]:
        if words == len(world.engine.words):
            world.engine.end = next(ends)
        return chunk(weights, words)

    world.engine._chunk = ended_each_its_way  # type: ignore[method-assign]
    assert await count_request(world, "/generate", stream=stream, text=["a", "b", "c"]) == 503


async def test_what_the_engine_gave_up_counts_as_it_says(world: World) -> None:
    world.engine.end = {"type": "abort", "message": "bad grammar", "status_code": 400}
    assert await count_request(world, "/generate", stream=False) == 400


async def test_what_was_ended_and_answered_by_the_next_generation_is_a_200(tmp_path: Path) -> None:
    async with serve(tmp_path, replay=True) as world:
        world.engine.swaps_ahead = 1
        assert await count_request(world, "/generate", stream=True) == 200


@WHOLE_OR_NOT
async def test_a_client_that_leaves_is_a_499(world: World, stream: bool) -> None:
    world.engine.may_answer.clear()
    _, writer = await world.ask_raw({"text": "hi", "stream": stream})
    await world.until(lambda: world.engine.running == 1)
    writer.close()
    await world.until(lambda: bool(world.metrics.finished))
    assert world.metrics.finished == [("/generate", 499)]


@WHOLE_OR_NOT
async def test_what_a_stop_cuts_off_is_a_503_and_no_client_that_left(
    tmp_path: Path, stream: bool
) -> None:
    async with serve(tmp_path) as world:
        world.server._graceful_seconds = 0
        world.engine.may_answer.clear()
        reader, writer = await world.ask_raw({"text": "hi", "stream": stream})
        await world.until(lambda: world.engine.running == 1)
        world.server.stop()
        await asyncio.wait_for(reader.read(), PATIENCE)
        await world.until(lambda: bool(world.metrics.finished))
        assert world.metrics.finished == [("/generate", 503)]
        writer.close()
