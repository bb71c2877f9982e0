"""One engine behind its gate, and the weights it holds: live, kept from before, staged."""

import asyncio
from typing import Protocol

from hotreload.core.gate import Gate
from hotreload.core.ledger import PastGeneration
from hotreload.core.ports import Engine
from hotreload.types import Generation, Lease, Staged


class Closable(Protocol):
    """A gate, for whoever closes it to work on the engine; the replica alone opens it again."""

    @property
    def is_lost(self) -> bool:
        """Whether it was sealed because the engine is lost."""
        ...

    def hold(self) -> None:
        """Make arrivals wait; those inside go on."""
        ...

    async def drained(self, within: float) -> None:
        """Wait until nobody is inside; DrainTimedOut names how many still are."""
        ...

    def seal(self, reason: str, *, code: str) -> None:
        """Refuse everybody from now on, for good."""
        ...


class Replica[E: Engine]:
    """One engine, the gate before it, what answers, what answered before, what is to answer.

    Of the engine the core uses its port alone, so it takes a replica of any engine.
    """

    def __init__(self, engine: E, gate: Gate[E], live: Generation) -> None:
        # Read through a property: could it be set, a Replica[E] would be no Replica[Engine].
        self._engine = engine
        self.gate: Closable = gate
        self.index = gate.replica
        """Its index among the daemon's engines, which events carry."""
        self.live = live
        self.previous: Staged | None = None
        self.staged: Staged | None = None
        self.staged_bytes = 0
        """How many bytes were ever staged here, all told."""
        self.alone = asyncio.Lock()
        """Held by whoever closes the gate to work on the engine."""

        def let_in() -> float:  # here alone a lease is made: the core cannot name another engine
            return gate.open(Lease(self.live, engine))

        self._let_in = let_in

    @property
    def engine(self) -> E:
        """The engine behind the gate."""
        return self._engine

    def open(self) -> float:
        """Let requests in, to what is live on this engine; return how long arrivals were held."""
        return self._let_in()

    def keeps(self, place: PastGeneration) -> bool:
        """Whether this generation waits in memory for a rollback.

        Equal weights of another revision do not count: its name would be shown as live.
        """
        previous = self.previous
        kept = previous and (previous.revision, previous.fingerprint)
        return kept == (place.revision, place.fingerprint)

    async def forget_previous(self) -> None:
        """Free the weights that wait for a rollback."""
        previous, self.previous = self.previous, None
        if previous is not None:
            await self.engine.release(previous)
