"""Checkpoints that come faster than answers end, and room for six sets: the newest never waits."""

import asyncio
import time
from contextlib import suppress
from pathlib import Path

import pytest

from hotreload.events import Event, GenerationLive
from hotreload.types import Phase
from tests.integration.running import Running, words
from tests.integration.test_drain import LongAnswer

pytestmark = [pytest.mark.soak, pytest.mark.real_engine, pytest.mark.timeout(1800)]

ENGINE = (
    "engine.args={max_total_tokens=16384,context_length=2048,max_running_requests=6,"
    "chunked_prefill_size=64}"
)
CHECKPOINTS, EVERY = 14, 3.0
AT_ONCE = 3.0
CLIENTS = 4
"""With the live weights and those that are staged, each one's generation makes six sets."""
TIMES = 400
"""How often an answer says its sentence, of five tokens: about a minute, beside four others."""


class Whole:
    """A client that asks again and again, and what was wrong with what it was told."""

    def __init__(self, running: Running) -> None:
        self.seconds, self.wrong = list[float](), list[str]()
        self._running = running
        self._task = asyncio.create_task(self._ask())

    async def _ask(self) -> None:
        while True:
            long, began = LongAnswer(self._running, 5 * TIMES), time.monotonic()
            try:
                answer = await long.task
            except asyncio.CancelledError:
                self._judge(long.last, is_whole=False)
                raise
            self._judge(answer, is_whole=True)
            self.seconds.append(time.monotonic() - began)

    def _judge(self, answer: dict[str, object], *, is_whole: bool) -> None:
        """By the generation it names, from the first word to the last that came."""
        meta, text = answer["meta_info"], str(answer["text"])
        assert isinstance(meta, dict)
        label = self._running.generations[meta["generation"] - 1].revision.label
        expected = words(int(label.removeprefix("step_"))) * TIMES
        if not (text == expected if is_whole else expected.startswith(text)):
            self.wrong.append(f"generation {meta['generation']}: {text[-60:]!r}")

    async def leaves(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task


async def test_the_newest_is_live_at_once_while_there_is_room_for_six(tmp_path: Path) -> None:
    running = Running(tmp_path, ENGINE, "reload.sets=auto", "reload.finish_timeout=600")
    running.patience = 300.0
    live_at: dict[str, float] = {}

    def note(event: Event) -> None:
        if isinstance(event, GenerationLive):
            live_at[event.generation.revision.label] = time.monotonic()

    took, waited, most, clients = list[float](), list[float](), 0, list[Whole]()
    running.drop(1)
    async with running.serving():
        for number in (2, 3):  # these compile
            await running.attempted(running.drop(number))
        running.daemon.events.subscribe(note)
        for number in range(4, 4 + CHECKPOINTS):
            if len(clients) < CLIENTS:
                clients.append(Whole(running))
            rest = asyncio.create_task(asyncio.sleep(EVERY))
            folder = running.drop(number)
            dropped = time.monotonic()
            attempt = await running.attempted(folder)
            took.append(live_at[folder.name] - dropped)
            waited.append(attempt.phases.get(Phase.DRAINING, 0.0))
            most = max(most, len(running.daemon.entrance.list_answering()))
            await rest
        for client in clients:
            await client.leaves()
    print(f"\nlive after {', '.join(f'{each:.2f}' for each in took)} s; {most} generations at once")
    lasted = [f"{each:.0f}" for client in clients for each in client.seconds]
    print(f"answers took {', '.join(lasted) or 'longer than all of it'} s")
    assert [client.wrong for client in clients] == [[]] * CLIENTS
    assert most == CLIENTS + 1
    assert max(waited) < AT_ONCE / 3  # only for the generation before, which nobody asks any more
    assert max(took) <= AT_ONCE
