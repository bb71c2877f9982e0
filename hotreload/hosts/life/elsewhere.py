"""Stands where rank 0 has its gate and takes orders, on a rank that follows: it sends all there."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import NoReturn

from hotreload.errors import NotServing
from hotreload.hosts.upstream.joining import Ranks
from hotreload.life.running import RunningEngine
from hotreload.types import Lease

CODE = "not_rank_0"


class FollowerRefusal:
    """The server's gate and operator on a follower: one refusal for all."""

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

    def operator(self) -> NoReturn:
        """Refuse it: rank 0 decides."""
        self._refuse()
