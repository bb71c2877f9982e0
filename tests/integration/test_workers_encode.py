"""Workers of the real engine encode its prompts, and swap after swap goes on beneath them."""

import asyncio
import json
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeGuard

import pytest
import pytest_asyncio

from hotreload.engine.answering.encoder_copy import EncoderCopy
from hotreload.errors import BadRequest
from hotreload.events import Event, WorkerMoved
from hotreload.features.pause.pause import Pause
from hotreload.life import kept_worker
from hotreload.server.http.problems import problem_of
from hotreload.server.model import EncodedBy, ModelRequest
from hotreload.types import Outcome
from tests.children import sockets_of, workers_below
from tests.features.admissions import admission_of
from tests.integration.running import Load, Running, mixed, one_daemon, one_daemon_marks, serves
from tests.waiting import turn_until

pytestmark = [*one_daemon_marks(), pytest.mark.timeout(180)]

WORKERS = 2
"""Workers that the daemon has; the engine's process is none."""
Requests = list[Mapping[str, Any]]
running = one_daemon(f"server.workers={WORKERS}")
HI = [{"role": "user", "content": "Who serves?"}]
FEW = {"temperature": 0, "max_new_tokens": 2}
ASKS: list[tuple[str, dict[str, Any]]] = [
    ("/generate", {"text": "Who serves?", "sampling_params": FEW}),
    ("/generate", {"text": ["a", "Gr\u00fc\u00dfe"], "sampling_params": FEW, "stream": True}),
    ("/v1/completions", {"prompt": "Who?", "n": 2, "max_tokens": 2}),
    ("/v1/chat/completions", {"messages": HI, "max_tokens": 2, "stop": "x"}),
]
CANNOT_BE: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"text": ""}, {}),
    ({"text": "a" * 300}, {}),
    ({"text": ["a", "a" * 300]}, {}),
    ({"text": "hi"}, {"max_new_tokens": 10**6}),
    ({"text": "hi"}, {"temperature": 1e12}),
    ({"text": ["a", "b"], "rid": ["one"]}, {}),
]


@pytest_asyncio.fixture(loop_scope="module")
async def asked_of_the_engine(running: Running, monkeypatch: pytest.MonkeyPatch) -> Requests:
    """All that it is asked to prepare, once all workers serve."""
    await running.until(lambda: sum(map(serves, running.happened)) == WORKERS)
    asked, prepare = Requests(), running.engine.answers.prepare

    async def noted(request: Mapping[str, Any]) -> Any:
        asked.append(request)
        return await prepare(request)

    monkeypatch.setattr(running.engine.answers, "prepare", noted)
    return asked


async def test_workers_encode_prompts_without_an_engine_of_their_own(
    running: Running, asked_of_the_engine: Requests
) -> None:
    async with running.client() as client:
        for path, body in ASKS:
            assert (await client.post(path, json=body)).status_code == 200
    assert len(asked_of_the_engine) == len(ASKS)
    texts = {"text", "messages", "template_args"}
    assert all(each.keys().isdisjoint(texts) for each in asked_of_the_engine)
    for pid in workers_below(os.getpid()):
        maps = Path(f"/proc/{pid}/maps").read_text()
        assert "tokenizers" in maps
        assert "jaxlib" not in maps


async def test_what_they_cannot_encode_is_refused_in_the_words_of_the_engine(
    running: Running, asked_of_the_engine: Requests
) -> None:
    for body, sampling in CANNOT_BE:
        request = {**body, "sampling_params": sampling}
        with pytest.raises(BadRequest) as refused:
            await running.engine.answers.prepare(request)
        async with running.client() as client:
            told = await client.post("/generate", json=request)
        own = problem_of(refused.value, "/generate")
        assert (told.status_code, told.content) == (own.status_code, own.body)
    assert len(asked_of_the_engine) == len(CANNOT_BE), "no worker asked it"


