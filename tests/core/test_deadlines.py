"""Slow storage ends an attempt, not the service, and says nothing about the checkpoint."""

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from hotreload import threads
from hotreload.core.rules import Rules
from hotreload.errors import SourceUnavailable
from hotreload.threads import deadline, in_thread
from hotreload.types import Outcome, Phase, Revision
from tests.core.conftest import World
from tests.core.test_reload import NEW, assert_whole
from tests.fakes import HANG

LIMITS = {"fetch": "fetch_timeout", "validate": "validate_timeout", "stage": "stage_timeout"}


@pytest.mark.parametrize(("step", "setting"), LIMITS.items())
async def test_a_phase_that_takes_too_long_is_postponed_and_names_its_setting(
    tmp_path: Path, step: str, setting: str
) -> None:
    rules = replace(Rules(prove_within=0.01), **{setting: 0.02})  # type: ignore[arg-type]
    world = World(tmp_path, rules)
    world.steps.faults[step] = HANG
    async with world.running():
        world.source.publish(NEW)
        attempt = await world.attempted()
        assert attempt.outcome is Outcome.POSTPONED
        assert attempt.reason is not None
        assert attempt.reason.code == "timed_out"
        assert f"[reload] {setting}" in attempt.reason.message
        assert_whole(world, "first")
        assert not world.ledger.refused
        del world.steps.faults[step]
        world.source.publish(Revision("after", "step_2"))
        assert (await world.attempted(2)).outcome is Outcome.LIVE
        assert_whole(world, "after")


async def test_what_is_only_busy_when_it_is_given_up_is_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "LEAVE_AFTER", 0.02)
    began, go = threading.Event(), threading.Event()

    def load(_: threading.Event) -> bool:
        began.set()
        return go.wait()

    loading = asyncio.create_task(in_thread(load, leave_as="the loading of step_9"))
    await asyncio.to_thread(began.wait)
    loading.cancel()
    await asyncio.wait({loading})
    assert threads.left_behind() == "the loading of step_9"
    try:
        async with world.running():
            world.source.publish(NEW)
            await world.until(lambda: world.status_phase is Phase.FETCHING)
            assert "fetch" not in world.steps.entered
            go.set()
            assert (await world.attempted()).outcome is Outcome.LIVE
    finally:
        go.set()


async def test_while_a_read_hangs_no_other_is_begun(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "LEAVE_AFTER", 0.02)
    monkeypatch.setattr(threads, "LEFT_BEHIND_SECONDS", 0.02)
    began, go = threading.Event(), threading.Event()

    def hang(_: threading.Event) -> bool:
        began.set()
        return go.wait()

    reading = asyncio.create_task(in_thread(hang, leave_as="a check of step_9"))
    await asyncio.to_thread(began.wait)
    reading.cancel()
    await asyncio.wait({reading})
    try:
        async with world.running():
            world.source.publish(NEW)
            attempt = await world.attempted()
            assert attempt.outcome is Outcome.POSTPONED
            assert attempt.reason is not None
            assert attempt.reason.code == "hanging"
            assert "a check of step_9 still hangs" in attempt.reason.message
            assert "fetch" not in world.steps.entered
            assert_whole(world, "first")
            go.set()
            while threads.left_behind():  # noqa: ASYNC110 - a thread ends, no event tells
                await asyncio.sleep(0)
            world.source.publish(Revision("after", "step_2"))
            assert (await world.attempted(2)).outcome is Outcome.LIVE
    finally:
        go.set()


async def test_a_timeout_of_the_storage_itself_is_not_taken_for_the_deadline() -> None:
    with pytest.raises(TimeoutError, match="ETIMEDOUT"):
        async with deadline(60, "checking", "[reload] validate_timeout"):
            raise TimeoutError("ETIMEDOUT")


async def test_without_a_deadline_nothing_ends() -> None:
    async with deadline(None, "draining", ""):
        await asyncio.sleep(0)
    with pytest.raises(SourceUnavailable, match=r"took longer than 0\.01 s"):
        async with deadline(0.01, "checking", "[reload] validate_timeout"):
            await asyncio.Event().wait()
