"""A rank that is gone is noticed though nobody asks anything of it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NoReturn

import pytest

from hotreload.errors import EngineLost, RankLeft
from hotreload.hosts.life.rank_group import Beats
from tests.hosts.memory import MemoryStore
from tests.waiting import turn_until

LOOKS = 5


def beats_of(store: MemoryStore, rank: int) -> Beats:
    beats = Beats(store, rank, [each for each in range(3) if each != rank])
    beats.every, beats.silent_looks = 0.001, LOOKS
    return beats


@asynccontextmanager
async def beating(beats: Beats) -> AsyncIterator[asyncio.Task[NoReturn]]:
    task = asyncio.create_task(beats.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})


async def test_the_rank_that_is_gone_is_named() -> None:
    store = MemoryStore()
    first, second = beats_of(store, 0), beats_of(store, 1)
    second.silent_looks = 10**9
    async with beating(first) as looking, beating(second):
        async with beating(beats_of(store, 2)):
            first.silent_looks = 10**9
            await turn_until(lambda: 0 not in first._last_beats.values())
        first.silent_looks = LOOKS
        with pytest.raises(EngineLost, match=r"^rank 2 has not been heard of for 0.005 s$"):
            await looking


async def test_a_rank_that_leaves_says_why() -> None:
    store = MemoryStore()
    await beats_of(store, 1).leave("it was asked to stop")
    with pytest.raises(RankLeft, match=r"^rank 1 leaves: it was asked to stop$"):
        await beats_of(store, 0).run()


async def test_who_says_something_new_at_each_look_is_never_silent() -> None:
    store = MemoryStore()
    beats = beats_of(store, 0)
    for number in range(3 * LOOKS):
        for rank in (1, 2):
            store.put(f"hotreload/beat/{rank}", str(number))
        beats._read_others()
        assert beats._list_gone() == []


async def test_who_looks_is_told_how_long_each_rank_has_said_nothing_new(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    store = MemoryStore()
    for rank in (1, 2):
        store.put(f"hotreload/beat/{rank}", "1")
    beats = beats_of(store, 0)
    for news in ("2", "3"):
        now[0] += 4.0
        store.put("hotreload/beat/1", news)
        beats._read_others()
    now[0] += 0.5
    assert beats.silences == {1: 0.5, 2: 4.5}


async def test_a_store_that_is_gone_loses_the_engine() -> None:
    class Gone(MemoryStore):
        def put(self, key: str, value: str) -> None:
            raise EngineLost("rank 0 is gone")

    with pytest.raises(EngineLost, match=r"^rank 0 is gone$"):
        await beats_of(Gone(), 1).run()