async def test_an_engine_with_another_tokenizer_is_asked_by_texts(
    running: Running,
    asked_of_the_engine: Requests,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(running.engine.answers, "_encoder", EncoderCopy("another", b""))
    path, body = ASKS[0]
    async with running.client() as client:
        assert (await client.post(path, json=body)).json()["text"].startswith("served")
    assert [each["text"] for each in asked_of_the_engine] == [body["text"]]


async def test_an_id_that_no_tokenizer_makes_does_not_reach_the_engine(
    running: Running, asked_of_the_engine: Requests
) -> None:
    """Whoever has taken over a worker may ask what any client may, and nothing else."""
    encoded, until = (
        EncodedBy(running.engine.answers.encodes_as),
        asyncio.get_running_loop().time() + 9,
    )
    for ids in ([10**6], [-1], [1.5], ["x"]):
        ask = ModelRequest({"input_ids": ids}, until, encoded=encoded)
        with pytest.raises(BadRequest, match="no token id"):
            async with running.daemon.app.state.model.open_answer(ask):
                pass
    assert len(asked_of_the_engine) == 4


async def test_swaps_under_load_and_a_killed_worker_mix_nothing_and_cost_its_own_clients_alone(
    running: Running,
) -> None:
    async with Load(running, pause=0).on() as load:  # there is always one whom the killed answers
        for number in range(2, 6):
            assert (await running.attempted(running.drop(number))).outcome is Outcome.LIVE
        assert load.failures == []
        victim, *_ = workers_below(os.getpid())
        os.kill(victim, signal.SIGKILL)
        await running.until(lambda: sum(map(serves, running.happened)) == WORKERS + 1)
        assert (await running.attempted(running.drop(6))).outcome is Outcome.LIVE
    assert 0 < len(load.failures) <= load.clients
    assert {failure.partition(":")[0] for failure in load.failures} <= BROKEN_OFF
    assert mixed(load.answers, running.generations) == []
    await running.until(lambda: running.daemon.entrance.inside == 0)


BROKEN_OFF = {"ReadError", "RemoteProtocolError", "WriteError", "ConnectError"}


ENDLESS = {"temperature": 0, "max_new_tokens": 200, "ignore_eos": True}
BODY = json.dumps({"text": "hi", "stream": True, "sampling_params": ENDLESS}).encode()
HEAD = b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(BODY)
POINTS = {
    "half a head": (HEAD[:30], b""),
    "half a body": (HEAD + BODY[:20], b""),
    "while a pause holds it": (HEAD + BODY, b""),
    "in the middle of its answer": (HEAD + BODY, b"data: "),
}
"""What was sent of a request when its worker is lost, and what was read of the answer."""


# Where it is decides what it leaves, and how it is lost only how soon that is noticed.
LOST = [
    *((point, signal.SIGKILL) for point in POINTS),
    ("in the middle of its answer", signal.SIGSTOP),
    *(
        pytest.param(point, signal.SIGSTOP, marks=pytest.mark.at_night)
        for point in POINTS
        if point != "in the middle of its answer"
    ),
]


@pytest.mark.alike
@pytest.mark.parametrize(("point", "how"), LOST)
async def test_a_worker_that_is_lost_in_a_request_leaves_nothing_of_it(
    running: Running, monkeypatch: pytest.MonkeyPatch, point: str, how: signal.Signals
) -> None:
    monkeypatch.setattr(kept_worker, "LONGEST_PAUSE", 0.0)
    counts = running.daemon.workers.counts
    await running.until(lambda: all_serve(running))
    (sent, read), gate = POINTS[point], running.daemon.entrance
    before = {pid: sockets_of(pid) for pid in workers_below(os.getpid())}
    async with running.client() as client:
        if point == "while a pause holds it":
            paused = await client.post("/pause_generation", json={"mode": "in_place"})
            assert paused.is_success, paused.text
        reader, writer = await asyncio.open_unix_connection(running.socket)
        writer.write(sent)
        if read:
            await reader.readuntil(read)
        await turn_until(lambda: has_begun(point, before, gate))
        (its_own,) = (pid for pid, had in before.items() if sockets_of(pid) - had)
        with monkeypatch.context() as sooner:
            sooner.setattr(kept_worker, "PING_SECONDS", 0.05)
            os.kill(its_own, how)
            with suppress(ConnectionResetError):
                await reader.read()
            writer.close()
            await turn_until(lambda: its_own not in workers_below(os.getpid()))
        if point == "while a pause holds it":
            await client.post("/continue_generation", json={})
        await running.until(lambda: gate.inside == 0 and counts.running.total == 0)
        answer = await client.post("/generate", json={"text": "hi", "sampling_params": FEW})
    assert answer.status_code == 200


def has_begun(point: str, before: Mapping[int, set[str]], gate: Any) -> bool:
    """True once the request has come as far as the point says."""
    if point == "while a pause holds it":
        return bool(admission_of(gate, Pause).held)
    if point == "in the middle of its answer":
        return bool(gate.inside)
    return any(sockets_of(pid) - had for pid, had in before.items())


def all_serve(running: Running) -> bool:
    moves = [1 if event.is_serving else -1 for event in running.happened if is_move(event)]
    return sum(moves) == WORKERS


def is_move(event: Event) -> TypeGuard[WorkerMoved]:
    return isinstance(event, WorkerMoved)
