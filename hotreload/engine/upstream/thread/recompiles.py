"""Counts compilations by thread, so that those of the serving threads can be told apart."""

import threading
from collections import Counter
from functools import cache

import jax

_COMPILED = "/jax/core/compile/backend_compile_duration"
_by_thread: Counter[int] = Counter()
_starting = threading.Lock()


class Counting:
    """Counts the compilations that these threads waited for; an engine's are its own."""

    def __init__(self, threads: set[int | None]) -> None:
        with _starting:  # engines may start in several threads
            _start_counting()
        self._threads = [thread for thread in threads if thread is not None]
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget those so far, and those of ended threads whose numbers these have now."""
        self._before = self._all()

    @property
    def count(self) -> int:
        """Number of them."""
        return self._all() - self._before

    def _all(self) -> int:
        return sum(_by_thread[thread] for thread in self._threads)


@cache
def _start_counting() -> None:
    """Begin to count, once in a process: JAX has no public way to take a listener out."""

    def count(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == _COMPILED:
            _by_thread[threading.get_ident()] += 1

    jax.monitoring.register_event_duration_secs_listener(count)
