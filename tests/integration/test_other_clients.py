"""Clients as their makers ship them, unmodified, over TCP, while checkpoints go live.

OpenAI's own is in test_openai.py, upstream's benchmark in test_bench_serving.py.
"""

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from pydantic import SecretStr

from hotreload.types import Outcome
from tests.integration.running import PROMPTS, Running, words
from tests.integration.test_openai import NAMED, free_address, hello
from tests.waiting import PATIENCE, TICK, turn_until

pytestmark = pytest.mark.real_engine

FLIPS = 10
Ask = Callable[[str], Awaitable[str]]


@asynccontextmanager
async def ways_of_litellm(base_url: str) -> AsyncIterator[list[Ask]]:
    import litellm  # seconds: none of whoever runs other tests

    usual: Any = {
        "base_url": base_url,
        "api_key": "none",
        "temperature": 0,
        "timeout": PATIENCE,
        "max_retries": 0,
    }

    async def whole(prompt: str) -> str:
        answer: Any = await litellm.acompletion("openai/tiny", hello(prompt), **usual)
        return str(answer.choices[0].message.content)

    async def streamed(prompt: str) -> str:
        stream: Any = await litellm.acompletion("openai/tiny", hello(prompt), stream=True, **usual)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    yield [whole, streamed]
    await litellm.close_litellm_async_clients()  # type: ignore[attr-defined, no-untyped-call]


@asynccontextmanager
async def ways_of_langchain(base_url: str) -> AsyncIterator[list[Ask]]:
    from langchain_openai import ChatOpenAI  # seconds, too

    model: Any = ChatOpenAI(
        model="tiny", base_url=base_url, api_key=SecretStr("none"), temperature=0, max_retries=0
    )

    async def whole(prompt: str) -> str:
        return str((await model.ainvoke(prompt)).text)

    async def streamed(prompt: str) -> str:
        return "".join([chunk.text async for chunk in model.astream(prompt)])

    async def several(prompt: str) -> str:
        (said,) = {answer.text for answer in await model.abatch([prompt])}
        return str(said)

    yield [whole, streamed, several]
    await model.root_async_client.close()


async def asked_until(enough: asyncio.Event, ask: Ask, said: list[str]) -> None:
    """Ask one question after the other; a failure ends the test."""
    for prompt in itertools.cycle(PROMPTS):
        said.append(await ask(prompt))
        if enough.is_set():
            return


async def through_flips(running: Running, ways: list[Ask]) -> list[list[str]]:
    """What each way was told, while checkpoint after checkpoint went live."""
    said: list[list[str]] = [[] for _ in ways]
    enough = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        for ask, own in zip(ways, said, strict=True):
            tasks.create_task(asked_until(enough, ask, own))
        for number in range(2, 2 + FLIPS):
            attempt = await running.attempted(running.drop(number))
            assert attempt.outcome is Outcome.LIVE, attempt
            newest = words(number)
            await turn_until(lambda: newest in said[0], pause=TICK)  # noqa: B023
        enough.set()
    return said


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """Leave none of what litellm puts there: daemons of later tests would be imported anew."""
    with patch.dict(os.environ, LITELLM_LOCAL_MODEL_COST_MAP="true"):
        yield


async def test_litellm_and_langchain_are_served_through_ten_flips(tmp_path: Path) -> None:
    running = Running(tmp_path, NAMED, f"server.tcp={free_address()}")
    running.drop(1)
    async with running.serving():
        base_url = f"http://{running.settings.server.tcp}/v1"
        async with ways_of_litellm(base_url) as some, ways_of_langchain(base_url) as others:
            said = await through_flips(running, [*some, *others])
    whole = {words(number) for number in range(1, 2 + FLIPS)}
    for own in said:
        assert set(own) <= whole, "an answer of two generations, or of none"
        assert words(1 + FLIPS) in own
