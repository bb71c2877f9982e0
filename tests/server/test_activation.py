"""Sockets that were passed to us: taken over, served on, and left for the next one."""

import asyncio
import fcntl
import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from hotreload.errors import ConfigError
from hotreload.events import GateChanged
from hotreload.server.http import server_sockets
from hotreload.server.http.http_server import HttpServer
from hotreload.server.http.server_sockets import bind_unix, refuse_clients, systemd_sockets
from hotreload.server_limits import Limits
from hotreload.types import GateState
from tests.server.world import FIRST, World, answer_on
from tests.waiting import PATIENCE

LIVEZ = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with bind_unix(tmp_path / "s") as bound:
        yield bound


def systemd_variables(*names: str, pid: int | None = None) -> dict[str, str]:
    return {
        "LISTEN_PID": str(pid or os.getpid()),
        "LISTEN_FDS": str(len(names)),
        "LISTEN_FDNAMES": ":".join(names),
        "HOME": "/",
    }


def duplicates(*sockets: socket.socket) -> int:
    """The sockets once more, at numbers in a row; the first of them."""
    first = 200
    for index, each in enumerate(sockets):
        os.dup2(each.fileno(), first + index)
    return first


def test_what_systemd_passes_is_taken_once_and_not_passed_on(listener: socket.socket) -> None:
    environ = systemd_variables("http", "http")
    with ExitStack() as open_ones, socket.create_server(("127.0.0.1", 0)) as tcp:
        first = duplicates(listener, tcp)
        taken = [open_ones.enter_context(s) for s in systemd_sockets(environ, first=first)]
        assert [each.family for each in taken] == [socket.AF_UNIX, socket.AF_INET]
        assert all(fcntl.fcntl(s, fcntl.F_GETFD) & fcntl.FD_CLOEXEC for s in taken)
        assert environ == {"HOME": "/"}
        assert systemd_sockets(environ, first=first) == []


def test_what_was_meant_for_another_process_is_left_alone(listener: socket.socket) -> None:
    environ = systemd_variables("http", pid=os.getppid())
    assert systemd_sockets(environ, first=duplicates(listener)) == []
    assert environ == {"HOME": "/"}
    os.close(200)


@pytest.mark.parametrize(
    "environ", [{}, {"LISTEN_FDS": "1"}, {"LISTEN_PID": "x", "LISTEN_FDS": "1"}]
)
def test_without_sockets_there_is_nothing_to_take(environ: dict[str, str]) -> None:
    assert systemd_sockets(environ) == []


def test_a_socket_of_another_name_is_refused(listener: socket.socket) -> None:
    with pytest.raises(ConfigError, match="FileDescriptorName=http"):
        systemd_sockets(systemd_variables("metrics"), first=duplicates(listener))
    os.close(200)


def test_what_takes_no_connections_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        os.dup2(file.fileno(), 200)
    with pytest.raises(ConfigError, match="it is no socket"):
        systemd_sockets(systemd_variables("http"), first=200)
    os.close(200)
    with pytest.raises(ConfigError, match="Bad file descriptor"):
        systemd_sockets(systemd_variables("http"), first=200)
    with socket.socket(socket.AF_UNIX) as idle:
        os.dup2(idle.fileno(), 200)
    with pytest.raises(ConfigError, match="it is not listening"):
        systemd_sockets(systemd_variables("http"), first=200)


