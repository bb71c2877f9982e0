"""What a rank that does not decide does at each step: the same to its own part of the engine."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import NoReturn, Protocol

from hotreload.errors import EngineLost
from hotreload.hosts.ballots import Step
from hotreload.hosts.bounds import revision_of
from hotreload.hosts.steps import in_step
from hotreload.types import Checkpoint, HowFar, Revision, Staged

FIRST = "first"
"""How all ranks call the weights they started with."""

Prepare = Callable[[Revision], Awaitable[Checkpoint]]
"""Fetches a revision and checks it, on this host."""
About = Mapping[str, str]


class OwnPart(Protocol):
    """One rank's part of an engine; what each call promises is `core.ports.Engine`'s."""

    @property
    def live(self) -> Staged:
        """The weights that answer new requests."""
        ...

    @property
    def staging(self) -> HowFar | None:
        """How far `stage` is with a checkpoint."""
        ...

    @property
    def cannot_overlap(self) -> str | None:
        """Why two sets of weights cannot answer side by side in it."""
        ...

    async def stage(self, checkpoint: Checkpoint) -> Staged:
        """Load this rank's share; the fingerprint is that of all shares together."""
        ...

    async def prove(self, staged: Staged) -> None:
        """Ask staged weights the canary prompts, or compute the answers for who asks."""
        ...

    async def flip(self, staged: Staged) -> Staged:
        """Have `staged` answer new requests; return what answered them before."""
        ...

    async def exchange(self, staged: Staged) -> Staged:
        """Make `staged` live and return what was live."""
        ...

    async def scrub(self) -> None:
        """Overwrite all that failed weights computed."""
        ...

    async def retire(self, staged: Staged) -> None:
        """Wait until nothing is under way under these weights."""
        ...

    async def release(self, staged: Staged) -> None:
        """Free spare weights."""
        ...

    async def checksums(self) -> dict[str, int]:
        """Compute the checksum of each leaf that is live, of which every rank measures its own."""
        ...

    async def probe(self) -> None:
        """Ask the live weights the canary prompts; the other ranks compute what is asked."""
        ...

    async def withheld(self, beyond: int) -> int:
        """Wait until more answers than these were withheld as no numbers; how many."""
        ...

    async def abort(self, staged: Staged | None = None) -> None:
        """End every answer under way (under these weights)."""
        ...

    async def died(self) -> NoReturn:
        """Raise EngineLost as soon as it is known that it died or hangs."""
        ...

    def lose(self, why: str) -> None:
        """Count it as lost: whoever waits for it hears EngineLost."""
        ...

    def withdraw(self, step: int) -> None:
        """Let no rank wait any more to do its part of this step; rank 0 alone asks."""
        ...


class Following:
    """Belongs to one rank; the sets of weights have the names that rank 0 gives them."""

    def __init__(self, own: OwnPart, prepare: Prepare) -> None:
        self._own = own
        self._prepare = prepare
        self._sets: dict[str, Staged] = {FIRST: own.live}
        self._ending: dict[str, asyncio.Task[None]] = {}
        self._does: Mapping[str, Callable[[str, About], Awaitable[About | None]]] = {
            "stage": self._stage,
            "prove": self._prove,
            "flip": self._flip,
            "exchange": self._exchange,
            "scrub": self._scrub,
            "measure": self._measure,
            "retire": self._retire,
            "release": self._release,
            "drop": self._drop,
        }

    async def __call__(self, step: Step) -> About:
        """Do one step; what it made is told with the vote."""
        with in_step(step.number):
            return await self._does[step.name](str(step.number), step.about) or {}

    async def _stage(self, name: str, about: About) -> About:
        checkpoint = await self._prepare(revision_of(about))
        staged = self._sets[name] = await self._own.stage(checkpoint)
        return {"fingerprint": staged.fingerprint}

    async def _prove(self, name: str, about: About) -> None:
        await self._own.prove(self._sets[about["set"]])

    async def _flip(self, name: str, about: About) -> None:
        await self._own.flip(self._sets[about["set"]])

    async def _exchange(self, name: str, about: About) -> None:
        await self._own.exchange(self._sets[about["set"]])

    async def _scrub(self, name: str, about: About) -> None:
        await self._own.scrub()

    async def _measure(self, name: str, about: About) -> None:
        await self._own.checksums()

    async def _retire(self, name: str, about: About) -> None:
        """Rank 0 waits for the end, which comes to all in one turn; steps follow meanwhile."""
        name = about["set"]
        self._ending[name] = asyncio.create_task(self._own.retire(self._sets[name]))

    async def _release(self, name: str, about: About) -> None:
        name = about["set"]
        if name in self._ending:
            # The next step may end this one: what ends goes on, and can be waited for again.
            await asyncio.shield(self._ending[name])
            del self._ending[name]
        await self._own.release(self._sets[name])
        del self._sets[name]

    async def _drop(self, name: str, about: About) -> None:
        """What was being done when this came has been given up; what it made is freed."""
        staged = self._sets.pop(about["set"], None)
        if staged is self._own.live:
            raise EngineLost("rank 0 gave up what is live here")
        if staged is not None:
            await self._own.release(staged)
