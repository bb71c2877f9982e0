"""The port for Prometheus: any process of the machine can connect, and none can use it up."""

import os
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, closing

import pytest

from hotreload.errors import ConfigError
from hotreload.observe.metrics_page import MOST_CONNECTIONS, Fresh, Page
from tests.observe.things import Counted
from tests.waiting import PATIENCE

ASK = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture
def served() -> Iterator[Page]:
    with closing(Page("127.0.0.1:0", Counted().latest)) as here:
        yield here


def made(page: bytes) -> Callable[[], Future[bytes]]:
    future: Future[bytes] = Future()
    future.set_result(page)
    return lambda: future


def fetch(port: int, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE) as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        return str(answer.read().decode())


def connected(page: Page) -> socket.socket:
    return socket.create_connection(("127.0.0.1", page.port), timeout=PATIENCE)


def is_cut_off(connection: socket.socket) -> bool:
    """Wait for the end of what comes; whether it is none."""
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def test_the_page_is_served_on_its_own_port(served: Page) -> None:
    assert "hotreload_generation 0.0" in fetch(served.port)


def test_other_paths_are_not_found(served: Page) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        fetch(served.port, "/secrets")
    assert caught.value.code == 404
    caught.value.close()


def test_a_taken_port_is_named_with_its_setting(served: Page) -> None:
    address = f"127.0.0.1:{served.port}"
    with pytest.raises(ConfigError, match=rf"\[metrics\] address: cannot listen on {address}"):
        Page(address, Counted().latest)


@pytest.mark.parametrize("address", ["127.0.0.1:99999", "192.0.2.1:1"])
def test_an_impossible_address_is_named_with_its_setting(address: str) -> None:
    with pytest.raises(ConfigError, match=rf"\[metrics\] address: cannot listen on {address}"):
        Page(address, Counted().latest)


def test_closing_frees_the_port_and_hangs_up() -> None:
    here = Page("127.0.0.1:0", Counted().latest)
    with connected(here) as silent:
        assert "hotreload_generation 0.0" in fetch(here.port)  # so it was accepted
        here.close()
        assert is_cut_off(silent)
    Page(f"127.0.0.1:{here.port}", Counted().latest).close()


def test_many_connections_take_a_few_descriptors_and_threads_and_keep_nobody_out(
    served: Page,
) -> None:
    fetch(served.port)
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    with ExitStack() as stack:
        for _ in range(40):
            connection = stack.enter_context(connected(served))
            connection.sendall(ASK[:10])
        assert "hotreload_generation 0.0" in fetch(served.port)
        descriptors = len(os.listdir("/proc/self/fd")) - 40  # but for our own ends
        assert descriptors <= before[0] + MOST_CONNECTIONS + 1  # and one that waits for a place
        assert threading.active_count() <= before[1] + MOST_CONNECTIONS


@pytest.mark.parametrize(
    "what", ["silent", "asks byte by byte", "never reads", "reads drop by drop"]
)
def test_whoever_takes_his_time_is_hung_up_on_whatever_he_does(what: str) -> None:
    with (
        closing(Page("127.0.0.1:0", made(b"x 1\n" * 10_000_000), patience=0.5)) as here,
        connected(here) as slow,
    ):
        began = time.monotonic()
        slow.sendall(ASK if "read" in what else b"")
        while not here._began:  # it is not accepted yet
            time.sleep(0.01)
        gone = False
        while not gone and time.monotonic() < began + 15:
            time.sleep(0.05)  # each byte would begin a timeout of the socket anew
            try:
                if "asks" in what:
                    slow.sendall(b"G")
                if "drop" in what:
                    slow.recv(1)
            except ConnectionError:
                gone = True
            gone |= not here._began
        assert gone


class Rendering:
    """Counts how often the page is made, and lets it be made when the test says so."""

    def __init__(self) -> None:
        self.times = 0
        self.now = 0.0
        self.may_end = threading.Event()
        self.fault: Exception | None = None
        self.fresh = Fresh(self.render, clock=lambda: self.now)

    def render(self) -> bytes:
        self.times += 1
        assert self.may_end.wait(10)
        if self.fault is not None:
            raise self.fault
        return b"%d" % self.times

    def latest(self) -> bytes:
        return self.fresh.latest().result(10)


def test_however_many_scrape_the_page_is_made_once_a_second() -> None:
    page = Rendering()
    first = [page.fresh.latest() for _ in range(100)]
    page.now = 5.0  # it takes long: who comes meanwhile waits for the same
    first.append(page.fresh.latest())
    page.may_end.set()
    assert {each.result(10) for each in first} == {b"1"}
    assert page.latest() == b"2"
    page.now = 5.9
    assert page.latest() == b"2"
    page.now = 6.0
    assert page.latest() == b"3"


def test_a_page_that_could_not_be_made_is_made_anew() -> None:
    page = Rendering()
    page.may_end.set()
    page.fault = ValueError("no such gauge")
    with pytest.raises(ValueError, match="no such gauge"):
        page.latest()
    page.fault = None
    assert page.latest() == b"2"
