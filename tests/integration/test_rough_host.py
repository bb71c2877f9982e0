"""A machine that runs out of things while the daemon serves."""

import json
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, RemoteDisconnected
from pathlib import Path

import pytest

from tests.integration.process import Process
from tests.integration.running import request_for, words
from tests.waiting import PATIENCE

pytestmark = pytest.mark.real_engine

SILENT = range(40)
"""Clients that connect and ask nothing."""


@contextmanager
def without_descriptors(process: Process) -> Iterator[None]:
    """Let the daemon have no file descriptor to spare, its clients holding the last ones."""
    pid = process.child.pid
    usual = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    in_use = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (in_use + 5, usual[1]))
    clients = [socket.socket(socket.AF_UNIX) for _ in SILENT]
    try:
        for client in clients:
            client.connect(str(process.socket))
        yield
    finally:
        for client in clients:
            client.close()
        resource.prlimit(pid, resource.RLIMIT_NOFILE, usual)


@contextmanager
def kept_connection(process: Process) -> Iterator[Callable[[], str]]:
    """Asks on a connection that is there already, or on another if that gave way meanwhile."""
    connection = HTTPConnection("hotreload", timeout=PATIENCE)

    def connect() -> None:
        connection.close()
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(str(process.socket))

    def ask() -> str:
        connection.request("POST", "/generate", json.dumps(request_for("Who serves?")))
        answer = connection.getresponse()
        assert answer.status == 200
        return str(json.loads(answer.read())["text"])

    def ask_again_if_it_gave_way() -> str:
        """As every client does: the next one may give way, too, before it has asked."""
        for _ in range(len(SILENT)):
            with suppress(BrokenPipeError, ConnectionResetError, RemoteDisconnected):
                return ask()
            connect()
        return ask()

    connect()
    try:
        assert ask() == words(1)
        yield ask_again_if_it_gave_way
    finally:
        connection.close()


def test_started_with_nothing_open_it_serves_and_no_socket_becomes_its_stderr(
    tmp_path: Path,
) -> None:
    process = Process(tmp_path)
    process.drop(1)
    with process.running(through=("sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh")):
        process.drop(2)
        process.live("step_2")
        assert process.ask()["text"] == words(2)
        opened = Path(f"/proc/{process.child.pid}/fd")
        assert [str((opened / name).readlink()) for name in "012"] == ["/dev/null"] * 3
        assert process.stop() == 0


def test_out_of_file_descriptors_it_keeps_its_weights_and_recovers(tmp_path: Path) -> None:
    process = Process(tmp_path)
    process.drop(1)
    with process.running():
        process.live("step_1")
        with kept_connection(process) as asks, without_descriptors(process):
            process.until(lambda: "Too many open files" in process.log.read_text())
            process.drop(2)
            for _ in range(3):
                assert asks() == words(1)
            assert process.child.poll() is None
        process.live("step_2")
        assert process.ask()["text"] == words(2)
        assert process.get("/status")["refused"] == []
        assert process.stop() == 0
