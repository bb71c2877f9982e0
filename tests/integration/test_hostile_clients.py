"""Nothing a client sends can hurt the engine: random requests, whole, broken and cut off.

What this engine has not must be refused, and others who are served meanwhile get their answers.
The long form: HOSTILE_REQUESTS=20000 HOSTILE_SEED=$RANDOM, and this file under pytest.
"""

import asyncio
import json
import os
import random
from collections import Counter
from collections.abc import Sequence

import pytest

from tests.integration.hostile import Body, Can, any_body
from tests.integration.running import PROMPTS, Running, one_daemon, one_daemon_marks, request_for
from tests.waiting import PATIENCE, turn_until

pytestmark = one_daemon_marks()
if "HOSTILE_REQUESTS" in os.environ:
    pytestmark.append(pytest.mark.timeout(7200))

REQUESTS = int(os.environ.get("HOSTILE_REQUESTS", "240"))
SEED = int(os.environ.get("HOSTILE_SEED", "1"))
AT_A_TIME = 8
REASONED = {400, 405, 411, 413, 415, 422, 431, 503}


running = one_daemon(workers=(0, 2))


@pytest.mark.parametrize("others", [0, 3], ids=["while idle", "while others are served"])
async def test_every_request_gets_an_answer_or_a_reason_and_the_engine_stays_whole(
    running: Running, others: int
) -> None:
    before = [await answer_text(running, prompt) for prompt in PROMPTS]
    codes: Counter[int] = Counter()
    served = [asyncio.create_task(be_served(running, before)) for _ in range(others)]
    try:
        await attack(running, random.Random(SEED + others), REQUESTS // 2, codes)
    finally:
        for task in served:
            task.cancel()
        counts = await asyncio.gather(*served, return_exceptions=True)
    print(f"answers by code (0: hung up on purpose): {dict(sorted(codes.items()))}")
    print(f"answers of others meanwhile: {counts}")
    assert all(isinstance(count, int) and count > 0 for count in counts), counts
    assert codes[200] > REQUESTS // 40
    assert sum(codes[code] for code in REASONED) > REQUESTS // 40
    assert [await answer_text(running, prompt) for prompt in PROMPTS] == before
    assert running.is_open
    # Of a client that hung up a worker tells when it has seen it.
    await turn_until(lambda: not running.daemon.entrance.inside)
    await turn_until(lambda: not running.engine.answers.under_way)


async def attack(
    running: Running, chance: random.Random, requests: int, codes: Counter[int]
) -> None:
    """Send so many, some at a time; what the engine has not must be refused."""
    can = Can(
        running.engine.answers.capabilities.logprobs, running.engine.answers.capabilities.grammars
    )
    bodies = [any_body(chance, can) for _ in range(requests)]

    async def client(own: random.Random, mine: Sequence[Body]) -> None:
        for body in mine:
            code = await send(running, body.content, own)
            codes[code] += 1
            assert not body.lacking or code in (0, 400, 413), (code, body.content[:500])

    async with asyncio.TaskGroup() as clients:
        for at in range(AT_A_TIME):
            own = random.Random(chance.random())
            clients.create_task(client(own, bodies[at::AT_A_TIME]))


async def be_served(running: Running, expected: Sequence[tuple[str, list[int]]]) -> int:
    """Ask decent questions until cancelled; how many were answered, each as before."""
    answered = 0
    try:
        while True:
            for prompt, answer in zip(PROMPTS, expected, strict=True):
                assert await answer_text(running, prompt) == answer
                answered += 1
    except asyncio.CancelledError:
        return answered


async def answer_text(running: Running, prompt: str) -> tuple[str, list[int]]:
    answer = await running.ask(prompt)
    return answer["text"], answer["output_ids"]


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
        status = await asyncio.wait_for(reader.readline(), PATIENCE)
        code = int(status.split()[1])
        if cut < 0.25:  # gone in mid-answer
            return 0
        if code != 200:
            assert code in REASONED, (code, body[:500])
            content = await asyncio.wait_for(reader.read(65536), PATIENCE)
            assert b'"detail"' in content, content
        else:
            await asyncio.wait_for(reader.read(1), PATIENCE)
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
