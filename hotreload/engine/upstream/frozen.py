"""Keeps what running engines are made of out of every garbage collection.

A collection stops all threads while it looks at each object there is: tenths of a second with the
parts of an engine, which stay as long as it runs. A process has one set of frozen objects for all
engines, so this is the rule: when one has started, what is there is frozen. When one has ended,
all is thawed and collected, or its weights would stay; and while another runs, what is left is
frozen again. A circle among what requests hold at such a moment stays until the next thaw.
"""

import gc
import threading
from collections.abc import Callable

from hotreload.facts.heap import is_starting

_changing = threading.Lock()
_running: set[int] = set()


def freeze(engine: object) -> None:
    """Freeze what is there, now that this engine has started."""
    with _changing:
        _running.add(id(engine))
        if not is_starting():  # in a program that is not ours there may be anything
            gc.collect()
        gc.freeze()


def thaw(engine: object, left: Callable[[], object] | None) -> None:
    """Collect what an engine has left, whether or not it ever ran.

    While `left` finds something of it, somebody still holds it, and must not do so for good: then
    nothing is frozen before the next start.
    """
    with _changing:
        _running.discard(id(engine))
        gc.unfreeze()
        gc.collect()
        if _running and (left is None or left() is None):
            gc.freeze()
