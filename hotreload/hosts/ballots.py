"""Steps that rank 0 asks for and ballots of the others, as data that goes through a store."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NoReturn

from hotreload.errors import CheckpointRejected, EngineLost, HotReloadError, TryAgain
from hotreload.hosts.bounds import MOST_WORDS, NotBelieved, number, parsed, table, words
from hotreload.types import Reason

MOST_FINDINGS = 200
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
        found = parsed(text)
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
        match parsed(text):
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
    findings = (each[:LONGEST_FINDING] for each in reason.findings[:MOST_FINDINGS])
    return [reason.code, reason.message[:MOST_WORDS], *findings]


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
    raise _ERRORS[first.said](words, code=reason.code, findings=findings)
