"""Where we listen, who else may be there, and how we leave."""

import asyncio
import os
import socket
import stat
from pathlib import Path

import pytest

from hotreload.errors import ConfigError
from hotreload.server.http.server_sockets import bind_tcp, bind_unix, group_id
from hotreload.server_limits import Limits
from tests.server.world import World, answer_on, serve
from tests.waiting import PATIENCE

LIVEZ = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
def test_the_socket_has_its_mode_and_group(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "s"
    with bind_unix(path, mode, os.getgid()):
        found = path.stat()
    assert (stat.S_IMODE(found.st_mode), found.st_gid) == (mode, os.getgid())


def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    bind_unix(path).close()
    assert path.is_socket()
    with bind_unix(path), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


def test_a_live_daemon_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with bind_unix(path):
        with pytest.raises(ConfigError, match=f"another hotreload answers on {path}"):
            bind_unix(path)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_what_is_no_socket_is_left_alone(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "s"
    if kind == "link":
        path.symlink_to("/dev/null")
    else:
        (path.touch if kind == "file" else path.mkdir)()
    with pytest.raises(ConfigError, match="is no socket"):
        bind_unix(path)
    assert os.path.lexists(path)


def test_a_path_that_is_too_long_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\[server\] socket: /.*too long"):
        bind_unix(tmp_path / ("x" * 108))


def test_a_missing_folder_is_made(tmp_path: Path) -> None:
    with bind_unix(tmp_path / "run" / "s"):
        assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o755


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"folder {tmp_path}/a/b does not exist"):
        bind_unix(tmp_path / "a" / "b" / "s")


def test_an_unknown_group_is_named() -> None:
    with pytest.raises(ConfigError, match=r"\[server\] group: there is no group 'nosuchgroup'"):
        group_id("nosuchgroup", "[server] group")


def test_a_taken_port_is_a_config_error() -> None:
    with bind_tcp("127.0.0.1:0") as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
            bind_tcp(f"127.0.0.1:{port}")


def test_only_one_daemon_at_a_time_looks_for_a_stale_socket(tmp_path: Path) -> None:
    import fcntl

    folder = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    with pytest.raises(ConfigError, match="is starting in"):
        bind_unix(tmp_path / "s")
    os.close(folder)
    bind_unix(tmp_path / "s").close()


async def test_leaving_removes_the_socket(tmp_path: Path) -> None:
    async with serve(tmp_path) as world:
        assert world.path.is_socket()
    assert not world.path.exists()


async def test_leaving_leaves_the_socket_of_a_successor(tmp_path: Path) -> None:
    async with serve(tmp_path) as world:
        world.path.unlink()
        successor = bind_unix(world.path)
    assert world.path.is_socket()
    successor.close()


async def test_what_was_sent_before_the_stop_is_answered(tmp_path: Path) -> None:
    """Connected but not yet accepted, accepted but not yet read, and half sent."""
    async with serve(tmp_path) as world:
        world.server.linger_seconds = 0.3
        half = await world.raw()
        half[1].write(LIVEZ[:10])
        whole = [await world.raw() for _ in range(100)]
        world.server.stop()
        for _, writer in whole:
            writer.write(LIVEZ)
        half[1].write(LIVEZ[10:])
        answers = [await answer_on(reader) for reader, _ in [*whole, half]]
    assert {status for status, _, _ in answers} == {200}
    assert {headers["connection"] for _, headers, _ in answers} == {"close"}
    for _, writer in [*whole, half]:
        writer.close()


async def test_a_generation_under_way_ends_before_we_leave(world: World) -> None:
    world.engine.may_answer.clear()
    reader, writer = await world.ask_raw({"text": "hi"})
    await world.until(lambda: world.engine.running == 1)
    world.server.stop()
    await world.until(lambda: not world.path.exists())
    world.engine.may_answer.set()
    status, _, fields = await answer_on(reader)
    assert (status, fields["text"]) == (200, "served by step 1")
    writer.close()


async def test_what_does_not_end_within_the_grace_is_cut_off(tmp_path: Path) -> None:
    async with serve(tmp_path) as world:
        world.server._graceful_seconds = 0
        world.engine.may_answer.clear()
        reader, writer = await world.ask_raw({"text": "hi"})
        await world.until(lambda: world.engine.running == 1)
        world.server.stop()
        await asyncio.wait_for(reader.read(), PATIENCE)
        await world.until(lambda: world.engine.running == 0)
        writer.close()


async def test_an_idle_connection_is_closed_after_its_time(tmp_path: Path) -> None:
    async with serve(tmp_path, limits=Limits(keep_alive_seconds=1)) as world:
        reader, writer = await world.raw()
        writer.write(LIVEZ)
        assert (await answer_on(reader))[0] == 200
        assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
        writer.close()
