"""The copy of what encodes prompts that workers are given is that of an engine which serves."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from hotreload.engine.answering.encoder_copy import EncoderCopy
from hotreload.life.workers import Encoders
from hotreload.types import Revision
from tests.fakes import FakeEngine, Steps
from tests.waiting import turn_until


def engine(name: str | None) -> FakeEngine:
    made = FakeEngine(Steps(), Revision("1"))
    made.encoder = EncoderCopy(name, name.encode()) if name else None
    return made


class Told:
    """What workers would hear."""

    def __init__(self, *engines: FakeEngine) -> None:
        self.engines = list(engines)
        self.encoders = Encoders(lambda: self.engines)
        self.names: list[str | None] = []

    def tell(self) -> None:
        copy = self.encoders.copy
        self.names.append(copy.name if copy else None)

    @asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        await self.encoders.look()
        following = asyncio.create_task(self.encoders.follow(self.tell))
        yield
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following

    async def after(self, *engines: FakeEngine, asked: FakeEngine) -> None:
        """Have these serve, and wait until this one has been asked for its copy."""
        self.engines = list(engines)
        looks = asked.copies_made
        self.encoders.look_again()
        await turn_until(lambda: asked.copies_made > looks)
        await asyncio.sleep(0)


async def test_workers_hear_of_one_that_encodes_otherwise_and_not_of_one_that_does_alike() -> None:
    first, twin, other = engine("a"), engine("a"), engine("b")
    told = Told(first, other)
    async with told.following():
        assert told.encoders.copy == EncoderCopy("a", b"a")
        assert (first.copies_made, other.copies_made) == (1, 1), "each knows its own name"
        await told.after(twin, other, asked=twin)
        assert told.names == []
        await told.after(other, asked=other)
        assert told.names == ["b"]


async def test_they_hear_when_there_is_none_any_more() -> None:
    told = Told(engine("a"))
    async with told.following():
        without = engine(None)
        await told.after(without, asked=without)
        assert told.names == [None]


async def test_where_no_engine_serves_there_is_none() -> None:
    told = Told()
    assert not await told.encoders.look()
    assert told.encoders.copy is None
