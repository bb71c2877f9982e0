"""OpenAI's own client of a whole daemon, alone or as a load."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import openai

from hotreload.server.http.server_sockets import bind_tcp
from tests.integration.running import PROMPTS, Load, Running
from tests.waiting import PATIENCE

NAMED = "server.model_name=tiny"


def hello(prompt: str = "Who serves?") -> Any:
    return [{"role": "user", "content": prompt}]


@asynccontextmanager
async def openai_client(
    running: Running, *, on_tcp: bool = False
) -> AsyncIterator[openai.AsyncOpenAI]:
    """The client; it tries nothing twice."""
    transport = None if on_tcp else httpx2.AsyncHTTPTransport(uds=str(running.socket))
    async with openai.AsyncOpenAI(
        base_url=f"http://{running.settings.server.tcp if on_tcp else 'hotreload'}/v1",
        api_key="none",
        max_retries=0,
        timeout=PATIENCE,
        http_client=httpx2.AsyncClient(transport=transport),
    ) as client:
        yield client


@dataclass
class OpenAILoad(Load):
    """Chats and completions, whole and streamed, on both sockets."""

    running: Running
    clients: int = 8

    async def _client(self, number: int, enough: asyncio.Event) -> None:
        prompts = itertools.cycle(PROMPTS[number % len(PROMPTS) :] + PROMPTS)
        ask = (whole_chat, streamed_chat, whole_completion, streamed_completion)[number % 4]
        async with openai_client(self.running, on_tcp=number >= self.clients // 2) as client:
            while not enough.is_set():
                try:
                    self.answers.append(await ask(client, next(prompts)))
                except Exception as failure:
                    self.failures.append(f"{type(failure).__name__}: {failure}")
                await asyncio.sleep(self.pause)


async def whole_chat(client: openai.AsyncOpenAI, prompt: str) -> tuple[int, str]:
    raw = await client.chat.completions.with_raw_response.create(
        model="tiny", messages=hello(prompt), temperature=0
    )
    answer = raw.parse()
    assert raw.headers["X-Hotreload-Generation"] == str(generation_of(answer))
    return generation_of(answer), answer.choices[0].message.content or ""


async def whole_completion(client: openai.AsyncOpenAI, prompt: str) -> tuple[int, str]:
    answer = await client.completions.create(model="tiny", prompt=prompt, temperature=0)
    return generation_of(answer), answer.choices[0].text


async def streamed_chat(client: openai.AsyncOpenAI, prompt: str) -> tuple[int, str]:
    stream = await client.chat.completions.create(
        model="tiny", messages=hello(prompt), temperature=0, stream=True
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[-1].choices[0].finish_reason == "stop"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    return one_generation(chunks), text


async def streamed_completion(client: openai.AsyncOpenAI, prompt: str) -> tuple[int, str]:
    stream = await client.completions.create(
        model="tiny", prompt=prompt, temperature=0, stream=True
    )
    chunks = [chunk async for chunk in stream]
    return one_generation(chunks), "".join(chunk.choices[0].text for chunk in chunks)


def generation_of(answer: Any) -> int:
    number: int = answer.hotreload["generation"]
    return number


def one_generation(chunks: list[Any]) -> int:
    (number,) = {generation_of(chunk) for chunk in chunks}
    return number


def free_address() -> str:
    with bind_tcp("127.0.0.1:0") as found:
        return f"127.0.0.1:{found.getsockname()[1]}"
