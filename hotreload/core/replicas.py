"""The engines that serve, by index; between two attempts all of them hold the same generation."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from hotreload.core.ledger import PastGeneration
from hotreload.core.ports import Engine
from hotreload.core.replica import Replica
from hotreload.errors import EngineLost
from hotreload.types import Generation, Mode, Reason


@dataclass(frozen=True, slots=True)
class OnTrial:
    """What answers on some engines, and is live for the daemon once every one has it."""

    generation: Generation
    reject: Callable[[Reason], None]
    """Have it refused for this reason; the engines that have it go back to what is live."""


class Replicas[E: Engine]:
    """Those that are lost are not among them, and come back when they are started again."""

    def __init__(self, by_index: Mapping[int, Replica[E]]) -> None:
        """Its owner puts them in and takes them out; one must be there from the beginning."""
        self._by_index = by_index
        self.live = self.first.live
        """What the daemon has made live; while an attempt is carried out some hold another."""
        self.trial: OnTrial | None = None
        """What an attempt under way carries from engine to engine, once the first one has it."""
        self.changing = asyncio.Lock()
        """Held while an attempt is carried out, and while an engine that was started joins."""

    def __iter__(self) -> Iterator[Replica[E]]:
        """Those that serve, in their order."""
        serving = (each for _, each in sorted(self._by_index.items()) if not each.gate.is_lost)
        return iter(tuple(serving))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @property
    def first(self) -> Replica[E]:
        """The one that new weights are tried on before the others."""
        serving = next(iter(self), None)
        if serving is None:
            raise EngineLost("no engine serves any more")
        return serving

    @property
    def mode(self) -> Mode:
        """How new weights take over: engines of one model do it alike."""
        return self.first.mode

    def keeps(self, place: PastGeneration) -> bool:
        """Whether a rollback to this generation needs no loading now: others copy what one has."""
        is_live = place.number == self.live.number  # here and there, while others are tried
        return is_live or any(replica.keeps(place) for replica in self)
