"""Memory of this process that nobody uses any more."""

import ctypes


def give_back() -> None:
    """Return to the system what was freed: glibc keeps most of it, for others it may never have.

    It takes milliseconds and no GIL. Other C libraries have no such call, and need none.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
