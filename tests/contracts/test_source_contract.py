"""What the core relies on of a source: the same for the folder, the hub and the fake."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest

from hotreload.core.ports import Source
from hotreload.errors import BadRequest, SourceUnavailable
from hotreload.types import Revision
from tests.fakes import FakeSource, Steps
from tests.hub.local_hub import LocalHub, local_hub
from tests.sources.following import checkpoint, hub_source
from tests.sources.watching import arrive, directory, shard
from tests.waiting import PATIENCE

FAR_OFF = 3600.0
"""Until a source looks by itself: what is seen before that, it was woken for."""


class Published(Protocol):
    """A source, and a way to publish checkpoints for it."""

    source: Source

    def publish(self, content: str) -> None:
        """Publish a checkpoint whose weights depend on `content`."""
        ...


class Folder:
    def __init__(self, folder: Path) -> None:
        (root := folder / "root").mkdir()
        self.root, self.count = root, 0
        self.source: Source = directory(root, settle=0.0)

    def publish(self, content: str) -> None:
        self.count += 1
        arrive(self.root / f"step-{self.count}", content)


class Hub:
    def __init__(self, folder: Path, hub: LocalHub) -> None:
        self.hub = hub
        self.source: Source = hub_source(hub, folder, poll=FAR_OFF)

    def publish(self, content: str) -> None:
        self.hub.push(checkpoint(content, model__safetensors=shard(content, "model.safetensors")))


class Fake:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._fake = FakeSource(Steps(), folder)
        self.source: Source = self._fake

    def publish(self, content: str) -> None:
        (self.folder / content).mkdir()
        (self.folder / content / "model.safetensors").write_bytes(
            shard(content, "model.safetensors")
        )
        self._fake.publish(Revision(f"id of {content}", content))


@pytest.fixture
def hub() -> Iterator[LocalHub]:
    with local_hub() as made:
        yield made


@pytest.fixture(params=["folder", "hub", "fake"])
async def world(
    request: pytest.FixtureRequest, tmp_path: Path, hub: LocalHub
) -> AsyncIterator[Published]:
    kinds: dict[str, Callable[[], Any]] = {
        "folder": lambda: Folder(tmp_path),
        "hub": lambda: Hub(tmp_path, hub),
        "fake": lambda: Fake(tmp_path),
    }
    made = kinds[request.param]()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(made.source.close)
        yield made


async def next_wish(wishes: AsyncIterator[Revision]) -> Revision:
    return await asyncio.wait_for(anext(wishes), PATIENCE)


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


async def test_the_newest_is_wished_and_each_newer_one(world: Published) -> None:
    wishes = world.source.follow_newest()
    seen = []
    for content in ("one", "two", "three"):
        world.publish(content)
        world.source.wake("request")
        wish = await next_wish(wishes)
        seen.append(wish)
        assert weights(await world.source.fetch(wish)) == shard(content, "model.safetensors")
    assert len({revision.id for revision in seen}) == 3


async def test_each_revision_has_a_content_of_its_own_whichever_thread_asks(
    world: Published,
) -> None:
    contents = []
    for content in ("one", "two"):
        world.publish(content)
        revision = await world.source.resolve(None)
        await world.source.fetch(revision)
        contents.append(await asyncio.to_thread(world.source.content_of, revision))
        assert world.source.content_of(revision) == contents[-1]
    assert len(set(contents)) == 2


async def test_a_source_that_is_closed_wishes_nothing_more(world: Published) -> None:
    world.publish("one")
    wishes = world.source.follow_newest()
    await next_wish(wishes)
    await world.source.close()
    await world.source.close()
    with pytest.raises(StopAsyncIteration):
        await next_wish(wishes)


async def test_what_is_there_at_the_start_is_wished_at_once(world: Published) -> None:
    world.publish("one")
    wish = await next_wish(world.source.follow_newest())
    assert weights(await world.source.fetch(wish)) == shard("one", "model.safetensors")


async def test_the_newest_is_what_an_operator_gets_who_names_nothing(world: Published) -> None:
    for content in ("one", "two"):
        world.publish(content)
    newest = await world.source.resolve(None)
    assert weights(await world.source.fetch(newest)) == shard("two", "model.safetensors")


async def test_what_is_named_by_its_path_is_the_same_revision(world: Published) -> None:
    world.publish("one")
    revision = await world.source.resolve(None)
    folder = await world.source.fetch(revision)
    assert await world.source.resolve(str(folder)) == revision


@pytest.mark.parametrize("name", ["nowhere", "/nowhere"])
async def test_what_is_not_there_is_said_to_be_unavailable(world: Published, name: str) -> None:
    world.publish("one")
    with pytest.raises((SourceUnavailable, BadRequest), match="nowhere"):
        await world.source.resolve(name)


async def test_what_cannot_be_had_any_more_is_unavailable_and_no_other(world: Published) -> None:
    world.publish("one")
    unknown = Revision("0" * 40, "unknown")
    with pytest.raises(SourceUnavailable):
        await world.source.fetch(unknown)


async def test_what_is_wished_is_held_and_listed(world: Published) -> None:
    world.publish("one")
    wish = await next_wish(world.source.follow_newest())
    assert [*world.source.list_ids()] == [wish.id]
    assert len(world.source.list_seen()) == 1
