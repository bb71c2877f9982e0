"""Many checkpoints at once: the newest wins, one is staged at most, something goes live."""

import os
import shutil
from collections import Counter
from typing import Any

import pytest

from hotreload.events import PhaseEntered, RevisionWanted
from hotreload.tiny import write_tiny
from hotreload.types import Outcome, Phase
from tests.integration.running import Load, Running, mixed, one_daemon, one_daemon_marks, words

pytestmark = one_daemon_marks()

READS_PER_RELOAD = 3
"""How often each byte of the weights is read on its way from the watched folder to the device: to
name the checkpoint, to check it, to load it. Naming and checking in one pass would make it 2."""


running = one_daemon()


async def test_of_two_at_once_the_newest_wins(running: Running) -> None:
    running.drop(3)
    running.drop(2)
    await running.until(lambda: running.live.revision.label == "step_3")
    assert (await running.ask())["text"] == words(3)


async def test_fifty_in_a_few_seconds_end_with_the_newest(running: Running) -> None:
    started = len(running.happened)
    async with Load(running, 4).on() as load:
        for number in range(10, 60):
            running.drop(number)
            await running.ask()  # so that they come over a few seconds, not in one
        await running.until(lambda: running.live.revision.label == "step_59")
    since = running.happened[started:]
    assert load.failures == []
    assert mixed(load.answers, running.generations) == []
    staged = [e for e in since if isinstance(e, PhaseEntered) and e.phase is Phase.STAGING]
    wanted = [e for e in since if isinstance(e, RevisionWanted)]
    assert 1 <= len(staged) <= len(wanted) <= 50
    assert running.attempts[-1].outcome is Outcome.LIVE


async def test_the_same_bytes_under_a_new_name_are_no_new_revision(running: Running) -> None:
    live, attempts = running.live, len(running.attempts)
    newest = running.checkpoints / live.revision.label
    shutil.copytree(newest, running.checkpoints / "step_70.tmp")
    (running.checkpoints / "step_70.tmp").rename(running.checkpoints / "step_70")
    for file in newest.iterdir():
        file.touch()
    revision = await running.daemon.source.resolve("step_70")
    assert revision == live.revision
    assert (await running.ask())["meta_info"]["generation"] == live.number
    assert len(running.attempts) == attempts


async def test_one_folder_overwritten_in_place_goes_live(running: Running) -> None:
    folder = running.checkpoints / "step_71"
    for number in (71, 72, 73):
        before = running.live.number
        write_tiny(folder, words(number))
        await running.until(lambda before=before: running.live.number > before)  # type: ignore[misc]
        assert (await running.ask())["text"] == words(number)


async def test_each_byte_is_read_so_often_for_one_reload(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: Counter[str] = Counter()
    preadv = os.preadv

    def counted(file: int, *given: Any) -> int:
        count = preadv(file, *given)
        read[os.readlink(f"/proc/self/fd/{file}")] += count
        return count

    monkeypatch.setattr(os, "preadv", counted)
    folder = running.drop(80, shards=2)
    attempt = await running.attempted(folder)
    assert attempt.loading is not None
    assert (attempt.outcome, attempt.loading.loader) == (Outcome.LIVE, "own")
    weights = [file for file in folder.iterdir() if file.suffix == ".safetensors"]
    assert len(weights) == 2
    for file in weights:  # and their headers, once more
        assert READS_PER_RELOAD <= read[str(file)] / file.stat().st_size < READS_PER_RELOAD + 0.01
