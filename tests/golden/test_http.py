"""What the server answers: its document, and requests of every route as bare answers."""

import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from hotreload.errors import (
    AnswerNonfinite,
    BadRequest,
    Busy,
    EngineLost,
    HotReloadError,
    NothingOfThatName,
    NotSaved,
    NotServing,
    SourceUnavailable,
)
from hotreload.facts.listed import Listed, ListedState
from hotreload.server_limits import Limits
from hotreload.types import Outcome, Reason
from tests.golden import api
from tests.golden.blanks import blanked
from tests.golden.compare import Golden, sections
from tests.golden.layout import laid_out
from tests.server.world import FIRST, World, attempt, serve

NAN = Reason("nonfinite", "lm_head: 3 NaN", ("lm_head: 3 NaN", "norm: 1 NaN"))
HEADERS = ("content-type", "x-hotreload-generation", "retry-after", "allow", "www-authenticate")
CHAT = [{"role": "user", "content": "hi"}]
WISH = {"revision": "step-2"}
ASKED: list[tuple[str, str, Any]] = [
    *(
        ("GET", path, None)
        for path in ("/livez", "/readyz", "/health", "/v1/models", "/checkpoints")
    ),
    *(("GET", path, None) for path in ("/gate", "/leaves", "/nothing", "/generate", "/admin/pin")),
    ("GET", "/admin/reload_status", None),
    ("GET", "/admin/weights_checksum", None),
    ("GET", "/admin/weights_checksum?leaves=1", None),
    ("POST", "/generate", {"text": "hi"}),
    ("POST", "/generate", {"text": ["hi", "ho"], "rid": "mine"}),
    ("POST", "/generate", {"text": "hi", "stream": True}),
    ("POST", "/generate", {"text": "hi", "min_generation": 9}),
    ("POST", "/generate", {"txt": "hi"}),
    ("POST", "/generate", {}),
    ("POST", "/generate", []),
    ("POST", "/v1/completions", {"prompt": "hi"}),
    ("POST", "/v1/completions", {"prompt": "hi", "stream": True}),
    ("POST", "/v1/completions", {"prompt": "hi", "max_tokens": "many"}),
    ("POST", "/v1/completions", {"prompt": "hi", "model": "another"}),
    ("POST", "/v1/chat/completions", {"messages": CHAT}),
    ("POST", "/v1/chat/completions", {"messages": CHAT, "stream": True}),
    ("POST", "/v1/chat/completions", {"messages": []}),
    ("POST", "/v1/chat/completions", {"messages": CHAT, "temperature": 9}),
    ("POST", "/admin/reload_weights", WISH),
    ("POST", "/admin/reload_weights", {**WISH, "dry_run": True}),
    ("POST", "/admin/reload_weights", {"model_path": 5}),
    ("POST", "/admin/reload_weights", {"timeout": -1}),
    ("POST", "/admin/rollback", {}),
    ("POST", "/admin/rollback", {"generation": "one"}),
    ("POST", "/admin/perturb_weights", {"seed": 1, "scale": 0.5, "num_leaves": 2}),
    ("POST", "/admin/perturb_weights", {"scale": 0}),
    ("POST", "/admin/pin", {"reason": "evaluation"}),
    ("POST", "/admin/unpin", {}),
    ("POST", "/webhook/huggingface", {}),
]
REFUSALS: list[HotReloadError] = [
    Busy("step-3 is under way"),
    NotSaved("the disk is full"),
    NothingOfThatName("there is no step-9"),
    SourceUnavailable("the source does not answer"),
    NotServing("the engine is starting", code="booting", retry_after=2),
    EngineLost("the scheduler thread died"),
]
FAULTS: list[Exception] = [
    BadRequest("max_new_tokens must be at least 0", param="sampling_params"),
    AnswerNonfinite("the weights made no numbers of this prompt"),
    NotServing("too many wait", code="full", retry_after=1),
    EngineLost("the scheduler thread died"),
    KeyError("a fault of ours"),
]
ENDS = {
    "live": replace(attempt(), fingerprints=("before", "after")),
    **{
        end.value: attempt(end, NAN) for end in Outcome if end not in (Outcome.LIVE, Outcome.PASSED)
    },
}
Answers = Callable[[World, httpx.AsyncClient], AsyncIterator[tuple[str, str]]]


