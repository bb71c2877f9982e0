"""Takes every rank through the same steps: rank 0 is the chair, the others follow and vote.

Steps and ballots go through a store. A step that follows before the last one is done ends that:
rank 0 has given it up. Nothing here knows what a step does.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from hotreload.hosts.ballots import Ballot, Said, Step, ballot_against, check_all_did
from hotreload.hosts.bounds import NotBelieved
from hotreload.hosts.hearing import Ear
from hotreload.hosts.upstream.store import Store
from hotreload.threads import in_thread, uninterrupted

Do = Callable[[Step], Awaitable[Mapping[str, str]]]
"""Does a step, and says what it made."""


class Chair:
    """Rank 0's side."""

    def __init__(self, store: Store, others: Sequence[int]) -> None:
        self.others = others
        self._store = store
        self._ear = Ear(store)
        self._number = 0
        self._oldest = 1
        """The first step that the store still holds."""

    async def call(self, name: str, about: Mapping[str, str] | None = None) -> Step:
        """Have all others begin a step; it ends whatever they were at."""
        self._number += 1
        step = Step(self._number, name, about or {})
        await in_thread(lambda cancel: self._store.put(_key(step.number), step.to_text()))
        return step

    async def hear(self, step: Step, within: float) -> list[Ballot]:
        """Hear what the others say until then; the first that speaks against it ends the wait."""
        heard: list[Ballot] = []
        waiting = {asyncio.create_task(self._hear_one(step, r, within)) for r in self.others}
        try:
            while waiting and all(each.said is Said.DONE for each in heard):
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                heard += [ballot for each in done if (ballot := each.result()) is not None]
        finally:
            await uninterrupted(_ended(waiting))
        if len(heard) == len(self.others):
            await in_thread(lambda cancel: self._forget_before(step.number))
        return sorted(heard, key=lambda each: each.rank)

    async def all_did(self, step: Step, within: float) -> list[Ballot]:
        """Hear the others, once all have done it; raises the gravest of what is against it."""
        ballots = await self.hear(step, within)
        check_all_did(step, ballots, self.others)
        return ballots

    def _forget_before(self, number: int) -> None:
        """Every rank has come that far: nobody looks for an earlier step."""
        for old in range(self._oldest, number):
            self._store.forget(_key(old))
        self._oldest = number

    async def _hear_one(self, step: Step, rank: int, within: float) -> Ballot | None:
        def read(text: str) -> Ballot:
            ballot = Ballot.from_text(text)
            if ballot.rank != rank:
                raise NotBelieved(f"it is rank {ballot.rank}'s")
            return ballot

        return await self._ear.hear(_key(step.number, rank), read, within)


class Follower:
    """The side of every other rank."""

    def __init__(self, store: Store, rank: int) -> None:
        self._store = store
        self._ear = Ear(store)
        self._rank = rank
        self._number = 0

    async def follow(self, do: Do) -> None:
        """Take part in every step, until this is cancelled or the store is gone."""
        step = await self._next()
        while True:
            upcoming = asyncio.create_task(self._next())
            work = asyncio.create_task(self._take(step, do))
            try:
                await asyncio.wait({upcoming, work}, return_when=asyncio.FIRST_COMPLETED)
                if not upcoming.done():
                    await work
                step = await upcoming
            finally:
                await uninterrupted(_ended({upcoming, work}))

    async def _take(self, step: Step, do: Do) -> None:
        try:
            ballot = Ballot(self._rank, says=await do(step))
        except Exception as fault:
            ballot = ballot_against(self._rank, fault)
        key = _key(step.number, self._rank)
        await in_thread(lambda cancel: self._store.put(key, ballot.to_text()))

    async def _next(self) -> Step:
        self._number += 1
        step = await self._ear.hear(_key(self._number), self._read)
        assert step is not None, "it is waited for without end"
        return step

    def _read(self, text: str) -> Step:
        step = Step.from_text(text)
        if step.number != self._number:
            raise NotBelieved(f"it is step {step.number}")
        return step


def _key(number: int, *more: object) -> str:
    return "/".join(("hotreload", "step", str(number), *map(str, more)))


async def _ended(tasks: Iterable[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
