"""Memory of this process: how it is given back, and when Python looks for garbage in it."""

import ctypes
import gc
import threading

SELDOM = (100_000, 50, 1000)
"""Thresholds of Python's collector while lasting objects are made: few looks, at young ones."""
STARTING = "a start"
_makers: dict[str, tuple[int, int, int]] = {}
"""The usual thresholds, by the makers now at work."""
_changing = threading.Lock()


def give_back() -> None:
    """Return to the system what was freed: glibc keeps most of it, for others it may never have.

    It takes milliseconds and no GIL. Other C libraries have no such call, and need none.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def collect_seldom(maker: str) -> None:
    """Collect garbage seldom until this maker is done.

    A collection stops all threads of a process that has an engine. Of 276,000 objects of a start
    434 were garbage, and finding them took half a second of three.
    """
    with _changing:
        usual = next(iter(_makers.values()), gc.get_threshold())
        _makers.setdefault(maker, usual)
        gc.set_threshold(*SELDOM)


def keep_what_is_there(maker: str) -> None:
    """Exempt all present objects from later collections, as this maker is done."""
    with _changing:
        gc.freeze()
        usual = _makers.pop(maker, None)
        if usual is not None and not _makers:
            gc.set_threshold(*usual)


def is_starting() -> bool:
    """Return True while this process makes its lasting objects."""
    return STARTING in _makers
