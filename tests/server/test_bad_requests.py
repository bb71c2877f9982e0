"""What clients send that they should not; none of it reaches the engine."""

import asyncio
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from hotreload.server_limits import Limits
from tests.server.world import World, answer_on, serve
from tests.waiting import PATIENCE

PROBLEM = "application/problem+json"


async def send(world: World, sent: bytes) -> tuple[int, dict[str, str], Any]:
    """Send bytes on a bare connection and read the answer."""
    reader, writer = await world.raw()
    writer.write(sent)
    answer = await answer_on(reader)
    writer.close()
    return answer


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        (b"", "bad_json", "not JSON"),
        (b"{", "bad_json", "not JSON"),
        (b"[1]", "bad_json", "must be a JSON object, not a list"),
        (b'{"text": "a", "top_logprobs_num": NaN}', "bad_json", "NaN is not JSON"),
        (b'{"text": "a", "top_logprobs_num": ' + b"9" * 5000 + b"}", "bad_json", "not JSON"),
        (b'{"text": "\xff"}', "bad_utf8", "byte 10"),
        (b'{"text": "\\ud800"}', "bad_utf8", "half a surrogate pair"),
        (b'{"text": ' + b"[" * 100_000, "too_deep", "32 levels"),
        (b'{"input_ids": ' + b"[" * 40 + b"]" * 40 + b"}", "too_deep", "32 levels"),
        (b'{"text": "a", "prompt": "b"}', "unknown_field", "'prompt'"),
        (b'{"text": 7}', "bad_field", "text must be a string or a list of them, not 7"),
        (b'{"text": ["a", 1]}', "bad_field", "list of them, and item 2 of the list is 1"),
        (b'{"input_ids": [[1], ["a"]]}', "bad_field", "and item 2 of the list is a list"),
        (b'{"text": "a", "stream": "yes"}', "bad_field", "stream must be true or false"),
        (b'{"text": "a", "sampling_params": 3}', "bad_field", "sampling_params must be an object"),
        (b'{"input_ids": [1, "a"]}', "bad_field", "input_ids must be a list of token ids"),
        (b'{"input_ids": [true]}', "bad_field", "input_ids must be a list of token ids"),
        (b"{}", "bad_field", "give text or input_ids"),
        (b'{"text": "a", "input_ids": [1]}', "bad_field", "give text or input_ids"),
    ],
)
async def test_a_body_that_makes_no_sense_is_a_400_that_says_why(
    world: World, body: bytes, code: str, words: str
) -> None:
    async with world.client() as client:
        answer = await client.post("/generate", content=body)
    assert (answer.status_code, answer.json()["code"]) == (400, code)
    assert words in answer.json()["detail"]
    assert answer.headers["content-type"] == PROBLEM
    assert answer.headers["x-hotreload-generation"] == "1"
    assert world.engine.requests == []


@pytest.mark.parametrize("route", ["/generate", "/v1/completions"])
async def test_a_page_of_another_site_cannot_ask_without_our_consent(
    world: World, route: str
) -> None:
    page = {"Origin": "https://elsewhere.example"}
    sent = b'{"text": "hi"}' if route == "/generate" else b'{"prompt": "hi"}'
    async with world.client() as client:
        for kind in ("text/plain", "application/x-www-form-urlencoded", None):
            headers = page if kind is None else {**page, "Content-Type": kind}
            answer = await client.post(route, content=sent, headers=headers)
            assert (answer.status_code, "bad_type" in answer.text) == (400, True)
        asked = await client.options(
            route, headers={**page, "Access-Control-Request-Headers": "content-type"}
        )
        assert not [name for name in asked.headers if name.startswith("access-control")]
        json = {**page, "Content-Type": "application/json; charset=utf-8"}
        assert (await client.post(route, content=sent, headers=json)).status_code == 200
    assert len(world.engine.requests) == 1


async def test_null_counts_as_left_out(world: World) -> None:
    async with world.client() as client:
        answer = await client.post("/generate", json={"text": "a", "input_ids": None, "rid": None})
    assert answer.status_code == 200
    assert world.engine.requests == [{"text": "a"}]


async def test_a_batch_over_the_limit_is_refused(tmp_path: Path) -> None:
    async with serve(tmp_path, limits=Limits(batch=2)) as world, world.client() as client:
        texts = await client.post("/generate", json={"text": ["a", "b", "c"]})
        ids = await client.post("/generate", json={"input_ids": [[1], [2], [3]]})
        one = await client.post("/generate", json={"input_ids": [1, 2, 3]})
    assert (texts.json()["code"], ids.json()["code"]) == ("batch_too_big", "batch_too_big")
    assert one.status_code == 200


async def test_a_body_that_says_it_is_too_big_is_not_read(world: World) -> None:
    sent = b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n"
    status, _, fields = await send(world, sent)
    assert (status, fields["code"]) == (413, "body_too_long")


