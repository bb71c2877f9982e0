"""The order of the judges, how often each is asked, and what is left when an attempt is given up.

The probes, the comparison, the operator's command: whatever becomes of their code, this holds.
"""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any, override

import pytest

from hotreload.attempts import Attempt
from hotreload.core.engines.background import close_drained_generations
from hotreload.core.judge import Judge
from hotreload.core.rules import Rules
from hotreload.errors import ProbeFailed
from hotreload.features.command.command import CommandEnd
from hotreload.features.command.judge import CommandJudge
from hotreload.features.compare.judge import CompareJudge
from hotreload.features.compare.replay import RequestRecorder
from hotreload.features.compare.settings import CompareLimits, CompareSettings
from hotreload.types import Mode, Outcome, Revision
from tests.core.conftest import World
from tests.core.overlapping import Overlapping
from tests.evidence import BLANK
from tests.fakes import HANG
from tests.features.command.test_judge import FakeCommand
from tests.features.compare.shared import shared

NEW = Revision("new", "step_1")
NEWER = Revision("newer", "step_2")
NEWEST = Revision("newest", "step_3")
RULES = Rules(probe_timeout=5.0, finish_timeout=5.0, sets=3)
LIMITS = CompareSettings(time=20.0, limits=CompareLimits(max_length_ratio=100.0))
JUDGED = ["stage", "prove", "compare", "candidate"]
"""The steps of an engine before anything flips, each once."""


class Judged(Overlapping):
    """A core with every judge on, and what each step of its engines was."""

    def __init__(self, folder: Path, rules: Rules = RULES, **more: Any) -> None:
        self.command = FakeCommand()
        self.command.may_end.set()
        self.recorder = RequestRecorder(CompareSettings(mirror=1.0))
        super().__init__(folder, rules, judges=self._judges, blank=BLANK, **more)
        for engine in self.engines:
            engine.cannot_compare = None

    def _judges(self) -> list[Judge]:
        return [CompareJudge(LIMITS, shared(self.recorder)), CommandJudge(self.command.run)]

    @override
    async def life(self, *, heeds: bool = False) -> None:
        """Older weights end on the other engines, too."""
        async with asyncio.TaskGroup() as tasks:
            for each in self.each[1:]:
                keep = self._rules.keep_previous
                tasks.create_task(close_drained_generations(each, keep=keep, publish=self.publish))
            await super().life(heeds=heeds)

    def went_through(self, engine: int = 0) -> list[str]:
        """The steps that matter here, in their order; one that was repeated counts once."""
        of_judges = {*JUDGED, "twin", "flip"}
        steps = [each for each in self.engines[engine].steps.order if each in of_judges]
        return [*dict.fromkeys(steps)]

    def forget_steps(self) -> None:
        for engine in self.engines:
            engine.steps.order.clear()

    async def reload(self, revision: Revision = NEW) -> Attempt:
        self.source.known[revision.label] = revision
        attempt: Attempt = await (await self.operator.reload(revision.label))
        return attempt

    @property
    def is_mirroring(self) -> bool:
        return self.recorder._mirrored is not None


async def test_new_weights_are_proven_then_compared_then_the_command_is_asked_then_they_flip(
    tmp_path: Path,
) -> None:
    world = Judged(tmp_path)
    async with world.running():
        assert (await world.reload()).outcome is Outcome.LIVE
    assert world.went_through() == [*JUDGED, "flip"]


async def test_of_two_engines_each_is_proven_and_the_first_alone_is_compared_and_asked(
    tmp_path: Path,
) -> None:
    world = Judged(tmp_path, engines=2)
    async with world.running():
        assert (await world.reload()).outcome is Outcome.LIVE
    assert world.went_through(0) == [*JUDGED, "flip"]
    assert world.went_through(1) == ["twin", "prove", "flip"]
    assert [replica for replica, _ in world.command.asked] == [0]


