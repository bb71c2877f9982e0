"""Clients that send no more and still read, as `nc -N` and socat do; and those that are gone."""

import asyncio
import errno
import select
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hotreload.events import StopRequested
from hotreload.server.http.connections import PeerProtocol
from tests.server.world import World, answer_on, serve
from tests.waiting import PATIENCE

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]
LIVEZ = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
GO_ON = b"HTTP/1.1 100 Continue\r\n\r\n"
EACH_WAY = pytest.mark.parametrize("over_tcp", [False, True], ids=["unix", "tcp"])


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with serve(tmp_path, tcp=True) as world:
        yield world


async def connect(world: World, over_tcp: bool) -> Stream:
    if not over_tcp:
        return await world.raw()
    stream = await asyncio.open_connection("127.0.0.1", world.tcp_port)
    world._writers.append(stream[1])
    return stream


async def accepted_connection(world: World) -> PeerProtocol:
    """The server's end of the one connection there is."""
    await world.until(lambda: len(world.connections) == 1)
    (connection,) = world.connections
    assert isinstance(connection, PeerProtocol)
    return connection


async def answer_in_the_end(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """The answer after what says that it is still to come, and that the connection ends then."""
    async with asyncio.timeout(PATIENCE):
        while (line := await reader.readline()).startswith(b"HTTP/1.1 100"):
            assert await reader.readline() == b"\r\n"
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        body = await reader.read()
    assert b"chunked" in head or b"content-length: %d\r\n" % len(body) in head
    return int(line.split()[1]), body


@EACH_WAY
async def test_who_half_closes_after_the_request_is_answered(world: World, over_tcp: bool) -> None:
    reader, writer = await connect(world, over_tcp)
    world.engine.may_answer.clear()
    world.send(writer, {"text": "hi"})
    writer.write_eof()
    await world.until(lambda: world.engine.running == 1)
    if over_tcp:  # nothing else can tell it from one that is gone
        assert await reader.readexactly(len(GO_ON)) == GO_ON
    world.engine.may_answer.set()
    status, body = await answer_in_the_end(reader)
    assert (status, b"served by step 1" in body) == (200, True)
    await world.until(lambda: world.metrics.finished == [("/generate", 200)])
    await world.until(lambda: not world.connections)


async def test_who_half_closes_where_no_descriptor_is_left_is_answered_all_the_same(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_more(size: int) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(select, "epoll", no_more)
    reader, writer = await world.raw()
    world.engine.may_answer.clear()
    world.send(writer, {"text": "hi"})
    writer.write_eof()
    await world.until(lambda: world.engine.running == 1)
    connection = await accepted_connection(world)
    await world.until(lambda: connection.is_half_closed)
    world.engine.may_answer.set()
    status, body = await answer_in_the_end(reader)
    assert (status, b"served by step 1" in body) == (200, True)
    await world.until(lambda: not world.connections)


@EACH_WAY
async def test_a_stream_goes_on_for_who_half_closes(world: World, over_tcp: bool) -> None:
    reader, writer = await connect(world, over_tcp)
    world.engine.may_answer.clear()
    world.send(writer, {"text": "hi", "stream": True})
    await world.until(lambda: world.engine.running == 1)
    writer.write_eof()
    world.engine.may_answer.set()
    status, body = await answer_in_the_end(reader)
    assert (status, b"data: [DONE]" in body) == (200, True)
    assert world.metrics.finished == [("/generate", 200)]


@EACH_WAY
async def test_all_that_was_sent_whole_before_is_answered_and_no_more(
    world: World, over_tcp: bool
) -> None:
    reader, writer = await connect(world, over_tcp)
    writer.write(LIVEZ * 2 + LIVEZ[:10])
    writer.write_eof()
    assert [(await answer_on(reader))[0] for _ in range(2)] == [200, 200]
    assert await asyncio.wait_for(reader.read(), PATIENCE) == b""


@EACH_WAY
@pytest.mark.parametrize("sent", [b"", LIVEZ[:10], b"POST /generate HTTP/1.1\r\nHost: x\r\n"])
async def test_who_sent_no_whole_request_is_not_waited_for(
    world: World, over_tcp: bool, sent: bytes
) -> None:
    reader, writer = await connect(world, over_tcp)
    writer.write(sent + b"Content-Length: 9\r\n\r\n{" if sent.startswith(b"POST") else sent)
    writer.write_eof()
    assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
    await world.until(lambda: not world.connections)


@EACH_WAY
async def test_who_is_gone_is_noticed_while_its_stream_waits_for_the_next_piece(
    world: World, over_tcp: bool
) -> None:
    reader, writer = await connect(world, over_tcp)
    world.engine.may_answer.clear()
    world.send(writer, {"text": "hi", "stream": True})
    await asyncio.wait_for(reader.readuntil(b"data: "), PATIENCE)
    writer.close()
    await world.until(lambda: world.metrics.finished == [("/generate", 499)])
    await world.until(lambda: world.engine.running == 0)
    assert not world.connections


@EACH_WAY
async def test_a_stream_that_waits_goes_on_for_who_half_closes_in_its_middle(
    world: World, over_tcp: bool
) -> None:
    reader, writer = await connect(world, over_tcp)
    world.engine.may_answer.clear()
    world.send(writer, {"text": "hi", "stream": True})
    await asyncio.wait_for(reader.readuntil(b"data: "), PATIENCE)
    writer.write_eof()
    if over_tcp:  # a comment, which every client of such streams passes over
        await asyncio.wait_for(reader.readuntil(b"\n: "), PATIENCE)
    world.engine.may_answer.set()
    assert b"data: [DONE]" in await asyncio.wait_for(reader.read(), PATIENCE)
    assert world.metrics.finished == [("/generate", 200)]


@EACH_WAY
@pytest.mark.parametrize("stream", [False, True])
async def test_who_is_gone_is_noticed_before_the_answer_and_its_generation_ends(
    world: World, over_tcp: bool, stream: bool
) -> None:
    _, writer = await connect(world, over_tcp)
    world.engine.may_answer.clear()
    world.send(writer, {"text": "hi", "stream": stream})
    await world.until(lambda: world.engine.running == 1)
    writer.close()
    await world.until(lambda: world.metrics.finished == [("/generate", 499)])
    await world.until(lambda: world.engine.running == 0)
    assert not world.connections


async def test_who_half_closes_and_goes_then_is_noticed_on_the_socket(world: World) -> None:
    _, writer = await connect(world, over_tcp=False)
    world.engine.may_answer.clear()
    world.send(writer, {"text": "hi"})
    await world.until(lambda: world.engine.running == 1)
    writer.write_eof()
    connection = await accepted_connection(world)
    await world.until(lambda: connection.is_half_closed)
    assert world.engine.running == 1
    writer.close()
    await world.until(lambda: world.metrics.finished == [("/generate", 499)])


async def test_a_client_of_http_1_0_is_sent_nothing_but_its_answer(world: World) -> None:
    reader, writer = await connect(world, over_tcp=True)
    world.engine.may_answer.clear()
    writer.write(b'POST /generate HTTP/1.0\r\nContent-Length: 13\r\n\r\n{"text":"hi"}')
    writer.write_eof()
    await world.until(lambda: world.engine.running == 1)
    connection = await accepted_connection(world)
    await world.until(lambda: connection.is_half_closed)
    world.engine.may_answer.set()
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")


async def test_who_is_gone_over_tcp_is_noticed_by_the_next_piece_of_a_stream(world: World) -> None:
    reader, writer = await connect(world, over_tcp=True)
    writer.write(b"GET /events HTTP/1.1\r\nHost: x\r\n\r\n")
    await asyncio.wait_for(reader.readuntil(b": listening"), PATIENCE)
    connection = await accepted_connection(world)
    writer.close()
    await world.until(lambda: connection.is_half_closed)
    world.events.publish(StopRequested())
    await world.until(lambda: world.metrics.finished == [("/events", 499)])
