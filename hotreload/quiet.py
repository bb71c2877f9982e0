"""Does long work in threads that leave processors and Python's lock to threads that serve.

The threads begin with a low priority. If they get less than a quarter of a processor, threads of
the next step join them: no thread can raise its own priority again.
"""

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, Literal, NamedTuple

LITTLE = 10
"""Niceness that leaves a tenth of a processor where other threads want it. With a higher niceness
(idle: 3.6 s beside two busy loops; 19: 1.7 s) a thread that lost its processor while it held
Python's lock kept the lock from clients for seconds, and its job took a minute."""
SWITCH_INTERVAL = 0.0005
"""Each return from a blocking call waits for the lock, up to this long; Python's own is 5 ms."""
NICENESS = (LITTLE, 5, 0)
"""The niceness of each step."""
LAST = len(NICENESS) - 1
TAKES_ALL = NICENESS.index(5)
"""From this step on threads take large jobs, too: a starving thread keeps its job."""
LARGE = 256 << 20
FLOOR = 0.25
"""The share of a processor below which a crew starves."""
LOOK_EVERY = 0.25
"""Seconds between two checks whether the threads starve."""


@dataclass(frozen=True, slots=True)
class Quiet:
    """The share of the machine that long work may take."""

    threads: int = 1
    priority: Literal["idle", "normal"] = "idle"
    """`idle` takes idle time, and a tenth to a quarter of a processor that others want."""
    starve_seconds: float = 2.0
    """Seconds that its threads may want a processor, and have less than a quarter of one, before
    threads of the next step join them."""


QUIET = Quiet()
LOUD = Quiet(priority="normal")


class _Turns:
    """Counts the users of the process's one switch interval, which end one by one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at_work = 0
        self._usual = 0.0

    @contextmanager
    def short(self) -> Iterator[None]:
        """Shorten the time that a thread keeps Python's lock, until the block ends."""
        with self._lock:
            if not self._at_work:
                self._usual = sys.getswitchinterval()
                sys.setswitchinterval(min(self._usual, SWITCH_INTERVAL))
            self._at_work += 1
        try:
            yield
        finally:
            with self._lock:
                self._at_work -= 1
                if not self._at_work:
                    sys.setswitchinterval(self._usual)


short_turns = _Turns().short


def yield_processors(niceness: int = LITTLE) -> None:
    """Lower this thread's priority for good: it leaves most of a processor that others want."""
    own = threading.get_native_id()
    with suppress(OSError):
        if niceness > os.getpriority(os.PRIO_PROCESS, own):
            os.setpriority(os.PRIO_PROCESS, own, niceness)


def do_quietly[J, R](
    jobs: Iterable[J],
    worker: Callable[[], AbstractContextManager[Callable[[J], R]]],
    quiet: Quiet,
    bytes_of: Callable[[J], int] = lambda job: 0,
) -> Iterator[R]:
    """Yield the result of each job, in no order; each thread opens a worker of its own.

    The first error ends all of it. At the end all threads have ended, too.
    """
    crew = _Crew(iter(jobs), worker, quiet, bytes_of)
    try:
        with short_turns():
            yield from crew.results()
    finally:
        crew.end()


def run_steps(steps: Iterable[None], quiet: Quiet) -> None:
    """Take steps in order, each in the thread that has the most processor time."""
    if quiet.priority == "idle":
        one = replace(quiet, threads=1)
        steps = do_quietly(steps, lambda: nullcontext(lambda step: step), one)
    deque(steps, maxlen=0)


class _Ended:
    """A thread of a crew has ended."""


_reached = threading.local()
"""The step that this thread's last crew reached: its next crew begins there."""


