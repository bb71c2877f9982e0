"""POST /generate over a real socket and the real uvicorn."""

import asyncio
import contextlib
import json
import os
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

from hotreload.errors import BadRequest, EngineLost
from hotreload.server.http import connections
from hotreload.server_limits import Limits
from hotreload.types import Lease
from tests.server.world import FIRST, LEAVES, SECOND, World, answer_on, serve
from tests.waiting import PATIENCE

ASK = {"text": "hi", "sampling_params": {"max_new_tokens": 4}}
STREAM = ASK | {"stream": True}


def chunks(body: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in body.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


async def test_an_answer_names_the_generation_that_made_it(world: World) -> None:
    async with world.client() as client:
        answer = await client.post("/generate", json=ASK)
    meta = answer.json()["meta_info"]
    assert answer.json()["text"] == "served by step 1"
    assert (meta["generation"], meta["revision"], meta["fingerprint"]) == (1, "aaaa1111", "fp-1")
    assert meta["finish_reason"] == {"type": "stop"}
    assert answer.headers["x-hotreload-generation"] == "1"
    assert world.metrics.finished == [("/generate", 200)]
    assert world.metrics.counted == 4


async def test_the_engine_gets_the_request_as_it_was_sent(world: World) -> None:
    ask = {"input_ids": [[1, 2], [3]], "rid": ["a", "b"], "return_logprob": False}
    async with world.client() as client:
        assert (await client.post("/generate", json=ask)).status_code == 200
    assert world.engine.requests == [ask]


@pytest.mark.parametrize("ask", [ASK, STREAM])
async def test_the_engine_of_its_lease_answers_a_request_whichever_prepared_it(
    world: World, ask: dict[str, Any]
) -> None:
    other = world.another_engine("served by another")
    world.gate.hold()
    async with world.client() as client:
        asking = asyncio.create_task(client.post("/generate", json=ask))
        await world.until(lambda: world.gate.held == 1)
        world.gate.open(Lease(SECOND, other))
        answer = await asking
    assert "served by another" in answer.text
    assert answer.headers["x-hotreload-generation"] == "2"
    assert (world.engine.requests, other.requests) == ([], [ask])


async def test_a_request_is_the_first_engines_to_its_last_token_whoever_answers_others(
    world: World,
) -> None:
    other = world.another_engine("served by another")
    world.engine.may_answer.clear()
    async with world.client() as client:
        first = asyncio.create_task(client.post("/generate", json=STREAM))
        await world.until(lambda: world.engine.running == 1)
        world.gate.open(Lease(SECOND, other))
        second = await client.post("/generate", json=STREAM)
        world.engine.may_answer.set()
        told = chunks((await first).text)
    assert chunks(second.text)[-1]["text"] == "served by another"
    assert told[-1]["text"] == "served by step 1"
    assert {piece["meta_info"]["generation"] for piece in told} == {1}


async def test_checksums_are_those_of_the_engine_of_the_lease(world: World) -> None:
    other = world.another_engine("served by another")
    other.damage["lm_head"] = 5
    world.gate.open(Lease(SECOND, other))
    async with world.client() as client:
        told = (await client.get("/admin/weights_checksum?leaves=1")).json()
    assert (told["generation"], told["leaves"]) == (2, LEAVES | {"lm_head": 5})


async def test_every_answer_of_a_batch_is_stamped(world: World) -> None:
    async with world.client() as client:
        answer = await client.post("/generate", json={"text": ["a", "b", "c"]})
    assert [one["meta_info"]["generation"] for one in answer.json()] == [1, 1, 1]
    assert world.metrics.counted == 12


async def test_every_chunk_of_a_stream_is_stamped_and_done_ends_it(world: World) -> None:
    async with world.client() as client:
        answer = await client.post("/generate", json=STREAM)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-hotreload-generation"] == "1"
    seen = chunks(answer.text)
    assert [chunk["text"] for chunk in seen][-2:] == ["served by step", "served by step 1"]
    assert all(chunk["meta_info"]["fingerprint"] == "fp-1" for chunk in seen)
    assert (world.metrics.first_tokens, world.metrics.counts) == (1, [1, 1, 1, 1])


async def test_a_streamed_batch_keeps_its_indices(world: World) -> None:
    async with world.client() as client:
        answer = await client.post("/generate", json=STREAM | {"text": ["a", "b"]})
    assert {chunk["index"] for chunk in chunks(answer.text)} == {0, 1}
    assert world.metrics.counted == 8


async def test_a_number_that_json_has_not_becomes_null(world: World) -> None:
    world.engine.logprob = float("nan")
    async with world.client() as client:
        whole = await client.post("/generate", json=ASK)
        streamed = await client.post("/generate", json=STREAM)
    assert whole.json()["meta_info"]["logprob"] is None
    assert chunks(streamed.text)[0]["meta_info"]["logprob"] is None


async def test_a_client_that_leaves_a_stream_closes_the_generation(world: World) -> None:
    world.engine.may_answer.clear()
    async with world.client() as client, client.stream("POST", "/generate", json=STREAM) as answer:
        async for line in answer.aiter_lines():
            assert "served" in line
            break
        assert (world.engine.running, world.gate.inside) == (1, 1)
    await asyncio.wait_for(world.engine.went_on.wait(), PATIENCE)
    await world.until(lambda: bool(world.metrics.finished))
    assert (world.engine.running, world.gate.inside) == (0, 0)
    assert world.metrics.finished == [("/generate", 499)]


async def test_a_client_that_leaves_before_the_first_token_closes_the_generation(
    world: World,
) -> None:
    world.engine.may_answer.clear()
    _, writer = await world.ask_raw(ASK)
    await world.until(lambda: world.engine.running == 1)
    writer.close()
    await asyncio.wait_for(world.engine.went_on.wait(), PATIENCE)
    await world.until(lambda: bool(world.metrics.finished))
    assert world.gate.inside == 0
    assert world.metrics.finished == [("/generate", 499)]


async def test_a_client_that_leaves_while_held_frees_its_place(world: World) -> None:
    world.gate.hold()
    _, writer = await world.ask_raw(ASK)
    await world.until(lambda: world.gate.held == 1)
    writer.close()
    await world.until(lambda: world.gate.held == 0)
    await world.until(lambda: bool(world.metrics.finished))
    world.go_live(SECOND)
    assert world.engine.requests == []
    assert world.metrics.finished == [("/generate", 499)]


async def test_a_thousand_requests_are_held_and_answered_by_the_next_generation(
    world: World,
) -> None:
    world.gate.hold()
    connections = await asyncio.gather(*(world.ask_raw(ASK) for _ in range(1000)))
    await world.until(lambda: world.gate.held == 1000)
    world.go_live(SECOND)
    answers = await asyncio.gather(*(answer_on(reader) for reader, _ in connections))
    for _, writer in connections:
        writer.close()
    assert {status for status, _, _ in answers} == {200}
    assert {fields["meta_info"]["generation"] for _, _, fields in answers} == {2}
    assert {headers["x-hotreload-generation"] for _, headers, _ in answers} == {"2"}


async def test_more_than_may_be_held_are_told_when_to_come_back(world: World) -> None:
    world.gate.max_held = 1
    world.gate.hold()
    async with world.client() as client:
        first = asyncio.create_task(client.post("/generate", json=ASK))
        await world.until(lambda: world.gate.held == 1)
        second = await client.post("/generate", json=ASK)
        world.go_live(SECOND)
        assert (await first).status_code == 200
    assert second.status_code == 503
    assert second.headers["retry-after"] == "1"
    assert second.json()["code"] == "too_many_held"
    assert second.headers["x-hotreload-generation"] == "1"


async def test_a_stream_that_began_before_a_swap_keeps_its_generation(world: World) -> None:
    world.engine.may_answer.clear()
    async with world.client() as client, client.stream("POST", "/generate", json=STREAM) as answer:
        lines = answer.aiter_lines()
        assert '"generation":1' in await anext(lines)
        drained = asyncio.create_task(world.gate.wait_until_empty(5))
        world.gate.hold()
        await asyncio.sleep(0)
        assert not drained.done()
        world.engine.may_answer.set()
        rest = [line async for line in lines if line]
        await drained
    assert rest[-1] == "data: [DONE]"
    assert all('"generation":1' in line for line in rest[:-1])


@pytest.mark.parametrize("ask", [ASK, STREAM])
async def test_what_the_engine_refuses_is_a_400_with_its_words(
    world: World, ask: dict[str, Any]
) -> None:
    world.engine.steps.faults["generate"] = BadRequest(
        "token 999 is outside the vocabulary", code="bad_token"
    )
    async with world.client() as client:
        answer = await client.post("/generate", json=ask)
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == "bad_token"
    assert answer.json()["reasons"] == ["token 999 is outside the vocabulary"]


async def test_a_lost_engine_is_a_503(world: World) -> None:
    world.engine.steps.faults["generate"] = EngineLost("the scheduler thread died")
    async with world.client() as client:
        answer = await client.post("/generate", json=ASK)
    assert (answer.status_code, answer.json()["code"]) == (503, "engine_lost")


async def test_an_engine_lost_in_mid_stream_says_so_in_the_stream(world: World) -> None:
    world.engine.breaks_after = (2, EngineLost("the scheduler thread died"))
    async with world.client() as client:
        answer = await client.post("/generate", json=STREAM)
    assert [chunk.get("text") for chunk in chunks(answer.text)] == ["served", "served by", None]
    assert chunks(answer.text)[-1]["error"]["code"] == "engine_lost"


async def test_a_fault_of_ours_is_a_500_without_a_traceback(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.engine.steps.faults["generate"] = KeyError("secret_name")
    async with world.client() as client:
        answer = await client.post("/generate", json=ASK)
    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    assert "secret_name" not in answer.text
    assert {record.message for record in caplog.records} == {"request.failed"}
    assert caplog.records[0].exc_info is not None


async def test_a_stream_that_breaks_through_a_fault_of_ours_is_cut_off(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.engine.breaks_after = (1, KeyError("oops"))
    async with world.client() as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.post("/generate", json=STREAM)
    assert world.gate.inside == 0
    assert {record.message for record in caplog.records} == {"request.failed"}


async def test_a_stream_that_nobody_reads_does_not_hold_up_a_swap(tmp_path: Path) -> None:
    async with serve(tmp_path, limits=Limits(write_seconds=0.2)) as world:
        world.engine.words = ["x" * 200_000] * 20
        reader, writer = await world.ask_raw(STREAM)
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        await world.until(lambda: world.gate.inside == 1)
        await world.gate.wait_until_empty(5)
        writer.close()
    assert (world.engine.running, world.engine.inside_when_closed) == (0, [1])


LARGE = "x" * 1_000_000
"""More than the socket takes of an answer that nobody reads."""


async def test_answers_that_nobody_reads_keep_no_place_and_no_connection(tmp_path: Path) -> None:
    before = len(sockets_open())
    async with serve(tmp_path, limits=Limits(concurrent=1, write_seconds=1)) as world:
        world.engine.words = [LARGE]
        reader, writer = await world.ask_raw(ASK)
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        await world.until(lambda: bool(world.metrics.finished))
        world.send(writer, ASK)  # before the first answer is read: its own waits for that
        await world.until(lambda: len(world.engine.requests) == 2)
        async with world.client() as client:
            refused = await client.post("/generate", json=ASK)
            await world.until(lambda: ("/generate", 499) in world.metrics.finished)
            world.engine.words = ["served"]
            answer = await client.post("/generate", json=ASK)
        assert (refused.status_code, refused.json()["code"]) == (503, "too_many_requests")
        assert answer.status_code == 200
        await world.until(lambda: not world.connections)
        assert len(sockets_open()) == before + 2, "ours, and the one that listens"


@pytest.mark.parametrize("head", [b"", b"Connection: close\r\n"])
async def test_an_answer_that_nobody_reads_keeps_no_connection_when_all_of_it_is_written(
    tmp_path: Path, head: bytes
) -> None:
    before = len(sockets_open())
    async with serve(tmp_path, limits=Limits(write_seconds=0.1)) as world:
        world.engine.words = [LARGE]
        reader, writer = await world.raw()
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        world.send(writer, ASK, head)
        await world.until(lambda: bool(world.metrics.finished))
        assert len(sockets_open()) == before + 3
        await world.until(lambda: len(sockets_open()) == before + 2)
    assert world.metrics.finished == [("/generate", 200)]


async def test_an_answer_that_is_read_slowly_is_sent_whole(tmp_path: Path) -> None:
    loop, got = asyncio.get_running_loop(), 0
    async with serve(tmp_path, limits=Limits(write_seconds=0.5)) as world:
        world.engine.words = [LARGE * 6]
        reader, writer = await world.raw()
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        world.send(writer, ASK)
        with socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno())) as ours:
            ours.setblocking(False)
            while got <= len(LARGE) * 4:  # and the JSON round it
                await asyncio.sleep(0.02)  # thrice as long for all of it as for nothing
                piece = await loop.sock_recv(ours, 80_000)
                assert piece, f"cut off after {got} bytes"
                got += len(piece)


async def test_an_answer_that_is_read_drop_by_drop_is_cut_off_at_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MOST_READ_CHECKS", 4)
    loop, got = asyncio.get_running_loop(), 0
    async with serve(tmp_path, limits=Limits(write_seconds=0.2)) as world:
        world.engine.words = [LARGE * 40]
        reader, writer = await world.raw()
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        world.send(writer, ASK)
        with socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno())) as ours:
            ours.setblocking(False)
            with contextlib.suppress(ConnectionError):
                while piece := await loop.sock_recv(ours, 80_000):
                    got += len(piece)
                    await asyncio.sleep(0.01)  # five seconds for all of it
    assert len(LARGE) < got < len(LARGE) * 40


