"""What all bodies together may take: who comes over it is put off, and nobody else notices."""

import asyncio
import json
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hotreload.server.http.limits import FREE_BYTES
from hotreload.server_limits import Limits
from tests.server.world import FIRST, World, answer_on, serve
from tests.waiting import PATIENCE

MEGA = 2**20
LIMITS = Limits(body_bytes=2 * MEGA, bodies_bytes=4 * MEGA)
FULL = (503, "too_many_bytes")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with serve(tmp_path, limits=LIMITS) as world:
        yield world


async def begin(
    world: World, size: int = MEGA
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A request whose body has come but for its last byte."""
    reader, writer = await world.raw()
    length = FREE_BYTES + size
    head = b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % length
    writer.write(head + b'{"text": "hello"}'.ljust(length - 1))
    await asyncio.wait_for(writer.drain(), PATIENCE)
    return reader, writer


async def ask(world: World, size: int) -> tuple[int, str | None]:
    async with world.client() as client:
        body = b'{"text": "hello"}'.ljust(FREE_BYTES + size)
        answer = await client.post("/generate", content=body)
        if answer.status_code == 503:
            assert int(answer.headers["retry-after"]) > 0
            assert "[server.limits] bodies_bytes" in answer.json()["detail"]
        return answer.status_code, answer.json().get("code")


async def full(world: World) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """As many unfinished bodies as there may be."""
    all_of_them = [await begin(world) for _ in range(3)] + [await begin(world, MEGA - 1000)]
    await world.until(lambda: world.app.state.bodies.held_bytes > 4 * MEGA - 1100)
    return all_of_them


async def test_many_unfinished_bodies_take_no_more_than_is_allowed(world: World) -> None:
    tracemalloc.start()
    connections = [await begin(world) for _ in range(40)]
    answers = [asyncio.create_task(answer_on(reader)) for reader, _ in connections]
    await world.until(lambda: sum(each.done() for each in answers) >= 36)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    refused = [each.result() for each in answers if each.done()]
    assert {(status, fields["code"]) for status, _, fields in refused} == {FULL}
    assert peak < 24 * MEGA  # of 40 that were begun, and of what we have not sent yet ourselves
    for (_, writer), answer in zip(connections, answers, strict=True):
        if not answer.done():
            writer.write(b" ")
            assert (await answer)[0] == 200
    assert world.app.state.bodies.held_bytes == 0


async def test_small_bodies_pass_while_large_ones_take_all_there_is(world: World) -> None:
    connections = await full(world)
    assert await ask(world, MEGA) == FULL
    assert await ask(world, 0) == (200, None)
    connections[0][1].close()
    await world.until(lambda: world.app.state.bodies.held_bytes < 3 * MEGA)
    assert await ask(world, MEGA) == (200, None)


async def test_a_body_that_dawdles_gives_back_what_it_took(tmp_path: Path) -> None:
    limits = Limits(body_bytes=2 * MEGA, bodies_bytes=2 * MEGA, arrival_seconds=0.5)
    async with serve(tmp_path, limits=limits) as world:
        reader, _ = await begin(world, 2 * MEGA - FREE_BYTES)
        assert (await answer_on(reader))[0] == 408
        assert world.app.state.bodies.held_bytes == 0


async def test_a_request_that_waits_at_the_gate_keeps_its_share(world: World) -> None:
    world.gate.hold()
    held = [asyncio.create_task(ask(world, MEGA - 1000)) for _ in range(4)]
    await world.until(lambda: world.gate.held == 4)
    assert await ask(world, MEGA) == FULL
    world.go_live(FIRST)
    assert await asyncio.gather(*held) == [(200, None)] * 4
    assert await ask(world, MEGA) == (200, None)


async def test_one_body_always_fits(tmp_path: Path) -> None:
    limits = Limits(body_bytes=2 * MEGA, bodies_bytes=1)
    async with serve(tmp_path, limits=limits) as world:
        assert await ask(world, 2 * MEGA - FREE_BYTES) == (200, None)


async def test_what_is_made_of_a_body_counts_too(world: World) -> None:
    """A list of numbers takes many times what it took in the body, as long as it waits."""
    numbers = {"input_ids": [1000 + number % 1000 for number in range(35_000)]}
    world.gate.hold()
    async with world.client() as client:
        held = [asyncio.create_task(client.post("/generate", json=numbers)) for _ in range(2)]
        await world.until(lambda: world.gate.held == 2)
        tracemalloc.start()
        kept = json.loads(json.dumps(numbers))
        size, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert kept
        assert world.app.state.bodies.held_bytes > 2 * size - 2 * FREE_BYTES > 8 * FREE_BYTES
        held.append(asyncio.create_task(client.post("/generate", json=numbers)))
        assert (await held.pop()).status_code == 503
        world.go_live(FIRST)
        assert {answer.status_code for answer in await asyncio.gather(*held)} == {200}
