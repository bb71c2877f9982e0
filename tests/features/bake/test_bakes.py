"""Answers judge what went live: convicted weights are left and refused, others promoted or held."""

import asyncio
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from hotreload.attempts import START, Attempt
from hotreload.core.rules import Rules
from hotreload.core.way_in.admission import AnswerCallbacks, LetIn
from hotreload.errors import AnswerNonfinite, EngineLost
from hotreload.events import AttemptFinished, Event, GenerationLive, TroubleNews
from hotreload.features.bake import one_bake
from hotreload.features.bake.bakes import Bakes
from hotreload.features.bake.evidence import (
    BAKE,
    BLANK,
    Bake,
    BakeChanged,
    BakeOutcome,
    SignalCount,
    bake_fields,
    bake_of,
)
from hotreload.features.bake.rule import MIN_ANSWERS, BakeSettings
from hotreload.types import Generation, Noise, Outcome, Reason, Revision
from tests.core.conftest import World, by
from tests.fakes import HANG
from tests.features.admissions import end_answer, listening
from tests.waiting import turn_until

ONE, TWO, THREE = (Revision(f"r{n}", f"step_{n}") for n in (1, 2, 3))
GOOD = {"type": "stop", "matched": 2}


class Baked(World):
    """The core with bakes of 300 s, and clients whose answers are as good as a test says."""

    def __init__(self, folder: Path, **rules: Any) -> None:
        super().__init__(
            folder, Rules(drain_timeout=0.1, probe_timeout=0.25, prove_within=0.05), blank=(BLANK,)
        )
        self.baking = Bakes(self.recording, BakeSettings(time=300.0, **rules))
        self.subscribe(self._observe)
        self.baking.observe(GenerationLive(self.live))

    def _observe(self, event: Event) -> None:
        self.baking.observe(event)

    @property
    def live(self) -> Generation:
        return self.replica.live

    @property
    def told(self) -> list[tuple[int, BakeOutcome]]:
        """What was told of bakes: the generation, and how it stands."""
        events = (each for each in self.happened if isinstance(each, BakeChanged))
        return [(each.generation, each.bake.outcome) for each in events]

    @property
    def last(self) -> Bake:
        return [each.bake for each in self.happened if isinstance(each, BakeChanged)][-1]

    def answered(self, count: int, *, empty: int = 0, of: Generation | None = None) -> None:
        """So many answers, of which the last ones are empty, by what is live."""
        for number in range(count):
            meta = {"finish_reason": GOOD, "completion_tokens": 2}
            says = "" if number >= count - empty else "well said"
            self.said({"text": says, "meta_info": meta}, of)

    def said(self, answer: dict[str, Any], of: Generation | None = None) -> None:
        with self.asked(of) as callbacks:
            end_answer(callbacks, 0, answer)

    def asked(
        self,
        of: Generation | None = None,
        *,
        until: float = float("inf"),
        prompts: int = 1,
        copies: int = 1,
    ) -> AbstractContextManager[AnswerCallbacks]:
        """A request that is let in, answered by what is live."""
        generation = of or self.live
        request = LetIn(generation, prompts, copies, until, token_ids=None)
        return listening(self.baking.conducts, request)

    async def goes_live(self, revision: Revision) -> None:
        self.wish(revision)
        await self.rests()
        assert self.live.revision == revision

    async def turns(self) -> None:
        """All that there is to do, by the baking and by the reconciler."""
        await self.baking.turn(self.leave)
        await self.rests()
        await self.baking.turn(self.leave)

    async def leave(self, reason: Reason, left: Generation) -> str | None:
        return await self.operator._operator.leave(reason, left, by=by(BAKE))


@pytest.fixture
def world(tmp_path: Path) -> Baked:
    return Baked(tmp_path)


# --- convicted -------------------------------------------------------------------------------


