"""Each request has a name; the access log is a line for each answer."""

import logging
from pathlib import Path
from typing import Any

import httpx
import pytest

from hotreload.core.way_in.admission import LetIn, Origin
from hotreload.errors import EngineLost
from tests.server.world import World, serve

LOGGER = "hotreload.access"
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [vars(record) for record in caplog.records if record.name == LOGGER]


async def test_a_request_keeps_the_name_that_its_client_gave_it(world: World) -> None:
    async with world.client() as client:
        answer = await client.get("/status", headers={"X-Request-Id": "batch-7/42"})
        refused = await client.post("/generate", headers={"X-Request-Id": "mine"})
    assert answer.headers["x-request-id"] == "batch-7/42"
    assert (refused.status_code, refused.headers["x-request-id"]) == (400, "mine")


@pytest.mark.parametrize("name", ["", "two words", "a\tb", "x" * 129, "ü".encode()])
async def test_a_request_without_a_usual_name_gets_one(world: World, name: Any) -> None:
    async with world.client() as client:
        headers = [(b"X-Request-Id", name if isinstance(name, bytes) else name.encode())]
        first = await client.get("/livez", headers=headers)
        second = await client.get("/livez")
    names = {each.headers["x-request-id"] for each in (first, second)}
    assert len(names) == 2
    assert all(len(each) == 32 and each.isalnum() for each in names)


async def test_a_stream_is_named_too(world: World) -> None:
    async with world.client() as client:
        answer = await client.post("/generate", json={"text": "a", "stream": True})
    assert len(answer.headers["x-request-id"]) == 32


async def test_the_access_log_tells_who_asked_for_what_and_nothing_of_what_was_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    async with serve(tmp_path, access_log=True) as world, world.client() as client:
        named = {"X-Request-Id": "mine", "Authorization": "Bearer not-told"}
        await client.post("/generate?q=not-told", json={"text": "not-told"}, headers=named)
        await client.get("/nowhere")
        await client.get("/livez" + "x" * 5000)
        await world.until(lambda: len(world.metrics.finished) == 3)
    told, lost, long = lines(caplog)
    assert (told["method"], told["path"], told["code"]) == ("POST", "/generate", 200)
    assert told["request_id"] == "mine"
    assert told["seconds"] >= 0
    assert (told["generation"], told["tokens"]) == (1, 4)
    assert "first_token" not in told
    assert (lost["generation"], "tokens" in lost) == (1, False)
    assert {"uid", "pid"} <= told.keys()
    assert (lost["path"], lost["code"]) == ("/nowhere", 404)
    assert len(long["path"]) == 200
    assert "not-told" not in str([told, lost])


@pytest.mark.parametrize("answered_by", ["itself", "a worker"], indirect=True)
async def test_it_tells_how_long_a_stream_took_to_its_first_token_and_how_many_it_had(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    async with serve(tmp_path, access_log=True) as world, world.client() as client:
        asked = {"text": ["a", "b"], "stream": True}
        await client.post("/generate", json=asked)
        await client.post("/v1/completions", json={"prompt": "a", "n": 2})
        await client.post("/generate", json={"text": 5})
        world.engine.breaks_after = (2, EngineLost("gone"))
        await client.post("/generate", json=asked)
        await world.until(lambda: len(world.metrics.finished) == 4)
    whole, several, refused, broken = lines(caplog)
    assert [each["tokens"] for each in (whole, several, broken)] == [8, 8, 4]
    assert 0 <= whole["first_token"] <= whole["seconds"]
    assert "tokens" not in refused


@pytest.mark.parametrize("answered_by", ["itself", "a worker"], indirect=True)
async def test_the_trace_of_a_caller_is_in_the_log_and_in_the_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    named = {"traceparent": f"00-{TRACE}-{SPAN}-01", "X-Request-Id": "mine"}
    async with serve(tmp_path, access_log=True, tcp=True) as world:
        clients = world.client(), httpx.AsyncClient(base_url=f"http://127.0.0.1:{world.tcp_port}")
        for client in clients:
            async with client:
                for stream in (False, True):
                    asked = {"text": "a", "stream": stream}
                    answer = await client.post("/generate", json=asked, headers=named)
                    assert answer.headers["traceparent"] == named["traceparent"]
                    assert answer.headers["x-request-id"] == "mine"
        await world.until(lambda: len(world.metrics.finished) == 4)
    assert [(each["trace_id"], each["request_id"]) for each in lines(caplog)] == [
        (TRACE, "mine")
    ] * 4


@pytest.mark.parametrize("answered_by", ["itself", "a worker"], indirect=True)
async def test_who_listens_to_a_request_knows_its_names(world: World) -> None:
    heard: list[LetIn] = []

    class Listener:
        def listen(self, request: LetIn) -> None:
            heard.append(request)

    world.features.listeners.append(Listener())
    named = {"traceparent": f"00-{TRACE}-{SPAN}-01", "X-Request-Id": "mine"}
    async with world.client() as client:
        await client.post("/v1/completions?x=1", json={"prompt": "a"}, headers=named)
        answer = await client.post("/generate", json={"text": "a"})
    first, second = heard
    assert first.origin == Origin("/v1/completions", "mine", named["traceparent"])
    assert second.origin == Origin("/generate", answer.headers["x-request-id"])


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-01"),
        (f"00-{TRACE}-{SPAN}-ff", f"00-{TRACE}-{SPAN}-03"),
        (f"cc-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-01"),
        (f"cc-{TRACE}-{SPAN}-01-what-comes-later", f"00-{TRACE}-{SPAN}-01"),
        (f"00-{TRACE}-{SPAN}-01-", None),
        (f"cc-{TRACE}-{SPAN}-01.", None),
        (f"ff-{TRACE}-{SPAN}-01", None),
        (f"00-{'0' * 32}-{SPAN}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE.upper()}-{SPAN}-01", None),
        (f"00-{TRACE[1:]}-{SPAN}-01", None),
        (f"00-{TRACE}-{SPAN}-1", None),
        (f"00-{TRACE}-{SPAN}", None),
        (f"00-{TRACE}-{SPAN}-01, 00-{TRACE}-{SPAN}-01", None),
        ("", None),
    ],
)
async def test_a_malformed_trace_is_ignored(world: World, given: str, kept: str | None) -> None:
    async with world.client() as client:
        answer = await client.get("/livez", headers={"traceparent": given})
        twice = await client.get("/livez", headers=[("traceparent", given)] * 2)
    assert (answer.status_code, answer.headers.get("traceparent")) == (200, kept)
    assert (twice.status_code, twice.headers.get("traceparent")) == (200, None)


async def test_the_access_log_is_off_unless_it_is_asked_for(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    async with world.client() as client:
        await client.get("/livez")
    assert lines(caplog) == []


async def test_a_fault_of_ours_is_logged_under_the_name_of_its_request(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.engine.steps.faults["generate"] = KeyError("oops")
    async with world.client() as client:
        named = {"X-Request-Id": "mine", "traceparent": f"00-{TRACE}-{SPAN}-00"}
        answer = await client.post("/generate", json={"text": "a"}, headers=named)
    assert answer.status_code == 500
    [told] = [vars(each) for each in caplog.records if each.message == "request.failed"]
    assert told["request_id"] == "mine"
    assert told["trace_id"] == TRACE
