"""What rank 0 orders is done by every rank in the same turn, or a rank that cannot ends."""

import pickle
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from hotreload.engine.upstream.thread.scheduler import SchedulerStopped
from hotreload.errors import TryAgain
from hotreload.hosts.upstream.turns import OutOfStep, Turns


class Wire:
    """The socket of a rank above 0: what rank 0 sent, and no more."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def poll(self, within: int) -> bool:
        return bool(self.sent)

    def recv(self) -> bytes:
        return self.sent.pop(0)


def never() -> None:
    """Nobody stops the loop."""


class Loop:
    """One rank's loop: what upstream's does with messages, and nothing else."""

    def __init__(self, rank: int, wire: Wire, check_stop: Callable[[], None] = never) -> None:
        self.node_rank = rank
        self.subscriber = wire
        self._request_dispatcher = SimpleNamespace(_mapping=[(str, self._note)])
        self.got: list[str] = []
        self.run_subscriber: Callable[[], Any]
        self.turns = Turns(self, check_stop)

    def broadcast_pyobj(self, received: list[Any]) -> list[Any]:
        self.subscriber.sent.append(pickle.dumps(received))
        return received

    def turn(self, *received: Any) -> None:
        if self.node_rank == 0:
            messages = self.broadcast_pyobj(list(received))
        else:
            messages = self.run_subscriber()
        for message in messages:
            handlers = dict(self._request_dispatcher._mapping)
            handlers[type(message)](message)

    def _note(self, message: str) -> None:
        self.got.append(message)


@pytest.fixture
def ranks() -> list[Loop]:
    wire = Wire()
    return [Loop(0, wire), Loop(1, wire)]


def ready(ranks: list[Loop], name: str) -> list[Any]:
    """A job of that name on each rank, which tells what the rank had got before."""
    return [rank.turns.make_ready(name, partial(list, rank.got)) for rank in ranks]


def test_a_job_is_done_by_all_before_the_messages_of_the_same_turn(ranks: list[Loop]) -> None:
    leader, other = ranks
    jobs = ready(ranks, "flip")
    leader.turn("one")
    leader.turns.order("flip", lambda: True)
    assert leader.turns.has_orders
    leader.turn("two")
    assert not leader.turns.has_orders
    other.turn()
    other.turn()
    assert [job.result(0) for job in jobs] == [["one"], ["one"]]
    assert leader.got == other.got == ["one", "two"]


def test_rank_0_alone_says_whether_a_job_may_be_done_now(ranks: list[Loop]) -> None:
    leader, other = ranks
    jobs, idle = ready(ranks, "swap"), [False, True]
    leader.turns.order("swap", lambda: idle.pop(0))
    for rank in (leader, leader, other):
        rank.turn()
    assert jobs[0].done()
    assert not jobs[1].done()
    other.turn()
    assert jobs[1].done()


def test_jobs_are_done_in_the_order_in_which_they_were_ordered(ranks: list[Loop]) -> None:
    leader, other = ranks
    done: list[str] = []
    for name in ("first", "second"):
        for rank in ranks:
            rank.turns.make_ready(name, partial(done.append, f"{name} {rank.node_rank}"))
    for name in ("second", "first"):
        leader.turns.order(name, lambda: True)
    leader.turn()
    other.turn()
    assert done == ["second 0", "first 0", "second 1", "first 1"]


def test_what_is_taken_back_is_never_done_and_keeps_nothing_waiting(ranks: list[Loop]) -> None:
    leader, other = ranks
    (given_up, _), (next_one, theirs) = ready(ranks, "late"), ready(ranks, "next")
    leader.turns.order("late", lambda: False)
    leader.turns.order("next", lambda: True)
    leader.turn()
    assert leader.turns.take_back("late")
    leader.turn()
    other.turn()
    other.turn()
    assert not given_up.done()
    assert next_one.done()
    assert theirs.done()
    assert not leader.turns.take_back("next")


def test_nobody_waits_any_more_with_what_rank_0_has_withdrawn(ranks: list[Loop]) -> None:
    leader, other = ranks
    before, waiting, beside = (ready(ranks, name) for name in ("7.1", "7.2", "8.1"))
    leader.turns.order("7.1", lambda: True)
    leader.turns.withdraw("7")
    assert leader.turns.has_orders
    leader.turn()
    assert not leader.turns.has_orders
    other.turn()
    assert all(job.exception(0) is None for job in before)
    assert [type(job.exception(0)) for job in waiting] == [TryAgain, TryAgain]
    late = other.turns.make_ready("7.3", never)
    assert isinstance(late.exception(0), TryAgain)
    assert not any(job.done() for job in beside)


def test_a_job_that_fails_fails_for_who_asked_and_the_loop_goes_on(ranks: list[Loop]) -> None:
    leader, other = ranks

    def fail() -> None:
        raise RuntimeError("oops")

    job, theirs = leader.turns.make_ready("flip", fail), other.turns.make_ready("flip", never)
    leader.turns.order("flip", lambda: True)
    leader.turn("one")
    other.turn()
    with pytest.raises(RuntimeError, match="oops"):
        job.result(0)
    assert theirs.result(0) is None
    assert leader.got == ["one"]


def test_a_rank_that_missed_a_turn_ends(ranks: list[Loop]) -> None:
    leader, other = ranks
    leader.turn()
    other.turn()
    leader.turn("lost")
    leader.subscriber.sent.clear()
    leader.turn()
    with pytest.raises(OutOfStep, match="after turn 1 of rank 0 came turn 3"):
        other.turn()


def test_a_rank_that_has_not_ready_what_is_ordered_ends(ranks: list[Loop]) -> None:
    leader, other = ranks
    leader.turns.make_ready("flip", never)
    leader.turns.order("flip", lambda: True)
    leader.turn()
    with pytest.raises(OutOfStep, match="ordered flip"):
        other.turn()


def test_a_rank_that_waits_for_rank_0_can_be_stopped() -> None:
    looks = [None, SchedulerStopped()]

    def check_stop() -> None:
        if (stop := looks.pop(0)) is not None:
            raise stop

    with pytest.raises(SchedulerStopped):
        Loop(1, Wire(), check_stop).turn()
    assert looks == []
