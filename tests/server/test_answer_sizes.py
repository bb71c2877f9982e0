"""Whatever a client sends, what it gets back is small: nothing is echoed without a bound."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from hotreload.errors import BadRequest, CheckpointRejected
from hotreload.events import AttemptFinished
from hotreload.types import Outcome
from tests.server.world import DESCRIBED, FIRST, World, answer_on, attempt

MOST = 16 * 2**10
SIZE = 60_000
ODD = "\x01\U0001f600"
"""Control characters and faces take six and twelve bytes each in JSON."""
BIG: tuple[Any, ...] = (
    "x" * SIZE,
    ODD * (SIZE // 8),
    int("9" * 4000),
    ["x" * SIZE],
    ["x"] * SIZE,
    [SIZE**20] * 1000,
    {"x" * SIZE: 1},
    {str(number): {} for number in range(SIZE // 8)},
)
REQUIRED = {"/generate": {"text": "a"}, "/v1/completions": {"prompt": "a"}}
REQUIRED["/v1/responses"] = {"input": "a"}
REQUIRED["/v1/chat/completions"] = {"messages": [{"role": "user", "content": "a"}]}  # type: ignore[dict-item]
AS_LONG_AS_ASKED = {"/tokenize", "/v1/tokenize"}
"""Their answers are as long as what they encode."""
BODIES = [path for (_, path), told in DESCRIBED.items() if told.body is not None]


def bad_bodies(path: str) -> Iterator[dict[str, Any]]:
    """Each field with each value, and names that no field has."""
    fields = DESCRIBED["POST", path].body or {}
    for name in fields:
        for value in BIG:
            yield REQUIRED.get(path, {}) | {name: value}
    for name in ("x" * SIZE, ODD * (SIZE // 8)):
        yield REQUIRED.get(path, {}) | {name: 1}
    yield REQUIRED.get(path, {}) | {str(number): 1 for number in range(SIZE // 8)}
    yield {"messages": [{"role": "user", "x" * SIZE: 1}]}
    yield {"messages": [{"role": "x" * SIZE, "content": "a"}]}
    yield REQUIRED.get(path, {}) | {"stream": True, "stream_options": {"x" * SIZE: 1}}


def check(answer: httpx.Response, sent: object) -> None:
    assert answer.status_code < 500, answer.text[:300]
    if answer.request.url.path in AS_LONG_AS_ASKED and answer.status_code == 200:
        return
    size = len(answer.content) + sum(len(k) + len(v) for k, v in answer.headers.raw)
    assert size <= MOST, f"{size} bytes for {str(sent)[:100]}: {answer.text[:300]}"


@pytest.mark.parametrize("path", BODIES)
async def test_no_field_of_a_body_comes_back_large(world: World, path: str) -> None:
    async with world.client() as client:
        for body in bad_bodies(path):
            at_once = {"wait": False} if path.startswith("/admin") else {}
            check(await client.post(path, json=at_once | body), body)
        for whole in (BIG[0], BIG[3], BIG[4]):
            check(await client.post(path, json=whole), whole)


async def test_a_name_longer_than_any_path_reaches_nobody(world: World) -> None:
    async with world.client() as client:
        for field in ("model_path", "revision"):
            answer = await client.post("/admin/reload_weights", json={field: "x" * 5000})
            assert (answer.status_code, answer.json()["code"]) == (400, "bad_field")
            assert f"{field} must be a string of at most 4096 characters" in answer.text
    assert world.control.asked == []


async def test_no_part_of_a_head_comes_back_large(world: World) -> None:
    long = "x" * SIZE
    odd = "%01" * (SIZE // 3)
    heads: list[tuple[str, dict[str, str]]] = [
        *(("/generate", {name: long}) for name in ("Host", "Origin", "Content-Type", "X-Other")),
        ("/generate", {"X-Hotreload-Min-Generation": long}),
        ("/generate", {"User-Agent": "Mozilla/5.0", "Host": long}),
        ("/webhook/huggingface", {"X-Webhook-Secret": long}),
        *((f"{start}{rest}", {}) for start in ("/", "/v1/", "/v1/models/") for rest in (long, odd)),
        *((f"/page/{rest}", {}) for rest in (long, odd)),
        *((f"/admin/weights_checksum?leaves={rest}", {}) for rest in (long, odd)),
        (f"/status?{long}", {}),
    ]
    async with world.client() as client:
        for path, headers in heads:
            for method in ("GET", "POST"):
                sent = client.build_request(method, path, headers=headers, content=b'{"text":"a"}')
                check(await client.send(sent), (path, headers))
        check(await client.request("X" * SIZE, "/status"), "method")


@pytest.mark.parametrize("head", [b"\x01" * SIZE, b"GET / HTTP/1.1\r\n" + b"\x01" * SIZE + b": 1"])
async def test_what_is_no_http_does_not_come_back(world: World, head: bytes) -> None:
    reader, writer = await world.raw()
    writer.write(head + b"\r\n\r\n")
    status, headers, _ = await answer_on(reader)
    assert (status, int(headers["content-length"]) <= MOST) == (400, True)
    writer.close()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", list(REQUIRED))
async def test_words_of_others_are_cut_and_their_lists_end(
    world: World, path: str, stream: bool
) -> None:
    findings = [f"{number}: {'x' * 1000}" for number in range(10_000)]
    words = "the engine says " + "no " * 100_000
    fault = BadRequest(words, findings=findings, param="x" * 10_000)
    world.engine.breaks_after = (1, fault)
    world.engine.steps.faults["generate"] = None if stream else fault
    async with world.client() as client:
        answer = await client.post(path, json={**REQUIRED[path], "stream": stream})
    assert len(answer.content) <= MOST
    assert "the engine says no" in answer.text
    if path == "/generate":
        assert "9984 more" in answer.text


@pytest.mark.parametrize("kind", ["message", "findings"])
async def test_what_a_checkpoint_holds_is_not_kept_a_hundred_times(world: World, kind: str) -> None:
    words, findings = ("x" * 10**6, ()) if kind == "message" else ("x", ["x" * 10**6] * 1000)
    refused = attempt(Outcome.REJECTED, CheckpointRejected(words, findings=findings).reason)
    for _ in range(10):
        world.events.publish(AttemptFinished(refused, FIRST))
    world.control.outcome = refused
    async with world.client() as client:
        for path in ("/status", "/history"):
            assert len((await client.get(path)).content) < 2_500_000
        answer = await client.post("/admin/reload_weights", json={})
    assert answer.status_code == 422
    assert len(answer.content) < 250_000
