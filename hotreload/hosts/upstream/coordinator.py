"""A program of its own: the coordination service of JAX, through which the ranks of an engine meet.

JAX ends a process as soon as its connection to the service breaks, without any log line of ours.
In the process of rank 0 the service would end with rank 0. This program ends it in two steps:
first the service stops answering, which every rank notices within a second; then the program holds
the connections until the other ranks have ended.

It runs as a script and imports nothing of hotreload. The first line of its input is the setup as
JSON, the second says that all ranks have come, the third that all leave together; the end of the
input is the end of rank 0. Its only line of output is the error, or empty for success.
"""

import json
import os
import select
import signal
import socket
import stat
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NoReturn

HOLD_SECONDS = 20.0
"""The longest wait for the others to end; only the end of a host takes longer to show."""
NOTICE_SECONDS = 0.5
"""Seconds until all connected ranks have noticed the end of the service."""
MEANT_FOR_RANK_0 = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGABRT)
"""systemd sends them to every process of a unit; the last is its watchdog's."""


def main() -> NoReturn:
    """Serve until rank 0 has ended, and exit once the others have ended."""
    for number in MEANT_FOR_RANK_0:
        signal.signal(number, signal.SIG_IGN)
    setup = json.loads(sys.stdin.readline())
    sys.path[:] = setup["path"]  # so that jaxlib is found where rank 0 has found it
    place = setup["host"], setup["port"]
    try:
        _check_free(place)
        service = _service(setup)
    except Exception as fault:
        print(getattr(fault, "strerror", None) or fault, flush=True)
        os._exit(1)
    print(flush=True)
    if sys.stdin.readline():
        _close_port()
    if not sys.stdin.readline():
        _leave_behind(service)
    _hold(time.monotonic() + HOLD_SECONDS)
    os._exit(0)


def _service(setup: dict[str, Any]) -> Any:
    from jaxlib import _jax

    return _jax.get_distributed_runtime_service(
        f"{setup['host']}:{setup['port']}",
        setup["count"],
        heartbeat_timeout=setup["heartbeat_seconds"],
        shutdown_timeout=setup["shutdown_seconds"],
    )


def _check_free(place: tuple[str, int]) -> None:
    """OSError if a process listens there: the service would share the port with it."""
    with socket.socket() as asking:
        asking.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        asking.bind(place)


def _close_port() -> None:
    """Close the port, once all have come: JAX ends all of them if one comes a second time."""
    for number in _sockets():
        with socket.socket(fileno=os.dup(number)) as each:
            if each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                each.shutdown(socket.SHUT_RDWR)


def _leave_behind(service: Any) -> None:
    """Stop the service's answers, and keep its connections open in a fork, which has no threads.

    The end of the service itself would break them after five seconds.
    """
    threading.Thread(target=service.shutdown, daemon=True).start()
    time.sleep(NOTICE_SECONDS)
    warnings.simplefilter("ignore", DeprecationWarning)  # of a fork where threads run
    if os.fork():
        os._exit(0)


def _hold(until: float) -> None:
    """Wait until the peers of all connections have ended."""
    held = set(_sockets())
    waiting = select.poll()
    for each in held:
        waiting.register(each, select.POLLRDHUP)
    while held and (left := until - time.monotonic()) > 0:
        for each, _ in waiting.poll(1000 * left):
            waiting.unregister(each)
            held.discard(each)


def _sockets() -> Iterator[int]:
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the listing itself was one of them
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                yield int(name)


if __name__ == "__main__":
    main()