def test_a_process_takes_what_it_really_inherits(listener: socket.socket) -> None:
    """As systemd does it: descriptor 3, and a pid that is known only after the fork."""
    code = (
        "import os; os.environ['LISTEN_PID'] = str(os.getpid())\n"
        "from hotreload.server.http.server_sockets import systemd_sockets\n"
        "(taken,) = systemd_sockets()\n"
        "print(taken.getsockname(), taken.get_inheritable(), 'LISTEN_FDS' in os.environ)"
    )
    script = f'exec {sys.executable} -c "$CODE" 3<&{listener.fileno()}'
    told = subprocess.run(
        ["bash", "-c", script],
        env={**os.environ, **systemd_variables("http"), "CODE": code},
        pass_fds=[listener.fileno()],
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.stdout.split() == [listener.getsockname(), "False", "False"], told.stderr


class Lasting:
    """A server on a socket that outlives it."""

    def __init__(self, tmp_path: Path, listener: socket.socket, *more: socket.socket) -> None:
        self.world = World(tmp_path, Limits(), None)
        self.listener = listener
        self.more = more
        self.gate = self.world.gate
        self.server = HttpServer(
            self.world.app,
            socket_paths=self.world.socket_paths,
            graceful_seconds=5.0,
            linger_seconds=0.0,
            held_by_systemd=True,
        )
        self.world.events.subscribe(self.server.observe)
        self.serving = asyncio.create_task(self._serve())

    async def _serve(self) -> None:
        with ExitStack() as open_ones:
            ours = [open_ones.enter_context(s.dup()) for s in (self.listener, *self.more)]
            await self.server.serve(ours)

    async def request(
        self, on: socket.socket | None = None, what: bytes = LIVEZ
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        name = (on or self.listener).getsockname()
        reader, writer = await asyncio.open_unix_connection(name)
        writer.write(what)
        return reader, writer


async def test_nobody_is_accepted_before_the_gate_opens(
    tmp_path: Path, listener: socket.socket
) -> None:
    lasting = Lasting(tmp_path, listener)
    reader, writer = await lasting.request()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.read(1), 0.2)
    lasting.world.open(FIRST)
    assert (await answer_on(reader))[0] == 200
    writer.close()
    lasting.server.stop()
    await asyncio.wait_for(lasting.serving, PATIENCE)


async def test_it_goes_on_while_one_of_several_engines_lets_somebody_in(
    tmp_path: Path, listener: socket.socket
) -> None:
    lasting = Lasting(tmp_path, listener)
    for replica in (0, 1):
        lasting.server.observe(GateChanged(GateState.OPEN, 0, 0, replica=replica))
    lost = GateChanged(GateState.SEALED, 0, 0, "it hangs", "engine_lost")
    lasting.server.observe(lost)
    reader, writer = await lasting.request()
    assert (await answer_on(reader))[0] == 200
    writer.close()
    lasting.server.observe(replace(lost, replica=1))
    await asyncio.wait_for(lasting.serving, PATIENCE)


async def test_who_only_looks_is_answered_while_it_boots_and_nobody_else_is(
    tmp_path: Path, listener: socket.socket
) -> None:
    """`hotreload status` said for minutes that nobody answers."""
    with bind_unix(tmp_path / "s.look") as looking:
        lasting = Lasting(tmp_path, listener, looking)
        reader, writer = await lasting.request(looking, b"GET /status HTTP/1.1\r\nHost: x\r\n\r\n")
        status, _, said = await answer_on(reader)
        assert (status, said["state"], said["boot"]["step"]) == (200, "booting", "starting")
        patient, other = await lasting.request()
        lasting.world.open(FIRST)
        assert (await answer_on(patient))[0] == 200
        again, third = await lasting.request(looking)
        assert (await answer_on(again))[0] == 200
        for each in (writer, other, third):
            each.close()
        await lasting.server.stop_within(10)


async def test_a_start_that_fails_accepts_nobody_where_the_next_one_is_awaited(
    tmp_path: Path, listener: socket.socket
) -> None:
    with bind_unix(tmp_path / "s.look") as looking:
        lasting = Lasting(tmp_path, listener, looking)
        _, writer = await lasting.request()
        reader, other = await lasting.request(looking)
        assert (await answer_on(reader))[0] == 200
        lasting.gate.seal("the weights are refused", code="engine_lost")
        await asyncio.wait_for(lasting.serving, PATIENCE)
        listener.setblocking(False)
        accepted, _ = listener.accept()  # nobody else did
        assert accepted.recv(len(LIVEZ)) == LIVEZ
        for each in (accepted, writer, other):
            each.close()


async def test_who_comes_after_the_stop_waits_for_the_next_one(
    tmp_path: Path, listener: socket.socket
) -> None:
    one = Lasting(tmp_path, listener)
    one.world.open(FIRST)
    reader, writer = await one.request()
    assert (await answer_on(reader))[0] == 200
    writer.close()
    await one.server.stop_within(10)
    assert one.serving.done()
    reader, writer = await one.request()
    next_one = Lasting(tmp_path, listener)
    next_one.world.open(FIRST)
    assert (await answer_on(reader))[0] == 200
    writer.close()
    await next_one.server.stop_within(10)


async def test_a_sealed_gate_leaves_newcomers_to_the_next_one(
    tmp_path: Path, listener: socket.socket
) -> None:
    one = Lasting(tmp_path, listener)
    one.world.open(FIRST)
    one.gate.seal("the engine is lost", code="engine_lost")
    await asyncio.wait_for(one.serving, PATIENCE)
    assert Path(listener.getsockname()).is_socket()


async def test_a_start_that_fails_takes_nobody_with_it(
    tmp_path: Path, listener: socket.socket
) -> None:
    one = Lasting(tmp_path, listener)
    _, writer = await one.request()
    one.gate.seal("the weights are refused", code="engine_lost")
    await asyncio.wait_for(one.serving, PATIENCE)
    next_one = Lasting(tmp_path, listener)
    next_one.world.open(FIRST)
    reader, again = await next_one.request()
    assert (await answer_on(reader))[0] == 200
    for each in (writer, again):
        each.close()
    await next_one.server.stop_within(10)


async def test_an_answer_under_way_at_the_stop_ends_its_connection(
    tmp_path: Path, listener: socket.socket
) -> None:
    """Its client must not ask again on a connection that is about to be closed."""
    lasting = Lasting(tmp_path, listener)
    lasting.world.open(FIRST)
    lasting.world.engine.may_answer.clear()
    reader, writer = await asyncio.open_unix_connection(listener.getsockname())
    body = b'{"text": "hi"}'
    writer.write(b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body))
    writer.write(body)
    await lasting.world.until(lambda: lasting.world.engine.running == 1)
    lasting.server.stop()
    lasting.world.engine.may_answer.set()
    status, headers, _ = await answer_on(reader)
    assert (status, headers["connection"]) == (200, "close")
    writer.close()
    await asyncio.wait_for(lasting.serving, PATIENCE)


