"""Takes every rank through the same steps: rank 0 is the chair, the others follow and vote.

Steps and ballots go through a store. A step that comes before the last one is done ends the last
one: rank 0 has given it up. The content of a step is unknown here.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NoReturn

from hotreload.errors import CheckpointRejected, EngineLost, HotReloadError, ProbeFailed, TryAgain
from hotreload.hosts.messages import (
    LONGEST_WORDS,
    InvalidMessage,
    MessageReader,
    parse_bounded,
    parse_number,
    parse_table,
    parse_text,
)
from hotreload.hosts.upstream.ranks import Store
from hotreload.threads import cancel_all, in_thread, run_to_end
from hotreload.types import Reason

MOST_SENT_FINDINGS = 200
LONGEST_FINDING = 2000


class Vote(StrEnum):
    """One rank's vote on a step; the gravest comes last."""

    DONE = "done"
    LATER = "later"
    REJECTED = "rejected"
    LOST = "lost"


_GRAVITY = list(Vote)
_ERRORS: Mapping[Vote, type[HotReloadError]] = {
    Vote.LATER: TryAgain,
    Vote.REJECTED: CheckpointRejected,
    Vote.LOST: EngineLost,
}


@dataclass(frozen=True, slots=True)
class Step:
    """A step that rank 0 calls on all ranks, numbered by rank 0."""

    number: int
    name: str
    about: Mapping[str, str] = field(default_factory=dict)

    def to_text(self) -> str:
        """Return the text for the store."""
        return json.dumps({"number": self.number, "name": self.name, "about": dict(self.about)})

    @classmethod
    def from_text(cls, text: str) -> "Step":
        """Return the step of a text of the store; InvalidMessage if it is none."""
        found = parse_bounded(text)
        if not isinstance(found, dict) or found.keys() != {"number", "name", "about"}:
            raise InvalidMessage("it is no step")
        return cls(
            parse_number(found["number"], 1), parse_text(found["name"]), parse_table(found["about"])
        )


@dataclass(frozen=True, slots=True)
class Ballot:
    """One rank's vote on a step, its reason and its results."""

    rank: int
    vote: Vote = Vote.DONE
    reason: Reason | None = None
    results: Mapping[str, str] = field(default_factory=dict)
    """Results of the step, for rank 0 to compare."""

    def to_text(self) -> str:
        """Return the text for the store."""
        reason = None if self.reason is None else _cut(self.reason)
        return json.dumps([self.rank, self.vote, reason, dict(self.results)])

    @classmethod
    def from_text(cls, text: str) -> "Ballot":
        """Return the ballot of a text of the store; InvalidMessage if it is none."""
        match parse_bounded(text):
            case [int(rank), ("done" | "later" | "rejected" | "lost") as vote, why, results]:
                return cls(rank, Vote(vote), _parse_reason(why), parse_table(results))
        raise InvalidMessage("it is no ballot")


def _parse_reason(value: Any) -> Reason | None:
    match value:
        case None:
            return None
        case [code, message, *findings]:
            texts = tuple(map(parse_text, findings))
            return Reason(parse_text(code), parse_text(message), texts)
    raise InvalidMessage("it is no reason")


def _cut(reason: Reason) -> list[str]:
    """Return the reason, cut to the bounds of a message."""
    findings = (each[:LONGEST_FINDING] for each in reason.findings[:MOST_SENT_FINDINGS])
    return [reason.code, reason.message[:LONGEST_WORDS], *findings]


def ballot_against(rank: int, fault: Exception) -> Ballot:
    """Return the ballot of a rank on which a step failed."""
    if not isinstance(fault, HotReloadError):
        words = f"internal error: {type(fault).__name__}: {fault}"
        return Ballot(rank, Vote.REJECTED, CheckpointRejected(words, code="internal").reason)
    kinds = (vote for vote, kind in _ERRORS.items() if isinstance(fault, kind))
    return Ballot(rank, next(kinds, Vote.LATER), fault.reason)


def check_votes(step: Step, ballots: Sequence[Ballot], asked: Iterable[int]) -> None:
    """Raise the gravest objection to a step; the error names each rank that objects, and why.

    TryAgain if a rank has not voted in time: it may only be slow.
    """
    against = [each for each in ballots if each.vote is not Vote.DONE]
    if against:
        _raise_gravest(against)
    silent = sorted(set(asked) - {each.rank for each in ballots})
    if silent:
        named = ", ".join(f"rank {rank}" for rank in silent)
        raise TryAgain(f"{named} did not {step.name} in time", code="late_rank")


