"""A hub source at work on a local hub, and commits that are pushed to it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from hotreload.checkpoint.digests import Digests
from hotreload.events import Event, Progress
from hotreload.sources.hub.client import HubOptions
from hotreload.sources.huggingface import HuggingFaceSource
from tests.hub.local_hub import REPO, LocalHub
from tests.sources.watching import Watching, shard, taken
from tests.waiting import PATIENCE

DIGESTS = Digests()
LONG = 3600.0
"""A poll that never comes in a test: what is seen then was woken."""


def hub_source(
    hub: LocalHub, cache: Path, publish: Callable[[Event], None] = lambda _: None, **settings: Any
) -> HuggingFaceSource:
    settings = {"poll": 0.05, "endpoint": hub.url, "digests": DIGESTS, **settings}
    return HuggingFaceSource(
        settings.pop("repo", REPO),
        HubOptions(**taken(HubOptions, settings)),
        cache=cache,
        publish=publish,
        **settings,
    )


class Follower(Watching):
    """What a hub source wished and published so far, to be waited on."""

    def __init__(self, hub: LocalHub, cache: Path, **settings: Any) -> None:
        super().__init__(cache)
        self.source: Any = hub_source(hub, cache, self.note, **settings)

    @property
    def shas(self) -> list[str]:
        return [revision.id for revision in self.wishes]

    @property
    def progress(self) -> list[Progress]:
        return [event for event in self.happened if isinstance(event, Progress)]

    async def wished_shas(self, *shas: str) -> None:
        """Until these and no others were wished, in this order."""
        await self.until(lambda: len(self.shas) >= len(shas))
        assert self.shas == list(shas)


@asynccontextmanager
async def following(hub: LocalHub, cache: Path, **settings: Any) -> AsyncIterator[Follower]:
    """Follow the hub until the end of the block."""
    follow = Follower(hub, cache, **settings)
    running = asyncio.create_task(follow.run())
    try:
        await follow.until(lambda: follow.looks() > 0)
        yield follow
    finally:
        await follow.source.close()
        await asyncio.wait_for(running, PATIENCE)


def checkpoint(content: str, **more: bytes) -> dict[str, bytes]:
    """A commit's files: a shard whose bytes depend on `content`, and what stands beside it."""
    return {
        "model.safetensors": shard(content, "tensor"),
        "config.json": b"{}",
        "README.md": b"not for serving",
        "pytorch_model.bin": b"a pickle",
        **{name.replace("__", "."): data for name, data in more.items()},
    }
