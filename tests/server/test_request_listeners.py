"""Whatever the route, what clients ask is heard for comparisons, unless they forbid it."""

from pathlib import Path
from typing import Any

import pytest

from hotreload.features.compare.replay import RequestRecorder
from tests.server.test_answer_listeners import ALL, EACH_ROUTE
from tests.server.test_request_counts import WHOLE_OR_NOT
from tests.server.world import World, serve

WORDS = tuple(map(ord, "sbs1"))
"""The first letters of `served by step 1`."""


@pytest.fixture
async def world(tmp_path: Path) -> Any:
    async with serve(tmp_path, sets=["compare.replay=8"]) as world:
        world.engine.tells_ids = True
        yield world


async def ask(world: World, path: str, headers: dict[str, str], **more: Any) -> None:
    async with world.client() as client:
        answer = await client.post(path, json=ALL[path] | more, headers=headers)
        assert answer.status_code == 200
    await world.until(lambda: bool(world.metrics.finished))


def kept_requests(world: World) -> list[tuple[int, ...]]:
    return [each.answer for each in world.listener(RequestRecorder).take_recorded()]


@EACH_ROUTE
@WHOLE_OR_NOT
async def test_each_route_is_heard(world: World, path: str, stream: bool) -> None:
    await ask(world, path, {}, stream=stream)
    assert kept_requests(world) == [WORDS]


@EACH_ROUTE
@WHOLE_OR_NOT
@pytest.mark.parametrize("value", ["1", "0", ""])
async def test_who_forbids_it_is_not(world: World, path: str, stream: bool, value: str) -> None:
    await ask(world, path, {"X-Hotreload-No-Replay": value}, stream=stream)
    assert kept_requests(world) == []


@WHOLE_OR_NOT
async def test_each_prompt_is_heard_with_its_first_answer(world: World, stream: bool) -> None:
    more = {"text": ["a", "b"], "sampling_params": {"n": 3}}
    await ask(world, "/generate", {}, stream=stream, **more)
    prompts = sorted(each.prompt for each in world.listener(RequestRecorder).take_recorded())
    assert prompts == [(ord("a"),), (ord("b"),)]


async def test_nothing_is_heard_where_nobody_listens(tmp_path: Path) -> None:
    async with serve(tmp_path) as world:
        world.engine.tells_ids = True
        await ask(world, "/generate", {})
        assert kept_requests(world) == []
