"""Counts compilations by thread, so that those of the serving threads can be told apart."""

import threading
from collections import Counter
from functools import cache

import jax

_COMPILED = "/jax/core/compile/backend_compile_duration"
_by_thread: Counter[int] = Counter()


@cache
def start_counting() -> None:
    """Begin to count, once in a process: JAX has no public way to take a listener out."""

    def count(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == _COMPILED:
            _by_thread[threading.get_ident()] += 1

    jax.monitoring.register_event_duration_secs_listener(count)


def count_in(threads: set[int | None]) -> int:
    """How many compilations these threads have waited for."""
    return sum(_by_thread[thread] for thread in threads if thread is not None)
