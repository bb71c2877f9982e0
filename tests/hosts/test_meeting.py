"""Ranks that have met go together, and say why; who is gone is waited for by nobody."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hotreload.attempts import By
from hotreload.errors import ConfigError, EngineLost, NotServing, RankLeft
from hotreload.hosts.life import rank_group
from hotreload.hosts.life.follower import FollowerRefusal
from hotreload.hosts.life.rank_group import meet
from hotreload.hosts.upstream.ranks import Ranks
from tests.hosts.memory import MemoryStore
from tests.waiting import turn_until

BY = By("reload", 0, 0, 0.0)


class Met:
    """Stands for JAX's meeting: a store, and who has left in order."""

    def __init__(self, ranks: Ranks, store: MemoryStore, left: list[int]) -> None:
        self.ranks = ranks
        self.store = store
        self._left = left

    async def leave(self) -> None:
        self._left.append(self.ranks.own)


class Place:
    """Where three ranks meet."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.left: list[int] = []
        self.lost: list[str] = []

    async def join(self, ranks: Ranks, within: float) -> Met:
        return Met(ranks, self.store, self.left)

    @asynccontextmanager
    async def as_rank(self, own: int) -> AsyncIterator[Met]:
        lose: Callable[[EngineLost], None] = lambda why: self.lost.append(str(why))  # noqa: E731
        async with meet(Ranks(own, 3, "host:1"), 1.0, lose) as joined:
            yield joined  # type: ignore[misc]  # a stand-in


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    made = Place()
    stand_in: Any = made
    monkeypatch.setattr(rank_group, "JoinedRanks", stand_in)
    monkeypatch.setattr(rank_group, "BEAT_SECONDS", 0.001)
    return made


async def stays(place: Place, own: int) -> None:
    async with place.as_rank(own):
        await asyncio.Event().wait()


async def ends_with(task: asyncio.Task[None]) -> BaseException:
    async with asyncio.timeout(60):
        await asyncio.wait({task})
    try:
        task.result()
    except BaseExceptionGroup as group:
        (only,) = group.exceptions
        return only
    except asyncio.CancelledError as cancel:
        return cancel
    raise AssertionError("it ended well")


async def here(place: Place, own: int) -> asyncio.Task[None]:
    task = asyncio.create_task(stays(place, own))
    await turn_until(lambda: place.store.get(f"hotreload/beat/{own}", 0.0) is not None)
    return task


async def test_rank_0_that_is_stopped_takes_all_along(place: Place) -> None:
    leader, follower = await here(place, 0), await here(place, 1)
    leader.cancel()
    assert isinstance(await ends_with(leader), asyncio.CancelledError)
    end = await ends_with(follower)
    assert (type(end), str(end)) == (RankLeft, "rank 0 leaves: it was asked to stop")
    assert sorted(place.left) == [0, 1]
    assert place.lost == ["rank 0 leaves: it was asked to stop"]


async def test_another_rank_that_is_stopped_is_waited_for_by_nobody(place: Place) -> None:
    leader, follower = await here(place, 0), await here(place, 2)
    follower.cancel()
    assert isinstance(await ends_with(follower), asyncio.CancelledError)
    end = await ends_with(leader)
    assert (type(end), str(end)) == (RankLeft, "rank 2 leaves: it was asked to stop")
    assert place.left == []


async def test_what_rank_0_cannot_do_is_told_to_all(place: Place) -> None:
    async def disagrees() -> None:
        async with place.as_rank(0):
            raise ConfigError("rank 1 has another tp")

    follower = await here(place, 1)
    assert isinstance(await ends_with(asyncio.create_task(disagrees())), ConfigError)
    assert str(await ends_with(follower)) == "rank 0 leaves: rank 1 has another tp"
    assert sorted(place.left) == [0, 1]


@pytest.mark.parametrize(("lost", "other"), [(0, 1), (1, 0)])
async def test_a_part_that_is_lost_is_told_at_once_and_nobody_waits(
    place: Place, lost: int, other: int
) -> None:
    async def loses() -> None:
        async with place.as_rank(lost):
            raise EngineLost("the scheduler thread has ended")

    there = await here(place, other)
    assert isinstance(await ends_with(asyncio.create_task(loses())), EngineLost)
    end = await ends_with(there)
    words = f"rank {lost} has lost its part: the scheduler thread has ended"
    assert (type(end), str(end)) == (EngineLost, words)
    assert place.left == []


ASKS: list[Callable[[FollowerRefusal], Any]] = [
    lambda there: there.operator(),
    lambda there: there.admit().__aenter__(),
    lambda there: there.inspect().__aenter__(),
    lambda there: there.engines(),
    lambda there: there.check_answers_here(),
]


@pytest.mark.parametrize("ask", ASKS)
async def test_a_rank_that_follows_sends_everybody_to_rank_0(
    ask: Callable[[FollowerRefusal], Any],
) -> None:
    there = FollowerRefusal(Ranks(1, 2, "10.0.0.1:7000"))
    with pytest.raises(
        NotServing, match=r"this is rank 1 of 2 .* rank 0, on 10\.0\.0\.1, "
    ) as told:
        await ask(there)
    assert told.value.code == "not_rank_0"
    with pytest.raises(NotServing), there.lend_engine():
        pass
