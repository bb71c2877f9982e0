"""New weights are compared with the live ones before they answer; limits may refuse them."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hotreload.core.comparing import breaches
from hotreload.core.rules import BehaviourLimits, Rules
from hotreload.errors import NotEnoughMemory
from hotreload.judgements import Behaviour
from hotreload.types import Attempt, Outcome, Revision
from tests.core.overlapping import Overlapping
from tests.fakes import HANG

ALIKE = Revision("firsts", "step_1")
"""Fakes say their ids: what was live says `first`."""
OTHER = Revision("quite another", "step_2")
COMPARING = Rules(probe_timeout=0.25, finish_timeout=5.0, compare_within=5.0)
STRICT = replace(COMPARING, limits=BehaviourLimits(min_agreement=0.5))


def world_of(folder: Path, rules: Rules, **more: Any) -> Overlapping:
    world = Overlapping(folder, rules, **more)
    for engine in world.engines:
        engine.compares = True
    return world


async def reloaded(world: Overlapping, revision: Revision) -> Attempt:
    world.source.known[revision.label] = revision
    attempt: Attempt = await (await world.operator.reload(revision.label))
    return attempt


async def test_the_history_tells_how_it_differs_and_nothing_is_decided(tmp_path: Path) -> None:
    world = world_of(tmp_path, COMPARING)
    async with world.running():
        alike, other = await reloaded(world, ALIKE), await reloaded(world, OTHER)
    assert (alike.outcome, other.outcome) == (Outcome.LIVE, Outcome.LIVE)
    assert alike.behaviour is not None
    assert other.behaviour is not None
    assert alike.behaviour.agreement == pytest.approx(5 / 6)
    assert other.behaviour.agreement == 0
    assert alike.behaviour.mean_kl < other.behaviour.mean_kl  # type: ignore[operator]
    assert world.restarted_ledger().history[0].behaviour == other.behaviour


async def test_what_differs_by_more_than_a_limit_is_refused_and_never_answers(
    tmp_path: Path,
) -> None:
    world = world_of(tmp_path, STRICT)
    async with world.running():
        bad = await reloaded(world, OTHER)
        assert (bad.outcome, bad.generation) == (Outcome.REJECTED, None)
        assert bad.reason is not None
        assert bad.reason.code == "behaviour"
        assert bad.reason.message == "[behaviour.limits] min_agreement: 0 is under 0.5"
        assert bad.reason.findings[0].startswith("min_agreement")
        assert "live 'first', new 'quite another'" in bad.reason.findings[1]
        assert await world.ask() == "1: first clean"
        assert world.engine.sets_held == 1
        assert (await reloaded(world, ALIKE)).outcome is Outcome.LIVE
    assert world.ledger.refused.keys() == {"quite another"}


async def test_a_dry_run_tells_it_and_refuses_nothing(tmp_path: Path) -> None:
    world = world_of(tmp_path, STRICT)
    world.source.known[OTHER.label] = OTHER
    async with world.running():
        found = await (await world.operator.rehearse(OTHER.label))
    assert (found.outcome, found.behaviour.agreement) == (Outcome.REJECTED, 0)
    assert not world.ledger.refused


async def test_a_rollback_from_files_is_not_barred_by_how_far_it_goes(tmp_path: Path) -> None:
    rules = replace(STRICT, limits=BehaviourLimits())
    world = world_of(tmp_path, rules)
    async with world.running():
        await reloaded(world, OTHER)
        await reloaded(world, Revision("and one more", "step_3"))
        world.reconciler.rules = STRICT
        back = await (await world.operator.rollback(1))
    assert (back.outcome, back.behaviour) == (Outcome.LIVE, None)


async def test_what_cannot_be_compared_goes_live_without_a_report(tmp_path: Path) -> None:
    world = world_of(tmp_path, STRICT)
    world.engine.compares = False
    async with world.running():
        attempt = await reloaded(world, OTHER)
    assert (attempt.outcome, attempt.behaviour) == (Outcome.LIVE, None)


@pytest.mark.parametrize("fault", [NotEnoughMemory("no room for the shadow"), HANG])
async def test_without_limits_a_comparison_that_fails_fails_no_checkpoint(
    tmp_path: Path, fault: object
) -> None:
    quick = replace(COMPARING, compare_within=0.01)
    world = world_of(tmp_path, quick)
    world.steps.faults["compare"] = fault
    async with world.running():
        attempt = await reloaded(world, OTHER)
    assert (attempt.outcome, attempt.behaviour) == (Outcome.LIVE, None)


@pytest.mark.parametrize("fault", [NotEnoughMemory("no room for the shadow"), HANG])
async def test_with_limits_it_is_tried_again_later(tmp_path: Path, fault: object) -> None:
    world = world_of(tmp_path, replace(STRICT, compare_within=0.01))
    world.steps.faults["compare"] = fault
    async with world.running():
        attempt = await reloaded(world, OTHER)
    assert attempt.outcome is Outcome.POSTPONED
    assert not world.ledger.refused


async def test_weights_that_make_no_numbers_of_a_question_are_refused(tmp_path: Path) -> None:
    world = world_of(tmp_path, COMPARING)
    async with world.running():
        attempt = await reloaded(world, Revision("x", "step_4_overflow"))
        assert attempt.reason is not None
        assert (attempt.outcome, attempt.reason.code) == (Outcome.REJECTED, "behaviour")
        assert await world.ask() == "1: first clean"


async def test_where_the_live_ones_make_none_there_is_nothing_to_compare_with(
    tmp_path: Path,
) -> None:
    world = world_of(tmp_path, STRICT)
    world.engine.live.weights.overflows = True
    async with world.running():
        attempt = await reloaded(world, OTHER)
    assert (attempt.outcome, attempt.behaviour) == (Outcome.LIVE, None)


async def test_of_several_engines_the_first_compares_for_all(tmp_path: Path) -> None:
    world = world_of(tmp_path, COMPARING, engines=2)
    async with world.running():
        attempt = await reloaded(world, OTHER)
    assert attempt.behaviour is not None
    assert world.steps.entered["compare"].is_set()
    assert not world.engines[1].steps.entered["compare"].is_set()


FOUND = Behaviour(
    *(6, 96, 0.5, 1.0, 3, 1.5, 0, 0, 0, 0, 0, 0),
    mean_kl=0.25,
    noise_kl=0.0,
    perplexity_ratio=1.25,
)


def limits() -> Iterator[tuple[dict[str, float], str]]:
    yield {"min_agreement": 0.6}, "min_agreement: 0.5 is under 0.6"
    yield {"max_kl": 0.2}, "max_kl: 0.25 is over 0.2"
    yield {"max_kl_over_noise": 1000.0}, "max_kl_over_noise: 2.5e+05 is over 1000"
    yield {"max_perplexity_ratio": 1.2}, "max_perplexity_ratio: 1.25 is over 1.2"
    yield {"max_length_ratio": 1.4}, "max_length_ratio: 1.5 is over 1.4"
    yield {"min_change": 0.3}, "min_change: 0.25 is under 0.3"


@pytest.mark.parametrize(("limit", "words"), list(limits()))
def test_each_limit_says_what_is_beyond_it(limit: dict[str, float], words: str) -> None:
    assert [*breaches(FOUND, BehaviourLimits(**limit))] == [words]


def test_what_is_within_is_allowed_and_shorter_is_as_bad_as_longer() -> None:
    wide = BehaviourLimits(0.5, 0.25, 3e5, 1.25, 1.5, 0.25)
    assert [*breaches(FOUND, wide)] == []
    shorter = replace(FOUND, length_ratio=0.5)
    assert [*breaches(shorter, wide)] == ["max_length_ratio: 2 is over 1.5"]


def test_what_was_not_measured_keeps_to_no_limit() -> None:
    bare = replace(FOUND, mean_kl=None)
    (words,) = breaches(bare, BehaviourLimits(max_kl=1.0))
    assert words == "max_kl: what was not measured is over 1"