async def test_a_body_that_turns_out_too_big_is_refused_and_not_kept(tmp_path: Path) -> None:
    async def endless(pieces: int) -> Any:
        piece = b"x" * 2**16
        for _ in range(pieces):
            yield piece

    limits = Limits(body_bytes=2**20)
    async with serve(tmp_path, limits=limits) as world, world.client() as client:
        assert (await client.post("/generate", json={"text": "a"})).status_code == 200
        tracemalloc.start()
        answer = await client.post("/generate", content=endless(512))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        again = await client.post("/generate", json={"text": "a"})
    assert peak < 4 * 2**20  # of the 32 MiB that were sent
    assert (answer.status_code, answer.json()["code"]) == (413, "body_too_long")
    assert "body_bytes" in answer.json()["detail"]
    assert again.status_code == 200


@pytest.mark.parametrize("pieces", [1, 8])
async def test_headers_over_the_limit_are_a_431(tmp_path: Path, pieces: int) -> None:
    async with serve(tmp_path, limits=Limits(header_bytes=4096)) as world:
        reader, writer = await world.raw()
        writer.write(b"GET /status HTTP/1.1\r\nHost: x\r\nX-Long: ")
        for _ in range(pieces):
            writer.write(b"x" * 8000)
            await writer.drain()
        writer.write(b"\r\n\r\n")
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)
        writer.close()
    assert head.startswith(b"HTTP/1.1 431 ")
    assert PROBLEM.encode() in head
    assert b"x-hotreload-generation: 1" in head.lower()


async def test_headers_without_end_are_cut_off_while_they_come(tmp_path: Path) -> None:
    async with serve(tmp_path, limits=Limits(header_bytes=4096)) as world:
        status, _, fields = await send(world, b"GET /status HTTP/1.1\r\nX-Long: " + b"x" * 9000)
    assert (status, fields["code"]) == (431, "headers_too_long")


async def test_what_is_no_http_is_a_400(world: World) -> None:
    status, headers, fields = await send(world, b"\x16\x03\x01 hello\r\n\r\n")
    assert (status, fields["code"]) == (400, "bad_http")
    assert headers["connection"] == "close"


async def test_headers_that_never_end_are_hung_up_on(tmp_path: Path) -> None:
    async with serve(tmp_path, limits=Limits(arrival_seconds=0.05)) as world:
        silent, first = await world.raw()
        dawdling, second = await world.raw()
        second.write(b"GET /status HTTP/1.1\r\nX-Slow: ")
        assert await asyncio.wait_for(silent.read(), PATIENCE) == b""
        assert await asyncio.wait_for(dawdling.read(), PATIENCE) == b""
        first.close()
        second.close()


async def test_headers_that_dawdle_after_a_first_answer_are_hung_up_on(tmp_path: Path) -> None:
    async with serve(tmp_path, limits=Limits(arrival_seconds=0.5)) as world:
        reader, writer = await world.raw()
        writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"alive" in await asyncio.wait_for(reader.readuntil(b"}"), PATIENCE)
        writer.write(b"GET /livez HTTP/1.1\r\n")
        assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
        writer.close()


async def test_a_body_that_dawdles_is_a_408(tmp_path: Path) -> None:
    async with serve(tmp_path, limits=Limits(arrival_seconds=0.5)) as world:
        sent = b'POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{"text"'
        status, headers, fields = await send(world, sent)
    assert (status, fields["code"]) == (408, "body_too_slow")
    assert headers["connection"] == "close"


async def test_a_slow_answer_is_not_a_slow_body(tmp_path: Path) -> None:
    async with serve(tmp_path, limits=Limits(arrival_seconds=0.3)) as world:
        world.engine.may_answer.clear()
        async with world.client() as client:
            ask = asyncio.create_task(client.post("/generate", json={"text": "a"}))
            await asyncio.sleep(0.6)
            world.engine.may_answer.set()
            assert (await ask).status_code == 200


async def test_a_route_that_is_not_there_is_a_404_problem(world: World) -> None:
    async with world.client() as client:
        answer = await client.get("/generat")
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert answer.headers["content-type"] == PROBLEM
    assert answer.headers["x-hotreload-generation"] == "1"
    assert world.metrics.finished == [("other", 404)]


@pytest.mark.parametrize(("method", "path"), [("GET", "/generate"), ("DELETE", "/status")])
async def test_a_method_a_route_has_not_is_a_405_problem(
    world: World, method: str, path: str
) -> None:
    async with world.client() as client:
        answer = await client.request(method, path)
    assert (answer.status_code, answer.json()["code"]) == (405, "method_not_allowed")
    assert answer.headers["allow"]


async def test_a_bad_query_is_a_400_that_names_it(world: World) -> None:
    async with world.client() as client:
        answer = await client.get("/admin/weights_checksum?leaves=maybe")
    assert answer.status_code == 400
    assert "leaves" in answer.json()["detail"]
