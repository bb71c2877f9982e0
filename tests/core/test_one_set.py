"""Swaps on an engine that has one set of weights on its device at a time: spare ones wait on the
host, and going live or back never makes a second set on the device."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from hotreload.core.rules import KeepPrevious, Rules
from hotreload.errors import EngineLost, NotEnoughMemory
from hotreload.types import Noise, Outcome, Revision
from tests.core.conftest import World

NEW = Revision("new", "step_1")
NEWER = Revision("newer", "step_2")
BAD = Revision("rotten", "step_1_bad")
STEPS = ("stage", "exchange", "scrub", "probe", "unstow", "stow", "release")


class OneSet(World):
    """The world of such an engine, and how many sets were ever on its device."""

    def __init__(self, folder: Path, keep: KeepPrevious) -> None:
        super().__init__(
            folder,
            Rules(keep_previous=keep, drain_timeout=0.05, probe_timeout=0.05, prove_within=0.01),
        )
        self.engine.spares_wait_on_host = True
        self.engine.cannot_overlap = "one set at a time"
        self.most_on_device = self.most_held = 0
        for step in STEPS:
            setattr(self.engine, step, self._counting(getattr(self.engine, step)))

    def _counting(self, work: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def counted(*args: Any) -> Any:
            done = await work(*args)
            self.most_on_device = max(self.most_on_device, self.engine.sets_on_device)
            self.most_held = max(self.most_held, self.engine.sets_held)
            return done

        return counted


@pytest.fixture(params=list(KeepPrevious))
def world(request: pytest.FixtureRequest, tmp_path: Path) -> OneSet:
    return OneSet(tmp_path, request.param)


async def test_good_and_bad_ones_and_the_way_back_need_no_second_set_on_the_device(
    world: OneSet,
) -> None:
    async with world.running():
        for count, revision in enumerate((NEW, BAD, NEWER), start=1):
            world.source.publish(revision)
            await world.attempted(count)
        assert [each.outcome for each in world.attempts] == [
            Outcome.LIVE,
            Outcome.REJECTED,
            Outcome.LIVE,
        ]
        assert await world.ask() == "3: newer clean"
        back = await world.operator.rollback()
        assert (await back).outcome is Outcome.LIVE
        assert await world.ask() == "4: new clean"
    assert world.most_on_device == 1


@pytest.mark.parametrize(("keep", "most"), [(KeepPrevious.DEVICE, 2), (KeepPrevious.HOST, 3)])
async def test_the_host_holds_one_set_beside_and_another_if_the_previous_is_kept_there(
    tmp_path: Path, keep: KeepPrevious, most: int
) -> None:
    world = OneSet(tmp_path, keep)
    async with world.running():
        for count, revision in enumerate((NEW, NEWER), start=1):
            world.source.publish(revision)
            await world.attempted(count)
    assert world.most_held == most


async def test_an_exchange_that_found_no_room_is_tried_again_and_the_old_weights_answer(
    world: OneSet,
) -> None:
    world.steps.faults["exchange"] = [NotEnoughMemory("no room for one leaf")]
    world.wish(NEW)
    rest = await world.rests()
    assert [each.outcome for each in world.attempts] == [Outcome.POSTPONED]
    assert await world.ask() == "1: first clean"
    assert world.engine.sets_held == 1
    assert rest.until is not None
    world.now = rest.until
    await world.rests()
    assert await world.ask() == "2: new clean"


async def test_a_way_back_that_finds_no_room_loses_the_engine(world: OneSet) -> None:
    real = world.engine.exchange

    async def only_once(staged: Any) -> Any:
        if staged.revision == BAD:
            return await real(staged)
        raise NotEnoughMemory("no room for one leaf")

    world.engine.exchange = only_once  # type: ignore[method-assign]
    world.wish(BAD)
    with pytest.raises(EngineLost, match="the rollback failed: no room for one leaf"):
        await world.rests()


async def test_noise_goes_live_and_comes_off_again(world: OneSet) -> None:
    async with world.running():
        await (await world.operator.perturb(Noise(1, 0.01, 1)))
        assert "with" in await world.ask()
        await (await world.operator.rollback())
        assert "with" not in await world.ask()
    assert world.most_on_device == 1
