"""OpenAI's own client against a whole daemon on the real engine: before, during and after swaps."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import ValidationError

from hotreload.engine.capabilities import Capabilities
from hotreload.server.listening import bind_tcp
from hotreload.types import Outcome
from tests.integration.running import ENGINE_ARGS, PROMPTS, Running, mixed
from tests.server.fuzz import fuzz
from tests.waiting import PATIENCE

pytestmark = pytest.mark.real_engine

NAMED = "server.model_name=tiny"
KEY = "a-key-of-24-characters-1"
SWAPS = 6


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
class OpenAILoad:
    """Clients in a closed loop: chats and completions, whole and streamed, on both sockets."""

    running: Running
    clients: int = 8
    answers: list[tuple[int, str]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @asynccontextmanager
    async def on(self) -> AsyncIterator[None]:
        enough = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            for number in range(self.clients):
                tasks.create_task(self._client(number, enough))
            try:
                yield
            finally:
                enough.set()

    async def _client(self, number: int, enough: asyncio.Event) -> None:
        prompts = itertools.cycle(PROMPTS[number % len(PROMPTS) :] + PROMPTS)
        ask = (whole_chat, streamed_chat, whole_completion, streamed_completion)[number % 4]
        async with openai_client(self.running, on_tcp=number >= self.clients // 2) as client:
            while not enough.is_set():
                try:
                    self.answers.append(await ask(client, next(prompts)))
                except Exception as failure:
                    self.failures.append(f"{type(failure).__name__}: {failure}")


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


async def test_the_client_is_served_before_during_and_after_swaps(tmp_path: Path) -> None:
    running = Running(tmp_path, NAMED, f"server.tcp={free_address()}")
    running.drop(1)
    async with running.serving(), openai_client(running) as client:
        assert await whole_chat(client, "before") == (running.live.number, "served by step 1")
        first, load = running.live.number, OpenAILoad(running)
        async with load.on():
            for number in range(2, 2 + SWAPS):
                attempt = await running.attempted(running.drop(number))
                assert attempt.outcome is Outcome.LIVE, attempt
        said = f"served by step {1 + SWAPS}"
        assert await whole_chat(client, "after") == (first + SWAPS, said)
        assert generation_of(await client.models.retrieve("tiny")) == first + SWAPS
    assert load.failures == []
    assert mixed(load.answers, running.generations) == []
    assert {number for number, _ in load.answers} >= set(range(first, first + SWAPS))


async def test_a_client_waits_for_the_weights_it_asks_for(tmp_path: Path) -> None:
    running = Running(tmp_path, NAMED)
    running.drop(1)
    async with running.serving(), openai_client(running) as client:
        wanted = running.live.number + 1
        ask = {"model": "tiny", "messages": hello(), "temperature": 0}
        asking = asyncio.create_task(
            client.chat.completions.create(
                **ask, extra_headers={"X-Hotreload-Min-Generation": str(wanted)}
            )
        )
        gate = running.daemon.entrance.gates[0]
        async with asyncio.timeout(PATIENCE):
            while gate.awaiting == 0:  # noqa: ASYNC110 it has no event
                await asyncio.sleep(0.01)
        running.drop(2)
        answer: Any = await asking
    assert generation_of(answer) == wanted
    assert answer.choices[0].message.content == "served by step 2"


async def test_what_this_engine_can_and_what_it_cannot(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(f"# huggingface_hub's client\n{KEY}\n")
    with_keys = (f"server.tcp={free_address()}", f"server.api_keys_file={tmp_path / 'keys'}")
    running = Running(tmp_path, NAMED, *with_keys)
    running.drop(1)
    async with running.serving(), openai_client(running) as client:
        answer = await client.completions.create(
            model="tiny", prompt=["a", "b"], n=2, temperature=0, stop=["by step"]
        )
        assert {choice.text for choice in answer.choices} == {"served "}
        assert answer.usage is not None
        assert (answer.usage.prompt_tokens, len(answer.choices)) == (2, 4)
        short = await client.chat.completions.create(
            model="tiny", messages=hello(), temperature=0, max_completion_tokens=2
        )
        assert short.choices[0].message.content == "served by"
        assert short.choices[0].finish_reason == "length"
        await streams_with_usage_and_stop_strings(client)
        await refuses(client, "seed", seed=1)
        can = running.engine.capabilities
        await answers_with_logprobs(client, can=can.logprobs)
        await answers_in_json(client, can=can.grammars)
        await asyncio.to_thread(answers_huggingface, running, can)
        await refuses(client, "max_tokens", max_tokens=10_000)
        assert await whole_chat(client, "x") == (running.live.number, "served by step 1")


async def streams_with_usage_and_stop_strings(client: openai.AsyncOpenAI) -> None:
    """`stop` ends in mid-sentence, and is not told though each of its tokens came by itself."""
    options: Any = {"stream": True, "stream_options": {"include_usage": True}}
    wish = {"model": "tiny", "temperature": 0, "stop": ["step 1"], **options}
    chat = await client.chat.completions.create(messages=hello("x"), **wish)
    *chunks, last = [chunk async for chunk in chat]
    told = [chunk.choices[0] for chunk in chunks]
    assert "".join(choice.delta.content or "" for choice in told) == "served by "
    assert [choice.finish_reason for choice in told[-2:]] == [None, "stop"]
    assert (last.choices, {chunk.usage for chunk in chunks}) == ([], {None})
    assert last.usage.prompt_tokens > 1
    assert last.usage.completion_tokens == 4
    several = await client.completions.create(prompt=["x", "yz"], n=2, **wish)
    *pieces, last = [piece async for piece in several]
    texts = [""] * 4
    for piece in pieces:
        texts[piece.choices[0].index] += piece.choices[0].text
    assert texts == ["served by "] * 4
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (1 + 2, 4 * 4)
    assert one_generation([*chunks, *pieces, last]) == 1


async def answers_with_logprobs(client: openai.AsyncOpenAI, *, can: bool) -> None:
    if not can:
        await refuses(client, "logprobs", logprobs=True)
        await refuses(client, "logprobs", logprobs=True, top_logprobs=2, stream=True)
        with pytest.raises(openai.BadRequestError, match="logprobs: ") as caught:
            await client.completions.create(model="tiny", prompt="x", logprobs=1)
        assert (caught.value.param, caught.value.code) == ("logprobs", "unsupported_parameter")
        return
    answer = await client.chat.completions.create(
        model="tiny", messages=hello(), temperature=0, logprobs=True
    )
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.content


async def answers_in_json(client: openai.AsyncOpenAI, *, can: bool) -> None:
    wish: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": [7]}}}
    if not can:
        await refuses(client, "response_format", response_format=wish)
        await refuses(client, "response_format", response_format={"type": "json_object"})
        return
    answer = await client.chat.completions.create(
        model="tiny", messages=hello(), temperature=0, response_format=wish
    )
    assert json.loads(answer.choices[0].message.content or "") == 7


def answers_huggingface(running: Running, can: Capabilities) -> None:
    """Over TCP, where it needs a key."""
    address, leave = f"http://{running.settings.server.tcp}", {"Connection": "close"}
    client = InferenceClient(address, token=KEY, headers=leave)
    assert client.text_generation("Who serves?") == "served by step 1"
    assert "".join(client.text_generation("Who serves?", stream=True)) == "served by step 1"
    cut = client.text_generation("x", max_new_tokens=9, stop=["by"], return_full_text=True)
    assert cut == "xserved "
    chat = client.chat_completion(hello(), temperature=0)
    assert (chat.model, chat.choices[0].message.content) == ("tiny", "served by step 1")
    if can.logprobs:
        told = client.text_generation("x", max_new_tokens=2, details=True).details
        assert told is not None
        assert (told.finish_reason, told.generated_tokens) == ("length", 2)
        assert [token.text for token in told.tokens] == ["served", " by"]
        assert all(token.logprob <= 0 and token.id > 0 for token in told.tokens)
    else:
        with pytest.raises(ValidationError, match=r"parameters\.details: this engine version"):
            client.text_generation("x", details=True)
    if can.grammars:
        grammar: Any = {"type": "regex", "value": "[ab]{3}"}
        assert set(client.text_generation("x", grammar=grammar)) <= {"a", "b"}
    with pytest.raises(ValidationError, match="key"):
        InferenceClient(address, token="guess", headers=leave).text_generation("x")


async def refuses(client: openai.AsyncOpenAI, param: str, **more: Any) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model="tiny", messages=hello(), **more)
    assert caught.value.param == param
    assert f"{param}: " in caught.value.message


async def test_a_seed_decides_what_is_drawn(tmp_path: Path) -> None:
    args = ENGINE_ARGS.removesuffix("}") + ",enable_deterministic_sampling=true}"
    random_weights = ("engine.boot=dummy", "source.pattern=none")
    running = Running(tmp_path, NAMED, f"engine.args={args}", *random_weights)
    running.drop(1)
    async with running.serving(), openai_client(running) as client:
        drawn = [
            [choice.text for choice in answer.choices]
            for seed in (1, 1, 2)
            for answer in [
                await client.completions.create(model="tiny", prompt="x", seed=seed, n=2)
            ]
        ]
    assert drawn[0] == drawn[1]
    assert len({text for texts in drawn for text in texts}) == 4


async def test_a_model_without_a_chat_template_says_what_to_do(tmp_path: Path) -> None:
    running = Running(tmp_path, NAMED)
    config = running.drop(1) / "tokenizer_config.json"
    fields = json.loads(config.read_text())
    del fields["chat_template"]
    config.write_text(json.dumps(fields))
    async with running.serving(), openai_client(running) as client:
        with pytest.raises(openai.BadRequestError, match="no chat template") as caught:
            await client.chat.completions.create(model="tiny", messages=hello())
        assert (caught.value.code, caught.value.param) == ("no_chat_template", "messages")
        assert (await whole_completion(client, "x"))[1] == "served by step 1"


async def test_schemathesis_finds_no_500_and_nothing_undescribed_on_the_real_engine(
    tmp_path: Path,
) -> None:
    quick = ("server.limits.generation_seconds=0.05", "server.limits.request_seconds=30")
    running = Running(tmp_path, NAMED, *quick)
    running.drop(1)
    async with running.serving():
        seen = await asyncio.to_thread(fuzz, running.socket, examples=5)
        assert running.is_open
        assert await running.ask()
    assert set().union(*seen.values()) >= {200, 400, 404}
    assert running.exit_code == 0
