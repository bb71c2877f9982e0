"""What a drain ended before its client saw any of it runs again, on the new weights."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from hotreload.server.model import REPLAYS
from tests.server.world import SECOND, World, serve

MESSAGES = [{"role": "user", "content": "hello"}]
ASKS: dict[str, tuple[str, dict[str, Any], int]] = {
    "one": ("/generate", {"text": "hi"}, 1),
    "a batch": ("/generate", {"text": ["a", "b"]}, 2),
    "completion": ("/v1/completions", {"prompt": "hi"}, 1),
    "completions": ("/v1/completions", {"prompt": ["a", "b"], "n": 2}, 4),
    "chat": ("/v1/chat/completions", {"messages": MESSAGES}, 1),
}
"""A path, a body, and how many answers it gets."""

STREAMS = pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])


async def send_request(
    world: World, path: str, body: dict[str, Any], is_stream: bool
) -> httpx.Response:
    async with world.client() as client:
        return await client.post(path, json=body | {"stream": is_stream})


def parts_of(answer: httpx.Response) -> list[Any]:
    """Everything an answer says: its parts if it is a stream."""
    if not answer.headers["content-type"].startswith("text/event-stream"):
        whole = answer.json()
        return whole if isinstance(whole, list) else [whole]
    *parts, end = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert end == "[DONE]"
    return [json.loads(part) for part in parts]


def generations(parts: list[Any]) -> set[int]:
    return {part.get("hotreload", part.get("meta_info"))["generation"] for part in parts}


@STREAMS
@pytest.mark.parametrize("ask", ASKS)
async def test_what_was_ended_before_it_said_anything_is_answered_by_the_next_generation(
    tmp_path: Path, ask: str, is_stream: bool
) -> None:
    path, body, answers = ASKS[ask]
    async with serve(tmp_path, replay=True) as world:
        world.engine.swaps_ahead = 1
        world.engine.swap = lambda: world.go_live(SECOND)
        answer = await send_request(world, path, body, is_stream)
    assert answer.status_code == 200
    assert answer.headers["x-hotreload-generation"] == "2"
    assert generations(parts_of(answer)) == {2}
    assert "abort" not in answer.text
    first, second = world.engine.requests
    assert first == second
    assert (world.metrics.counted, world.metrics.first_tokens) == (4 * answers, int(is_stream))
    assert world.gate.inside == world.engine.running == 0


@STREAMS
@pytest.mark.parametrize("ask", ASKS)
async def test_swaps_without_end_do_not_keep_a_request_for_ever(
    tmp_path: Path, ask: str, is_stream: bool
) -> None:
    path, body, _ = ASKS[ask]
    async with serve(tmp_path, replay=True) as world:
        world.engine.swaps_ahead = 100
        answer = await send_request(world, path, body, is_stream)
    assert answer.status_code == 200
    assert "ended early for a swap" in answer.text
    assert len(world.engine.requests) == REPLAYS + 1


async def test_a_stream_that_has_said_something_is_not_replayed(tmp_path: Path) -> None:
    async with serve(tmp_path, replay=True) as world:
        world.engine.end = {"type": "abort", "code": "swap"}
        parts = parts_of(await send_request(world, *ASKS["one"][:2], True))
    assert [part["text"] for part in parts][:2] == ["served", "served by"]
    assert parts[-1]["meta_info"]["finish_reason"]["code"] == "swap"
    assert len(world.engine.requests) == 1


@STREAMS
async def test_nothing_is_replayed_unless_the_operator_says_so(
    world: World, is_stream: bool
) -> None:
    world.engine.swaps_ahead = 1
    answer = await send_request(world, *ASKS["one"][:2], is_stream)
    assert "ended early for a swap" in answer.text
    assert len(world.engine.requests) == 1
