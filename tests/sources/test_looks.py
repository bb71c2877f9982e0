"""Whatever happens to a look, the watch goes on until it is closed."""

import asyncio
import errno
import itertools
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from hotreload.checkpoint.survey import survey
from hotreload.errors import SourceUnavailable
from hotreload.sources import alarm, seen_revisions, tree
from tests.sources.watching import arrive, directory, watching, write

INDEX = "model.safetensors.index.json"
SHARD = "model-00001-of-00002.safetensors"


class Thief:
    """Takes a path away just before the n-th call to the system that a look makes."""

    def __init__(self, path: Path) -> None:
        self._path, self._aside = path, path.parents[2] / "stolen"
        self._calls, self._at = 0, -1

    @contextmanager
    def strikes(self, at: int) -> Iterator[None]:
        self._calls, self._at = 0, at
        threading.setprofile_all_threads(self._watch)
        try:
            yield
        finally:
            threading.setprofile_all_threads(None)
            if self.has_struck:
                self._aside.rename(self._path)

    @property
    def has_struck(self) -> bool:
        return self._calls > self._at

    def _watch(self, frame: FrameType, event: str, called: Any) -> None:
        if event != "c_call" or threading.get_ident() == threading.main_thread().ident:
            return
        of_the_system = called.__module__ == "posix" or isinstance(called.__self__, os.DirEntry)
        if of_the_system and frame.f_code.co_name != "_joinrealpath":  # realpath is one step
            if self._calls == self._at:
                self._path.rename(self._aside)
            self._calls += 1


@pytest.mark.parametrize("stolen", [".", "step_2", "step_2/" + INDEX, "step_2/" + SHARD])
async def test_what_disappears_at_any_step_of_a_look_does_not_end_the_watch(
    root: Path, monkeypatch: pytest.MonkeyPatch, stolen: str
) -> None:
    monkeypatch.setattr(alarm, "remote_file_system", lambda _: "nfs4")  # it would be heard of
    thief = Thief(root / stolen)
    async with watching(root, settle=0.0) as watch:
        for step in itertools.count():
            write(root / "step_2", str(step), shards=2)  # so that all of it is looked at again
            with thief.strikes(step):
                watch.source.wake()
                await watch.looked()
            assert watch.error is None or stolen == "."
            if not thief.has_struck:
                break
        assert step > 50
        arrive(root / "step_3")
        await watch.look()
        assert watch.labels[-1] == "step_3"


@pytest.mark.parametrize(
    "fault",
    [
        OSError(errno.EIO, "Input/output error"),
        OSError("without a number"),
        SourceUnavailable("storage is away"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    ],
    ids=repr,
)
async def test_a_fault_of_the_world_is_said_and_does_not_end_the_watch(
    root: Path, fault: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = iter([fault, fault])

    def looks(*given: Any) -> object:
        for each in faults:
            raise each
        return survey(*given)

    monkeypatch.setattr(tree, "survey", looks)
    write(root / "step_1")
    async with watching(root, rescan=0.05) as watch:
        await watch.wished("step_1")
        said = [error for error in watch.errors if error is not None]
        assert len(said) == 2
        assert (getattr(fault, "strerror", None) or str(fault)) in said[0]
        assert watch.waiting is None


async def test_a_fault_of_ours_is_raised_and_the_watch_can_go_on(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = iter([RuntimeError("a fault of ours")])

    def looks(*given: Any) -> object:
        for each in faults:
            raise each
        return survey(*given)

    monkeypatch.setattr(tree, "survey", looks)
    write(root / "step_1")
    source = directory(root)
    with pytest.raises(RuntimeError, match="a fault of ours"):
        await anext(source.follow_newest())
    wishes = []
    async for revision in source.follow_newest():
        wishes.append(revision.label)
        await source.close()
    assert wishes == ["step_1"]


async def test_a_cancel_waits_for_the_thread(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began, go, ended = threading.Event(), threading.Event(), threading.Event()

    def identify(*_: object) -> str:
        began.set()
        go.wait()
        ended.set()
        return "0" * 32

    write(root / "step_1")
    monkeypatch.setattr(seen_revisions, "content_id", identify)
    source = directory(root, settle=0.0)
    looking = asyncio.create_task(source.resolve("step_1"))
    await asyncio.to_thread(began.wait)
    try:
        for _ in range(2):
            looking.cancel()
            await asyncio.sleep(0)
        assert not looking.done()
    finally:
        go.set()  # or the thread would hold up the end of the test
    with pytest.raises(asyncio.CancelledError):
        await looking
    assert ended.is_set()
    await source.close()


async def test_closing_ends_the_wishes_and_a_second_close_is_harmless(root: Path) -> None:
    async with watching(root) as watch:
        await watch.source.close()
        await watch.source.close()
        watch.source.wake()
