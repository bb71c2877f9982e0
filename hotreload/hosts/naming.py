"""The step of all ranks that a task works for: so each rank names the same jobs alike."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count


class Naming:
    """Names what is done for one step, in the order in which it is done."""

    def __init__(self, step: str) -> None:
        self._step = step
        self._numbers = count(1)

    def next(self) -> str:
        """A name that no other job of this rank has, and the same job of all others."""
        return f"{self._step}.{next(self._numbers)}"


_CURRENT: ContextVar[Naming] = ContextVar("step")


@contextmanager
def in_step(step: object) -> Iterator[None]:
    """Count what is done in here to this step, and the tasks that begin in here."""
    token = _CURRENT.set(Naming(str(step)))
    try:
        yield
    finally:
        _CURRENT.reset(token)


def next_job() -> str:
    """The name of the next job of the step that the current task works for."""
    return _CURRENT.get().next()