async def test_worse_weights_are_left_and_refused_and_the_history_has_both_intervals(
    world: Baked,
) -> None:
    world.answered(200, empty=4)
    await world.goes_live(ONE)
    world.answered(100, empty=60)
    await world.turns()
    assert world.live.revision.id == "first"
    assert world.ledger.refused["r1"].reason.code == BAKE
    back, there = list(world.ledger.attempts)[:2]
    assert back.outcome is Outcome.LIVE
    assert back.by is not None
    assert back.by.verb == BAKE
    bake = bake_of(there.facts)
    assert bake is not None
    assert bake.outcome is BakeOutcome.CONVICTED
    [empty] = [each for each in bake.signals if each.signal == "empty"]
    assert empty.low > empty.old_high + 0.02
    assert "empty answers 60 of 100" in bake.words
    assert "before 4 of 200" in bake.words
    assert world.told == [(2, BakeOutcome.BAKING), (2, BakeOutcome.CONVICTED)]


async def test_it_is_not_tried_again_and_the_next_one_is(world: Baked) -> None:
    world.answered(200)
    await world.goes_live(ONE)
    world.answered(100, empty=60)
    await world.turns()
    world.wish(ONE)
    await world.rests()
    assert world.live.revision.id == "first"
    await world.goes_live(TWO)
    assert world.told[-1] == (4, BakeOutcome.BAKING)


async def test_what_is_convicted_survives_a_restart(world: Baked) -> None:
    world.answered(200)
    await world.goes_live(ONE)
    world.answered(100, empty=60)
    await world.turns()
    ledger = world.restarted_ledger()
    assert ledger.refused["r1"].reason.code == BAKE
    baked = [bake for each in ledger.attempts if (bake := each.facts["bake"])]
    assert [bake["outcome"] for bake in baked] == ["convicted"]


async def refuse_to_leave(reason: Reason, left: Generation) -> str | None:
    return "another order is under way"


async def convicted_and_not_left(world: Baked) -> None:
    world.answered(200)
    await world.goes_live(ONE)
    world.answered(100, empty=60)
    await world.baking.turn(refuse_to_leave)
    assert (world.live.revision, world.last.outcome) == (ONE, BakeOutcome.CONVICTED)


def begin_another_life(world: Baked) -> None:
    """A start has served what was live when the daemon ended."""
    saved = world.restarted_ledger()
    world.ledger.attempts.clear()
    world.ledger.attempts.extend(saved.attempts)
    world.baking = Bakes(world.baking.attempts, world.baking.rules)
    world.baking.observe(GenerationLive(world.live))
    live, started = world.live, by(START)
    attempt = Attempt(live.revision, Outcome.LIVE, None, {}, 0.0, 0.0, live.number, by=started)
    world.publish(AttemptFinished(attempt, live))  # as every start does; it forces nothing


async def test_what_could_not_be_left_is_left_after_a_restart(world: Baked) -> None:
    await convicted_and_not_left(world)
    assert world.baking.conviction == world.last
    begin_another_life(world)
    assert world.baking.conviction is not None
    assert bake_fields(world.baking.conviction) == bake_fields(world.last)
    assert world.baking._convicted == {world.live.fingerprint}
    await world.turns()
    assert world.live.revision.id == "first"
    assert world.ledger.refused["r1"].reason.code == BAKE
    assert world.baking.conviction is None


async def test_what_was_promoted_with_too_few_answers_stays_whatever_the_operator_wants_later(
    world: Baked,
) -> None:
    world.baking.rules = BakeSettings(time=300.0, inconclusive="promote")
    world.answered(200)
    await world.goes_live(ONE)
    world.now += 300
    await world.turns()
    assert world.last.outcome is BakeOutcome.INCONCLUSIVE
    world.baking.rules = BakeSettings(time=300.0, inconclusive="rollback")
    begin_another_life(world)
    assert world.baking.conviction is None
    await world.turns()
    assert world.live.revision == ONE


async def test_what_an_operator_pinned_instead_stays_after_a_restart_too(world: Baked) -> None:
    await convicted_and_not_left(world)
    await world.operator.pin()
    await world.operator.unpin()
    await world.turns()
    begin_another_life(world)
    await world.turns()
    assert (world.live.revision, world.last.outcome) == (ONE, BakeOutcome.VOUCHED)