def check_same(ballots: Sequence[Ballot], name: str, own: str) -> None:
    """Raise TryAgain unless every rank has the same result of this name as rank 0."""
    for ballot in ballots:
        theirs = ballot.results.get(name)
        if theirs != own:
            words = f"rank {ballot.rank} has another {name}, {theirs}, than rank 0, {own}"
            raise TryAgain(words, code="ranks_differ")


def _raise_gravest(against: Sequence[Ballot]) -> NoReturn:
    by_gravity = sorted(against, key=lambda each: -_GRAVITY.index(each.vote))
    first = by_gravity[0]
    reason = first.reason or Reason("unknown", "gave no reason")
    others = [f"rank {e.rank}: {e.reason.message}" for e in by_gravity[1:] if e.reason]
    findings = (*reason.findings, *others)
    words = f"rank {first.rank}: {reason.message}"
    kind = ProbeFailed if reason.code == ProbeFailed.code else _ERRORS[first.vote]
    raise kind(words, code=reason.code, findings=findings)


Do = Callable[[Step], Awaitable[Mapping[str, str]]]
"""Does a step, and returns its results."""


class Chair:
    """Rank 0's side: calls steps, and collects the votes."""

    def __init__(self, store: Store, others: Sequence[int]) -> None:
        self.others = others
        self._store = store
        self._reader = MessageReader(store)
        self._number = 0
        self._oldest = 1
        """The first step that the store still holds."""

    async def call(self, name: str, about: Mapping[str, str] | None = None) -> Step:
        """Send a step to all others; it ends the step that they are at."""
        self._number += 1
        step = Step(self._number, name, about or {})
        await in_thread(lambda cancel: self._store.put(_key(step.number), step.to_text()))
        return step

    async def receive_votes(self, step: Step, within: float) -> list[Ballot]:
        """Return the votes that come within so many seconds; the first objection ends the wait."""
        votes: list[Ballot] = []
        waiting = {asyncio.create_task(self._receive_vote(step, r, within)) for r in self.others}
        try:
            while waiting and all(each.vote is Vote.DONE for each in votes):
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                votes += [ballot for each in done if (ballot := each.result()) is not None]
        finally:
            await run_to_end(cancel_all(*waiting))
        if len(votes) == len(self.others):
            await in_thread(lambda cancel: self._forget_before(step.number))
        return sorted(votes, key=lambda each: each.rank)

    async def collect_votes(self, step: Step, within: float) -> list[Ballot]:
        """Return the votes of all others on a step; raise the gravest objection."""
        ballots = await self.receive_votes(step, within)
        check_votes(step, ballots, self.others)
        return ballots

    def _forget_before(self, number: int) -> None:
        """Drop the steps before this one: all ranks have voted on it, and read no earlier one."""
        for old in range(self._oldest, number):
            self._store.forget(_key(old))
        self._oldest = number

    async def _receive_vote(self, step: Step, rank: int, within: float) -> Ballot | None:
        def read(text: str) -> Ballot:
            ballot = Ballot.from_text(text)
            if ballot.rank != rank:
                raise InvalidMessage(f"it is rank {ballot.rank}'s")
            return ballot

        return await self._reader.receive(_key(step.number, rank), read, within)


class Follower:
    """Another rank's side: does each step, and votes."""

    def __init__(self, store: Store, rank: int) -> None:
        self._store = store
        self._reader = MessageReader(store)
        self._rank = rank
        self._number = 0

    async def follow(self, do: Do) -> None:
        """Do every step and vote on it, until this is cancelled or the store is gone."""
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
                await run_to_end(cancel_all(upcoming, work))

    async def _take(self, step: Step, do: Do) -> None:
        try:
            ballot = Ballot(self._rank, results=await do(step))
        except Exception as fault:
            ballot = ballot_against(self._rank, fault)
        key = _key(step.number, self._rank)
        await in_thread(lambda cancel: self._store.put(key, ballot.to_text()))

    async def _next(self) -> Step:
        self._number += 1
        step = await self._reader.receive(_key(self._number), self._read)
        assert step is not None, "it is waited for without end"
        return step

    def _read(self, text: str) -> Step:
        step = Step.from_text(text)
        if step.number != self._number:
            raise InvalidMessage(f"it is step {step.number}")
        return step


def _key(number: int, *more: object) -> str:
    return "/".join(("hotreload", "step", str(number), *map(str, more)))
