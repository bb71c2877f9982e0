"""Joins the processes that hold one engine together, and gives them a store of values.

They join before anything looks for devices. JAX's coordination service runs in a program of its own
beside rank 0; this program outlives rank 0 for a moment. The store is that service's.
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

from hotreload.errors import DeviceUnavailable, EngineLost

HEARTBEAT_SECONDS = 100
"""The silence of a rank after which JAX ends all processes; `Beats` report it earlier."""
LEAVE_SECONDS = 10
"""The time that a rank waits at its end for the others to end too."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """The number of this process among several, and the address where they meet."""

    own: int
    count: int
    address: str
    """The host and port at which rank 0 listens."""
    secret: str | None = field(default=None, repr=False)
    """The join secret of the ranks; None if every process that comes is trusted."""

    @property
    def leads(self) -> bool:
        """True for rank 0, which decides."""
        return self.own == 0

    @property
    def arguments(self) -> Mapping[str, Any]:
        """The same as arguments of sglang-jax."""
        return {"nnodes": self.count, "node_rank": self.own, "dist_init_addr": self.address}

    @property
    def others(self) -> Iterator[int]:
        """The numbers of all other ranks."""
        return (rank for rank in range(self.count) if rank != self.own)


def join(ranks: Ranks, within: int) -> None:
    """Meet the other ranks; from now on JAX knows the devices of all of them.

    DeviceUnavailable if they do not come. With jax 0.10.2 the process is aborted instead.
    """
    if not ranks.leads:
        _initialize(ranks, within)
        return
    seconds = {"heartbeat_seconds": HEARTBEAT_SECONDS, "end_within": LEAVE_SECONDS}
    coordinator = Coordinator(ranks.address, ranks.count, **seconds)
    try:
        with replace_jaxs_service(coordinator):
            _initialize(ranks, within)
        coordinator.close_port()
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
            cluster_detection_method="deactivate",  # the settings have the ranks' numbers
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
    """Leave the other ranks, and wait for them to leave too."""
    import jax

    jax.distributed.shutdown()  # type: ignore[no-untyped-call]


COORDINATOR = Path(__file__).with_name("coordinator.py")


class Coordinator:
    """JAX's coordination service, in a program of its own; JAX calls only its `shutdown`.

    The program notices by itself when this process ends.
    """

    def __init__(self, address: str, count: int, *, heartbeat_seconds: int, end_within: int):
        """Start the program, which listens at this very address; DeviceUnavailable if it cannot."""
        host, _, port = address.rpartition(":")
        try:
            place = socket.getaddrinfo(host, int(port), socket.AF_INET)[0][4]
        except OSError as fault:
            raise _cannot_listen(address, str(fault.strerror)) from fault
        # Isolated, without our descriptors, and in a session that gets no terminal's signals.
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
        answer = self._program.stdout.readline()
        if answer != "\n":
            self.kill()
            raise _cannot_listen(address, answer.strip() or "the program that listens has ended")

    def close_port(self) -> None:
        """Close the port: all ranks have come, and one that returns must wait for the next life."""
        self._send("all have come")

    def shutdown(self) -> None:
        """Let the service run until all ranks have gone: some may not have left yet."""
        self._send("all leave")

    def kill(self) -> None:
        """End the program at once: some ranks have never come."""
        self._program.kill()
        self._program.communicate()

    def _send(self, line: str) -> None:
        assert self._program.stdin is not None
        self._program.stdin.write(f"{line}\n")
        self._program.stdin.flush()


@contextmanager
def replace_jaxs_service(coordinator: Coordinator) -> Iterator[None]:
    """Have JAX use this coordinator in place of the service that it would start."""
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


# --- the store -----------------------------------------------------------------------------------

NOTHING_THERE = ("DEADLINE_EXCEEDED", "NOT_FOUND")


class Store:
    """Keys and their values, the same for all ranks; every call blocks, and any thread may call.

    The store exists from joining the other ranks until leaving them. EngineLost if it is gone: it
    runs beside rank 0, and the others end with it.
    """

    def __init__(self) -> None:
        import jax
        from jax._src import distributed

        # The client has no public name; both versions of jax have it here.
        self._client: Any = distributed.global_state.client
        self._fault: type[Exception] = jax.errors.JaxRuntimeError

    def put(self, key: str, value: str) -> None:
        """Write this value under the key; ranks that wait for the key get it."""
        try:
            self._client.key_value_set(key, value, allow_overwrite=True)
        except self._fault as fault:
            raise _engine_lost(fault) from fault

    def get(self, key: str, within: float) -> str | None:
        """Return the key's value, after a wait of at most so many seconds; None if it has none."""
        try:
            ms = max(1, round(within * 1000))
            value: bytes = self._client.blocking_key_value_get_bytes(key, ms)
        except self._fault as fault:
            if str(fault).startswith(NOTHING_THERE):
                return None
            raise _engine_lost(fault) from fault
        return value.decode(errors="replace")

    def forget(self, key: str) -> None:
        """Delete the key, and every key below it (after a slash)."""
        try:
            self._client.key_value_delete(key)
        except self._fault as fault:
            raise _engine_lost(fault) from fault


def _engine_lost(fault: Exception) -> EngineLost:
    why = str(fault).partition("\n")[0]
    return EngineLost(f"rank 0 has ended, or is out of reach: the ranks' store says {why}")