async def told(client: httpx.AsyncClient, method: str, path: str, body: Any) -> str:
    """An answer in words: its status, the headers that say something, and its body."""
    answer = await client.request(method, path, json=body)
    said = [f"{name}: {answer.headers[name]}" for name in HEADERS if name in answer.headers]
    is_json = "json" in answer.headers.get("content-type", "")
    shown = laid_out(answer.json()) if is_json else answer.text
    return "\n".join([str(answer.status_code), *said, "", shown])


async def usual(world: World, client: httpx.AsyncClient) -> AsyncIterator[tuple[str, str]]:
    """Every route, asked well and badly."""
    world.control.outcome = ENDS["live"]
    world.view.listed.append(Listed("step-1", ListedState.OLDER, revision=FIRST.revision))
    for method, path, body in ASKED:
        title = f"{method} {path} {'' if body is None else json.dumps(body)}"
        yield title.rstrip(), await told(client, method, path, body)


async def ends(world: World, client: httpx.AsyncClient) -> AsyncIterator[tuple[str, str]]:
    """However an attempt ends, and whatever an order is refused for."""
    for name, world.control.outcome in ENDS.items():
        yield name, await told(client, "POST", "/admin/reload_weights", WISH)
    for refusal in REFUSALS:
        world.control.refusal = refusal
        name = f"{type(refusal).__name__}: {refusal}"
        yield name, await told(client, "POST", "/admin/reload_weights", WISH)


async def faults(world: World, client: httpx.AsyncClient) -> AsyncIterator[tuple[str, str]]:
    """What a client is told whose answer failed, in each form, and before the first word."""
    for fault in FAULTS:
        world.engine.steps.faults["generate"] = fault
        for method, path, body in (
            ("POST", "/generate", {"text": "hi"}),
            ("POST", "/generate", {"text": "hi", "stream": True}),
            ("POST", "/v1/completions", {"prompt": "hi"}),
        ):
            title = f"{type(fault).__name__}: {path}{' (stream)' if 'stream' in body else ''}"
            yield title, await told(client, method, path, body)


async def broken(world: World, client: httpx.AsyncClient) -> AsyncIterator[tuple[str, str]]:
    """What stands at the end of a stream that fails after its first word."""
    for fault in FAULTS:
        world.engine.breaks_after = (1, fault)
        for path, body in (
            ("/generate", {"text": "hi", "stream": True}),
            ("/v1/completions", {"prompt": "hi", "stream": True}),
        ):
            yield f"{type(fault).__name__}: {path}", await told(client, "POST", path, body)


async def sealed(world: World, client: httpx.AsyncClient) -> AsyncIterator[tuple[str, str]]:
    """What is answered once nobody is let in."""
    for code in ("stopping", "engine_lost"):
        world.gate.seal(f"why: {code}", code=code)
        for path in ("/readyz", "/health"):
            yield f"{code}: {path}", await told(client, "GET", path, None)
        for path, body in (
            ("/generate", {"text": "hi"}),
            ("/v1/completions", {"prompt": "hi"}),
        ):
            yield f"{code}: {path}", await told(client, "POST", path, body)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A server that has booted and answers with generation 1."""
    async with serve(tmp_path, limits=Limits(generation_seconds=0.01)) as world:
        yield world


@pytest.mark.parametrize("part", [api.requests, api.answers, api.schemas])
async def test_the_described_api(
    golden: Golden, world: World, part: Callable[[api.Schema], Iterator[str]]
) -> None:
    async with world.client() as client:
        document = (await client.get("/openapi.json")).json()
    golden(f"api-{part.__name__}.txt", "\n".join(part(document)))


async def test_each_schema_that_is_named_is_there_and_each_that_is_there_is_named(
    world: World,
) -> None:
    async with world.client() as client:
        text = (await client.get("/openapi.json")).text
    named = set(re.findall(r'"#/components/schemas/(\w+)"', text))
    assert named == json.loads(text)["components"]["schemas"].keys()


@pytest.mark.parametrize("asked", [usual, ends, faults, broken, sealed])
async def test_answers(golden: Golden, world: World, tmp_path: Path, asked: Answers) -> None:
    async with world.client() as client:
        texts = {title: blanked(text, tmp_path) async for title, text in asked(world, client)}
    golden(f"answers-{asked.__name__}.txt", sections(texts))