def test_who_waits_for_one_that_cannot_start_is_told_and_nobody_is_left(
    listener: socket.socket,
) -> None:
    """Also one that has left, and one that has sent nothing: each would start us again."""
    path = listener.getsockname()
    with ExitStack() as connections:
        gone, silent, waiting = (
            connections.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(3)
        )
        for client in (gone, silent, waiting):
            client.connect(path)
        gone.sendall(LIVEZ)
        gone.close()
        waiting.sendall(LIVEZ)
        refuse_clients([listener], ConfigError("[engine] tp: is too many"))
        for client in (silent, waiting):
            answer = client.makefile("rb").read()
            head, _, body = answer.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
            assert f"content-length: {len(body)}".encode() in head
            assert json.loads(body)["detail"] == "hotreload cannot start: [engine] tp: is too many"
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_who_has_connected_and_not_yet_asked_is_told_why_too(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answered before it asks, it would find the connection closed and not read the answer."""
    monkeypatch.setattr(server_sockets, "REQUEST_SECONDS", PATIENCE)
    with socket.socket(socket.AF_UNIX) as client, ThreadPoolExecutor() as threads:
        client.connect(listener.getsockname())
        turned_away = threads.submit(
            refuse_clients, [listener], ConfigError("[engine] tp: is too many")
        )
        while select.select([listener], [], [], 0)[0]:
            pass  # it is not accepted yet
        client.sendall(LIVEZ)
        assert client.makefile("rb").read().startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        turned_away.result()


def test_turning_away_from_a_socket_that_is_closed_does_nothing(listener: socket.socket) -> None:
    listener.close()
    refuse_clients([listener], ConfigError("why"))
