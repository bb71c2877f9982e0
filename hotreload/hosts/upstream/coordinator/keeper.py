"""Starts that program beside rank 0, and ends it in order."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hotreload.errors import DeviceUnavailable

PROGRAM = Path(__file__).with_name("program.py")


class Coordinator:
    """Stands where JAX keeps the service in the process of rank 0; it asks it for `shutdown` alone.

    The program notices by itself when this process ends.
    """

    def __init__(self, address: str, count: int, *, heartbeat_seconds: int, end_within: int):
        """Begin to listen at exactly this address; DeviceUnavailable when that cannot be."""
        host, _, port = address.rpartition(":")
        try:
            place = socket.getaddrinfo(host, int(port), socket.AF_INET)[0][4]
        except OSError as fault:
            raise _cannot_listen(address, str(fault.strerror)) from fault
        # Isolated and with no descriptor of ours; its session is one that no terminal signals.
        self._program = subprocess.Popen(
            [sys.executable, "-I", str(PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )
        setup = {
            "path": sys.path,
            "host": place[0],
            "port": place[1],
            "count": count,
            "heartbeat_seconds": heartbeat_seconds,
            "shutdown_seconds": end_within,
        }
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        self._program.stdin.write(f"{json.dumps(setup)}\n")
        self._program.stdin.flush()
        told = self._program.stdout.readline()
        if told != "\n":
            self.shutdown()
            raise _cannot_listen(address, told.strip() or "the program that listens has ended")

    def let_nobody_else_in(self) -> None:
        """Close the port: all have come, and whoever comes back is to wait for the next life."""
        assert self._program.stdin is not None
        self._program.stdin.write("all have come\n")
        self._program.stdin.flush()

    def shutdown(self) -> None:
        """End it at once: all others have left, or have never come."""
        self._program.kill()
        self._program.communicate()


@contextmanager
def in_place_of_jaxs(coordinator: Coordinator) -> Iterator[None]:
    """While this is open, JAX takes that for the service it would start."""
    from jax._src import distributed

    jaxs: Any = distributed._jax  # type: ignore[attr-defined]  # both versions have it
    original = jaxs.get_distributed_runtime_service
    jaxs.get_distributed_runtime_service = lambda *args, **kwargs: coordinator
    try:
        yield
    finally:
        jaxs.get_distributed_runtime_service = original


def _cannot_listen(address: str, why: str) -> DeviceUnavailable:
    words = f"rank 0 cannot listen at {address} ([engine] dist_init_addr): {why}"
    return DeviceUnavailable(words)
