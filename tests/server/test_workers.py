"""What the engine's process and a worker send each other: messages, errors, pieces, connections."""

import asyncio
import errno
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import httpx
import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tests.server.world
from hotreload.errors import (
    AnswerNonfinite,
    BadRequest,
    EngineLost,
    GenerationGone,
    HotReloadError,
    NotNewEnough,
    NotServing,
)
from hotreload.server.http.limits import CounterMemory
from hotreload.server.http.problems import Refused, problem_of
from hotreload.server.model import EncodedBy, EncoderMismatch, ModelRequest
from hotreload.server.model_routes import is_model_request
from hotreload.server.workers.handover import LARGEST_INLINE, HandoverChannel
from hotreload.server.workers.messages import (
    VALUE,
    Message,
    MessageKind,
    Wire,
    error_fields,
    error_from,
)
from hotreload.server.workers.remote_model import (
    MOST_UNREAD,
    EngineProcessFault,
    _PendingAnswer,
    apply_step,
    step_between,
)
from hotreload.server_limits import Limits
from tests.server.world import FIRST, SECOND, World, answer_on, serve
from tests.waiting import PATIENCE, turn_until

ASK = {"text": "hi"}
LARGE = "word " * 200_000
"""Does not go into a socket's buffers."""


@pytest.fixture(autouse=True)
def by_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tests.server.world, "BY_A_WORKER", True)


# --- pieces ---------------------------------------------------------------------------------------

PLAIN = st.none() | st.booleans() | st.integers() | st.text(max_size=4)
WITHIN = PLAIN | st.dictionaries(st.sampled_from("abc"), PLAIN, max_size=3)
VALUES = PLAIN | st.dictionaries(st.sampled_from("abc"), WITHIN, max_size=3)
"""Two dictionaries deep: a strategy that recurs fails where what it drew happens not to."""
PIECES = st.lists(
    st.fixed_dictionaries(
        {
            "text": st.text(max_size=4),
            "output_ids": st.lists(st.integers(0, 3), max_size=3),
            "meta_info": st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3),
        }
    ),
    max_size=6,
)


