"""Nobody waits for a swap: new weights take over while older ones end their answers."""

import asyncio
import itertools
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hotreload.events import GateChanged
from hotreload.types import GateState, Outcome
from tests.integration.running import Running, post

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(400)]

CLIENTS = 16
NEW, BACK = 5, 25
"""How many of the flips are to a new checkpoint, and how many back to the one before."""
ENGINE = (
    "engine.args={max_total_tokens=8192,context_length=512,max_running_requests=16,"
    "chunked_prefill_size=128}"
)
LENGTHS = (5, 5, 5, 20, 20, 60, 60, 120, 300)


class Streaming:
    """Clients that stream answers of very different lengths, word for word."""

    def __init__(self, running: Running, clients: int = CLIENTS) -> None:
        self.running = running
        self.clients = clients
        self.answers: list[tuple[int, int, str]] = []
        """Of each: its generation, how many tokens were asked for, and its text."""
        self.failures: list[str] = []
        self.most_held = 0

    @asynccontextmanager
    async def on(self) -> AsyncIterator["Streaming"]:
        enough = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            for number in range(self.clients):
                tasks.create_task(self._client(number, enough))
            try:
                yield self
            finally:
                enough.set()

    async def _client(self, number: int, enough: asyncio.Event) -> None:
        lengths = random.Random(number)
        async with self.running.client() as client:
            while not enough.is_set():
                length = lengths.choice(LENGTHS)
                try:
                    self.answers.append(await streamed(client, f"client {number} asks", length))
                except Exception as failure:
                    self.failures.append(f"{type(failure).__name__}: {failure}")
                self.most_held = max(self.most_held, self.running.daemon.gate.held)

    def wrong(self) -> list[tuple[int, int, str]]:
        """Answers that are not what their generation says, over and over, to the last token."""
        labels = {g.number: g.revision.label.rpartition("_")[2] for g in self.running.generations}
        return [
            answer
            for answer in self.answers
            if answer[2] != repeated(labels.get(answer[0], "?"), answer[1])
        ]


def repeated(number: str, tokens: int) -> str:
    """What a tiny model says in so many tokens when it may not stop; its end is a token, too."""
    said = ["served", " by", " step", f" {number}", ""]
    return "".join(itertools.islice(itertools.cycle(said), tokens))


async def streamed(client: Any, prompt: str, length: int) -> tuple[int, int, str]:
    sampling = {"temperature": 0, "max_new_tokens": length, "ignore_eos": True}
    body = {"text": prompt, "sampling_params": sampling, "stream": True}
    pieces: list[dict[str, Any]] = []
    async with client.stream("POST", "/generate", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                pieces.append(json.loads(line.removeprefix("data: ")))
    generations = {piece["meta_info"]["generation"] for piece in pieces}
    assert len(generations) == 1, f"one stream, several generations: {generations}"
    assert pieces[-1]["meta_info"]["completion_tokens"] == length
    return generations.pop(), length, pieces[-1]["text"]


def was_held(running: Running) -> bool:
    """Whether the gate ever held anybody since the start."""
    events = [event for event in running.happened if isinstance(event, GateChanged)]
    return any(event.state is GateState.HOLDING for event in events)


async def flipped_back(running: Running) -> None:
    """Roll back to the weights that were live before: they answer still, or are kept."""
    before = running.generations[-2].number
    answer = await post(running, "rollback", generation=before)
    assert answer.status_code == 200, answer.text
    assert answer.json()["pause_seconds"] == 0.0


async def test_thirty_flips_under_sixteen_streams(tmp_path: Path) -> None:
    running = Running(tmp_path, ENGINE, "reload.sets=3")
    running.patience = 180.0
    running.drop(1)
    async with running.serving():
        async with Streaming(running).on() as load:
            for number in range(2, 2 + NEW):
                attempt = await running.attempted(running.drop(number))
                assert (attempt.outcome, attempt.pause_seconds) == (Outcome.LIVE, 0.0), attempt
                for _ in range(BACK // NEW):
                    await flipped_back(running)
                if number == 2:
                    compiled = running.engine.recompiles
        assert load.failures == []
        assert load.wrong() == []
        assert load.most_held == 0
        assert not was_held(running)
        assert len({number for number, *_ in load.answers}) >= NEW
        assert running.engine.recompiles - compiled < NEW  # a flip that compiles does so each time
        await ended(running)
        running.engine._scheduler.scheduler.check_memory()


async def ended(running: Running) -> None:
    """Until one set of weights answers: every older one has ended."""

    def is_alone() -> bool:
        return len(running.daemon.gate.answering()) == 1

    await running.until(is_alone)
    replica = running.daemon.arrival.expect().replica
    await running.until(lambda: not replica.fading)
