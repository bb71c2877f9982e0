"""The event loop of tests in which a server or a whole daemon runs: the daemon's own.

The others have asyncio's. uvloop forks to start a program, which a process with JAX must not.
"""

import asyncio
from collections.abc import Callable, Mapping

import uvloop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run all tests of a folder whose conftest.py names this on uvloop."""
    return {"uvloop": uvloop.new_event_loop}
