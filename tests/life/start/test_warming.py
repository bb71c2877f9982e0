"""What is compiled for the first batches of each size; the engine here notes what it is asked."""

import asyncio
import gc
from collections.abc import Mapping
from typing import Any

import pytest

from hotreload.core.engines.replica import Replica
from hotreload.core.progress import AttemptProgress
from hotreload.core.way_in.gate import Gate
from hotreload.engine.capabilities import BatchSize, EngineLimits
from hotreload.errors import AnswerNonfinite, BadRequest, EngineLost
from hotreload.events import Event, PhaseEntered, Progress
from hotreload.events import Warmup as Told
from hotreload.facts.heap import SELDOM
from hotreload.life.running_engine import RunningEngine
from hotreload.life.start.warmup import Batch, batches, compile_behind, warm
from hotreload.types import Generation, Phase, Revision
from tests.fakes import HANG, FakeEngine, Steps
from tests.waiting import turn_until

REVISION = Revision("good", "step_1")
LONG = EngineLimits(vocabulary=300, input_tokens=5000, total_tokens=6000, at_once=64)

LONGER = [Batch(1, 96), Batch(1, 192), Batch(2, 192)]
"""What the fake engine takes of longer prompts."""


class Warmup:
    """An engine that is warmed, and what was told meanwhile."""

    def __init__(self) -> None:
        self.engine = FakeEngine(Steps(), REVISION)
        self.told: list[Event] = []

    async def run(self, most: int = 4, within: float = 100.0) -> None:
        await warm(
            self.engine, AttemptProgress(REVISION, self.told.append), most=most, within=within
        )

    @property
    def asked(self) -> list[Batch]:
        prompts = [request["input_ids"] for request in self.engine.requests]
        return [Batch(len(each), len(each[0])) for each in prompts]


@pytest.mark.parametrize(
    ("most", "limits", "sizes"),
    [
        (0, LONG, []),
        (1, LONG, [1]),
        (8, LONG, [1, 2, 4, 8]),
        (100, LONG, [1, 2, 4, 8, 16, 32, 64]),
        (32, EngineLimits(300, 5000, 6000, at_once=12), [1, 2, 4, 8, 12]),
    ],
)
def test_it_compiles_for_the_sizes_that_batches_are_padded_to(
    most: int, limits: EngineLimits, sizes: list[int]
) -> None:
    """One that is no power of two is padded to the next, or to the most that may run."""
    found = list(batches(limits, most))
    assert [each.prompts for each in found if each.tokens == 3] == sizes
    longer = [each for each in found if each.tokens > 3]
    assert longer == ([Batch(1, 96), Batch(1, 192), Batch(1, 384)] if sizes else [])


def test_what_is_too_long_for_one_prompt_is_asked_as_several() -> None:
    """Prompts that come together are computed together."""
    short = EngineLimits(vocabulary=300, input_tokens=160, total_tokens=256, at_once=2)
    assert list(batches(short, 32))[2:] == [Batch(1, 96), Batch(2, 96), Batch(3, 128)]


def test_no_prompt_begins_like_another_or_leaves_the_vocabulary() -> None:
    begun = set()
    for batch in batches(LONG, 64):
        request: Mapping[str, Any] = batch.request(LONG.vocabulary)
        ids = request["input_ids"]
        assert all(0 < token < LONG.vocabulary for prompt in ids for token in prompt)
        assert len({prompt[0] for prompt in ids}) == batch.prompts
        begun |= {prompt[0] for prompt in ids if batch.tokens > 3}
    assert len(begun) == 3


async def test_each_batch_is_asked_and_nothing_of_it_stays() -> None:
    warming = Warmup()
    await warming.run()
    assert warming.asked == [Batch(1, 3), Batch(2, 3), Batch(4, 3), *LONGER]
    assert warming.engine.scrubs == 1
    assert [e.phase for e in warming.told if isinstance(e, PhaseEntered)] == [Phase.WARMING]


async def test_off_it_asks_nothing_and_has_no_phase() -> None:
    warming = Warmup()
    await warming.run(most=0)
    assert (warming.asked, warming.told, warming.engine.scrubs) == ([], [], 0)


async def test_no_batch_is_begun_after_its_time() -> None:
    warming = Warmup()
    await warming.run(within=0.0)
    assert warming.asked == []


async def test_it_tells_how_many_batches_are_compiled() -> None:
    warming = Warmup()
    warming.engine.may_answer.clear()

    def told(event: Event) -> None:
        warming.told.append(event)
        if isinstance(event, Progress):
            warming.engine.may_answer.set()

    await warm(warming.engine, AttemptProgress(REVISION, told), most=4, within=100.0)
    progress = next(e for e in warming.told if isinstance(e, Progress))
    assert progress == Progress(REVISION, Phase.WARMING, 0, 6)


@pytest.mark.parametrize(
    ("fault", "asked"),
    [(AnswerNonfinite("NaN"), 6), (BadRequest("input_ids are not taken"), 1), (KeyError("x"), 1)],
)
async def test_what_goes_wrong_in_it_does_not_end_the_start(fault: Exception, asked: int) -> None:
    """The probe judges the answers; an engine that takes no such batch serves without."""
    warming = Warmup()
    warming.engine.steps.faults["generate"] = [fault]
    await warming.run()
    assert len(warming.asked) == asked
    assert warming.engine.scrubs == 1