async def test_together_all_are_proven_before_any_flips(tmp_path: Path) -> None:
    world = Judged(tmp_path, replace(RULES, rollout="together"), engines=2)
    world.engines[1].steps.faults["prove"] = HANG
    async with world.running():
        world.source.publish(NEW)
        await world.engines[1].steps.entered["prove"].wait()
        assert world.went_through(0) == JUDGED
        world.engines[1].steps.released["prove"].set()
        assert (await world.attempted()).outcome is Outcome.LIVE
    assert world.went_through(0) == [*JUDGED, "flip"]
    assert world.went_through(1) == ["twin", "prove", "flip"]
    assert len(world.command.asked) == 1


@pytest.mark.parametrize("engines", [1, 2])
async def test_a_rollback_from_files_is_proven_and_neither_compared_nor_asked_of_the_command(
    tmp_path: Path, engines: int
) -> None:
    world = Judged(tmp_path, engines=engines)
    async with world.running():
        for each in (NEW, NEWER, NEWEST):
            assert (await world.reload(each)).outcome is Outcome.LIVE
        world.forget_steps()
        asked = len(world.command.asked)
        back = await (await world.operator.rollback(1))
    assert (back.outcome, back.revision.label) == (Outcome.LIVE, "step_0")
    assert world.went_through(0) == ["stage", "prove", "flip"]
    if engines == 2:
        assert world.went_through(1) == ["twin", "prove", "flip"]
    assert (len(world.command.asked), back.facts["behaviour"]) == (asked, None)


async def test_a_rollback_from_files_that_answers_badly_is_refused(tmp_path: Path) -> None:
    world = Judged(tmp_path)
    async with world.running():
        for each in (NEW, NEWER, NEWEST):
            await world.reload(each)
        world.steps.faults["prove"] = [ProbeFailed("it talks nonsense")]
        back = await (await world.operator.rollback(1))
        assert await world.ask() == "4: newest clean"
    assert (back.outcome, back.reason and back.reason.code) == (Outcome.REJECTED, "probe")


async def test_a_rollback_from_memory_asks_no_judge_at_all(tmp_path: Path) -> None:
    world = Judged(tmp_path)
    async with world.running():
        await world.reload()
        await world.only_one_answers()
        world.forget_steps()
        back = await (await world.operator.rollback())
    assert back.outcome is Outcome.LIVE
    assert world.went_through() == ["flip"]


@pytest.mark.parametrize("judge", ["limits", "command"])
async def test_nothing_is_loaded_that_nobody_could_judge(tmp_path: Path, judge: str) -> None:
    """Not even fetched; but the way back is open, which is proven alone."""
    world = Judged(tmp_path)
    async with world.running():
        for each in (NEW, NEWER):
            await world.reload(each)
        world.forget_steps()
        if judge == "limits":
            world.engine.cannot_compare = "it has no memory for it"
        else:
            world.engine.cannot_overlap = "it serves LoRA adapters"
        attempt = await world.reload(NEWEST)
        assert (attempt.outcome, attempt.reason and attempt.reason.code) == (
            Outcome.POSTPONED,
            "not_judged",
        )
        assert {"fetch", "validate", "stage"}.isdisjoint(world.engine.steps.order)
        assert (await (await world.operator.rollback(1))).outcome is Outcome.LIVE


async def test_where_swaps_drain_the_command_is_asked_before_the_gate_closes_and_the_probes_after(
    tmp_path: Path,
) -> None:
    command = FakeCommand()
    command.may_end.set()
    world = World(tmp_path, Rules(), mode=Mode.DRAIN, judges=command.judges)
    world.source.known[NEW.label] = NEW
    async with world.running():
        attempt = await (await world.operator.reload(NEW.label))
    assert attempt.outcome is Outcome.LIVE
    steps = [each for each in world.steps.order if each in {"candidate", "exchange", "probe"}]
    assert steps == ["candidate", "exchange", "probe"]


async def test_requests_are_mirrored_before_anything_is_staged_and_no_longer_after_it(
    tmp_path: Path,
) -> None:
    world = Judged(tmp_path)
    world.steps.faults["stage"] = HANG
    async with world.running():
        world.source.publish(NEW)
        await world.steps.entered["stage"].wait()
        assert world.is_mirroring
        world.steps.released["stage"].set()
        await world.attempted()
    assert not world.is_mirroring


