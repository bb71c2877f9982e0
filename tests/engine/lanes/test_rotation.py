"""Whose turn it is, of lanes that hold nothing but a name."""

from types import SimpleNamespace
from typing import Any

import pytest

from hotreload.engine.lanes.lane import Bound, Lane, Rotation
from hotreload.engine.lanes.lanes import Lanes


class Turns:
    """A rotation over a scheduler with one field, which says whose state it holds."""

    def __init__(self, lanes: str) -> None:
        self.scheduler = SimpleNamespace(holds=lanes[0])
        self.resting = ""
        self.awaited = ""
        self.spent = ""
        self.ended = ""
        self._names: dict[int, str] = {}
        self.rotation = Rotation(
            self._lane(lanes[0]),
            ["holds"],
            may_launch=lambda lane: self._names[id(lane)] not in self.resting,
            awaits_result=lambda lane: self._names[id(lane)] in self.awaited,
            is_spent=lambda lane: self._names[id(lane)] in self.spent,
            on_end=self._note_end,
        )
        for name in lanes[1:]:
            self.add(name)

    def add(self, name: str) -> None:
        lane = self._lane(name)
        lane.leave_with({"holds": name})
        self.rotation.add(lane)

    def lane(self, name: str) -> Lane:
        return next(each for each in self.rotation.lanes if self._names[id(each)] == name)

    def give_up(self, name: str) -> None:
        self.lane(name).ended = object()  # type: ignore[assignment]

    def take(self, turns: int) -> str:
        """Who had so many turns, by what the scheduler held in each."""
        had = ""
        for _ in range(turns):
            self.rotation.turn()
            assert self._names[id(self.rotation.current)] == self.scheduler.holds
            had += self.scheduler.holds
        return had

    def _lane(self, name: str) -> Lane:
        bound: Any = Bound([], None)
        lane = Lane(self.scheduler, ord(name), bound, has_own_pool=False)
        self._names[id(lane)] = name
        return lane

    def _note_end(self, lane: Lane) -> None:
        self.ended += self._names[id(lane)]


def test_each_lane_has_its_turn_in_order() -> None:
    assert Turns("abc").take(7) == "bcabcab"


def test_a_lane_alone_keeps_the_turn() -> None:
    assert Turns("a").take(3) == "aaa"


def test_a_lane_with_nothing_to_do_takes_its_turn_too() -> None:
    turns = Turns("abc")
    turns.spent = "b"
    assert turns.take(6) == "bcabca"


@pytest.mark.parametrize("turns_before", range(4))
def test_a_new_lane_leaves_the_order_of_the_others_as_it_was(turns_before: int) -> None:
    turns = Turns("abc")
    before = turns.take(turns_before)
    turns.add("d")
    others = (before + turns.take(12)).replace("d", "")
    assert "bcabcabcabcabca".startswith(others)


def test_a_lane_that_rests_and_awaits_nothing_is_passed_over() -> None:
    turns = Turns("abc")
    turns.resting = "b"
    assert turns.take(5) == "cacac"
    turns.resting = ""
    assert turns.take(3) == "abc"


def test_a_lane_that_rests_takes_the_turn_in_which_its_result_comes() -> None:
    turns = Turns("abc")
    turns.resting = turns.awaited = "b"
    assert turns.take(5) == "bcabc"
    assert [lane.rests for lane in turns.rotation.lanes] == [False, True, False]


def test_a_lane_that_has_rested_goes_on_when_it_is_alone() -> None:
    turns = Turns("ab")
    turns.resting = turns.awaited = "b"
    assert turns.take(1) == "b"
    turns.resting, turns.spent = "", "a"
    turns.give_up("a")
    assert turns.take(3) == "bbb"
    assert not turns.rotation.current.rests


def test_a_new_lane_comes_after_all_that_were_there() -> None:
    turns = Turns("ab")
    turns.add("c")
    assert turns.take(5) == "bcabc"


@pytest.mark.parametrize(
    ("given_up", "had"), [("a", "bcbcb"), ("b", "cacac"), ("c", "babab"), ("ab", "ccccc")]
)
def test_a_lane_that_ends_hands_its_turn_to_the_next_in_order(given_up: str, had: str) -> None:
    turns = Turns("abc")
    turns.spent = given_up
    for name in given_up:
        turns.give_up(name)
    assert turns.take(5) == had
    assert sorted(turns.ended) == sorted(given_up)


def test_a_lane_does_not_end_before_all_of_it_is_done() -> None:
    turns = Turns("ab")
    turns.give_up("b")
    assert turns.take(4) == "baba"
    turns.spent = "b"
    assert turns.take(2) == "aa"


def test_what_a_turn_leaves_is_there_at_the_next() -> None:
    turns = Turns("ab")
    turns.scheduler.holds = "a, later"
    turns.rotation.turn()
    turns.rotation.turn()
    assert turns.scheduler.holds == "a, later"


def test_a_visit_restores_what_was_there_and_keeps_what_it_did() -> None:
    turns = Turns("ab")
    with turns.rotation.visit(turns.lane("b")):
        assert turns.scheduler.holds == "b"
        turns.scheduler.holds = "b, visited"
    assert turns.scheduler.holds == "a"
    assert turns.lane("b").look("holds") == "b, visited"


def test_a_visit_that_fails_restores_it_too() -> None:
    turns = Turns("ab")
    with pytest.raises(ValueError, match="inside"), turns.rotation.visit(turns.lane("b")):
        raise ValueError("inside")
    assert turns.take(3) == "bab"


def test_the_lane_that_has_its_turn_may_be_visited() -> None:
    turns = Turns("ab")
    with turns.rotation.visit(turns.lane("a")):
        assert turns.scheduler.holds == "a"
    assert turns.take(2) == "ba"


class EndsWhenLookedAt:
    """A lane that the scheduler thread gives up while another thread looks for one."""

    def __init__(self, lanes: list[Any]) -> None:
        self._lanes = lanes

    @property
    def number(self) -> int:
        self._lanes.remove(self)
        return 1


def test_what_a_lane_computes_with_is_found_while_another_ends() -> None:
    there: list[Any] = []
    there += [EndsWhenLookedAt(there), SimpleNamespace(number=2, bound="the live one's")]
    lanes: Any = Lanes.__new__(Lanes)
    lanes._rotation = SimpleNamespace(lanes=there)
    lanes._binding = SimpleNamespace(beside=lambda *given: given)
    assert lanes.prepare(["new"], beside=2) == ("the live one's", ["new"])