async def test_an_engine_that_is_lost_in_it_ends_the_start() -> None:
    warming = Warmup()
    warming.engine.steps.faults["generate"] = EngineLost("the scheduler thread died")
    with pytest.raises(EngineLost):
        await warming.run()


# --- beside those who are served -----------------------------------------------------------------

SIZES = [BatchSize(False, count, count, count * 8) for count in (1, 2, 4)]


class Behind:
    """An engine that serves and can compile for these sizes, and what was told meanwhile."""

    def __init__(self) -> None:
        self.steps = Steps()
        self.engine = FakeEngine(self.steps, REVISION)
        self.engine.sizes = SIZES
        self.changing = asyncio.Lock()
        self.told: list[Event] = []

    async def run(self, most: int = 4, within: float = 100.0) -> None:
        live = Generation(1, REVISION, "", 0.0)
        gate: Gate[RunningEngine] = Gate(publish=self.told.append, replica=3)
        await compile_behind(
            Replica(self.engine, gate, live),
            changing=self.changing,
            most=most,
            within=within,
            publish=self.told.append,
        )


async def test_beside_its_answers_it_compiles_for_each_size_and_asks_nothing() -> None:
    """Meanwhile it takes in no more than what is compiled holds."""
    behind = Behind()
    behind.steps.faults["compile"] = HANG
    running = asyncio.create_task(behind.run())
    await behind.steps.entered["compile"].wait()
    assert behind.engine.is_kept_to_compiled
    del behind.steps.faults["compile"]
    behind.steps.released["compile"].set()
    await running
    assert not behind.engine.is_kept_to_compiled
    assert behind.engine.compiled == SIZES
    assert behind.engine.requests == []
    far = [Told(3, done, 3) for done in range(3)]
    assert behind.told == [*far, Told(3, 3, 3, is_over=True)]


async def test_off_it_compiles_for_nothing_and_says_that_this_is_over() -> None:
    behind = Behind()
    behind.engine.is_kept_to_compiled = True  # since before anybody was let in
    await behind.run(most=0)
    assert (behind.engine.compiled, behind.told) == ([], [Told(3, 0, 0, is_over=True)])
    assert not behind.engine.is_kept_to_compiled


async def test_what_is_compiled_stays_and_meanwhile_hardly_any_garbage_is_looked_for() -> None:
    behind, usual = Behind(), gc.get_threshold()
    behind.steps.faults["compile"] = HANG
    running = asyncio.create_task(behind.run())
    await behind.steps.entered["compile"].wait()
    assert gc.get_threshold() == SELDOM != usual
    running.cancel()
    await asyncio.wait({running})
    assert gc.get_threshold() == usual


async def test_no_size_is_begun_after_its_time() -> None:
    behind = Behind()
    await behind.run(within=0.0)
    assert behind.engine.compiled == []
    assert behind.told == [Told(3, 0, 3, is_over=True)]
    assert not behind.engine.is_kept_to_compiled


async def test_an_attempt_goes_before_the_next_size_and_waits_for_none() -> None:
    """Not before the first, without which few are answered at a time for as long as it takes."""
    behind = Behind()
    await behind.changing.acquire()
    running = asyncio.create_task(behind.run())
    await turn_until(lambda: Told(3, 1, 3) in behind.told)
    assert behind.engine.compiled == SIZES[:1]
    behind.steps.entered["compile"].clear()
    behind.steps.faults["compile"] = HANG
    behind.changing.release()
    await behind.steps.entered["compile"].wait()
    async with behind.changing:  # it may begin although one is compiled for
        behind.steps.released["compile"].set()
        await turn_until(lambda: behind.engine.compiled == SIZES[:2])
        del behind.steps.faults["compile"]
    await running
    assert behind.engine.compiled == SIZES


async def test_what_weights_are_proven_with_waits_for_no_attempt_which_needs_it() -> None:
    behind = Behind()
    proving = BatchSize(False, 1, 1, 8, is_shadow=True)
    behind.engine.sizes = [SIZES[2], proving, *SIZES[:2]]
    async with behind.changing:
        running = asyncio.create_task(behind.run())
        await turn_until(lambda: Told(3, 2, 4) in behind.told)
        assert behind.engine.compiled == [SIZES[2], proving]
    await running
    assert behind.engine.compiled == [SIZES[2], proving, *SIZES[:2]]


async def test_what_cannot_be_compiled_so_costs_the_first_batch_and_no_engine() -> None:
    behind = Behind()
    behind.steps.faults["compile"] = [KeyError("another engine")]
    await behind.run()
    assert behind.engine.compiled == []
    assert behind.told[-1] == Told(3, 0, 3, is_over=True)
    assert not behind.engine.is_kept_to_compiled


async def test_a_loss_meanwhile_is_heard() -> None:
    behind = Behind()
    behind.steps.faults["compile"] = EngineLost("the scheduler thread died")
    with pytest.raises(EngineLost):
        await behind.run()
    assert behind.told[-1] == Told(3, 0, 3, is_over=True)


async def test_a_stop_ends_it_at_once() -> None:
    behind = Behind()
    behind.steps.faults["compile"] = HANG
    running = asyncio.create_task(behind.run())
    await behind.steps.entered["compile"].wait()
    running.cancel()
    await asyncio.wait({running})
    assert running.cancelled()
    assert behind.told[-1] == Told(3, 0, 3, is_over=True)
