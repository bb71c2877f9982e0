"""A command of the operator's decides about new weights before they answer."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hotreload.attempts import Attempt
from hotreload.core.judge import Judge
from hotreload.core.rules import Rules
from hotreload.errors import SourceUnavailable
from hotreload.features.command.command import CommandEnd
from hotreload.features.command.judge import CommandJudge
from hotreload.types import Mode, Outcome, Revision, Staged
from tests.core.conftest import World
from tests.core.overlapping import Overlapping

NEW = Revision("new", "step_1")
NEWER = Revision("newer", "step_2")
RULES = Rules(probe_timeout=0.25, prove_within=0.05, finish_timeout=5.0)


@dataclass
class FakeCommand:
    """Ends as a test says, once it lets it."""

    end: CommandEnd = field(default_factory=lambda: CommandEnd(0, ("all is well",)))
    fault: Exception | None = None
    asked: list[tuple[int, Staged]] = field(default_factory=list)
    began: asyncio.Event = field(default_factory=asyncio.Event)
    may_end: asyncio.Event = field(default_factory=asyncio.Event)
    ended_early: int = 0

    def judges(self) -> list[Judge]:
        return [CommandJudge(self.run)]

    async def run(self, replica: int, staged: Staged) -> CommandEnd:
        self.asked.append((replica, staged))
        self.began.set()
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.ended_early += 1
            raise
        if self.fault is not None:
            raise self.fault
        return self.end


@pytest.fixture
def command() -> FakeCommand:
    made = FakeCommand()
    made.may_end.set()
    return made


@pytest.fixture
def world(tmp_path: Path, command: FakeCommand) -> Overlapping:
    return Overlapping(tmp_path, RULES, judges=command.judges)


async def reloaded(world: Overlapping, revision: Revision = NEW) -> Attempt:
    world.source.known[revision.label] = revision
    attempt: Attempt = await (await world.operator.reload(revision.label))
    return attempt


async def test_weights_that_it_wants_go_live(world: Overlapping, command: FakeCommand) -> None:
    async with world.running():
        attempt = await reloaded(world)
        assert await world.ask() == "2: new clean"
    assert attempt.outcome is Outcome.LIVE
    assert attempt.facts["command_said"] == ["all is well"]
    assert world.restarted_ledger().attempts[0].facts["command_said"] == ["all is well"]
    ((replica, staged),) = command.asked
    assert (replica, staged.revision) == (0, NEW)
    assert world.engine.candidate is None


@pytest.mark.parametrize("code", [1, 2, 128])
async def test_weights_that_it_does_not_want_are_refused_and_never_answer(
    world: Overlapping, command: FakeCommand, code: int
) -> None:
    command.end = CommandEnd(code, ("asked 9", "accuracy 0.25"))
    async with world.running():
        attempt = await reloaded(world)
        assert await world.ask() == "1: first clean"
    assert attempt.outcome is Outcome.REJECTED
    assert attempt.reason is not None
    assert attempt.reason.code == "command"
    assert attempt.reason.message == f"[command] run ended with {code}: accuracy 0.25"
    assert attempt.reason.findings == ("asked 9", "accuracy 0.25")
    assert world.ledger.refused.keys() == {NEW.id}
    assert world.engine.sets_held == 1
    assert world.restarted_ledger().refused.keys() == {NEW.id}


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (CommandEnd(None, ("so far",), "took longer than 5 s"), "took longer than 5 s"),
        (CommandEnd(75, ("so far",)), "ended with 75, which asks to be tried again later"),
        (CommandEnd(127, ("so far",)), "ended with 127, which says that it was not found"),
    ],
)
async def test_what_could_not_be_judged_is_tried_again_later(
    world: Overlapping, command: FakeCommand, end: CommandEnd, words: str
) -> None:
    command.end = end
    async with world.running():
        attempt = await reloaded(world)
        assert await world.ask() == "1: first clean"
    assert attempt.outcome is Outcome.POSTPONED
    assert attempt.reason is not None
    assert attempt.reason.code == "not_judged"
    assert attempt.reason.message == f"[command] run {words}"
    assert attempt.reason.findings == ("so far",)
    assert not world.ledger.refused
    assert world.engine.sets_held == 1


async def test_a_fault_of_what_it_needs_is_none_of_the_weights(
    world: Overlapping, command: FakeCommand
) -> None:
    command.fault = SourceUnavailable("no room")
    async with world.running():
        attempt = await reloaded(world)
    assert attempt.outcome is Outcome.POSTPONED


async def test_a_newer_wish_ends_it_once_and_never_twice_in_a_row(
    world: Overlapping, command: FakeCommand
) -> None:
    """It may take long; but something goes live."""
    command.may_end.clear()
    async with world.running():
        world.source.publish(NEW)
        await command.began.wait()
        command.began.clear()
        world.source.publish(NEWER)
        await command.began.wait()
        assert command.ended_early == 1
        newest = Revision("newest", "step_3")
        world.source.publish(newest)
        await world.source.heard()
        command.may_end.set()
        await world.attempted(3)
    ended = [(each.revision, each.outcome) for each in world.attempts]
    assert ended == [
        (NEW, Outcome.SUPERSEDED),
        (NEWER, Outcome.LIVE),
        (newest, Outcome.LIVE),
    ]
    assert world.engine.candidate is None


async def test_an_operator_ends_it(world: Overlapping, command: FakeCommand) -> None:
    command.may_end.clear()
    async with world.running():
        world.source.publish(NEW)
        await command.began.wait()
        await world.operator.pin()
        assert command.ended_early == 1
    assert world.attempts[0].outcome is Outcome.SUPERSEDED


async def test_a_daemon_that_stops_ends_it(world: Overlapping, command: FakeCommand) -> None:
    command.may_end.clear()
    async with world.running():
        world.source.publish(NEW)
        await command.began.wait()
    assert command.ended_early == 1
    assert world.attempts == []
    assert not world.ledger.refused


async def test_a_dry_run_asks_it_and_refuses_nothing(
    world: Overlapping, command: FakeCommand
) -> None:
    command.end = CommandEnd(1)
    world.source.known[NEW.label] = NEW
    async with world.running():
        found = await (await world.operator.rehearse(NEW.label))
    assert (found.outcome, found.reason.message) == (
        Outcome.REJECTED,
        "[command] run ended with 1",
    )
    assert not world.ledger.refused


async def test_the_way_back_is_not_barred_by_it(world: Overlapping, command: FakeCommand) -> None:
    async with world.running():
        await reloaded(world)
        await reloaded(world, NEWER)
        command.end, so_far = CommandEnd(1), len(command.asked)
        back = await (await world.operator.rollback(1))
    assert back.outcome is Outcome.LIVE
    assert len(command.asked) == so_far


async def test_of_several_engines_the_first_is_asked(tmp_path: Path, command: FakeCommand) -> None:
    world = Overlapping(tmp_path, RULES, judges=command.judges, engines=2)
    async with world.running():
        assert (await reloaded(world)).outcome is Outcome.LIVE
    assert [replica for replica, _ in command.asked] == [0]


async def test_where_nothing_can_be_asked_nothing_is_loaded(
    world: Overlapping, command: FakeCommand
) -> None:
    world.engine.cannot_overlap = "it serves LoRA adapters"
    async with world.running():
        attempt = await reloaded(world)
    assert attempt.outcome is Outcome.POSTPONED
    assert attempt.reason is not None
    assert attempt.reason.message.endswith("of this engine: it serves LoRA adapters")
    assert command.asked == []
    assert not world.steps.entered["stage"].is_set()


async def test_it_is_asked_too_where_swaps_drain_and_the_engine_could_do_more(
    tmp_path: Path, command: FakeCommand
) -> None:
    world = World(tmp_path, RULES, mode=Mode.DRAIN, judges=command.judges)
    command.end = CommandEnd(1)
    async with world.running():
        world.source.known[NEW.label] = NEW
        attempt = await (await world.operator.reload(NEW.label))
    assert (attempt.outcome, attempt.pause_seconds) == (Outcome.REJECTED, 0)
