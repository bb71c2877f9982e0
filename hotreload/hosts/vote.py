"""Takes every rank through the same steps: rank 0 is the chair, the others follow and vote.

Steps and ballots go through a store. A step that follows before the last one is done ends that:
rank 0 has given it up. Nothing here knows what a step does.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NoReturn

from hotreload.errors import CheckpointRejected, EngineLost, HotReloadError, ProbeFailed, TryAgain
from hotreload.hosts.bounds import LONGEST_WORDS, NotBelieved, number, parse_bounded, table, words
from hotreload.hosts.message_reader import MessageReader
from hotreload.hosts.upstream.store import Store
from hotreload.threads import in_thread, run_to_end
from hotreload.types import Reason

MOST_TOLD_FINDINGS = 200
LONGEST_FINDING = 2000


class Said(StrEnum):
    """Outcome of a step on one rank; the gravest comes last."""

    DONE = "done"
    LATER = "later"
    REJECTED = "rejected"
    LOST = "lost"


_GRAVITY = list(Said)
_ERRORS: Mapping[Said, type[HotReloadError]] = {
    Said.LATER: TryAgain,
    Said.REJECTED: CheckpointRejected,
    Said.LOST: EngineLost,
}


@dataclass(frozen=True, slots=True)
class Step:
    """Something that all ranks are to do; rank 0 numbers them."""

    number: int
    name: str
    about: Mapping[str, str] = field(default_factory=dict)

    def to_text(self) -> str:
        """As a store holds it."""
        return json.dumps({"number": self.number, "name": self.name, "about": dict(self.about)})

    @classmethod
    def from_text(cls, text: str) -> "Step":
        """Read what a store held; NotBelieved if that is no step."""
        found = parse_bounded(text)
        if not isinstance(found, dict) or found.keys() != {"number", "name", "about"}:
            raise NotBelieved("it is no step")
        return cls(number(found["number"], 1), words(found["name"]), table(found["about"]))


@dataclass(frozen=True, slots=True)
class Ballot:
    """Word of one rank on a step."""

    rank: int
    said: Said = Said.DONE
    reason: Reason | None = None
    says: Mapping[str, str] = field(default_factory=dict)
    """Things that the step made, for rank 0 to compare."""

    def to_text(self) -> str:
        """As a store holds it."""
        told = None if self.reason is None else _cut(self.reason)
        return json.dumps([self.rank, self.said, told, dict(self.says)])

    @classmethod
    def from_text(cls, text: str) -> "Ballot":
        """Read what a store held; NotBelieved if that is no ballot."""
        match parse_bounded(text):
            case [int(rank), ("done" | "later" | "rejected" | "lost") as said, None, says]:
                return cls(rank, Said(said), None, table(says))
            case [
                int(rank),
                ("done" | "later" | "rejected" | "lost") as said,
                [code, message, *findings],
                says,
            ]:
                reason = Reason(words(code), words(message), tuple(map(words, findings)))
                return cls(rank, Said(said), reason, table(says))
        raise NotBelieved("it is no ballot")


def _cut(reason: Reason) -> list[str]:
    """No more of it than another rank believes."""
    findings = (each[:LONGEST_FINDING] for each in reason.findings[:MOST_TOLD_FINDINGS])
    return [reason.code, reason.message[:LONGEST_WORDS], *findings]


def ballot_against(rank: int, fault: Exception) -> Ballot:
    """Make the ballot of a rank on which a step failed."""
    if not isinstance(fault, HotReloadError):
        words = f"internal error: {type(fault).__name__}: {fault}"
        return Ballot(rank, Said.REJECTED, CheckpointRejected(words, code="internal").reason)
    kinds = (said for said, kind in _ERRORS.items() if isinstance(fault, kind))
    return Ballot(rank, next(kinds, Said.LATER), fault.reason)


def check_all_did(step: Step, ballots: Sequence[Ballot], asked: Iterable[int]) -> None:
    """Raise the gravest of what ranks said against a step; each rank is named with its reason.

    TryAgain for one that said nothing in time: it may only be slow.
    """
    against = [each for each in ballots if each.said is not Said.DONE]
    if against:
        _raise_gravest(against)
    silent = sorted(set(asked) - {each.rank for each in ballots})
    if silent:
        named = ", ".join(f"rank {rank}" for rank in silent)
        raise TryAgain(f"{named} did not {step.name} in time", code="late_rank")


def check_same(ballots: Sequence[Ballot], name: str, own: str) -> None:
    """Raise TryAgain unless every rank says the same of what it made as rank 0 does."""
    for ballot in ballots:
        theirs = ballot.says.get(name)
        if theirs != own:
            words = f"rank {ballot.rank} has another {name}, {theirs}, than rank 0, {own}"
            raise TryAgain(words, code="ranks_differ")


def _raise_gravest(against: Sequence[Ballot]) -> NoReturn:
    by_gravity = sorted(against, key=lambda each: -_GRAVITY.index(each.said))
    first = by_gravity[0]
    reason = first.reason or Reason("unknown", "gave no reason")
    others = [f"rank {e.rank}: {e.reason.message}" for e in by_gravity[1:] if e.reason]
    findings = (*reason.findings, *others)
    words = f"rank {first.rank}: {reason.message}"
    kind = ProbeFailed if reason.code == ProbeFailed.code else _ERRORS[first.said]
    raise kind(words, code=reason.code, findings=findings)


Do = Callable[[Step], Awaitable[Mapping[str, str]]]
"""Does a step, and says what it made."""


class Chair:
    """Rank 0's side."""

    def __init__(self, store: Store, others: Sequence[int]) -> None:
        self.others = others
        self._store = store
        self._ear = MessageReader(store)
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
        """Receive the others' votes until then; the first objection ends the wait."""
        heard: list[Ballot] = []
        waiting = {asyncio.create_task(self._hear_one(step, r, within)) for r in self.others}
        try:
            while waiting and all(each.said is Said.DONE for each in heard):
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                heard += [ballot for each in done if (ballot := each.result()) is not None]
        finally:
            await run_to_end(_cancel(waiting))
        if len(heard) == len(self.others):
            await in_thread(lambda cancel: self._forget_before(step.number))
        return sorted(heard, key=lambda each: each.rank)

    async def all_did(self, step: Step, within: float) -> list[Ballot]:
        """Receive the votes of all ranks that have done the step; raise the gravest objection."""
        ballots = await self.hear(step, within)
        check_all_did(step, ballots, self.others)
        return ballots

    def _forget_before(self, number: int) -> None:
        """Every rank has come so far: none reads an earlier step."""
        for old in range(self._oldest, number):
            self._store.forget(_key(old))
        self._oldest = number

    async def _hear_one(self, step: Step, rank: int, within: float) -> Ballot | None:
        def read(text: str) -> Ballot:
            ballot = Ballot.from_text(text)
            if ballot.rank != rank:
                raise NotBelieved(f"it is rank {ballot.rank}'s")
            return ballot

        return await self._ear.receive(_key(step.number, rank), read, within)


class Follower:
    """The side of every other rank."""

    def __init__(self, store: Store, rank: int) -> None:
        self._store = store
        self._ear = MessageReader(store)
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
                await run_to_end(_cancel({upcoming, work}))

    async def _take(self, step: Step, do: Do) -> None:
        try:
            ballot = Ballot(self._rank, says=await do(step))
        except Exception as fault:
            ballot = ballot_against(self._rank, fault)
        key = _key(step.number, self._rank)
        await in_thread(lambda cancel: self._store.put(key, ballot.to_text()))

    async def _next(self) -> Step:
        self._number += 1
        step = await self._ear.receive(_key(self._number), self._read)
        assert step is not None, "it is waited for without end"
        return step

    def _read(self, text: str) -> Step:
        step = Step.from_text(text)
        if step.number != self._number:
            raise NotBelieved(f"it is step {step.number}")
        return step


def _key(number: int, *more: object) -> str:
    return "/".join(("hotreload", "step", str(number), *map(str, more)))


async def _cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
