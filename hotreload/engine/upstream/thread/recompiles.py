"""Counts compilations by thread, which separates those of the serving threads from the others."""

import threading
from collections import Counter
from functools import cache

import jax

_COMPILED = "/jax/core/compile/backend_compile_duration"
_by_thread: Counter[int] = Counter()
_starting = threading.Lock()


class CompilationCounter:
    """Counts the compilations that an engine's own threads waited for."""

    def __init__(self, threads: set[int | None]) -> None:
        with _starting:  # engines may start in several threads
            _start_counting()
        self._threads = [thread for thread in threads if thread is not None]
        self.begin_anew()

    def begin_anew(self) -> None:
        """Count from zero again; compilations of ended threads with the same ids go, too."""
        self._before = self._all()

    @property
    def count(self) -> int:
        """The number of compilations since the counter began."""
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
