"""What a failed test leaves to the garbage collector goes with it, and fails no innocent one.

Pytest keeps its error, and so the frames that hold its sockets and processes, until the next test
is called. What warns as it goes would then fail that one: warnings are errors here.
"""

import gc
import sys
from collections.abc import Generator
from contextlib import suppress
from typing import Any

import pytest

FAILED = pytest.StashKey[bool]()
KEPT_FOR_A_DEBUGGER = ("last_exc", "last_value", "last_type", "last_traceback")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Remember a failure until the end of its test."""
    report = yield
    item.stash[FAILED] = report.failed or item.stash.get(FAILED, False)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Let go of what a failed test has left, unheard: it is red already."""
    done = yield
    if item.stash.get(FAILED, False):
        for name in KEPT_FOR_A_DEBUGGER:
            with suppress(AttributeError):
                delattr(sys, name)
        heard, sys.unraisablehook = sys.unraisablehook, lambda _: None
        try:
            gc.collect()
        finally:
            sys.unraisablehook = heard
    return done
