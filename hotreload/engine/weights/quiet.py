"""Does long work in threads that leave most of a processor to the serving threads.

Where others want all processors they get on slowly: after a while one of usual priority joins them.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Literal

from hotreload.engine.giving_way import short_turns, yield_processors

LOOK_EVERY = 0.25
"""Seconds between two looks if the threads starve."""


@dataclass(frozen=True, slots=True)
class Quiet:
    """The share of the machine that long work may take."""

    threads: int = 1
    priority: Literal["idle", "normal"] = "idle"
    """`idle` takes what others leave, and a tenth of a processor that they want."""
    starve_seconds: float = 30.0
    """Time that its threads may go without a processor, all told, before one of usual priority
    joins them; waiting for a disk counts too."""


QUIET = Quiet()


def done_quietly[J, R](
    jobs: Iterable[J],
    worker: Callable[[], AbstractContextManager[Callable[[J], R]]],
    quiet: Quiet,
) -> Iterator[R]:
    """Yield what each job comes to, in no order; each thread opens a worker of its own.

    The first error ends all of it. When this ends, so have the threads.
    """
    crew = _Crew(deque(jobs), worker)
    try:
        with short_turns():
            yield from crew.results(quiet)
    finally:
        crew.end()


class _Crew[J, R]:
    def __init__(
        self, jobs: deque[J], worker: Callable[[], AbstractContextManager[Callable[[J], R]]]
    ) -> None:
        self._jobs = jobs
        self._left = len(jobs)
        self._worker = worker
        self._done: SimpleQueue[R | BaseException] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def results(self, quiet: Quiet) -> Iterator[R]:
        began = time.monotonic()
        may_starve = quiet.priority == "idle"
        for _ in range(min(quiet.threads, self._left)):
            self._start(yields=may_starve)
        while self._left:
            if may_starve and time.monotonic() - began - self._worked() > quiet.starve_seconds:
                may_starve = False
                self._start(yields=False)
            with suppress(Empty):
                done = self._done.get(timeout=LOOK_EVERY)
                if isinstance(done, BaseException):
                    raise done
                self._left -= 1
                yield done
        self._join()
        while not self._done.empty():  # a worker may find out at its end that all was in vain
            late = self._done.get()
            if isinstance(late, BaseException):
                raise late

    def end(self) -> None:
        self._jobs.clear()
        self._join()
        # An error of a thread that nobody took holds its frames, and they what they made.
        self._done = SimpleQueue()

    def _join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _start(self, *, yields: bool) -> None:
        thread = threading.Thread(target=self._work, args=(yields,), name="staging", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self, yields: bool) -> None:
        if yields:
            yield_processors()
        try:
            with self._worker() as work:
                while self._jobs:
                    try:
                        job = self._jobs.popleft()
                    except IndexError:  # another thread took the last one
                        break
                    self._done.put(work(job))
        except BaseException as fault:
            self._jobs.clear()
            self._done.put(fault)

    def _worked(self) -> float:
        """Processor time of the thread that has had most."""
        return max(map(_cpu_seconds, self._threads), default=0.0)


def _cpu_seconds(thread: threading.Thread) -> float:
    if thread.ident is None or not thread.is_alive():
        return 0.0
    try:
        return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
    except OSError:  # it ended at this moment
        return 0.0
