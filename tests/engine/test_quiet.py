"""Long work in quiet threads: all of it is done, or the first error ends it."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from hotreload.engine.giving_way import LITTLE
from hotreload.engine.weights.quiet import Quiet, done_quietly


@contextmanager
def doubling() -> Iterator[Callable[[int], int]]:
    yield lambda number: number * 2


@pytest.mark.parametrize("threads", [1, 3])
def test_each_job_is_done_once(threads: int) -> None:
    done = done_quietly(range(50), doubling, Quiet(threads=threads))
    assert sorted(done) == [number * 2 for number in range(50)]


def test_nothing_to_do_is_done_at_once() -> None:
    assert list(done_quietly((), doubling, Quiet())) == []


def priority() -> tuple[int, int]:
    """The calling thread's scheduler and niceness."""
    own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    return os.sched_getscheduler(0), own


@contextmanager
def looking() -> Iterator[Callable[[int], tuple[int, int]]]:
    yield lambda _: priority()


def test_its_threads_give_way_and_never_stand_still_and_the_callers_stays_as_it_is() -> None:
    """Of idle priority they got nothing where others wanted all: 155 s for 0.63 GB were seen."""
    usual = priority()
    assert list(done_quietly([1], looking, Quiet())) == [(os.SCHED_OTHER, max(LITTLE, usual[1]))]
    assert list(done_quietly([1], looking, Quiet(priority="normal"))) == [usual]
    assert priority() == usual


def test_threads_are_switched_often_meanwhile_and_as_before_afterwards() -> None:
    usual = sys.getswitchinterval()
    for _ in done_quietly([1], doubling, Quiet()):
        assert sys.getswitchinterval() < usual
    assert sys.getswitchinterval() == usual


def test_they_are_while_anybody_works_so_in_whatever_order_engines_end() -> None:
    usual = sys.getswitchinterval()
    one, other = (done_quietly([1, 2], doubling, Quiet()) for _ in range(2))
    next(one), next(other)
    assert list(one)
    assert sys.getswitchinterval() < usual
    assert list(other)
    assert sys.getswitchinterval() == usual


def test_the_first_error_ends_it_and_its_threads() -> None:
    @contextmanager
    def failing() -> Iterator[Callable[[int], int]]:
        yield lambda number: 1 // (number - 3)

    with pytest.raises(ZeroDivisionError):
        list(done_quietly(range(1000), failing, Quiet(threads=2)))
    assert not [each for each in threading.enumerate() if each.name == "staging"]


def test_a_worker_that_fails_at_its_end_fails_all() -> None:
    @contextmanager
    def in_vain() -> Iterator[Callable[[int], int]]:
        yield lambda number: number
        raise ValueError("the file changed")

    with pytest.raises(ValueError, match="the file changed"):
        list(done_quietly(range(3), in_vain, Quiet()))


def test_who_does_not_want_the_rest_ends_it() -> None:
    for _ in done_quietly(range(1000), doubling, Quiet()):
        break
    assert not [each for each in threading.enumerate() if each.name == "staging"]


def test_a_thread_of_usual_priority_joins_those_that_starve() -> None:
    priorities: set[tuple[int, int]] = set()

    @contextmanager
    def waiting() -> Iterator[Callable[[int], None]]:
        def wait(_: int) -> None:
            priorities.add(priority())
            time.sleep(0.01)  # as one that gets no processor

        yield wait

    for _ in done_quietly(range(10_000), waiting, Quiet(starve_seconds=0.1)):
        if len(priorities) == 2:
            break
    assert priorities == {priority(), (os.SCHED_OTHER, LITTLE)}
