"""Nothing a client sends can hurt the engine: random requests, whole, broken and cut off.

The long form: HOSTILE_REQUESTS=20000 HOSTILE_SEED=$RANDOM, and this file under pytest.
"""

import asyncio
import json
import os
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.integration.running import PROMPTS, Running, request_for

pytestmark = [
    pytest.mark.real_engine,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(3600 if "HOSTILE_REQUESTS" in os.environ else 180),
]

REQUESTS = int(os.environ.get("HOSTILE_REQUESTS", "400"))
AT_A_TIME = 8
REASONED = {400, 405, 411, 413, 415, 422, 431, 503}
ODD_NUMBERS: tuple[Any, ...] = (
    0,
    1,
    -1,
    7,
    2**31,
    2**63,
    -(2**70),
    0.5,
    -0.1,
    1e308,
    1e-320,
    True,
    None,
    "1",
    [],
    {},
)
ODD_TEXTS = ("", " ", "x", "\0", "é", "\ud800", "𝄞" * 50, "<|end|>", "a" * 300, "word " * 400)
LIKELY: dict[str, tuple[Any, ...]] = {
    "temperature": (0, 0.5, 1.0, 2.0),
    "top_p": (0.1, 0.9, 1.0),
    "top_k": (1, 5, -1),
    "min_p": (0.0, 0.1),
    "stop": ("by", ["step", "x"]),
    "stop_token_ids": ([257], [1, 2, 3]),
    "frequency_penalty": (-2.0, 0.5, 2.0),
    "presence_penalty": (-2.0, 0.5, 2.0),
    "repetition_penalty": (0.5, 1.0, 1.5),
    "min_new_tokens": (0, 1, 3),
    "ignore_eos": (True, False),
    "skip_special_tokens": (True, False),
    "no_stop_trim": (True, False),
}
SAMPLING = (
    "max_new_tokens", "temperature", "top_p", "top_k", "min_p", "n", "stop", "stop_token_ids",
    "frequency_penalty", "presence_penalty", "repetition_penalty", "min_new_tokens", "ignore_eos",
    "json_schema", "regex", "ebnf", "structural_tag", "logit_bias", "skip_special_tokens",
    "no_stop_trim", "sampling_seed", "spaces_between_special_tokens", "stream_interval", "nonsense",
)  # fmt: skip


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    running = Running(tmp_path_factory.mktemp("hostile"))
    running.drop(1)
    async with running.serving():
        yield running


async def test_every_request_gets_an_answer_or_a_reason_and_the_engine_stays_whole(
    running: Running,
) -> None:
    seed = int(os.environ.get("HOSTILE_SEED", "1"))
    before = [await said(running, prompt) for prompt in PROMPTS]
    chance = random.Random(seed)
    wishes = [any_body(chance) for _ in range(REQUESTS)]
    codes: dict[int, int] = {}

    async def client(number: int) -> None:
        own = random.Random(seed + number)
        for body in wishes[number::AT_A_TIME]:
            code = await send(running, body, own)
            codes[code] = codes.get(code, 0) + 1

    await asyncio.gather(*(client(number) for number in range(AT_A_TIME)))
    print(f"answers by code (0: hung up on purpose): {dict(sorted(codes.items()))}")
    assert codes.get(200, 0) > REQUESTS // 20
    assert sum(codes.get(code, 0) for code in REASONED) > REQUESTS // 20
    assert [await said(running, prompt) for prompt in PROMPTS] == before
    assert running.is_open
    assert running.daemon.gate.inside == 0
    assert running.daemon.engine.under_way == 0


async def said(running: Running, prompt: str) -> tuple[str, list[int]]:
    answer = await running.ask(prompt)
    return answer["text"], answer["output_ids"]


def any_body(chance: random.Random) -> bytes:
    """Mostly JSON that looks like a request; sometimes not even that."""
    kind = chance.random()
    if kind < 0.1:
        return chance.choice(
            (
                b"",
                b"{",
                b"null",
                b"[]",
                b'"x"',
                b"\xff\xfe",
                b"[" * 100_000,
                b"{}" * 10,
                b"x" * 9**7,
            )
        )
    wish: dict[str, Any] = {"sampling_params": any_sampling(chance)}
    prompt = chance.random()
    if prompt < 0.5:
        wish["text"] = chance.choice((*PROMPTS, *PROMPTS, *ODD_TEXTS))
    elif prompt < 0.6:
        wish["text"] = [chance.choice((*PROMPTS, *ODD_TEXTS)) for _ in range(chance.randrange(5))]
    elif prompt < 0.97:
        wish["input_ids"] = any_ids(chance)
    if chance.random() < 0.3:
        wish["stream"] = chance.choice((True, True, True, "yes", 1))
    if chance.random() < 0.15:
        name = chance.choice(("return_logprob", "top_logprobs_num", "rid", "surprise", "lora_path"))
        wish[name] = chance.choice(ODD_NUMBERS)
    return json.dumps(wish).encode()


def any_ids(chance: random.Random) -> Any:
    likely = [
        chance.randrange(1500) for _ in range(chance.choice((0, 1, 2, 5, 50, 100, 200, 255, 2000)))
    ]
    return chance.choice(
        (
            *[likely] * 6,
            [likely, likely],
            [*likely, chance.choice(ODD_NUMBERS)],
            [-5],
            [10**9],
            "ids",
        )
    )


def any_sampling(chance: random.Random) -> Any:
    if chance.random() < 0.05:
        return chance.choice(ODD_NUMBERS)
    sampling: dict[str, Any] = {"max_new_tokens": chance.randrange(1, 12)}
    names = (*LIKELY, *LIKELY, *SAMPLING)
    for name in chance.sample(names, chance.choice((0, 0, 1, 2, 4))):
        likely = LIKELY.get(name, ()) if chance.random() < 0.8 else ()
        sampling[name] = chance.choice(likely or (*ODD_NUMBERS, *ODD_TEXTS, 40, ["a", "b"]))
    return sampling


async def send(running: Running, body: bytes, chance: random.Random) -> int:
    """The code of the answer, which must have a reason if it is none; 0 when we hung up."""
    reader, writer = await asyncio.open_unix_connection(str(running.socket))
    head = f"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
    cut = chance.random()
    try:
        writer.write(f"{head}Content-Type: application/json\r\n\r\n".encode())
        writer.write(body if cut > 0.05 else body[: len(body) // 2])
        if cut < 0.15:  # half of it, or whole, and gone
            await asyncio.sleep(chance.choice((0, 0.005, 0.05)))
            return 0
        status = await asyncio.wait_for(reader.readline(), 60)
        code = int(status.split()[1])
        if cut < 0.25:  # gone in mid-answer
            return 0
        if code != 200:
            assert code in REASONED, (code, body[:500])
            content = await asyncio.wait_for(reader.read(65536), 60)
            assert b'"detail"' in content, content
        else:
            await asyncio.wait_for(reader.read(1), 60)
        return code
    finally:
        writer.close()


async def test_a_client_that_does_not_read_its_stream_delays_no_swap_for_long(
    running: Running,
) -> None:
    reader, writer = await asyncio.open_unix_connection(str(running.socket))
    body = json.dumps(request_for("x", stream=True)).encode()
    writer.write(b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body))
    writer.write(body)  # and never reads
    attempt = await running.attempted(running.drop(2))
    assert attempt.outcome.value == "live"
    writer.close()
    assert reader is not None
