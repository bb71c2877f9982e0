"""The version of weights is their trainer's own: it goes with them, and touches nothing else."""

from pathlib import Path

import pytest

from hotreload.core.rules import KeepPrevious, Rules
from hotreload.errors import Busy
from hotreload.events import GateChanged, GenerationLive, GenerationNamed
from hotreload.types import Mode, Outcome, Reason
from tests.core.conftest import World
from tests.core.test_orders import ONE, TWO, go_on, goes_live, stuck_in
from tests.fakes import HANG


def versions(world: World) -> set[str]:
    """What is live everywhere it is told from: the daemon's, the engines' and the gates'."""
    leases = [each.gate.lease for each in world.each]
    gates = [lease.generation for lease in leases if lease is not None]
    live = [world.replicas.live, world.ledger.live, *(each.live for each in world.each)]
    return {each.weight_version for each in [*live, *gates] if each is not None}


def known(world: World) -> None:
    for revision in (ONE, TWO):
        world.source.known[revision.label] = revision


@pytest.mark.parametrize("engines", [1, 2])
@pytest.mark.parametrize("mode", Mode)
async def test_an_order_names_what_it_makes_live(tmp_path: Path, mode: Mode, engines: int) -> None:
    world = World(
        tmp_path, Rules(probe_timeout=0.25, prove_within=0.05), mode=mode, engines=engines
    )
    known(world)
    async with world.running():
        assert versions(world) == {"1"}
        attempt = await (await world.operator.reload(ONE.label, version="step/7"))
        assert (attempt.outcome, attempt.version) == (Outcome.LIVE, "step/7")
    assert versions(world) == {"step/7"}
    assert world.ledger.attempts[0].version == "step/7"


async def test_weights_that_nobody_names_are_known_by_their_number(world: World) -> None:
    known(world)
    async with world.running():
        await (await world.operator.reload(ONE.label, version="7"))
        unnamed = await (await world.operator.reload(TWO.label))
    assert (unnamed.version, versions(world)) == ("3", {"3"})


async def test_a_refused_order_tells_the_version_and_changes_none(world: World) -> None:
    world.source.known[ONE.label] = ONE
    world.steps.faults["probe"] = [ValueError("bad")]
    async with world.running():
        attempt = await (await world.operator.reload(ONE.label, version="7"))
    assert (attempt.outcome, attempt.version) == (Outcome.REJECTED, "7")
    assert versions(world) == {"1"}


@pytest.mark.parametrize("keep", KeepPrevious)
async def test_a_rollback_brings_back_the_version(tmp_path: Path, keep: KeepPrevious) -> None:
    world = World(tmp_path, Rules(keep_previous=keep))
    known(world)
    async with world.running():
        await (await world.operator.reload(ONE.label, version="7"))
        await (await world.operator.reload(TWO.label, version="8"))
        back = await (await world.operator.rollback())
    assert (back.generation, back.version, versions(world)) == (4, "7", {"7"})


async def test_a_version_survives_a_restart_with_its_weights(world: World) -> None:
    known(world)
    async with world.running():
        await (await world.operator.reload(ONE.label, version="7"))
        await world.operator.name_live("7b")
    ledger = world.restarted_ledger()
    assert ledger.last_good is not None
    assert (ledger.last_good.version, ledger.attempts[0].version) == ("7b", "7")


@pytest.mark.parametrize("engines", [1, 2])
async def test_weights_are_named_without_being_touched(tmp_path: Path, engines: int) -> None:
    world = World(tmp_path, Rules(), mode=Mode.OVERLAP, engines=engines)
    world.happened.clear()
    before = world.replica.gate.lease
    assert before is not None
    async with world.entrance.admit() as lease:
        named = await world.operator.name_live("seven")
        assert (lease.generation.weight_version, named.weight_version) == ("1", "seven")
        assert (named, versions(world)) == (world.replicas.live, {"seven"})
        after = world.replica.gate.lease
        assert (after, after and after.weights) == (before, before.weights)
        assert [each.requests for each in world.entrance.list_answering()] == [1]
    assert world.replica.gate.inside == 0
    assert not [each for each in world.happened if isinstance(each, GateChanged | GenerationLive)]
    (event,) = [each for each in world.happened if isinstance(each, GenerationNamed)]
    assert event.generation.weight_version == "seven"


async def test_what_is_live_already_gets_the_version_that_is_ordered(world: World) -> None:
    known(world)
    async with world.running():
        await goes_live(world, ONE)
        attempt = await (await world.operator.reload(ONE.label, version="7"))
        assert (attempt.outcome, attempt.generation, attempt.version) == (
            Outcome.LIVE,
            2,
            "7",
        )
        again = await (await world.operator.reload(ONE.label))
    assert (again.version, versions(world), len(world.attempts)) == ("7", {"7"}, 1)


async def test_what_the_source_had_begun_goes_live_under_the_version_that_is_ordered(
    world: World,
) -> None:
    async with world.running():
        await stuck_in(world, "stage", ONE)
        promise = await world.operator.reload(ONE.label, version="7")
        go_on(world, "stage")
        assert (await promise).version == "7"
    live = [each.generation for each in world.happened if isinstance(each, GenerationLive)]
    assert [each.weight_version for each in live] == ["7"]


async def test_one_revision_is_not_ordered_by_two_names_at_once(world: World) -> None:
    known(world)
    async with world.running():
        world.steps.faults["stage"] = HANG
        first = await world.operator.reload(ONE.label, version="7")
        await world.steps.entered["stage"].wait()
        assert await world.operator.reload(ONE.label) is first
        assert await world.operator.reload(ONE.label, version="7") is first
        with pytest.raises(Busy):
            await world.operator.reload(ONE.label, version="8")
        go_on(world, "stage")
        assert (await first).version == "7"


async def test_a_full_disk_keeps_no_trainer_from_naming_weights(world: World) -> None:
    world.disk_fault = "the disk is full"
    await world.operator.name_live("7")
    assert versions(world) == {"7"}


def test_a_name_says_nothing_of_what_was_missed_or_refused(world: World) -> None:
    place = world.ledger.place_of(world.replicas.live)
    world.ledger.missed = place
    world.ledger.refuse(ONE, Reason("probe", "bad"), 0.0)
    world.ledger.name_live(world.replicas.live)
    assert (world.ledger.missed, list(world.ledger.refused)) == (place, [ONE.id])