@dataclass(eq=False, slots=True)
class _Crew[J, R]:
    jobs: Iterator[J]
    worker: Callable[[], AbstractContextManager[Callable[[J], R]]]
    quiet: Quiet
    bytes_of: Callable[[J], int]
    _large: deque[J] = field(default_factory=deque)
    """Jobs that wait for a thread of a step that takes them."""
    _taking: threading.Lock = field(default_factory=threading.Lock)
    _done: SimpleQueue[R | BaseException | _Ended] = field(default_factory=SimpleQueue)
    _threads: list[threading.Thread] = field(default_factory=list)
    _at_work: int = 0
    _step: int = LAST

    def results(self) -> Iterator[R]:
        may_starve = self.quiet.priority == "idle"
        starving = _StarvationWatch(self.quiet.starve_seconds)
        self._begin(getattr(_reached, "step", 0) if may_starve else LAST)
        while self._at_work:
            if self._step < LAST and starving.is_starving(self._threads):
                _reached.step = self._step + 1
                self._begin(self._step + 1)
            with suppress(Empty):
                done = self._done.get(timeout=LOOK_EVERY)
                if isinstance(done, BaseException):
                    raise done
                if not isinstance(done, _Ended):
                    yield done
                    continue
                self._at_work -= 1
                if self._large and not self._at_work:
                    self._begin(max(self._step, TAKES_ALL))

    def end(self) -> None:
        self._drop_jobs()
        for thread in self._threads:
            thread.join()
        # An error that was not read holds its frames, and these hold results.
        self._done = SimpleQueue()

    def _begin(self, step: int) -> None:
        """Start threads of this step; earlier ones end with the job that they have."""
        self._step = step
        for _ in range(self.quiet.threads):
            thread = threading.Thread(target=self._work, args=(step,), name="staging", daemon=True)
            thread.start()
            self._threads.append(thread)
            self._at_work += 1

    def _work(self, step: int) -> None:
        yield_processors(NICENESS[step])
        try:
            with self.worker() as work:
                for job in self._jobs_for(step):
                    self._done.put(work(job))
        except BaseException as fault:
            self._drop_jobs()
            self._done.put(fault)
        self._done.put(_Ended())

    def _jobs_for(self, step: int) -> Iterator[J]:
        while self._step <= step:
            with self._taking:
                if self._large and step >= TAKES_ALL:
                    job = self._large.popleft()
                else:
                    try:
                        job = next(self.jobs)
                    except StopIteration:
                        return
                    if step < TAKES_ALL and self.bytes_of(job) > LARGE:
                        self._large.append(job)
                        continue
            yield job

    def _drop_jobs(self) -> None:
        with self._taking:
            self.jobs = iter(())
            self._large.clear()


class _Had(NamedTuple):
    """Seconds that a thread had a processor, and that it wanted one, so far."""

    had: float = 0.0
    wanted: float = 0.0


class _StarvationWatch:
    """Measures how much of a processor a crew had of the time in which it wanted one."""

    def __init__(self, within: float) -> None:
        self._within = within
        self._looked_at = monotonic()
        self._so_far: dict[int, _Had] = {}
        self._window = _Had()

    def is_starving(self, threads: Iterable[threading.Thread]) -> bool:
        """Measure once more, and return True if the crew starved; a window that is over begins
        again."""
        since = monotonic() - self._looked_at
        self._looked_at += since
        had, wanted = 0.0, 0.0
        for each in threads:
            if each.is_alive() and each.native_id is not None:
                before = self._so_far.get(each.native_id, _Had())
                now = self._so_far[each.native_id] = _measure(each.native_id, before, since)
                had += now.had - before.had
                wanted = max(wanted, now.wanted - before.wanted)
        self._window = _Had(self._window.had + had, self._window.wanted + wanted)
        if self._window.wanted < self._within:
            return False
        had, wanted = self._window
        self._window = _Had()
        return had < FLOOR * wanted


def _measure(thread: int, before: _Had, since: float) -> _Had:
    """Measure one thread; time in which it waits for a disk or a lock does not count as wanted.

    The system counts a wait when it ends: for one under way the time since the last look counts.
    """
    had, waited, is_ready = read_scheduling(thread)
    waits_on = before.wanted + since if is_ready and had == before.had else 0.0
    return _Had(had, max(before.wanted, had + waited, waits_on))


def read_scheduling(thread: int) -> tuple[float, float, bool]:
    """Return a thread's seconds of computing, of waiting for a processor, and whether it waits now.

    Where the system does not report them, the thread counts as waiting.
    """
    about = Path(f"/proc/self/task/{thread}")
    try:
        computed, waited, _ = map(int, (about / "schedstat").read_text().split())
        state: Any = (about / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return 0.0, 0.0, True
    return computed / 1e9, waited / 1e9, state == "R"