async def test_the_first_answers_convict_when_half_of_them_are_errors(world: Baked) -> None:
    await world.goes_live(ONE)  # there is nothing to compare it with
    for _ in range(5):
        with pytest.raises(AnswerNonfinite), world.asked():
            raise AnswerNonfinite("no numbers")
    await world.turns()
    assert world.live.revision.id == "first"
    assert "errors 5 of 5" in world.last.words


async def test_a_newer_one_that_goes_live_just_then_is_not_left_in_its_place(
    world: Baked,
) -> None:
    world.answered(200)
    async with world.running():
        world.source.publish(ONE)
        await world.until(lambda: bool(world.told))
        world.steps.faults["exchange"] = HANG
        world.steps.entered["exchange"].clear()
        world.source.publish(TWO)
        await world.steps.entered["exchange"].wait()  # past its last exit
        world.answered(100, empty=60, of=world.live)
        await world.baking.turn(world.leave)
        world.steps.released["exchange"].set()
        await world.attempted(2)
        await world.rests()
        await world.baking.turn(world.leave)
    assert (world.live.number, world.live.revision) == (3, TWO)
    assert world.ledger.refused.keys() == {"r1"}
    assert world.ledger.wanted == TWO


async def test_what_keeps_it_from_going_back_is_told_and_it_is_asked_again(
    world: Baked, caplog: pytest.LogCaptureFixture
) -> None:
    world.answered(200)
    await world.goes_live(ONE)
    world.answered(100, empty=60)
    world.ledger.generations.popleft()  # nobody knows any more where it came from
    world.source.known.pop("step_0")
    await world.turns()
    assert [each.message for each in caplog.records].count("bake.not_rolled_back") == 1
    assert world.live.revision == ONE
    world.now += 31
    await world.turns()
    assert [each.message for each in caplog.records].count("bake.not_rolled_back") == 2
    troubles = [each for each in world.happened if isinstance(each, TroubleNews)]
    assert [each.code for each in troubles] == ["convicted_answers"]
    assert troubles[0].message is not None
    assert troubles[0].message.startswith("step_1 (r1) is to be left and still answers: ")
    await world.goes_live(TWO)
    world.now += 31
    await world.turns()
    assert [each.message for each in caplog.records].count("bake.not_rolled_back") == 2
    assert [e.message for e in world.happened if isinstance(e, TroubleNews)][1:] == [None]


# --- promoted, or not known ------------------------------------------------------------------


async def test_weights_that_behave_are_promoted_and_it_is_told_what_would_have_been_found(
    world: Baked,
) -> None:
    world.answered(1000, empty=20)
    await world.goes_live(ONE)
    world.answered(400, empty=8)
    await world.turns()
    assert world.told == [(2, BakeOutcome.BAKING)]
    world.now += 300
    await world.turns()
    assert world.last.outcome is BakeOutcome.PROMOTED
    [empty] = [each for each in world.last.signals if each.signal == "empty"]
    assert empty.finds is not None
    assert 0.05 < empty.finds < 0.15
    assert "empty answers from 2 % to" in world.last.words
    assert world.live.revision == ONE
    assert world.ledger.attempts[0].facts["bake"] == bake_fields(world.last)


async def test_the_next_is_compared_with_what_was_promoted(world: Baked) -> None:
    world.answered(200)
    await world.goes_live(ONE)
    world.answered(200)
    world.now += 300
    await world.turns()
    await world.goes_live(TWO)
    assert world.last.against == 2


async def test_those_that_few_asked_do_not_become_the_measure(tmp_path: Path) -> None:
    world = Baked(tmp_path, inconclusive="promote")
    world.answered(200)
    for number in range(2, 8):
        await world.goes_live(Revision(f"r{number}", f"step_{number}"))
        assert world.last.against == 1
        world.answered(MIN_ANSWERS - 1)
        world.now += 300
        await world.turns()
        assert world.told[-1] == (number, BakeOutcome.INCONCLUSIVE)