def grown(pieces: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Pieces as an engine makes them: texts and lists grow; of what is told of them all changes."""
    text, ids, made = "", list[int](), []
    for piece in pieces:
        text, ids = text + piece["text"], ids + piece["output_ids"]
        made.append({**piece, "text": text, "output_ids": ids})
    return made


@given(PIECES)
def test_the_steps_of_an_answer_make_each_piece_of_it(pieces: list[dict[str, Any]]) -> None:
    before, last = dict[str, Any](), dict[str, Any]()
    for piece in grown(pieces):
        step = step_between(before, piece)
        before, last = piece, piece if step is None else apply_step(last, step)
        assert last == piece


def test_a_text_that_was_cut_at_a_stop_is_told_as_it_is() -> None:
    step = step_between({"text": "one two th"}, {"text": "one two"})
    assert step is not None
    assert apply_step({"text": "one two th"}, step) == {"text": "one two"}


def test_a_step_is_as_long_as_what_is_new() -> None:
    before = {"text": "word " * 1000, "output_ids": [7] * 1000, "meta_info": {"n": 1}}
    now = {"text": "word " * 1001, "output_ids": [7] * 1001, "meta_info": {"n": 2}}
    step = step_between(before, now)
    assert step == [{}, {"text": "word ", "output_ids": [7]}, {"meta_info": [{"n": 2}, {}, {}]}]


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        BadRequest("no", code="bad_field", findings=["no"], param="text"),
        NotServing("later", code="booting", retry_after=2),
        NotNewEnough("not yet"),
        GenerationGone("gone"),
        EngineLost("dead"),
        AnswerNonfinite("NaN"),
        Refused(504, "timed_out", "slow", headers={"Retry-After": "1"}, param="n"),
        HotReloadError("else", code="else"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_is_told_to_clients_as_where_it_was_raised(error: HotReloadError) -> None:
    told = error_from(error_fields(error))
    assert isinstance(told, HotReloadError)
    for path in ("/generate", "/v1/completions"):
        here, there = problem_of(error, path), problem_of(told, path)
        assert (here.status_code, here.body) == (there.status_code, there.body)
        assert here.headers == there.headers


# --- messages -------------------------------------------------------------------------------------


def _it(wire: Wire) -> Wire:
    return wire


@asynccontextmanager
async def connect_wires() -> AsyncIterator[tuple[Wire, Wire, list[Message], asyncio.Event]]:
    """Two ends, what the second hears, and the loss of the first."""
    heard: list[Message] = []
    gone = asyncio.Event()
    first, second = Wire(heard.append, gone.set), Wire(heard.append, lambda: None)
    loop = asyncio.get_running_loop()
    for end, wire in zip(socket.socketpair(), (first, second), strict=True):
        await loop.connect_accepted_socket(partial(_it, wire), end)
    try:
        yield first, second, heard, gone
    finally:
        first.close()
        second.close()


@pytest.mark.parametrize("value", [2**80, -(2**70), "\ud800 half", {"a": [1, None, 1.5]}, b"x"])
async def test_whatever_json_can_say_comes_over(value: Any) -> None:
    async with connect_wires() as (first, _, heard, _):
        first.send("word", value)
        await turn_until(lambda: bool(heard))
        assert heard == [["word", value]]


async def test_what_is_told_in_one_turn_is_written_at_once() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    wire = Wire(lambda message: None, lambda: None)
    await asyncio.get_running_loop().connect_accepted_socket(lambda: wire, ours)
    with theirs:
        for number in range(100):
            wire.send("word", number)
        theirs.setblocking(False)
        read = await asyncio.get_running_loop().sock_recv(theirs, 2**16)
        assert read == b"".join(msgpack.packb(["word", n]) for n in range(100))
        wire.close()


async def test_the_end_of_the_other_side_is_heard_and_nothing_is_told_to_it() -> None:
    async with connect_wires() as (first, second, _, gone):
        second.close()
        await asyncio.wait_for(gone.wait(), PATIENCE)
        first.send("word")
        assert first.is_over


@pytest.mark.parametrize(
    "ask",
    [
        b"\x80\x05cposix\nsystem\n(X\x04\x00\x00\x00trueR.",
        {},
        ModelRequest({}, 9.0, encoded=cast(Any, 5)),
        msgpack.ExtType(VALUE, msgpack.packb(["SystemExit", {}])),
        msgpack.ExtType(VALUE, msgpack.packb(["ModelRequest", {"__class__": "int"}])),
        msgpack.ExtType(VALUE, b"no value"),
        msgpack.ExtType(77, b""),
        ModelRequest({"input_ids": [1]}, 9.0, encoded=EncodedBy(cast(Any, None), None)),
    ],
)
async def test_nonsense_costs_who_tells_it_an_answer_and_nobody_else_anything(
    tmp_path: Path, ask: Any
) -> None:
    async with serve(tmp_path) as world, world.client() as client:
        assert world.worker is not None
        worker: Any = world.worker._worker
        heard = worker._model._pending[7] = _PendingAnswer(None)
        worker._wire.send(MessageKind.ASK, 7, ask)
        await turn_until(lambda: heard.is_over)
        with pytest.raises((EngineProcessFault, EncoderMismatch)):
            await heard.wait_for_start()
        del worker._model._pending[7]
        assert world.engine.requests == []
        assert (await client.post("/generate", json=ASK)).status_code == 200


# --- connections ----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 100, LARGEST_INLINE, LARGEST_INLINE + 1, 2**20])
async def test_a_connection_goes_with_all_that_was_read_of_it(size: int) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client, server = socket.socketpair()
    taken: asyncio.Future[tuple[socket.socket, bytes]] = asyncio.get_running_loop().create_future()
    giving = HandoverChannel(ours, lambda connection, data: None)
    taking = HandoverChannel(theirs, lambda connection, data: taken.set_result((connection, data)))
    try:
        assert giving.hand_over(server.fileno(), b"x" * size)
        server.close()
        connection, data = await asyncio.wait_for(taken, PATIENCE)
        with connection, client:
            assert data == b"x" * size
            connection.sendall(b"hello")
            assert client.recv(5) == b"hello"
    finally:
        giving.close()
        taking.close()


async def test_what_wants_a_descriptor_that_is_not_there_goes_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client, server = socket.socketpair()
    taken: asyncio.Future[tuple[socket.socket, bytes]] = asyncio.get_running_loop().create_future()
    giving = HandoverChannel(ours, lambda connection, data: None)
    taking = HandoverChannel(theirs, lambda connection, data: taken.set_result((connection, data)))
    tries: list[str] = []

    def no_file(name: str) -> int:
        tries.append(name)
        raise OSError(errno.EMFILE, "Too many open files")

    try:
        with client, server, monkeypatch.context() as patched:
            patched.setattr(os, "memfd_create", no_file)
            giving.queue_handover(server.fileno(), b"x" * 2**17)
            for _ in range(100):  # it turns no processor meanwhile
                await asyncio.sleep(0)
            assert len(tries) < 5
        connection, data = await asyncio.wait_for(taken, PATIENCE)
        connection.close()
        assert data == b"x" * 2**17
    finally:
        giving.close()
        taking.close()


async def test_one_that_there_is_no_descriptor_for_is_told_and_counts_as_gone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    receive, taken, lost = socket.recv_fds, list[bytes](), asyncio.Event()

    def cut(*asked: Any) -> Any:
        """What the kernel gives where there is a descriptor for the first of two alone."""
        message, (first, second), flags, address = receive(*asked)
        os.close(second)
        return message, [first], flags | socket.MSG_CTRUNC, address

    monkeypatch.setattr(socket, "recv_fds", cut)
    client, server = socket.socketpair()
    giving = HandoverChannel(ours, lambda connection, data: None)
    taking = HandoverChannel(theirs, lambda connection, data: taken.append(data), lost.set)
    try:
        with client, server:
            assert giving.hand_over(server.fileno(), b"x" * 2**17)
            server.close()
            await asyncio.wait_for(lost.wait(), PATIENCE)
            assert client.recv(1) == b"", "its end is heard"
        assert taken == []
        assert "server.no_descriptor_left" in caplog.messages
    finally:
        giving.close()
        taking.close()


async def test_who_takes_none_keeps_none_from_being_answered() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    giving = HandoverChannel(ours, lambda connection, data: None)
    with theirs, socket.socket() as given:
        try:
            answers = [giving.hand_over(given.fileno(), b"x" * 1000) for _ in range(2000)]
            assert answers[0]
            assert not answers[-1]
        finally:
            giving.close()


@pytest.mark.parametrize(
    ("head", "is_so"),
    [
        (b"POST /generate HTTP/1.1\r\n", True),
        (b"\r\nPOST /generate HTTP/1.1\r\n", True),
        (b"POST /v1/chat/completions?x=1 HTTP/1.1\r\n", True),
        (b"POST / HTTP/1.1\r\n", True),
        (b"POST /gen", None),
        (b"", None),
        (b"POST /v1/completions", None),
        (b"POST /v1/completionsX", False),
        (b"GET /generate HTTP/1.1\r\n", False),
        (b"POST /generated HTTP/1.1\r\n", False),
        (b"POST /admin/rollback HTTP/1.1\r\n", False),
    ],
)
def test_the_first_line_says_whose_a_request_is(head: bytes, is_so: bool | None) -> None:
    assert is_model_request(head) is is_so


async def test_a_connection_goes_to_and_fro_by_what_is_asked_on_it(tmp_path: Path) -> None:
    async with serve(tmp_path) as world, world.client() as client:
        for _ in range(3):
            assert (await client.post("/generate", json=ASK)).status_code == 200
            assert (await client.get("/status")).json()["generation"] == 1
        assert world.worker is not None
        assert (world.worker.handed, world.worker.given_back) == (3, 3)
        assert len(world.connections) == 1


async def test_so_do_requests_that_were_sent_at_once(tmp_path: Path) -> None:
    async with serve(tmp_path) as world:
        reader, writer = await world.raw()
        world.send(writer, ASK)
        writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        world.send(writer, ASK)
        assert (await answer_on(reader))[2]["text"] == "served by step 1"
        assert (await answer_on(reader))[0] == 200
        assert (await answer_on(reader))[2]["text"] == "served by step 1"


async def test_an_answer_is_written_whole_before_another_process_has_the_connection(
    tmp_path: Path,
) -> None:
    async with serve(tmp_path) as world:
        world.engine.words = [LARGE]
        reader, writer = await unread(world)
        assert (await answer_on(reader))[2]["text"] == LARGE
        assert (await answer_on(reader))[0] == 200
        assert world.worker is not None
        assert world.worker.given_back == 1
        world.send(writer, ASK)
        assert (await answer_on(reader))[2]["text"] == LARGE


async def test_who_reads_no_answer_keeps_no_connection_that_waits_to_go_elsewhere(
    tmp_path: Path,
) -> None:
    async with serve(tmp_path, limits=Limits(write_seconds=0.1)) as world:
        world.engine.words = [LARGE]
        await unread(world)
        await world.until(lambda: not world.connections)
        assert world.worker is not None
        assert world.worker.given_back == 0


async def unread(world: World) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A client that has asked a worker and then us, and has a large answer to read."""
    reader, writer = await world.raw()
    world.send(writer, ASK)
    writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
    await world.until(lambda: ("/generate", 200) in world.metrics.finished)
    return reader, writer


async def test_a_line_that_comes_in_drops_goes_whole(tmp_path: Path) -> None:
    async with serve(tmp_path) as world:
        reader, writer = await world.raw()
        for byte in b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 13\r\n\r\n":
            writer.write(bytes([byte]))
            await asyncio.sleep(0)
        writer.write(b'{"text":"hi"}')
        assert (await answer_on(reader))[2]["text"] == "served by step 1"
        assert world.worker is not None
        assert world.worker.handed == 1


async def test_a_worker_names_who_is_live_also_where_nobody_answered(tmp_path: Path) -> None:
    async with serve(tmp_path) as world, world.client() as client:
        bad = {"text": "hi", "nope": 1}
        seen = [(await client.post("/generate", json=bad)).headers["x-hotreload-generation"]]
        world.go_live(SECOND)
        await world.settle()
        seen += [(await client.post("/generate", json=bad)).headers["x-hotreload-generation"]]
        assert seen == [str(FIRST.number), str(SECOND.number)]


# --- what all share -------------------------------------------------------------------------------


def test_each_process_sees_the_whole_of_a_number_and_what_an_ended_one_had_is_gone() -> None:
    memory = CounterMemory.create(3)
    first, second = memory.of(0), memory.of(1)
    first.running.add(2)
    second.running.add(3)
    assert (first.running.own, first.running.total, second.running.total) == (2, 5, 5)
    again = CounterMemory(os.dup(memory.descriptor), 3).of(2)
    assert again.running.total == 5
    second.reset_own()
    assert first.running.total == 2


async def test_requests_count_wherever_they_run(tmp_path: Path) -> None:
    async with serve(tmp_path, limits=Limits(concurrent=1)) as world, world.client() as client:
        world.engine.may_answer.clear()
        running = asyncio.create_task(client.post("/generate", json=ASK))
        await world.until(lambda: world.engine.running == 1)
        assert world.app.state.model is not None
        assert world.worker is not None
        assert world.worker.counts.running.total == 1
        refused = await client.post("/generate", json=ASK)
        assert (refused.status_code, refused.json()["code"]) == (503, "too_many_requests")
        world.engine.may_answer.set()
        assert (await running).status_code == 200


async def test_connections_count_wherever_they_are_and_idle_ones_make_room(tmp_path: Path) -> None:
    async with serve(tmp_path, limits=Limits(connections=2)) as world:
        idle = [await asked_once(world) for _ in range(2)]
        assert world.worker is not None
        assert world.worker.numbers.of(1).connections == 2
        reader, writer = await asked_once(world)  # the oldest that does nothing gives its place
        assert await idle[0][0].read() == b""
        world.engine.may_answer.clear()
        for one in (idle[1], (reader, writer)):
            world.send(one[1], ASK)
        await world.until(lambda: world.engine.running == 2)
        another, _ = await world.raw()
        assert (await answer_on(another))[2]["code"] == "too_many_connections"
        world.engine.may_answer.set()


async def asked_once(world: World) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await world.raw()
    world.send(writer, ASK)
    assert (await answer_on(reader))[0] == 200
    return reader, writer


# --- ends -----------------------------------------------------------------------------------------


async def test_where_the_engines_process_ends_who_waits_is_told(tmp_path: Path) -> None:
    async with serve(tmp_path) as world, world.client() as client:
        world.engine.may_answer.clear()
        running = asyncio.create_task(client.post("/generate", json=ASK))
        await world.until(lambda: world.engine.running == 1)
        assert world.worker is not None
        world.worker.lose()
        answer = await running
        assert (answer.status_code, answer.json()["code"]) == (503, "engine_lost")
        world.engine.may_answer.set()


async def test_a_slow_reader_misses_pieces_and_nothing_of_the_answer(tmp_path: Path) -> None:
    async with serve(tmp_path) as world:
        words = [f"word{number}" for number in range(5 * MOST_UNREAD)]
        world.engine.words = words
        transport = httpx.AsyncHTTPTransport(uds=str(world.path))
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            answer = await client.post("/generate", json={"text": "hi", "stream": True})
        events = [line for line in answer.text.split("\n\n") if line]
        assert len(events) < len(words)
        assert " ".join(words) in events[-2]
        assert events[-1] == "data: [DONE]"
