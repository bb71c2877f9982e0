"""The pieces of a stream on the wire: framed as the client's HTTP has it, and written at once."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import h11
import pytest

from hotreload.server.http.connections import PeerProtocol
from tests.server.world import World, serve
from tests.waiting import PATIENCE

BODY = b'{"text":"hi","stream":true}'
DONE = b"data: [DONE]\n\n"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with serve(tmp_path) as world:
        yield world


async def read_stream(world: World, version: bytes) -> tuple[bytes, bytes]:
    """The head and the rest of what such a client is sent until the end."""
    reader, writer = await world.raw()
    head = b"Host: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(BODY)
    writer.write(b"POST /generate HTTP/%b\r\n" % version + head + BODY)
    async with asyncio.timeout(PATIENCE):
        return (await reader.readuntil(b"\r\n\r\n")).lower(), await reader.read()


def events_in(body: bytes) -> list[str]:
    assert body.endswith(DONE)
    events = body.removesuffix(DONE).decode().split("\n\n")[:-1]
    return [json.loads(event.removeprefix("data: "))["text"] for event in events]


def pieces_of(body: bytes) -> list[bytes]:
    """Each piece of a body that says how long it is, to the one that is empty."""
    pieces: list[bytes] = []
    while True:
        size, _, body = body.partition(b"\r\n")
        piece, body = body[: int(size, 16)], body[int(size, 16) :]
        assert body.startswith(b"\r\n")
        body = body[2:]
        if not piece:
            assert not body
            return pieces
        pieces.append(piece)


async def test_each_event_is_a_piece_of_its_own(world: World) -> None:
    head, body = await read_stream(world, b"1.1")
    assert b"transfer-encoding: chunked" in head
    pieces = pieces_of(body)
    assert len(pieces) == len(world.engine.words) + 1
    assert events_in(b"".join(pieces))[-1] == "served by step 1"


async def test_who_knows_no_pieces_is_sent_bare_events(world: World) -> None:
    head, body = await read_stream(world, b"1.0")
    assert b"transfer-encoding" not in head
    assert events_in(body)[-1] == "served by step 1"


async def test_pieces_are_written_past_those_who_need_not_know(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    framed: list[object] = []
    send = h11.Connection.send

    def note_event(self: h11.Connection, event: h11.Event) -> bytes | None:
        framed.append(event)
        return send(self, event)

    monkeypatch.setattr(h11.Connection, "send", note_event)
    await read_stream(world, b"1.1")
    told_of = [bytes(event.data) for event in framed if isinstance(event, h11.Data) and event.data]
    assert told_of == [DONE]  # the last comes with the end


async def test_a_piece_that_must_wait_goes_the_way_that_has_a_deadline(world: World) -> None:
    world.engine.may_answer.clear()
    reader, writer = await world.raw()
    world.send(writer, {"text": "hi", "stream": True})
    await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)
    (connection,) = world.connections
    assert isinstance(connection, PeerProtocol)
    write = connection._app_of_connection.extensions["write_at_once"]
    assert write(b"data: 1\n\n")
    connection.flow.pause_writing()
    assert not write(b"data: 2\n\n")
    connection.flow.resume_writing()
    world.engine.may_answer.set()