async def test_too_few_answers_hold_on_until_there_are_enough(world: Baked) -> None:
    world.answered(200)
    await world.goes_live(ONE)
    world.answered(MIN_ANSWERS - 1)
    world.now += 300
    await world.turns()
    await world.turns()
    assert world.told[1:] == [(2, BakeOutcome.HELD)]
    assert world.baking.now is not None
    assert world.baking.now.outcome is BakeOutcome.HELD
    world.answered(1)
    await world.turns()
    assert world.last.outcome is BakeOutcome.PROMOTED


async def test_but_not_for_ever(world: Baked) -> None:
    world.answered(200)
    await world.goes_live(ONE)
    world.now += 300
    await world.turns()
    world.now += 1500
    await world.turns()
    assert world.last.outcome is BakeOutcome.INCONCLUSIVE
    assert "counts as promoted" in world.last.words
    assert world.live.revision == ONE


async def test_too_few_answers_promote_where_that_is_wished(tmp_path: Path) -> None:
    world = Baked(tmp_path, inconclusive="promote")
    await world.goes_live(ONE)
    world.now += 300
    await world.turns()
    assert world.told == [(2, BakeOutcome.BAKING), (2, BakeOutcome.INCONCLUSIVE)]
    assert world.live.revision == ONE


async def test_too_few_answers_roll_back_where_that_is_wished(tmp_path: Path) -> None:
    world = Baked(tmp_path, inconclusive="rollback")
    await world.goes_live(ONE)
    world.now += 300
    await world.turns()
    assert world.last.outcome is BakeOutcome.INCONCLUSIVE
    assert world.live.revision.id == "first"
    assert world.ledger.refused["r1"].reason.code == BAKE


# --- a newer one meanwhile -------------------------------------------------------------------


async def test_a_newer_one_waits_for_no_bake_and_each_bakes_for_its_whole_time(
    world: Baked,
) -> None:
    world.answered(200)
    await world.goes_live(ONE)
    world.answered(60)
    world.now += 10
    await world.goes_live(TWO)
    world.answered(60)
    assert world.last.against == 1, "what was promoted, not what was live for a moment"
    world.now += 290
    await world.turns()
    assert world.told[2:] == [(2, BakeOutcome.PROMOTED)]
    world.now += 10
    await world.turns()
    assert world.told[3:] == [(3, BakeOutcome.PROMOTED)]


async def test_one_that_bakes_no_longer_live_is_held_for_nothing(world: Baked) -> None:
    """Nobody asks it any more, so there will never be answers enough."""
    world.answered(200)
    await world.goes_live(ONE)
    await world.goes_live(TWO)
    world.now += 300
    await world.turns()
    assert world.told[2:] == [(2, BakeOutcome.INCONCLUSIVE), (3, BakeOutcome.HELD)]


async def test_while_one_gone_back_to_bakes_it_is_no_measure(world: Baked) -> None:
    world.answered(200)
    await world.goes_live(ONE)
    world.answered(60)
    await world.goes_live(TWO)
    world.answered(100, empty=60)
    await world.turns()
    assert world.live.revision == ONE
    await world.goes_live(THREE)
    assert world.last.against == 1


async def test_one_that_is_convicted_when_others_are_live_is_refused_and_nobody_goes_back(
    world: Baked,
) -> None:
    world.answered(200)
    await world.goes_live(ONE)
    bad = world.live
    await world.goes_live(TWO)
    world.answered(100, empty=60, of=bad)  # conversations that began with it
    await world.turns()
    assert world.live.revision == TWO
    assert world.ledger.refused["r1"].reason.code == BAKE


