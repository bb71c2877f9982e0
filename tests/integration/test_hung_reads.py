"""A mount that hangs, or is slow, ends an attempt; it never holds the service or the next one."""

import asyncio
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hotreload import threads
from hotreload.attempts import Attempt
from hotreload.checkpoint import first_read
from hotreload.events import PhaseEntered, Wait
from hotreload.sources import directory
from hotreload.types import Outcome, Phase
from tests.integration.running import (
    PROMPTS,
    Load,
    Running,
    mixed,
    one_daemon,
    one_daemon_marks,
    words,
)
from tests.waiting import PATIENCE

pytestmark = one_daemon_marks()

TIMEOUTS = [f"reload.{phase}_timeout=2" for phase in ("fetch", "validate", "stage")]


class Mount:
    """Reads below a folder hang until the mount is back."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._real = os.preadv
        self._back = threading.Event()
        self._below: Path | None = None
        self.hangs = threading.Event()
        patch.setattr(os, "preadv", self._preadv)

    def hang(self, below: Path) -> None:
        self._below = below

    def come_back(self) -> None:
        self._below = None
        self._back.set()

    def _preadv(self, fd: int, buffers: Sequence[Any], offset: int) -> int:
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        if self._below is not None and path.is_relative_to(self._below):
            self.hangs.set()
            self._back.wait()
        return self._real(fd, buffers, offset)


running = one_daemon("source.rescan=0.5", *TIMEOUTS)


@pytest.fixture
def mount(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mount]:
    monkeypatch.setattr(threads, "LEAVE_AFTER", 0.2)
    monkeypatch.setattr(threads, "LEFT_BEHIND_SECONDS", 0.0)
    made = Mount(monkeypatch)
    yield made
    made.come_back()


@contextmanager
def hanging_in(running: Running, mount: Mount, phase: Phase, below: Path) -> Iterator[None]:
    """The source has read it all to find it; the attempt that follows meets the hang."""

    def note(event: object) -> None:
        if isinstance(event, PhaseEntered) and event.phase is phase:
            mount.hang(below)

    leave = running.daemon.events.subscribe(note)
    try:
        yield
    finally:
        leave()


def attempts_at(running: Running, folder: Path) -> list[Attempt]:
    return [each for each in running.attempts if each.revision.label == folder.name]


PHASES = {
    Phase.FETCHING: "fetch_timeout",
    Phase.VALIDATING: "validate_timeout",
    Phase.STAGING: "stage_timeout",
}


@pytest.mark.parametrize("phase", PHASES)
async def test_a_hung_read_ends_the_attempt_and_nothing_else(
    running: Running, mount: Mount, phase: Phase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_read, "FIRST_BYTES", 0)  # or nothing is left to be read in staging
    number = 10 * (1 + list(PHASES).index(phase))
    folder, live = running.checkpoints / f"step_{number}", running.live
    async with Load(running, 4).on() as load:
        with hanging_in(running, mount, phase, folder):
            running.drop(number)
            await running.until(lambda: len(attempts_at(running, folder)) >= 2)
        first, second = attempts_at(running, folder)[:2]
        assert (first.outcome, second.outcome) == (Outcome.POSTPONED, Outcome.POSTPONED)
        assert first.reason is not None
        assert first.reason.code == "timed_out"
        assert f"[reload] {PHASES[phase]}" in first.reason.message
        assert second.reason is not None
        assert second.reason.code == "hanging"
        assert phase is Phase.FETCHING or f"step_{number}" in second.reason.message
        assert running.live == live
        mount.come_back()
        await running.until(lambda: running.live.revision.label == folder.name)
    assert load.failures == []
    assert mixed(load.answers, running.generations) == []
    assert threads.left_behind() is None
    assert list((running.folder / "state" / "staging").iterdir()) == []


async def test_a_folder_that_hangs_while_it_is_looked_at_is_told_and_the_rest_is_served(
    running: Running, mount: Mount, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "SLOW_LOOK", 0.3)
    live, folder = running.live, running.checkpoints / "step_40"
    mount.hang(folder)
    running.drop(40)
    assert await asyncio.to_thread(mount.hangs.wait, PATIENCE)
    answers = [await running.ask(prompt) for prompt in PROMPTS]
    assert {answer["text"] for answer in answers} == {words(int(live.revision.label[5:]))}
    await running.until(lambda: "a look takes more" in str(said_last(running)))
    mount.come_back()
    assert (await running.attempted(folder)).outcome is Outcome.LIVE


def said_last(running: Running) -> str | None:
    waits = [event for event in running.happened if isinstance(event, Wait)]
    said = [each.waiting_for for each in waits if each.who == "source"]
    return said[-1] if said else None


async def test_told_to_stop_while_a_look_hangs_it_stops_all_the_same(
    tmp_path: Path, mount: Mount
) -> None:
    running = Running(tmp_path, "source.rescan=0.5")
    running.drop(1)
    async with running.serving():
        mount.hang(running.checkpoints)
        running.drop(2)
        assert await asyncio.to_thread(mount.hangs.wait, PATIENCE)
    assert running.exit_code == 0
    assert threads.left_behind() == "a look at the watched folder"
    assert running.reloads == []
