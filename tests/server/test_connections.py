"""How many connections there may be, and that nobody over TCP takes the places of the socket."""

import asyncio
import resource
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hotreload.server_limits import Limits
from tests.server.world import World, answer_on, serve
from tests.waiting import PATIENCE

LIVEZ = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with serve(tmp_path, limits=Limits(connections=3), tcp=True) as world:
        yield world


async def over_tcp(world: World) -> Stream:
    stream = await asyncio.open_connection("127.0.0.1", world.tcp_port)
    world._writers.append(stream[1])
    return stream


async def is_alive(stream: Stream) -> bool:
    stream[1].write(LIVEZ)
    return (await answer_on(stream[0]))[0] == 200


async def busy(world: World) -> Stream:
    """A connection on which a request is under way."""
    stream = await over_tcp(world)
    world.send(stream[1], {"text": "hi"})
    return stream


async def test_a_newcomer_takes_the_place_of_who_does_nothing_the_oldest_first(
    world: World,
) -> None:
    idle = [await over_tcp(world) for _ in range(3)]
    assert [await is_alive(each) for each in idle] == [True] * 3
    idle[0][1].write(LIVEZ[:5])  # what never becomes a request is nothing
    newcomers = [await over_tcp(world) for _ in range(2)]
    assert [await is_alive(each) for each in [*newcomers, idle[2]]] == [True] * 3
    assert [await asyncio.wait_for(reader.read(), PATIENCE) for reader, _ in idle[:2]] == [b"", b""]
    assert len(world.connections) == 3


async def test_who_is_served_keeps_his_place_and_the_newcomer_is_told(world: World) -> None:
    world.engine.may_answer.clear()
    served = [await busy(world) for _ in range(3)]
    await world.until(lambda: world.engine.running == 3)
    reader, _ = await over_tcp(world)
    status, headers, fields = await answer_on(reader)
    assert (status, fields["code"]) == (503, "too_many_connections")
    assert (headers["connection"], int(headers["retry-after"]) > 0) == ("close", True)
    on_socket = [await world.raw() for _ in range(3)]
    assert [await is_alive(each) for each in on_socket] == [True] * 3
    world.engine.may_answer.set()
    assert [(await answer_on(reader))[0] for reader, _ in served] == [200] * 3
    assert await is_alive(await over_tcp(world))


async def test_connections_leave_descriptors_for_everything_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (8, 8))
    async with serve(tmp_path) as world:
        streams = [await world.raw() for _ in range(3)]
        assert [await is_alive(each) for each in streams[1:]] == [True] * 2
        assert await asyncio.wait_for(streams[0][0].read(), PATIENCE) == b""
