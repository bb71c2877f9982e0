"""A worker as the daemon keeps it: one that hangs, or does not start, is replaced."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hotreload.events import Event, WorkerMoved
from hotreload.features import FEATURES
from hotreload.life import kept_worker
from hotreload.life.kept_worker import KeptWorker, WorkerStart, WorkerTerms
from hotreload.server.http.limits import CounterMemory
from hotreload.server.workers.messages import MessageKind
from hotreload.server_limits import Limits
from hotreload.settings.load import load
from tests.children import workers_below
from tests.waiting import turn_until

SETTINGS = load(None, ["engine.model=model", "source.path=checkpoints"], {}, FEATURES).settings


class Kept:
    """One place for a worker, and what was told of it."""

    def __init__(self) -> None:
        self.numbers = CounterMemory.create(2)
        self.place = KeptWorker(1, self.numbers.of(1))
        self.told: list[Event] = []
        nobody: Any = None
        self.terms = WorkerTerms(
            nobody, nobody, self.told.append, self.start, self.first, lambda connection, data: None
        )

    def start(self, index: int, descriptors: tuple[int, int]) -> WorkerStart:
        memory = self.numbers.descriptor
        return WorkerStart(SETTINGS, Limits(), {}, (*descriptors, memory), index, 2, (1.0, 0.0))

    def first(self) -> list[Any]:
        return [[MessageKind.LIVE, None], [MessageKind.PING, 0]]

    def moves(self) -> list[bool]:
        return [event.is_serving for event in self.told if isinstance(event, WorkerMoved)]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        running = asyncio.create_task(self.place.run(self.terms))
        try:
            yield
        finally:
            self.place.shut_down()
            await running


def its_pid() -> int:
    (pid,) = workers_below(os.getpid())
    return pid


async def test_one_that_hangs_is_killed_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_worker, "PING_SECONDS", 0.02)
    monkeypatch.setattr(kept_worker, "UNANSWERED_PINGS", 50)
    monkeypatch.setattr(kept_worker, "PINGS_OF_A_START", 3000)
    kept = Kept()
    async with kept.running():
        await turn_until(lambda: kept.moves() == [True])
        hung = its_pid()
        os.kill(hung, signal.SIGSTOP)
        await turn_until(lambda: kept.moves() == [True, False, True])
        assert not Path(f"/proc/{hung}").exists()
    lost = kept.told[1]
    assert isinstance(lost, WorkerMoved)
    assert lost.why == "it has answered nothing for 1 s"
    assert lost.again_in == 0.0


async def test_one_that_ends_again_and_again_is_started_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept_worker, "PROGRAM", "raise SystemExit(3)")
    monkeypatch.setattr(kept_worker, "LONGEST_PAUSE", 0.1)
    kept = Kept()
    async with kept.running():
        await turn_until(lambda: len(kept.told) >= 3)
    told = [event for event in kept.told if isinstance(event, WorkerMoved)]
    assert {event.why for event in told} == {"it ended with code 3"}
    assert [event.again_in for event in told[:3]] == [0.0, 0.1, 0.1]


async def test_one_that_was_only_begun_when_all_go_goes_too() -> None:
    kept = Kept()
    running = asyncio.create_task(kept.place.run(kept.terms))
    await turn_until(lambda: bool(workers_below(os.getpid())))
    kept.place.shut_down()
    await running
    assert workers_below(os.getpid()) == []
    assert kept.moves() == []


async def test_what_one_that_is_lost_had_is_counted_no_more() -> None:
    kept = Kept()
    async with kept.running():
        await turn_until(lambda: kept.moves() == [True])
        theirs = kept.numbers.of(1)
        theirs.running.add(5)
        assert kept.numbers.of(0).running.total == 5
        os.kill(its_pid(), signal.SIGKILL)
        await turn_until(lambda: kept.moves() == [True, False, True])
        assert kept.numbers.of(0).running.total == 0
