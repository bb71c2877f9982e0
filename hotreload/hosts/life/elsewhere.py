"""Stands where rank 0 has its gate and takes orders, on a rank that follows: it sends all there."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import NoReturn

from hotreload.errors import NotServing
from hotreload.hosts.upstream.joining import Ranks
from hotreload.life.running import RunningEngine
from hotreload.types import Attempt, By, Generation, Lease, Noise

CODE = "not_rank_0"


class FollowerRefusal:
    """The server's gate and control of a follower: one refusal for all."""

    lets_in = False

    def __init__(self, ranks: Ranks) -> None:
        host = ranks.address.rpartition(":")[0]
        self._why = (
            f"this is rank {ranks.own} of {ranks.count} of one engine: rank 0, on {host}, answers "
            "requests and takes orders"
        )

    def _refuse(self) -> NoReturn:
        raise NotServing(self._why, code=CODE)

    @contextmanager
    def preparing(self) -> Iterator[RunningEngine]:
        """Refuse it: nobody is answered here."""
        self._refuse()
        yield

    @asynccontextmanager
    async def passing(
        self, at_least: int = 0, within: float = 0.0
    ) -> AsyncIterator[Lease[RunningEngine]]:
        """Refuse it: nobody is answered here."""
        self._refuse()
        yield

    async def reload(self, name: str | None, *, by: By, force: bool) -> asyncio.Future[Attempt]:
        """Rank 0 decides."""
        self._refuse()

    async def rehearse(self, name: str | None, *, by: By) -> asyncio.Future[Attempt]:
        """Rank 0 decides."""
        self._refuse()

    async def rollback(self, number: int | None, *, by: By) -> asyncio.Future[Attempt]:
        """Rank 0 decides."""
        self._refuse()

    async def perturb(self, noise: Noise, *, by: By) -> asyncio.Future[Attempt]:
        """Rank 0 decides."""
        self._refuse()

    async def pin(self, *, by: By) -> Generation:
        """Rank 0 decides."""
        self._refuse()

    async def unpin(self, *, by: By) -> Generation:
        """Rank 0 decides."""
        self._refuse()
