"""An id for each attempt: every log line written on its behalf carries it."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_CURRENT: ContextVar[str | None] = ContextVar("attempt", default=None)


@contextmanager
def new_attempt() -> Iterator[str]:
    """Give the attempt made in this block an id; threads started by `threads.py` inherit it."""
    id = secrets.token_hex(4)
    token = _CURRENT.set(id)
    try:
        yield id
    finally:
        _CURRENT.reset(token)


def current_attempt() -> str | None:
    """The id of the attempt this code runs for; None outside of attempts."""
    return _CURRENT.get()
