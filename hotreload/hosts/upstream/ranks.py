"""Joins the processes that hold one engine together, before anything looks for devices.

JAX's coordination service runs in a program of its own beside rank 0, which outlives it for a
moment.
"""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotreload.errors import DeviceUnavailable

HEARTBEAT_SECONDS = 100
"""After this JAX ends every process because one is silent; we look more often, and say so."""
LEAVE_SECONDS = 10
"""Time that a rank that ends waits for the others to end too."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """Number of this process among several, and where they meet."""

    own: int
    count: int
    address: str
    """The host and port where rank 0 is met."""
    secret: str | None = field(default=None, repr=False)
    """A secret that they alone know; None where every process that comes is trusted."""

    @property
    def leads(self) -> bool:
        """True for rank 0, which decides."""
        return self.own == 0

    @property
    def arguments(self) -> Mapping[str, Any]:
        """Upstream's words for it."""
        return {"nnodes": self.count, "node_rank": self.own, "dist_init_addr": self.address}

    @property
    def others(self) -> Iterator[int]:
        """The numbers of all the others."""
        return (rank for rank in range(self.count) if rank != self.own)


def join(ranks: Ranks, within: int) -> None:
    """Meet the other ranks; from now on JAX knows the devices of all of them.

    DeviceUnavailable when they do not come. With jax 0.10.2 the process is aborted instead.
    """
    if not ranks.leads:
        _initialize(ranks, within)
        return
    seconds = {"heartbeat_seconds": HEARTBEAT_SECONDS, "end_within": LEAVE_SECONDS}
    coordinator = Coordinator(ranks.address, ranks.count, **seconds)
    try:
        with in_place_of_jaxs(coordinator):
            _initialize(ranks, within)
        coordinator.let_nobody_else_in()
    except BaseException:
        coordinator.kill()
        raise


def _initialize(ranks: Ranks, within: int) -> None:
    import jax

    try:
        jax.distributed.initialize(
            ranks.address,
            ranks.count,
            ranks.own,
            cluster_detection_method="deactivate",  # the settings say who is who
            initialization_timeout=within,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=LEAVE_SECONDS,
        )
    except jax.errors.JaxRuntimeError as fault:
        why = str(fault).partition("\n")[0]
        raise DeviceUnavailable(
            f"the other {ranks.count - 1} ranks were not met at {ranks.address} within "
            f"{within} s: {why}"
        ) from fault


def leave() -> None:
    """Leave the other ranks; waits for them to leave too."""
    import jax

    jax.distributed.shutdown()  # type: ignore[no-untyped-call]


COORDINATOR = Path(__file__).with_name("coordinator.py")


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
            [sys.executable, "-I", str(COORDINATOR)],
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
            self.kill()
            raise _cannot_listen(address, told.strip() or "the program that listens has ended")

    def let_nobody_else_in(self) -> None:
        """Close the port: all have come, and one that comes back is to wait for the next life."""
        self._say("all have come")

    def shutdown(self) -> None:
        """Leave the service running until all ranks have gone: one may not know yet that it may."""
        self._say("all leave")

    def kill(self) -> None:
        """End it at once: some have never come."""
        self._program.kill()
        self._program.communicate()

    def _say(self, line: str) -> None:
        assert self._program.stdin is not None
        self._program.stdin.write(f"{line}\n")
        self._program.stdin.flush()


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
