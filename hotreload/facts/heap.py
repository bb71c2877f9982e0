"""Memory of this process: how it is given back, and when Python looks for garbage in it."""

import ctypes
import gc
import threading

SELDOM = (100_000, 50, 1000)
"""Thresholds of Python's collector while what is made stays: few looks, at young objects."""
STARTING = "a start"
_makers: dict[str, tuple[int, int, int]] = {}
"""The usual thresholds, by those who make what stays at this moment."""
_changing = threading.Lock()


def give_back() -> None:
    """Return to the system what was freed: glibc keeps most of it, for others it may never have.

    It takes milliseconds and no GIL. Other C libraries have no such call, and need none.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def collect_seldom(maker: str) -> None:
    """Hardly look for garbage until this one has made what stays.

    All threads wait for each look at a process that has an engine. Of 276,000 objects that a start
    had made, 434 were garbage, and to find that out took half a second of three.
    """
    with _changing:
        usual = next(iter(_makers.values()), gc.get_threshold())
        _makers.setdefault(maker, usual)
        gc.set_threshold(*SELDOM)


def keep_what_is_there(maker: str) -> None:
    """Spare what is there every later look, now that this one has made it; look as usual again."""
    with _changing:
        gc.freeze()
        usual = _makers.pop(maker, None)
        if usual is not None and not _makers:
            gc.set_threshold(*usual)


def is_starting() -> bool:
    """True while a process of ours makes what it starts with."""
    return STARTING in _makers
