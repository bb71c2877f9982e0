"""Noise on what is live: a swap like any other, but unprobed and gone with the process."""

from pathlib import Path

import pytest

from hotreload.core.rules import KeepPrevious, Rules
from hotreload.errors import BadRequest, Busy, CheckpointIncompatible
from hotreload.types import Noise, Outcome, Phase, Revision
from tests.core.conftest import World
from tests.fakes import HANG

ONE = Revision("r1", "step_1")
NOISE = Noise(seed=7, scale=0.01, num_leaves=1)
LOUD = Noise(seed=7, scale=5.0, num_leaves=1)
"""The fake talks nonsense with it, and leaves that in its cache."""


async def test_noise_is_a_new_generation_that_tells_both_checksums(world: World) -> None:
    before = world.replica.live.fingerprint
    async with world.running():
        attempt = await (await world.operator.perturb(NOISE))
        assert (await world.ask()).startswith("2: first with Noise(seed=7")
    assert (attempt.outcome, attempt.generation) == (Outcome.LIVE, 2)
    assert attempt.fingerprints == (before, world.replica.live.fingerprint)
    assert before != world.replica.live.fingerprint
    assert list(attempt.phases) == [Phase.STAGING, Phase.DRAINING, Phase.SWAPPING]
    assert attempt.revision.label == "step_0 + noise"


async def test_noise_stays_until_the_source_wishes_something_new(world: World) -> None:
    async with world.running():
        world.source.publish(ONE)
        await world.attempted()
        await (await world.operator.perturb(NOISE))
        await world.rests()
        assert world.replica.live.revision.label == "step_1 + noise"
        world.source.publish(Revision("r2", "step_2"))
        assert (await world.attempted(3)).revision.label == "step_2"


@pytest.mark.parametrize("keep", list(KeepPrevious))
async def test_a_rollback_takes_the_noise_away(tmp_path: Path, keep: KeepPrevious) -> None:
    world = World(tmp_path, Rules(keep_previous=keep))
    before = world.replica.live.fingerprint
    async with world.running():
        for _ in range(2):  # noise on noise too
            await (await world.operator.perturb(LOUD))
        assert "nonsense" in await world.ask()
        attempt = await (await world.operator.rollback())
        assert await world.ask() == "4: first clean"
    assert attempt.outcome is Outcome.LIVE
    assert world.replica.live.fingerprint == before


async def test_what_noisy_weights_left_in_the_caches_judges_no_later_checkpoint(
    world: World,
) -> None:
    async with world.running():
        assert (await (await world.operator.perturb(LOUD))).outcome is Outcome.LIVE
        assert "nonsense" in await world.ask()
        world.source.publish(ONE)
        attempt = await world.attempted(2)
        assert attempt.outcome is Outcome.LIVE
        assert await world.ask() == "3: r1 clean"


async def test_noise_is_nothing_a_restart_could_load(world: World) -> None:
    async with world.running():
        await (await world.operator.perturb(NOISE))
    ledger = world.restarted_ledger()
    assert ledger.last_good is not None
    assert ledger.last_good.revision.id == "first"
    assert ledger.next_number == 3
    assert ledger.attempts[0].fingerprints == world.attempts[0].fingerprints


async def test_noise_that_is_gone_from_memory_cannot_be_gone_back_to(world: World) -> None:
    async with world.running():
        await (await world.operator.perturb(NOISE))
        for count, revision in enumerate((ONE, Revision("r2", "step_2")), 2):
            world.source.publish(revision)
            await world.attempted(count)
        with pytest.raises(BadRequest, match=r"generation 2 .* is no longer kept"):
            await world.operator.rollback(2)
        await (await world.operator.rollback())
    assert world.replica.live.revision == ONE


async def test_noise_asked_for_during_an_attempt_is_put_on_what_that_makes_live(
    world: World,
) -> None:
    world.steps.faults["exchange"] = HANG
    async with world.running():
        world.source.publish(ONE)
        await world.steps.entered["exchange"].wait()
        promise = await world.operator.perturb(NOISE)
        with pytest.raises(Busy):
            await world.operator.perturb(LOUD)
        del world.steps.faults["exchange"]
        world.steps.released["exchange"].set()
        attempt = await promise
    first, noisy = world.attempts
    assert (first.revision, first.outcome) == (ONE, Outcome.LIVE)
    assert noisy == attempt
    assert noisy.revision.label == "step_1 + noise"
    assert first.fingerprints is not None
    assert noisy.fingerprints is not None
    assert noisy.fingerprints[0] == first.fingerprints[1]
    assert noisy.revision.id.endswith(noisy.fingerprints[0])


async def test_noise_that_fails_leaves_what_was_live(world: World) -> None:
    world.steps.faults["perturb"] = CheckpointIncompatible("rounded away")
    async with world.running():
        attempt = await (await world.operator.perturb(NOISE))
        assert await world.ask() == "1: first clean"
    assert attempt.outcome is Outcome.REJECTED
    assert attempt.fingerprints is None
    assert world.engine.sets_held == 1


async def test_noise_on_more_leaves_than_there_are_is_a_bad_request(world: World) -> None:
    async with world.running():
        with pytest.raises(BadRequest, match="the model has 1 leaves"):
            await world.operator.perturb(Noise(num_leaves=2))
    assert world.attempts == []
