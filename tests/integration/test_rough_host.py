"""A machine that runs out of things while the daemon serves."""

import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.process import Process
from tests.integration.running import words

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(180)]


@contextmanager
def without_descriptors(process: Process) -> Iterator[None]:
    """Let the daemon have no file descriptor to spare, its clients holding the last ones."""
    pid = process.child.pid
    usual = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    in_use = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (in_use + 5, usual[1]))
    clients = [socket.socket(socket.AF_UNIX) for _ in range(40)]
    try:
        for client in clients:
            client.connect(str(process.socket))
        yield
    finally:
        for client in clients:
            client.close()
        resource.prlimit(pid, resource.RLIMIT_NOFILE, usual)


def test_out_of_file_descriptors_it_keeps_its_weights_and_recovers(tmp_path: Path) -> None:
    process = Process(tmp_path)
    process.drop(1)
    with process.running():
        process.live("step_1")
        with without_descriptors(process):
            process.until(lambda: "Too many open files" in process.log.read_text())
            process.drop(2)
            assert process.child.poll() is None
        process.live("step_2")
        assert process.ask()["text"] == words(2)
        assert process.get("/status")["refused"] == []
        assert process.stop() == 0
