"""The program through which the ranks meet: where it listens, and how long it outlives rank 0."""

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from hotreload.errors import DeviceUnavailable, EngineLost
from hotreload.hosts.upstream.ranks import Coordinator, Store
from tests.hosts.member import free_address, in_processes
from tests.waiting import look_until

pytestmark = pytest.mark.real_engine

JAX_ENDS_IT_AFTER = 5.0
"""So long after the service has ended the connection to it breaks, and JAX ends the process."""


def started(address: str) -> Coordinator:
    return Coordinator(address, 2, heartbeat_seconds=100, end_within=10)


def children_of(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def put_until_it_fails(store: Store) -> None:
    while True:
        store.put("is rank 0", "there")


def read_to_its_end(connection: socket.socket) -> None:
    while connection.recv(1000):
        pass


def alive_in_session(session: int) -> Iterator[int]:
    for each in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            if each.name.isdigit() and os.getsid(int(each.name)) == session:
                yield int(each.name)


def test_another_rank_outlives_rank_0_hears_of_its_end_and_takes_the_program_along() -> None:
    with in_processes() as (first, second):
        (program,) = children_of(first.process.pid)
        os.kill(program, signal.SIGTERM)  # systemd sends it to all of a unit
        second.put("still", "there")
        host, _, port = first.address.rpartition(":")
        with pytest.raises(ConnectionRefusedError):  # all have come
            socket.create_connection((host, int(port)), 5)
        first.process.kill()
        with pytest.raises(EngineLost, match="rank 0 has ended, or is out of reach"):
            put_until_it_fails(second)
        started(first.address).kill()  # the next life need not wait
        time.sleep(JAX_ENDS_IT_AFTER + 1)
        assert second.process.poll() is None
        assert list(alive_in_session(program))
        second.process.kill()
        look_until(lambda: not list(alive_in_session(program)), lambda: "it stays", seconds=15)


def test_it_listens_where_it_is_told_and_nowhere_else() -> None:
    address = free_address()
    host, _, port = address.rpartition(":")
    coordinator = started(address)
    try:
        socket.create_connection((host, int(port)), 5).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", int(port)), 5)
        with pytest.raises(DeviceUnavailable, match=rf"cannot listen at {address} .*in use"):
            started(address)
    finally:
        coordinator.kill()


def test_an_address_that_leads_nowhere_is_named() -> None:
    with pytest.raises(DeviceUnavailable, match=r"cannot listen at 192\.0\.2\.1:7000"):
        started("192.0.2.1:7000")


def test_after_all_leave_it_breaks_no_connection_and_goes_with_the_last() -> None:
    """A rank that has not heard yet that it may leave would be ended by JAX, with 1 or 134."""
    address = free_address()
    host, _, port = address.rpartition(":")
    before = children_of(os.getpid())
    coordinator = started(address)
    (program,) = set(children_of(os.getpid())).difference(before)
    try:
        with socket.create_connection((host, int(port)), 5) as another:
            another.recv(1)  # the service has taken it
            coordinator.close_port()
            coordinator.shutdown()
            another.settimeout(1)
            with pytest.raises(TimeoutError):
                read_to_its_end(another)
        has_gone = (program, 0)
        look_until(
            lambda: os.waitpid(program, os.WNOHANG) == has_gone, lambda: "it stays", seconds=15
        )
    finally:
        coordinator.kill()
