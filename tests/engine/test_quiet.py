"""Long work in quiet threads: all of it is done, or the first error ends it."""

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import pytest

from hotreload import quiet
from hotreload.quiet import LARGE, LITTLE, QUIET, Quiet, do_quietly, read_scheduling, run_steps


@contextmanager
def doubling() -> Iterator[Callable[[int], int]]:
    yield lambda number: number * 2


@pytest.mark.parametrize("threads", [1, 3])
def test_each_job_is_done_once(threads: int) -> None:
    done = do_quietly(range(50), doubling, Quiet(threads=threads))
    assert sorted(done) == [number * 2 for number in range(50)]


def test_nothing_to_do_is_done_at_once() -> None:
    assert list(do_quietly((), doubling, Quiet())) == []


def priority() -> int:
    """The calling thread's niceness."""
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


@contextmanager
def looking() -> Iterator[Callable[[int], int]]:
    yield lambda _: priority()


def test_its_threads_give_way_and_never_stand_still_and_the_callers_stays_as_it_is() -> None:
    """Of idle priority they got nothing where others wanted all: 155 s for 0.63 GB were seen."""
    usual = priority()
    assert list(do_quietly([1], looking, Quiet())) == [max(LITTLE, usual)]
    assert list(do_quietly([1], looking, Quiet(priority="normal"))) == [usual]
    assert priority() == usual


def test_threads_are_switched_often_meanwhile_and_as_before_afterwards() -> None:
    usual = sys.getswitchinterval()
    for _ in do_quietly([1], doubling, Quiet()):
        assert sys.getswitchinterval() < usual
    assert sys.getswitchinterval() == usual


def test_they_are_while_anybody_works_so_in_whatever_order_engines_end() -> None:
    usual = sys.getswitchinterval()
    one, other = (do_quietly([1, 2], doubling, Quiet()) for _ in range(2))
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
        list(do_quietly(range(1000), failing, Quiet(threads=2)))
    assert not [each for each in threading.enumerate() if each.name == "staging"]


def test_a_worker_that_fails_at_its_end_fails_all() -> None:
    @contextmanager
    def in_vain() -> Iterator[Callable[[int], int]]:
        yield lambda number: number
        raise ValueError("the file changed")

    with pytest.raises(ValueError, match="the file changed"):
        list(do_quietly(range(3), in_vain, Quiet()))


def test_who_does_not_want_the_rest_ends_it() -> None:
    for _ in do_quietly(range(1000), doubling, Quiet()):
        break
    assert not [each for each in threading.enumerate() if each.name == "staging"]


# --- a floor ----------------------------------------------------------------------------------

USUAL = os.getpriority(os.PRIO_PROCESS, 0)
STEPS_UP = [max(niceness, USUAL) for niceness in (10, 5, 0)]


class Processors:
    """What the system says of threads: how much they get of each second that they want.

    A tenth of a second goes by from one look to the next, however long that takes.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now, self.part, self.is_wanted = 0.0, 0.0, True
        self._began: dict[int, float] = {}
        patch.setattr(quiet, "monotonic", self._look)
        patch.setattr(quiet, "read_scheduling", self._scheduled)

    def _look(self) -> float:
        self.now += 0.1
        return self.now

    def _scheduled(self, thread: int) -> tuple[float, float, bool]:
        had = self.now - self._began.setdefault(thread, self.now) if self.is_wanted else 0.0
        return had * self.part, had * (1 - self.part), False

    def jobs(self, seconds: float) -> Iterator[int]:
        """Jobs for so many seconds, or until there is no further step, and so no look."""
        end = self.now + seconds
        while self.now < end:
            time.sleep(0.0005)
            is_last = priority() == STEPS_UP[-1]
            yield 0
            if is_last:
                return


@pytest.fixture
def processors(monkeypatch: pytest.MonkeyPatch) -> Processors:
    return Processors(monkeypatch)


def priorities(jobs: Iterable[int], how: Quiet = QUIET) -> list[int]:
    """Those of the threads that do the jobs, in order, for a thread that had no crew before."""
    seen: list[int] = []

    @contextmanager
    def noting() -> Iterator[Callable[[int], None]]:
        yield lambda _: seen.append(priority())

    def work() -> None:
        deque(do_quietly(jobs, noting, how, bytes_of=lambda job: job), maxlen=0)

    in_a_thread(work)
    return list(dict.fromkeys(seen))


def in_a_thread(work: Callable[[], None]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_threads_of_the_next_step_join_those_that_starve(processors: Processors) -> None:
    """Those of niceness 10 alone staged 0.64 GB in 23 to 41 s beside two busy loops."""
    processors.part = 0.2
    for seconds, steps in ((1.5, 1), (3.5, 2), (30, 3)):
        assert priorities(processors.jobs(seconds)) == STEPS_UP[:steps]
    assert priorities(processors.jobs(3.5), Quiet(starve_seconds=1)) == STEPS_UP


def test_who_has_a_quarter_of_a_processor_stays_where_it_is(processors: Processors) -> None:
    processors.part = 0.26
    assert priorities(processors.jobs(30)) == STEPS_UP[:1]


def test_who_waits_for_a_disk_does_not_starve(processors: Processors) -> None:
    processors.is_wanted = False
    assert priorities(processors.jobs(30)) == STEPS_UP[:1]


def test_threads_that_get_on_take_what_is_large() -> None:
    """A thread that starves keeps the job that it has."""
    assert priorities([LARGE, LARGE + 1, 0]) == STEPS_UP[:2]


def test_each_step_follows_the_one_before_and_the_next_crew_begins_where_one_got_on(
    processors: Processors,
) -> None:
    found: list[list[int]] = []
    order: list[int] = []

    def steps(seconds: float) -> Iterator[None]:
        found.append([])
        for number, _ in enumerate(processors.jobs(seconds)):
            found[-1].append(priority())
            order.append(number)
            yield

    processors.part = 0.2

    def work() -> None:
        run_steps(steps(3.5), QUIET)
        run_steps(steps(1), QUIET)

    in_a_thread(work)
    first, second = ([*dict.fromkeys(each)] for each in found)
    assert (first, second) == (STEPS_UP[:2], STEPS_UP[1:2])
    assert order == [*range(len(found[0])), *range(len(found[1]))]


def test_the_system_says_what_a_thread_had() -> None:
    end = time.monotonic() + 10
    while read_scheduling(threading.get_native_id())[0] == 0.0 and time.monotonic() < end:
        pass
    had, waited, is_ready = read_scheduling(threading.get_native_id())
    assert (had > 0, waited >= 0, is_ready) == (True, True, True)
    assert read_scheduling(2**22 + 1) == (0.0, 0.0, True)  # where it does not say
