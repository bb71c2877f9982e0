"""Keeps the objects of running engines out of every garbage collection.

A collection stops all threads while it visits each object: tenths of a second with the parts of an
engine, which stay as long as the engine runs. A process has one set of frozen objects for all
engines. When an engine has started, all objects are frozen. When one has ended, all are thawed and
collected, or its weights would stay. While another engine runs, the rest is frozen again. A
reference cycle in a request's objects at such a moment stays until the next thaw.
"""

import gc
import threading
from collections.abc import Callable

from hotreload.facts.heap import is_starting

_changing = threading.Lock()
_running: set[int] = set()


def freeze(engine: object) -> None:
    """Freeze all objects of the process, once this engine has started."""
    with _changing:
        _running.add(id(engine))
        if not is_starting():  # in a program that is not ours there may be anything
            gc.collect()
        gc.freeze()


def thaw(engine: object, left: Callable[[], object] | None) -> None:
    """Collect the objects that an engine has left, whether or not it ever ran.

    If `left` still finds one of them, a reference to it is left, which must not become permanent:
    then nothing is frozen before the next start.
    """
    with _changing:
        _running.discard(id(engine))
        gc.unfreeze()
        gc.collect()
        if _running and (left is None or left() is None):
            gc.freeze()
