"""Memory of this process: how it is given back, and when Python looks for garbage in it."""

import ctypes
import gc

SELDOM = (100_000, 50, 1000)
"""Thresholds of Python's collector while a process of ours starts: few looks, at young objects."""
_USUAL = gc.get_threshold()


def give_back() -> None:
    """Return to the system what was freed: glibc keeps most of it, for others it may never have.

    It takes milliseconds and no GIL. Other C libraries have no such call, and need none.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def collect_seldom() -> None:
    """Hardly look for garbage from now on: this process starts.

    What it makes meanwhile stays: of 276,000 objects that one with an engine had made, 434 were
    garbage, and to find that out took half a second of three.
    """
    gc.set_threshold(*SELDOM)


def collects_seldom() -> bool:
    """True while this process starts."""
    return gc.get_threshold() == SELDOM


def collect_as_usual() -> None:
    """Spare what a start has made every later collection: it stays for good."""
    gc.freeze()
    if collects_seldom():
        gc.set_threshold(*_USUAL)
