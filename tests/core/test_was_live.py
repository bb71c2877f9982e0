"""What answers or has answered is never refused for its files, and a restart finds it again."""

import pytest

from hotreload.core.decision import Sleep
from hotreload.errors import (
    CheckpointChanged,
    CheckpointCorrupt,
    CheckpointIncompatible,
    Misbehaved,
    ProbeFailed,
)
from hotreload.types import Outcome, Revision
from tests.core.conftest import World
from tests.core.test_orders import ONE, TWO, goes_live

FAULTS = {
    "io": CheckpointCorrupt("model.safetensors: cannot be read", code="io"),
    "changed": CheckpointChanged("model.safetensors: it was written to while it was read"),
    "missing": CheckpointIncompatible("a tensor is not there", code="missing"),
}


def last_good(world: World) -> Revision:
    place = world.restarted_ledger().last_good
    assert place is not None
    return place.revision


@pytest.mark.parametrize("code", FAULTS)
async def test_what_is_live_is_not_refused_when_it_is_forced_and_its_files_are_bad(
    world: World, code: str
) -> None:
    async with world.running():
        await goes_live(world, ONE)
        world.steps.faults["validate"] = [FAULTS[code]]
        attempt = await (await world.operator.reload(ONE.label, force=True))
    assert attempt.reason is not None
    assert (attempt.outcome, attempt.reason.code) == (Outcome.POSTPONED, code)
    assert world.ledger.refused == {}
    assert last_good(world) == ONE


@pytest.mark.parametrize("code", FAULTS)
async def test_what_was_live_is_tried_again_later_while_its_files_are_bad(
    world: World, code: str
) -> None:
    async with world.running():
        await goes_live(world, ONE)
        await goes_live(world, TWO)
    world.steps.faults["validate"] = [FAULTS[code]]
    world.wish(ONE)
    rest = await world.rests()
    assert isinstance(rest, Sleep)
    assert rest.until is not None
    assert world.attempts[-1].outcome is Outcome.POSTPONED
    assert world.ledger.refused == {}


async def test_what_changes_while_it_is_read_is_put_off_and_never_refused(world: World) -> None:
    world.steps.faults["validate"] = [FAULTS["changed"]]
    world.wish(ONE)
    rest = await world.rests()
    assert rest.until is not None
    assert world.attempts[-1].outcome is Outcome.POSTPONED
    assert world.ledger.refused == {}


async def test_what_is_live_may_fail_a_probe_now_and_a_restart_finds_it_all_the_same(
    world: World,
) -> None:
    async with world.running():
        await goes_live(world, ONE)
        world.steps.faults["probe"] = [ProbeFailed("it talks nonsense")]
        attempt = await (await world.operator.reload(ONE.label, force=True))
    assert attempt.reason is not None
    assert (attempt.outcome, attempt.reason.code) == (Outcome.REJECTED, "probe")
    assert world.ledger.refused == {}
    assert last_good(world) == ONE


@pytest.mark.parametrize(
    "fault", [ProbeFailed("it talks nonsense"), Misbehaved("it talks otherwise", code="judged")]
)
async def test_what_was_live_before_and_misbehaves_now_is_refused(
    world: World, fault: Misbehaved
) -> None:
    async with world.running():
        await goes_live(world, ONE)
        await goes_live(world, TWO)
        world.steps.faults["probe"] = [fault]
        attempt = await (await world.operator.reload(ONE.label, force=True))
    assert attempt.outcome is Outcome.REJECTED
    assert [*world.ledger.refused] == [ONE.id]
    assert last_good(world) == TWO
