"""A doubted probe: asked again when it is another, and no more when other weights are live."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from hotreload.attempts import Attempt
from hotreload.core.ledger import PastGeneration
from hotreload.errors import DrainTimedOut, EngineLost, ProbeFailed
from hotreload.events import AttemptFinished, Event, SettingsRead, TroubleNews, Warmup
from hotreload.life.start.start_troubles import Doubt
from hotreload.types import Outcome, Revision
from tests.fakes import HANG, FakeEngine, Steps
from tests.waiting import turn_until

GOOD = Revision("good", "step_1")
LIVE = PastGeneration(7, GOOD, "fp", "/step_1", 0.0)
OTHER_PROBES = SettingsRead(("[[probe]]",))


class World:
    """A daemon whose live weights failed the probe of its start."""

    def __init__(self) -> None:
        self.steps = Steps()
        self.told: list[Event] = []
        self.doubt = Doubt(self.told.append)
        self.doubt.of(LIVE, ProbeFailed("expected 'Paris'"))

    @property
    def says(self) -> str | None:
        last = self.told[-1]
        assert isinstance(last, TroubleNews)
        return last.message

    async def run(self) -> None:
        replicas: Any = [SimpleNamespace(engine=FakeEngine(self.steps, GOOD))]
        await self.doubt.run(replicas, lambda: 0.05)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    world.doubt.observe(ended(Outcome.LIVE, 7))  # the start's own attempt
    running = asyncio.create_task(world.run())
    await asyncio.sleep(0)
    yield world
    running.cancel()


def ended(outcome: Outcome, generation: int | None) -> AttemptFinished:
    return AttemptFinished(Attempt(GOOD, outcome, None, {}, 0.0, 1.0, generation), None)


async def test_it_ends_when_the_probes_were_mended(world: World) -> None:
    world.doubt.observe(SettingsRead(("[log] level",)))
    world.doubt.observe(OTHER_PROBES)
    await turn_until(lambda: world.says is None)


@pytest.mark.parametrize(
    ("fault", "said"),
    [(ProbeFailed("expected 'Rome'"), "expected 'Rome'; generation 7"), (HANG, "no answer")],
)
async def test_it_goes_on_in_other_words_when_they_fail_again(
    world: World, fault: object, said: str
) -> None:
    world.steps.faults["probe"] = fault
    world.doubt.observe(OTHER_PROBES)
    await turn_until(lambda: said in str(world.says), pause=0.01)


async def test_what_a_bad_answer_left_in_the_cache_is_cleaned_once_the_engine_is_idle(
    world: World,
) -> None:
    world.steps.faults["probe"] = ProbeFailed("NaN or infinities")
    world.steps.faults["scrub"] = [DrainTimedOut("the engine was not idle within 10 s")]
    world.doubt.observe(OTHER_PROBES)
    await turn_until(lambda: not world.steps.faults["scrub"])
    world.steps.entered["scrub"].clear()
    world.doubt.observe(OTHER_PROBES)
    await world.steps.entered["scrub"].wait()
    assert "NaN" in str(world.says)


async def test_an_engine_that_is_lost_is_left_to_those_who_look_after_it(world: World) -> None:
    world.steps.faults["probe"] = [EngineLost("dead")]
    world.doubt.observe(OTHER_PROBES)
    await turn_until(lambda: not world.steps.faults["probe"])
    world.doubt.observe(OTHER_PROBES)
    await turn_until(lambda: world.says is None)


async def test_whole_answers_are_asked_for_once_what_clients_need_is_compiled() -> None:
    """With a client's one of them makes a batch of a size that nothing was compiled for yet."""
    world = World()
    world.doubt.whether(LIVE)
    world.doubt._is_reported = False
    running = asyncio.create_task(world.run())
    world.doubt.observe(Warmup(0, 1, 2))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not world.steps.entered["probe"].is_set()
    world.doubt.observe(Warmup(0, 2, 2, is_over=True))
    await world.steps.entered["probe"].wait()
    running.cancel()


@pytest.mark.parametrize(
    ("event", "stands"),
    [
        (ended(Outcome.REJECTED, None), True),
        (ended(Outcome.LIVE, 8), False),
    ],
)
async def test_it_ends_when_another_generation_is_live(
    world: World, event: Event, stands: bool
) -> None:
    world.doubt.observe(event)
    assert (world.says is not None) is stands