async def test_who_is_gone_back_to_is_judged_by_all_of_its_answers_under_both_numbers(
    world: Baked,
) -> None:
    world.answered(200)
    await world.goes_live(ONE)
    world.answered(40, empty=20)
    await world.goes_live(TWO)
    world.answered(100, empty=60)
    await world.turns()
    assert (world.live.number, world.live.revision) == (4, ONE)
    assert world.baking.now is not None
    world.answered(40, empty=20)
    await world.turns()
    assert world.live.revision.id == "first"
    assert {"r1", "r2"} <= world.ledger.refused.keys()


async def test_answers_of_the_old_lane_that_end_after_the_flip_count_for_it(world: Baked) -> None:
    old = world.live
    world.answered(100)
    with world.asked(old):
        await world.goes_live(ONE)
        assert world.last.old_answers == 101, "one still runs"
        world.answered(1, empty=1, of=old)
    now = world.baking.now
    assert now is not None
    [empty] = [each for each in now.signals if each.signal == "empty"]
    assert (now.old_answers, empty.old_answers) == (101, 1), "the one that left is not counted"


# --- what an operator does -------------------------------------------------------------------


async def test_a_pin_ends_the_bake_and_what_it_holds_counts_as_promoted(world: Baked) -> None:
    world.answered(200)
    await world.goes_live(ONE)
    await world.operator.pin()
    assert world.last.outcome is BakeOutcome.VOUCHED
    world.answered(100, empty=100)
    await world.turns()
    assert world.live.revision == ONE
    await world.operator.unpin()
    await world.goes_live(TWO)
    assert world.last.against == 2


async def test_a_rollback_ends_the_bake_of_both_that_it_leaves_and_goes_to(world: Baked) -> None:
    world.answered(200)
    await world.goes_live(ONE)
    await world.goes_live(TWO)
    rolled = await world.operator.rollback()
    await world.rests()
    assert (await rolled).outcome is Outcome.LIVE
    assert world.told[2:] == [(3, BakeOutcome.LEFT), (2, BakeOutcome.VOUCHED)]


async def test_what_is_forced_again_has_another_chance(world: Baked) -> None:
    world.answered(200)
    await world.goes_live(ONE)
    world.answered(100, empty=60)
    await world.turns()
    await world.operator.reload("step_1", force=True)
    await world.rests()
    assert world.live.revision == ONE
    world.answered(100)
    world.now += 300
    await world.turns()
    assert world.last.outcome is BakeOutcome.PROMOTED


async def test_noise_is_not_judged(world: Baked) -> None:
    world.answered(200)
    await world.goes_live(ONE)
    await world.operator.perturb(Noise(num_leaves=1))
    await world.rests()
    assert world.live.revision.is_noise
    assert world.told[1:] == [(2, BakeOutcome.LEFT)]
    assert world.baking.now is None


async def test_switched_off_it_counts_nothing_and_ends_what_bakes(world: Baked) -> None:
    world.answered(200)
    await world.goes_live(ONE)
    world.baking.go_by(BakeSettings())
    assert world.last.outcome is BakeOutcome.VOUCHED
    await world.goes_live(TWO)
    world.answered(100, empty=100)
    await world.turns()
    assert world.told[2:] == []


# --- restarts, losses ------------------------------------------------------------------------


async def test_what_baked_when_the_daemon_ended_counts_as_promoted_with_a_mark(
    world: Baked,
) -> None:
    world.answered(200)
    await world.goes_live(ONE)
    await world.turns()
    again = Baked(world.source.folder)
    again.ledger.attempts.extend(world.restarted_ledger().attempts)
    again.baking = Bakes(again.recording, again.baking.rules)
    again.baking.observe(GenerationLive(again.live))
    [attempt] = again.ledger.attempts
    assert attempt.facts["bake"]["outcome"] == "cut_short"
    assert again.told == [(2, BakeOutcome.CUT_SHORT)]


async def test_answers_of_an_engine_that_is_lost_say_nothing(world: Baked) -> None:
    world.answered(200)
    await world.goes_live(ONE)
    for _ in range(20):
        with pytest.raises(EngineLost), world.asked():
            raise EngineLost("a thread died")
    await world.turns()
    assert world.baking.now is not None
    assert world.baking.now.answers == 0