async def test_on_the_way_back_nothing_is_mirrored(tmp_path: Path) -> None:
    world = Judged(tmp_path)
    async with world.running():
        for each in (NEW, NEWER, NEWEST):
            await world.reload(each)
        world.steps.entered["stage"].clear()
        world.steps.faults["stage"] = HANG
        back = asyncio.ensure_future(await world.operator.rollback(1))
        await world.steps.entered["stage"].wait()
        assert not world.is_mirroring
        world.steps.released["stage"].set()
        assert (await back).outcome is Outcome.LIVE


# --- what is left at each exit -------------------------------------------------------------------

EXITS = ["fetch", "validate", "stage", "prove", "compare", "candidate"]


async def nothing_is_left(world: Judged) -> None:
    """One set answers, which was live before; nothing waits, is mirrored, or is a candidate."""
    assert await world.ask() == "1: first clean"
    assert world.engine.sets_held == 1
    assert world.engine.candidate is None
    assert not world.is_mirroring
    assert not world.ledger.refused
    assert world.replica.staged is None
    assert world.restarted_ledger().under_way is None


@pytest.mark.parametrize("exit", EXITS)
async def test_a_stop_at_any_exit_leaves_nothing_and_forgets_the_attempt(
    tmp_path: Path, exit: str
) -> None:
    world = Judged(tmp_path)
    world.steps.faults[exit] = HANG
    async with world.running():
        world.source.publish(NEW)
        await world.steps.entered[exit].wait()
        assert world.task is not None
        world.task.cancel()
        await asyncio.wait({world.task})
        assert not world.attempts
        await nothing_is_left(world)


@pytest.mark.parametrize("exit", EXITS)
async def test_a_pin_at_any_exit_gives_the_attempt_up(tmp_path: Path, exit: str) -> None:
    world = Judged(tmp_path)
    world.steps.faults[exit] = HANG
    async with world.running():
        world.source.publish(NEW)
        await world.steps.entered[exit].wait()
        assert (await world.operator.pin()).number == 1
        assert [each.outcome for each in world.attempts] == [Outcome.SUPERSEDED]
        await nothing_is_left(world)


@pytest.mark.parametrize("exit", EXITS)
async def test_a_newer_wish_at_any_exit_goes_first_while_a_command_is_still_to_come(
    tmp_path: Path, exit: str
) -> None:
    """A command may take long, so until it has ended a newer checkpoint takes the place."""
    world = Judged(tmp_path)
    world.steps.faults[exit] = HANG
    async with world.running():
        world.source.publish(NEW)
        await world.steps.entered[exit].wait()
        world.source.publish(NEWER)
        await world.attempted()
        world.steps.released[exit].set()
        await world.attempted(2)
    ended = [(each.revision, each.outcome) for each in world.attempts]
    assert ended == [(NEW, Outcome.SUPERSEDED), (NEWER, Outcome.LIVE)]


@pytest.mark.parametrize("exit", ["prove", "compare"])
async def test_without_a_command_a_newer_wish_waits_for_what_is_staged(
    tmp_path: Path, exit: str
) -> None:
    world = Overlapping(tmp_path, RULES, judges=lambda: [CompareJudge(LIMITS, shared())])
    world.engine.cannot_compare = None
    world.steps.faults[exit] = HANG
    async with world.running():
        world.source.publish(NEW)
        await world.steps.entered[exit].wait()
        world.source.publish(NEWER)
        await world.source.heard()
        world.steps.released[exit].set()
        await world.attempted(2)
    ended = [(each.revision, each.outcome) for each in world.attempts]
    assert ended == [(NEW, Outcome.LIVE), (NEWER, Outcome.LIVE)]


async def test_a_verdict_stands_though_a_cancel_comes_after_it(tmp_path: Path) -> None:
    world = Judged(tmp_path)
    world.command.end = CommandEnd(1, ("no",))
    world.steps.faults["release"] = HANG
    async with world.running():
        world.source.publish(NEW)
        await world.steps.entered["release"].wait()
        assert world.task is not None
        world.task.cancel()
        await asyncio.sleep(0)
        world.steps.released["release"].set()
        await asyncio.wait({world.task})
    assert [each.outcome for each in world.attempts] == [Outcome.REJECTED]
    assert world.restarted_ledger().refused.keys() == {NEW.id}
