"""The name of the socket is removed while we serve: it is made anew, or told why it cannot be."""

import asyncio
import os
import shutil
import socket
import stat
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from hotreload.events import Event, SocketBoundAnew, TroubleNews
from hotreload.server.http import socket_paths
from hotreload.server.http.server_sockets import bind_unix
from hotreload.troubles import SOCKET_GONE
from tests.server.world import World, answer_on, serve
from tests.waiting import Witness

LIVEZ = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")


class Watched(Witness):
    """A server whose socket has a folder of its own, and what happens to its name."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.path = world.path
        world.events.subscribe(self.note)

    def note(self, event: Event) -> None:
        if isinstance(event, SocketBoundAnew | TroubleNews):
            super().note(event)

    async def bound_anew(self) -> None:
        await self.until(lambda: SocketBoundAnew(str(self.path)) in self.happened)
        assert await self.answers()

    async def words(self) -> str:
        """The words of the trouble."""
        await self.until(lambda: bool(self.happened))
        (told,) = self.happened
        assert isinstance(told, TroubleNews)
        assert (told.code, bool(told.todo)) == (SOCKET_GONE, True)
        return told.message or ""

    async def answers(self) -> bool:
        reader, writer = await self.world.raw()
        writer.write(LIVEZ)
        return (await answer_on(reader))[0] == 200


@pytest.fixture
async def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Watched]:
    monkeypatch.setattr(socket_paths, "PATH_CHECK_SECONDS", 0.01)
    async with serve(tmp_path / "run") as world:
        yield Watched(world)


async def test_a_name_that_is_removed_is_bound_anew_with_its_mode_and_nobody_is_cut_off(
    watched: Watched,
) -> None:
    world, before = watched.world, watched.path.stat()
    world.engine.may_answer.clear()
    reader, writer = await world.ask_raw({"text": "hi"})
    await world.until(lambda: world.engine.running == 1)
    watched.path.unlink()
    await watched.bound_anew()
    now = watched.path.stat()
    assert now.st_ino != before.st_ino
    assert (now.st_mode, now.st_gid) == (before.st_mode, before.st_gid)
    world.engine.may_answer.set()
    assert (await answer_on(reader))[0] == 200
    writer.write(LIVEZ)
    assert (await answer_on(reader))[0] == 200


async def test_who_had_connected_and_was_not_accepted_yet_is_answered(watched: Watched) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(watched.path))  # the loop does not turn until the next await
        watched.path.unlink()
        os.rename(_another_socket(watched.path), watched.path)
        watched.world.socket_paths.check_now()
        await watched.bound_anew()
        client.sendall(LIVEZ)
        client.setblocking(False)
        got = await asyncio.get_running_loop().sock_recv(client, 100)
    assert got.startswith(b"HTTP/1.1 200")


def _another_socket(path: Path) -> Path:
    """One that nobody listens on, such as a daemon that was killed leaves behind."""
    beside = path.with_name("beside")
    bind_unix(beside).close()
    return beside


@pytest.mark.parametrize("mode", [0o755, 0o700, 0o2750])
async def test_a_folder_that_is_removed_is_made_as_it_was(watched: Watched, mode: int) -> None:
    folder = watched.path.parent
    folder.chmod(mode)
    watched.world.socket_paths.take([_listener(watched)], ours=True)
    shutil.rmtree(folder)
    await watched.bound_anew()
    assert stat.S_IMODE(folder.stat().st_mode) == mode


def _listener(watched: Watched) -> socket.socket:
    (server,) = watched.world.server.servers
    (listener,) = server.sockets
    return listener


async def test_a_folder_whose_own_folder_is_gone_is_told_until_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_paths, "PATH_CHECK_SECONDS", 0.01)
    above = tmp_path / "above"
    above.mkdir()
    async with serve(above / "run") as world:
        watched = Watched(world)
        above.rename(tmp_path / "elsewhere")
        words = await watched.words()
        assert f"no client can connect: its folder {above / 'run'} is gone" in words
        above.mkdir()
        await watched.bound_anew()
        assert watched.happened[1:] == [
            TroubleNews(SOCKET_GONE, None),
            SocketBoundAnew(str(watched.path)),
        ]
    assert not watched.path.exists()


def a_file(path: Path) -> Callable[[], None]:
    path.write_text("mine")
    return path.unlink


def a_folder(path: Path) -> Callable[[], None]:
    path.mkdir()
    return path.rmdir


def another_daemon(path: Path) -> Callable[[], None]:
    listener = bind_unix(path)

    def leave() -> None:
        listener.close()
        path.unlink()

    return leave


@pytest.mark.parametrize(
    ("put", "words"),
    [
        (a_file, "exists and is no socket; move it away"),
        (a_folder, "exists and is no socket; move it away"),
        (another_daemon, "another hotreload answers on"),
    ],
)
async def test_what_stands_there_now_is_left_alone_and_named_until_it_is_gone(
    watched: Watched, put: Callable[[Path], Callable[[], None]], words: str
) -> None:
    watched.path.unlink()
    take_away = put(watched.path)
    there = watched.path.lstat()
    assert words in await watched.words()
    for _ in range(3):
        watched.world.socket_paths.check_now()
        await asyncio.sleep(0.02)
    assert os.path.samestat(there, watched.path.lstat())
    take_away()
    await watched.bound_anew()


async def test_a_name_that_leads_to_our_socket_by_a_link_is_left_as_it_is(
    watched: Watched,
) -> None:
    moved = watched.path.with_name("moved")
    watched.path.rename(moved)
    watched.path.symlink_to(moved)
    for _ in range(3):
        watched.world.socket_paths.check_now()
        await asyncio.sleep(0.02)
    assert watched.happened == []
    assert await watched.answers()


async def test_it_is_looked_at_once_when_somebody_asks(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_paths, "PATH_CHECK_SECONDS", 3600)
    await asyncio.sleep(0.02)
    watched.path.unlink()
    watched.world.socket_paths.check_now()
    await watched.bound_anew()


async def test_it_may_be_removed_again_and_again_and_nothing_is_left_behind(
    watched: Watched,
) -> None:
    open_ones = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        watched.happened.clear()
        watched.path.unlink()
        await watched.bound_anew()
        watched.world.hang_up()
    await watched.world.until(lambda: len(watched.world.server.servers) == 1)
    await watched.world.until(lambda: len(os.listdir("/proc/self/fd")) <= open_ones)


async def test_leaving_removes_the_one_that_was_bound_anew_and_binds_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_paths, "PATH_CHECK_SECONDS", 0.01)
    async with serve(tmp_path) as world:
        watched = Watched(world)
        watched.path.unlink()
        await watched.bound_anew()
    assert not watched.path.exists()


@needs_root
async def test_the_group_is_that_of_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket_paths, "PATH_CHECK_SECONDS", 0.01)
    async with serve(tmp_path) as world:
        watched = Watched(world)
        os.chown(watched.path, -1, 4242)
        watched.path.chmod(0o620)
        world.socket_paths.take([_listener(watched)], ours=True)
        watched.path.unlink()
        await watched.bound_anew()
        now = watched.path.stat()
        assert (stat.S_IMODE(now.st_mode), now.st_gid) == (0o620, 4242)


async def test_a_socket_of_systemds_is_told_with_the_unit_to_restart(
    watched: Watched, tmp_path: Path
) -> None:
    with bind_unix(tmp_path / "s") as held, bind_unix(tmp_path / "s.look") as looking:
        watched.world.socket_paths.take([held, looking], ours=False)
        (tmp_path / "s.look").unlink()
        words = await watched.words()
        assert words == (
            f"no client can connect: {tmp_path / 's.look'}, which systemd opened, was removed"
        )
        (told,) = watched.happened
        assert isinstance(told, TroubleNews)
        assert "systemctl restart hotreload.socket" in told.todo
        (tmp_path / "s").unlink()
        await watched.until(lambda: len(watched.happened) == 2)
        _, both = watched.happened
        assert isinstance(both, TroubleNews)
        assert f"{tmp_path / 's'}, which systemd opened, was removed" in str(both.message)
        assert not (tmp_path / "s").exists()
        watched.world.socket_paths.take([_listener(watched)], ours=True)