def sockets_open() -> list[str]:
    """The sockets of this process, those of the loop itself included."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed since it was listed
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                found.append(name)
    return found


async def test_a_request_that_takes_too_long_ends(tmp_path: Path) -> None:
    async with serve(tmp_path, limits=Limits(request_seconds=0.05)) as world:
        world.engine.may_answer.clear()
        async with world.client() as client:
            whole = await client.post("/generate", json=ASK)
            streamed = await client.post("/generate", json=STREAM)
        assert (whole.status_code, whole.json()["code"]) == (504, "timed_out")
        assert chunks(streamed.text)[-1]["error"]["code"] == "timed_out"
        await world.until(lambda: (world.engine.running, world.gate.inside) == (0, 0))


async def test_more_requests_than_allowed_at_a_time_are_refused(tmp_path: Path) -> None:
    async with serve(tmp_path, limits=Limits(concurrent=1)) as world:
        world.engine.may_answer.clear()
        async with world.client() as client:
            first = asyncio.create_task(client.post("/generate", json=ASK))
            await world.until(lambda: world.engine.running == 1)
            second = await client.post("/generate", json=ASK)
            status = await client.get("/status")
            world.engine.may_answer.set()
            assert (await first).status_code == 200
            assert (await client.post("/generate", json=ASK)).status_code == 200
    assert (second.status_code, second.json()["code"]) == (503, "too_many_requests")
    assert second.headers["retry-after"] == "1"
    assert status.status_code == 200


async def test_while_booting_requests_are_told_so(tmp_path: Path) -> None:
    async with serve(tmp_path, booted=False) as world, world.client() as client:
        answer = await client.post("/generate", json=ASK)
        checksums = await client.get("/admin/weights_checksum")
    for each in (answer, checksums):
        assert (each.status_code, each.json()["code"]) == (503, "booting")
        assert int(each.headers["retry-after"]) >= 1
        assert "x-hotreload-generation" not in each.headers


async def test_a_gate_that_lets_nobody_in_is_told_before_the_engine_looks_at_a_request(
    world: World,
) -> None:
    world.engine.steps.faults["prepare"] = BadRequest("this would be another answer")
    world.gate.seal("hotreload is stopping", code="stopping")
    async with world.client() as client:
        answer = await client.post("/generate", json=ASK)
    assert (answer.status_code, answer.json()["code"]) == (503, "stopping")


async def test_a_request_that_cannot_be_served_is_refused_while_the_gate_holds(
    world: World,
) -> None:
    world.engine.steps.faults["prepare"] = BadRequest("no such token")
    world.gate.hold()
    async with world.client() as client:
        assert (await client.post("/generate", json=ASK)).status_code == 400


async def test_a_sealed_gate_lets_those_who_wait_go_with_a_503(world: World) -> None:
    world.gate.hold()
    async with world.client() as client:
        ask = asyncio.create_task(client.post("/generate", json=ASK))
        await world.until(lambda: world.gate.held == 1)
        world.gate.seal("the engine is lost", code="engine_lost")
        answer = await ask
    assert (answer.status_code, answer.json()["code"]) == (503, "engine_lost")
    assert world.engine.requests == []
    assert FIRST.number == int(answer.headers["x-hotreload-generation"])


async def test_one_deadline_holds_for_a_request_and_all_its_replays(tmp_path: Path) -> None:
    async with serve(tmp_path, limits=Limits(request_seconds=2.0), replay=True) as world:
        world.engine.end = {"type": "abort", "code": "swap"}  # each answer is ended for a swap
        loop = asyncio.get_running_loop()
        replayed = loop.create_future()
        may_answer = world.engine.may_answer
        may_answer.clear()

        def let_go_once() -> None:  # the replay hangs
            replayed.set_result(loop.time())
            may_answer.set()
            may_answer.clear()

        async with world.client() as client:
            asked = asyncio.create_task(client.post("/generate", json=ASK))
            await world.until(lambda: world.engine.running == 1)
            loop.call_later(1, let_go_once)
            answer = await asked
        assert (answer.status_code, answer.json()["code"]) == (504, "timed_out")
        assert len(world.engine.requests) == 2
        assert loop.time() - await replayed < 2.0, "the replay began a deadline of its own"
