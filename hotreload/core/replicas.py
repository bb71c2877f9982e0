"""The engines that serve, by index; between two attempts all of them hold the same generation."""

import asyncio
from collections.abc import Iterator

from hotreload.core.ledger import PastGeneration
from hotreload.core.ports import Engine
from hotreload.core.replica import Replica
from hotreload.types import Generation, Mode


class Replicas[E: Engine]:
    """Those that are lost are not among them, and come back when they are started again."""

    def __init__(self, first: Replica[E]) -> None:
        self._by_index = {first.index: first}
        self.live = first.live
        """What the daemon has made live; while an attempt is carried out some hold another."""
        self.changing = asyncio.Lock()
        """Held while an attempt is carried out, and while an engine that was started joins."""

    def __iter__(self) -> Iterator[Replica[E]]:
        """Those that serve, in their order."""
        serving = (each for _, each in sorted(self._by_index.items()) if not each.gate.is_lost)
        return iter(tuple(serving))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def join(self, replica: Replica[E]) -> None:
        """Count one more among them, in the place of a lost one of its index."""
        self._by_index[replica.index] = replica

    def leave(self, replica: Replica[E]) -> None:
        """Count it no longer among them, unless another took its place."""
        if self._by_index.get(replica.index) is replica:
            del self._by_index[replica.index]

    @property
    def first(self) -> Replica[E]:
        """The one that new weights are tried on before the others."""
        return next(iter(self))

    @property
    def mode(self) -> Mode:
        """How new weights take over: engines of one model do it alike."""
        return next(iter(self._by_index.values())).mode

    def keeps(self, place: PastGeneration) -> bool:
        """Whether a rollback to this generation needs no loading now: others copy what one has."""
        return any(replica.keeps(place) for replica in self)

    def went_live(self, generation: Generation) -> None:
        """Note that every engine holds this generation."""
        self.live = generation
