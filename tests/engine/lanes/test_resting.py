"""In which of its turns a lane launches: counted, of lanes that hold nothing but numbers."""

import random
from collections import deque
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from hotreload.core.rules import Rules
from hotreload.engine.lanes.lane import Bound, Lane, Rotation
from hotreload.engine.lanes.turn_shares import TurnShares

SHADOW = "s"
FIELDS = ("last_batch", "result_queue")


class Loop:
    """Upstream's loop with overlap scheduling: what is computed comes out in the order of launches,
    and each lane takes the first that comes for its own, in its turn after the launch.
    """

    def __init__(self, lanes: str, **shares: float) -> None:
        """The first one is that of the live weights; each answers one request."""
        self.answers: dict[str, int] = {}
        self.arriving: dict[str, int] = {}
        """What comes in the next turn, when it is decided already whose that is."""
        self.launched: list[str] = []
        """Who launched in each turn; a dot for nobody."""
        self.taken: list[tuple[str, str]] = []
        """Whose results were taken, and by whom."""
        self._computed: deque[str] = deque()
        self._scheduler: Any = SimpleNamespace(last_batch=None, result_queue=deque())
        self._names: dict[int, str] = {}
        first = self._lane(lanes[0])
        self.resting = TurnShares(
            first,
            replace(Rules().shares, **shares),
            has_work=lambda lane: self._running(lane) > 0,
            running=self._running,
        )
        self.rotation = Rotation(
            first,
            FIELDS,
            may_launch=lambda lane: self.resting.may_launch(lane, self.rotation.lanes),
            awaits_result=lambda lane: bool(lane.look("result_queue")),
            is_spent=lambda lane: not (self._running(lane) or lane.look("result_queue")),
            on_end=lambda lane: None,
        )
        for name in lanes[1:]:
            self.open(name)

    def open(self, name: str) -> None:
        lane = self._lane(name)
        lane.leave_with({"last_batch": None, "result_queue": deque()})
        self.rotation.add(lane)

    def make_live(self, name: str) -> None:
        self.resting.live = self.lane(name)

    def lane(self, name: str) -> Lane:
        return next(each for each in self.rotation.lanes if self._names[id(each)] == name)

    def turns(self, number: int) -> str:
        """Who launched in the next so many turns of the loop."""
        for _ in range(number):
            self._turn()
        return "".join(self.launched[-number:])

    def rounds(self, number: int) -> str:
        """Who launched until the live lane had so many more of its turns."""
        live, before = self._names[id(self.resting.live)], len(self.launched)
        while "".join(self.launched[before:]).count(live) < number:
            self._turn()
        return "".join(self.launched[before:]).replace(".", "")

    def _turn(self) -> None:
        self.rotation.turn()
        self.answers.update(self.arriving)
        self.arriving = {}
        lane, scheduler = self.rotation.current, self._scheduler
        name = self._names[id(lane)]
        launches = not lane.rests and self._running(lane) > 0
        self.launched.append(name if launches else ".")
        if launches:
            self._computed.append(name)
            scheduler.result_queue.append(name)
        if scheduler.last_batch:
            scheduler.result_queue.popleft()
            self.taken.append((self._computed.popleft(), name))
        scheduler.last_batch = launches

    def _running(self, lane: Lane) -> int:
        return self.answers[self._names[id(lane)]]

    def _lane(self, name: str) -> Lane:
        bound: Any = Bound([], None)
        lane = Lane(self._scheduler, ord(name), bound, has_own_pool=name == SHADOW)
        self._names[id(lane)] = name
        self.answers[name] = 1
        return lane

    def name_of(self, lane: Lane) -> str:
        return self._names[id(lane)]

    @property
    def is_strict(self) -> bool:
        """Whether each lane has had the results of its own launches and no others."""
        return bool(self.taken) and all(of == by for of, by in self.taken)


@pytest.mark.parametrize(
    ("share", "pattern"),
    [(0.25, "aaaas"), (0.5, "aas"), (1.0, "as"), (0.05, "a" * 20 + "s"), (0.75, "aasasas")],
)
def test_weights_that_are_proven_launch_in_their_share_of_the_turns(
    share: float, pattern: str
) -> None:
    loop = Loop("as", shadow=share)
    had = loop.rounds(pattern.count("a") * 10)
    assert pattern * 9 in had
    assert loop.is_strict


def test_the_share_is_one_of_the_clients_steps_however_many_generations_take_them() -> None:
    two, five = (Loop(f"{lanes}s", shadow=0.25, fading=1.0) for lanes in ("ab", "abcde"))
    assert "ababsababs" in two.rounds(12)
    assert two.rounds(100).count("s") == 50
    assert "abcdesabcdes" in five.rounds(12)
    assert five.rounds(100).count("s") == 100
    resting = Loop("abs", shadow=0.25, fading=0.05)
    resting.answers.update(a=8, b=2)
    resting.rounds(10)
    launched = resting.rounds(160)
    assert (launched.count("b"), launched.count("s")) == (40, 50)
    assert all(loop.is_strict for loop in (two, five, resting))


def test_a_proof_that_is_given_up_rests_no_more_so_whoever_waits_for_its_end_waits_for_a_step() -> (
    None
):
    loop = Loop("as", shadow=0.05)
    loop.turns(3)
    loop.lane(SHADOW).ended = Future()
    assert loop.turns(4) == "sasa"
    loop.arriving = {SHADOW: 0}
    loop.turns(3)
    assert [*map(loop.name_of, loop.rotation.lanes)] == ["a"]
    assert loop.is_strict


