"""A folder source at work on a real folder, and checkpoints that arrive in all the usual ways."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest

from hotreload.checkpoint.check import check_checkpoint
from hotreload.checkpoint.digests import Digests
from hotreload.checkpoint.fit import Policy
from hotreload.errors import CheckpointRejected
from hotreload.events import Event, FoldersPassedOver, SourceScanned, Wait
from hotreload.sources.directory import DirectorySource
from hotreload.sources.place import FolderOptions
from hotreload.sources.settings import SourceSettings
from hotreload.types import Revision
from tests.waiting import PATIENCE, Witness


class Watching(Witness):
    """What the source wished and published so far, to be waited on."""

    def __init__(self, path: Path, **settings: Any) -> None:
        super().__init__()
        self.source = directory(path, self.note, **settings)
        self.wishes: list[Revision] = []
        self.has_ended = False

    async def run(self) -> None:
        try:
            async for revision in self.source.follow_newest():
                self.wishes.append(revision)
                self.look_again()
        finally:
            self.has_ended = True
            self.look_again()

    async def until(self, holds: Callable[[], bool]) -> None:
        def is_so() -> bool:
            if holds():
                return True
            assert not self.has_ended
            return False

        await super().until(is_so)

    async def wished(self, *labels: str) -> None:
        """Until these and no others were wished, in this order."""
        await self.until(lambda: len(self.wishes) >= len(labels))
        assert self.labels == list(labels)

    async def wishes_for(self, label: str) -> None:
        """Until it was wished, whatever else was."""
        await self.until(lambda: label in self.labels)

    async def waits_for(self, words: str) -> None:
        await self.until(lambda: words in (self.waiting or ""))

    async def looked(self, times: int = 1, cause: str | None = None) -> None:
        """Until the source has looked that often from now on."""
        start = self.looks(cause)
        await self.until(lambda: self.looks(cause) >= start + times)

    async def look(self) -> None:
        """Have it look, and wait until a look that began after now has ended."""
        for _ in range(2):
            self.source.wake()
            await self.looked()

    def looks(self, cause: str | None = None) -> int:
        scans = [event for event in self.happened if isinstance(event, SourceScanned)]
        return sum(cause in (None, scan.cause) for scan in scans)

    @property
    def labels(self) -> list[str]:
        return [revision.label for revision in self.wishes]

    @property
    def waiting(self) -> str | None:
        said = [event.waiting_for for event in self.happened if isinstance(event, Wait)]
        return said[-1] if said else None

    @property
    def passed_over(self) -> dict[str, str]:
        """The folders named now, and the code of the reason of each."""
        return {folder.label: folder.reason.code for folder in self._telling.folders}

    @property
    def passed_over_words(self) -> list[str]:
        return [folder.reason.message for folder in self._telling.folders]

    @property
    def passed_over_counts(self) -> dict[str, int]:
        return dict(self._telling.counts)

    async def passes_over(self, **codes: str) -> None:
        """Until exactly these folders are named, for these reasons."""
        await self.until(lambda: self.passed_over == codes)

    @property
    def _telling(self) -> FoldersPassedOver:
        told = [event for event in self.happened if isinstance(event, FoldersPassedOver)]
        return told[-1] if told else FoldersPassedOver((), {})

    @property
    def errors(self) -> list[str | None]:
        return [event.error for event in self.happened if isinstance(event, SourceScanned)]

    @property
    def error(self) -> str | None:
        return self.errors[-1] if self.errors else None


def directory(
    path: Path, publish: Callable[[Event], None] = lambda _: None, **settings: Any
) -> DirectorySource:
    settings = {"settle": 0.1, "rescan": 60.0, "patience": 60.0, "digests": Digests(), **settings}
    options = FolderOptions(**taken(FolderOptions, settings))
    return DirectorySource(path, options, publish=publish, **settings)


def taken(options: type, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that are such options, taken out of them; else what is usual."""
    given = {**asdict(SourceSettings()), **settings}
    names = [field.name for field in fields(options) if field.name in given]
    for name in names:
        settings.pop(name, None)
    return {name: given[name] for name in names}


@asynccontextmanager
async def watching(path: Path, **settings: Any) -> AsyncIterator[Watching]:
    """Watch the folder; rescans are far off, so that what is seen in time was heard."""
    watch = Watching(path, **settings)
    running = asyncio.create_task(watch.run())
    try:
        await watch.until(lambda: watch.looks() > 0)
        yield watch
    finally:
        await watch.source.close()
        await asyncio.wait_for(running, PATIENCE)


def write(folder: Path, content: str = "", *, shards: int = 1) -> Path:
    """A checkpoint whose bytes depend on `content`, written in place."""
    folder.mkdir(parents=True, exist_ok=True)
    names = shard_names(shards)
    for name in names:
        (folder / name).write_bytes(shard(content or folder.name, name))
    if shards > 1:
        weight_map = {name: name for name in names}
        index = json.dumps({"weight_map": weight_map})
        (folder / "model.safetensors.index.json").write_text(index)
    return folder


def shard_names(shards: int) -> list[str]:
    if shards == 1:
        return ["model.safetensors"]
    return [f"model-{n + 1:05d}-of-{shards:05d}.safetensors" for n in range(shards)]


def shard(content: str, name: str) -> bytes:
    data = content.encode().ljust(64, b".")
    entry = {"dtype": "U8", "shape": [64], "data_offsets": [0, 64]}
    header = json.dumps({name: entry}).encode()
    return len(header).to_bytes(8, "little") + header + data


def arrive(folder: Path, content: str = "", *, shards: int = 1) -> Path:
    """A checkpoint that appears whole, renamed in from outside of the root."""
    # Where nothing is watched: watchdog waits half a second for where a folder went that left.
    aside = folder.parents[2] / f"{folder.parents[1].name}-{folder.name}"
    write(aside, content or folder.name, shards=shards)
    return aside.rename(folder)


def forget(folder: Path) -> None:
    shutil.rmtree(folder)


async def refused_as(code: str, revision: Revision, watch: Watching, root: Path) -> None:
    """The source or the checks refuse what was wished for this reason."""

    async def fetch_and_check() -> None:
        folder = await watch.source.fetch(revision)
        check_checkpoint(
            revision, folder, served=None, policy=Policy(), root=root, content_id=revision.id
        )

    with pytest.raises(CheckpointRejected) as caught:
        await fetch_and_check()
    assert caught.value.code == code
