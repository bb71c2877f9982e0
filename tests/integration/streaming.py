"""Clients that stream answers of very different lengths, and hear which generation made each."""

import asyncio
import itertools
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from hotreload.events import GateChanged
from hotreload.types import GateState
from tests.integration.running import Running

LENGTHS = (5, 5, 5, 20, 20, 60)
"""How many tokens answers have; most are short, and some outlast several swaps."""
LONGEST, EVERY = 300, 4
"""One client in so many asks for so many tokens at times: were it all, most would be at it."""
ENGINE = (
    "engine.args={max_total_tokens=3072,context_length=384,max_running_requests=16,"
    "chunked_prefill_size=64,precompile_bs_paddings=[4,16],precompile_token_paddings=[64]}"
)


class Streaming:
    """Clients that stream answers of very different lengths, word for word."""

    def __init__(self, running: Running, clients: int = 16) -> None:
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
        chance = random.Random(number)
        lengths = LENGTHS if number % EVERY else (*LENGTHS, LONGEST)
        async with self.running.client() as client:
            while not enough.is_set():
                length = chance.choice(lengths)
                try:
                    self.answers.append(await stream(client, f"client {number} asks", length))
                except Exception as failure:
                    self.failures.append(f"{type(failure).__name__}: {failure}")
                self.most_held = max(self.most_held, self.running.daemon.entrance.held)

    def wrong(self) -> list[tuple[int, int, str]]:
        """Answers that are not what their generation says, over and over, to the last token."""
        labels = {g.number: g.revision.label.rpartition("_")[2] for g in self.running.generations}
        return [
            answer
            for answer in self.answers
            if answer[2] != words_of_tiny(labels.get(answer[0], "?"), answer[1])
        ]


def words_of_tiny(number: str, tokens: int) -> str:
    """What a tiny model says in so many tokens when it may not stop; its end is a token, too."""
    said = ["served", " by", " step", f" {number}", ""]
    return "".join(itertools.islice(itertools.cycle(said), tokens))


async def stream(client: Any, prompt: str, length: int) -> tuple[int, int, str]:
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