async def test_what_the_first_engines_answered_counts_before_the_last_has_the_weights(
    world: Baked,
) -> None:
    world.answered(200)
    world.answered(30, of=Generation(2, ONE, "fp-r1", 0.0))
    await world.goes_live(ONE)
    assert world.baking.now is not None
    assert world.baking.now.answers == 30


async def test_a_fault_of_ours_costs_no_client_an_answer_and_stops_nothing(
    world: Baked, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*sides: Any) -> Any:
        raise ValueError("a fault of ours")

    world.answered(200)
    running = asyncio.create_task(world.baking.run(world.leave))
    await world.goes_live(ONE)
    monkeypatch.setattr(one_bake, "list_convicting", broken)
    world.answered(1)
    monkeypatch.setattr(one_bake, "is_decidable", broken)
    world.now += 300
    await world.goes_live(TWO)
    await turn_until(lambda: len(caplog.records) >= 2)
    assert {each.message for each in caplog.records} == {"bake.internal_error"}
    await world.goes_live(THREE)
    assert world.last.outcome is BakeOutcome.BAKING
    assert not running.done()
    running.cancel()
    await asyncio.wait({running})


# --- what counts -----------------------------------------------------------------------------


def signal(bake: Bake | None, name: str) -> SignalCount:
    assert bake is not None
    [found] = [each for each in bake.signals if each.signal == name]
    return found


async def test_of_several_answers_to_a_prompt_the_first_counts(world: Baked) -> None:
    world.answered(100)
    await world.goes_live(ONE)
    with world.asked(prompts=2, copies=3) as callbacks:
        for index in range(6):
            says = "" if index in (0, 3) else "well said"
            end_answer(callbacks, index, {"text": says, "meta_info": {"finish_reason": GOOD}})
    assert world.baking.now is not None
    assert world.baking.now.answers == 2
    assert signal(world.baking.now, "empty").answers == 2


async def test_who_hangs_up_says_nothing_and_who_runs_out_of_time_had_no_stop(
    world: Baked,
) -> None:
    world.answered(100)
    await world.goes_live(ONE)
    now = asyncio.get_running_loop().time()
    with pytest.raises(asyncio.CancelledError), world.asked(until=now + 60):
        raise asyncio.CancelledError
    with pytest.raises(asyncio.CancelledError), world.asked(until=now):
        raise asyncio.CancelledError
    assert world.baking.now is not None
    assert world.baking.now.answers == 1
    assert signal(world.baking.now, "length").answers == 1


async def test_long_is_what_is_longer_than_nearly_all_of_before(world: Baked) -> None:
    def ended(tokens: int) -> dict[str, Any]:
        return {"text": "x", "meta_info": {"finish_reason": GOOD, "completion_tokens": tokens}}

    for tokens in range(1, 101):
        world.said(ended(tokens))
    await world.goes_live(ONE)
    for tokens in (90, 97, 200):
        world.said(ended(tokens))
    assert signal(world.baking.now, "long").answers == 2
    assert signal(world.baking.now, "long").old_answers == 4


async def test_it_runs_by_itself(world: Baked) -> None:
    """As the daemon runs it, beside the reconciler."""
    world.answered(200)
    running = asyncio.create_task(world.baking.run(world.leave))
    async with world.running():
        world.source.publish(ONE)
        await world.until(lambda: world.live.revision == ONE and bool(world.told))
        world.answered(100, empty=60)
        await world.until(lambda: world.live.revision.id == "first")
        world.baking.rules = BakeSettings(time=0.001)
        await world.attempted(2)
        world.source.publish(TWO)
        await world.attempted(3)
        world.now += 1
        world.answered(1)
        await world.until(lambda: world.last.outcome is BakeOutcome.HELD)
        world.answered(100)
        await world.until(lambda: world.last.outcome is BakeOutcome.PROMOTED)
    running.cancel()
    await asyncio.wait({running})