def proven(loop: Loop, steps: int, seconds: float) -> tuple[str, float]:
    """Who launched until a proof of so many steps was over, each of so many seconds; and when."""
    lane, launched = loop.lane(SHADOW), ""
    while launched.count(SHADOW) < steps:
        launched += loop.turns(1).replace(".", "")
        if launched:
            loop.resting.hurry(lane, steps, len(launched) * seconds)
    assert loop.is_strict
    return launched, len(launched) * seconds


def test_where_steps_are_slow_a_proof_has_the_share_that_ends_it_in_time() -> None:
    """At its usual share it took 12 s of steps of 0.3 s; a loop of slower ones, 41 s."""
    launched, took = proven(Loop("as", shadow=0.25, prove_within=5), 8, 0.3)
    assert 4 < took <= 5.3
    assert "ss" not in launched


def test_a_proof_has_no_more_than_a_step_beside_each_of_the_clients_however_slow_they_are() -> None:
    for within in (5, 0):
        launched, _ = proven(Loop("as", shadow=0.25, prove_within=within), 8, 2.0)
        assert launched == "as" * 8


def test_where_steps_are_fast_a_proof_has_its_usual_share() -> None:
    assert proven(Loop("as", shadow=0.25, prove_within=5), 8, 0.01)[0][-35:] == "aaaas" * 7


def test_who_hurries_speeds_up_no_other_proof() -> None:
    loop = Loop("as", shadow=0.25, prove_within=5)
    proven(loop, 4, 2.0)
    loop.lane(SHADOW).share = None  # as another that is opened beside it has none
    assert "aaaas" * 3 in loop.rounds(20)


def test_while_nobody_is_answered_they_launch_in_every_turn() -> None:
    loop = Loop("as", shadow=0.05)
    loop.answers["a"] = 0
    assert loop.turns(8).replace(".", "") == "ssss"
    loop.answers["a"] = 1
    assert loop.rounds(20).count("s") <= 1
    assert loop.is_strict


def test_the_first_step_is_taken_at_once_and_nothing_is_owed_for_the_time_before() -> None:
    loop = Loop("as", shadow=0.25)
    loop.answers["s"] = 0
    loop.rounds(50)
    loop.arriving["s"] = 1
    assert loop.rounds(9) in ("saaaasaaaasa", "asaaaasaaaa")


@pytest.mark.parametrize(
    ("live", "older", "fading", "launched"),
    [
        (8, 2, 0.05, 25),  # as many turns as it answers
        (8, 2, 0.5, 50),  # but at least the share
        (8, 6, 0.5, 75),
        (4, 4, 0.05, 100),
        (1, 8, 0.05, 100),
        (8, 1, 1.0, 100),
    ],
)
def test_older_weights_launch_by_how_many_they_answer(
    live: int, older: int, fading: float, launched: int
) -> None:
    loop = Loop("ab", fading=fading)
    loop.answers.update(a=live, b=older)
    loop.rounds(10)
    assert loop.rounds(100).count("b") == launched
    assert loop.is_strict


def test_the_live_weights_never_rest_and_others_do_once_they_are_live_no_more() -> None:
    loop = Loop("ab", fading=0.25)
    loop.answers.update(a=1, b=8)
    assert "abab" in loop.rounds(9)
    loop.make_live("b")
    assert "abbbbabbbb" in loop.rounds(20)
    assert loop.is_strict


def test_older_weights_rest_for_nobody_who_has_nothing_to_do() -> None:
    loop = Loop("ab", fading=0.05)
    loop.answers.update(a=0, b=3)
    assert loop.turns(10).count("b") == 5


def chance_of(seed: int) -> Any:
    return random.Random(seed)


def lived_through(seed: int) -> Loop:
    """A loop whose lanes answer now more and now less, go live and end, all by chance."""
    chance = chance_of(seed)
    loop = Loop("abs", shadow=chance.choice((0.05, 0.3, 1.0)), fading=chance.choice((0.1, 0.6)))
    for name in "cdefgh":
        for each in loop.answers:
            loop.answers[each] = chance.choice((0, 1, 3, 8))
        loop.turns(chance.randrange(40))
        if chance.random() < 0.5:
            loop.open(name)
            loop.make_live(name)
        ending = chance.choice(loop.rotation.lanes)
        if ending is not loop.resting.live:
            ending.ended = object()
    return loop


@pytest.mark.parametrize("seed", range(40))
def test_whatever_the_pattern_each_lane_takes_its_own_results(seed: int) -> None:
    assert lived_through(seed).is_strict


@pytest.mark.parametrize("seed", range(3))
def test_ranks_that_see_the_same_launch_the_same(seed: int) -> None:
    one, other = lived_through(seed), lived_through(seed)
    assert one.launched == other.launched
    assert len(set(one.launched)) > 2


def test_nobody_rests_for_longer_than_is_said() -> None:
    chance = chance_of(1)
    loop = Loop("ab", fading=0.3)
    older = loop.lane("b")
    gap, gaps = 0, set[int]()
    for _ in range(500):
        loop.answers.update(a=chance.randrange(1, 9), b=chance.randrange(1, 9))
        had = loop.rounds(1)
        gaps, gap = ({*gaps, gap + 1}, 0) if "b" in had else (gaps, gap + 1)
    assert max(gaps) == loop.resting.turns_between(older) == 4
    assert loop.resting.turns_between(loop.resting.live) == 1


def test_a_lane_that_is_skipped_though_its_result_is_to_come_mixes_results() -> None:
    """What makes it strict: without this the pattern alone hands tokens to others."""
    loop = Loop("as", shadow=0.25)
    loop.rotation._awaits_result = lambda lane: False
    loop.rounds(20)
    assert not loop.is_strict
