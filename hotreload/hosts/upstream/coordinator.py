"""A program of its own: the coordination service of JAX, through which the ranks of an engine meet.

JAX ends a process as soon as its connection to the service breaks, without a message of ours. In
rank 0's process the service would break with rank 0. Here it ends in two steps: first it answers no
request any more, so that every rank notices within a second that rank 0 has ended; but it holds
their connections until they have left, too.

Run as a script it imports nothing of ours. Its first line of input says what to do; its only line
of output says why it cannot, or is empty. The second line of input says that all ranks have come, a
third that all leave together, and the end of its input is the end of rank 0.
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
"""Time for the others to end; only an end of their hosts takes longer to show."""
TOLD_WITHIN = 0.5
"""Seconds for the service to notify all connected ranks of its end."""
MEANT_FOR_RANK_0 = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGABRT)
"""systemd sends them to every process of a unit; the last is its watchdog's."""


def main() -> NoReturn:
    """Serve until rank 0 has ended, and go when the others have."""
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
        _let_nobody_else_in()
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
    """Raise OSError when a process listens there: the service would share the port with it."""
    with socket.socket() as asking:
        asking.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        asking.bind(place)


def _let_nobody_else_in() -> None:
    """Close the port once all have come: JAX ends all of them when one comes a second time."""
    for number in _sockets():
        with socket.socket(fileno=os.dup(number)) as each:
            if each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                each.shutdown(socket.SHUT_RDWR)


def _leave_behind(service: Any) -> None:
    """Have the service answer no more, with its connections kept open by a fork.

    Its own end would break them five seconds after it began. The fork has the connections, and no
    threads.
    """
    threading.Thread(target=service.shutdown, daemon=True).start()
    time.sleep(TOLD_WITHIN)
    warnings.simplefilter("ignore", DeprecationWarning)  # of a fork where threads run
    if os.fork():
        os._exit(0)


def _hold(until: float) -> None:
    """Wait until the other ends of all connections have gone."""
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
