"""The sockets that carry pickles: nobody else can reach one, whatever the umask is."""

import os
import signal
import stat
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotreload.engine.upstream import ipc_sockets
from hotreload.engine.upstream.ipc_sockets import FOLDER_PREFIX, SocketFolder
from hotreload.errors import ConfigError
from hotreload.facts.names import LONGEST_SOCKET_PATH
from tests.engine import real

NOBODY = 65534
CONNECT = """
import os, socket, sys
if (whom := int(sys.argv[1])) != os.getuid():
    os.setgroups([])
    os.setgid(whom)
    os.setuid(whom)
for path in sys.argv[2:]:
    one = socket.socket(socket.AF_UNIX)
    try:
        one.connect(path)
    except OSError as fault:
        print(fault.strerror)
    else:
        print("connected")
"""


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the temporary files are; a test's own folder may be too long for a socket's path."""
    short = tmp_path_factory.mktemp("t")
    monkeypatch.setattr(tempfile, "tempdir", str(short))
    return short


def connected_by(user: int, paths: list[str]) -> list[str]:
    """What comes of each try to connect to one of these, as this user."""
    command = [sys.executable, "-c", CONNECT, str(user), *paths]
    return subprocess.check_output(command, text=True).splitlines()


def folders_in(place: Path) -> list[Path]:
    return list(place.glob(f"{FOLDER_PREFIX}*"))


@pytest.mark.real_engine
@pytest.mark.usefixtures("open_umask")
async def test_another_user_reaches_no_socket_of_the_engine_though_the_umask_is_0(
    tmp_path: Path,
) -> None:
    folder = real.Folders(tmp_path).folder(1)
    async with real.engine_of(folder, tmp_path / "spool") as engine:
        addresses = vars(engine._parts.engine.port_args).values()
        paths = [each.removeprefix("ipc://") for each in addresses if "ipc://" in str(each)]
        ours = engine._parts.sockets.path
        opened = [path for path in paths if stat.S_ISSOCK(Path(path).stat().st_mode)]
        assert len(opened) >= 3
        assert {Path(path).parent for path in paths} == {ours}
        assert stat.S_IMODE(ours.stat().st_mode) == 0o700
        assert set(connected_by(os.getuid(), opened)) == {"connected"}
        if os.getuid() == 0:
            assert set(connected_by(NOBODY, opened)) == {"Permission denied"}
        await real.ask(engine)
    assert not ours.exists()


@pytest.mark.real_engine
async def test_a_start_that_fails_leaves_no_socket_behind(tmp_path: Path, place: Path) -> None:
    folder = real.Folders(tmp_path).folder(1)
    (folder / "model.safetensors").write_bytes(b"cut short")
    with pytest.raises(ConfigError, match="does not start"):
        async with real.engine_of(folder, tmp_path / "spool", checkpoint=None):
            pass
    assert folders_in(place) == []


@pytest.mark.parametrize("umask", [0, 0o777])
def test_only_we_can_enter_whatever_the_umask_is(place: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        made = SocketFolder()
    finally:
        os.umask(before)
    assert stat.S_IMODE(made.path.stat().st_mode) == 0o700
    made.remove()
    made.remove()
    assert folders_in(place) == []


def test_what_a_killed_process_left_is_cleared_and_what_a_living_one_holds_is_not(
    place: Path,
) -> None:
    make = f"""
import os, signal, tempfile
tempfile.tempdir = {str(place)!r}
from hotreload.engine.upstream.ipc_sockets import SocketFolder
(SocketFolder().path / "tmpsocket").touch()
os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", make], check=False)
    assert killed.returncode == -signal.SIGKILL
    (left,) = folders_in(place)
    living = SocketFolder()
    assert not left.exists()
    another = SocketFolder()
    assert {*folders_in(place)} == {living.path, another.path}
    living.remove()
    another.remove()


def test_a_link_in_the_place_of_a_leftover_is_not_followed(place: Path) -> None:
    target = place / "precious"
    target.mkdir()
    (place / f"{FOLDER_PREFIX}link").symlink_to(target)
    SocketFolder().remove()
    assert target.exists()


def test_a_place_whose_path_is_too_long_for_a_socket_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    made = SocketFolder()
    assert made.path.parent != deep
    assert len(os.fsencode(made.path / "tmpxxxxxxxx")) <= LONGEST_SOCKET_PATH
    made.remove()


def test_where_there_is_no_place_the_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ipc_sockets, "_places", lambda: ["/proc"])
    with pytest.raises(ConfigError, match=r"/proc: .*set TMPDIR to a writable folder"):
        SocketFolder()


def test_a_version_that_puts_a_socket_elsewhere_is_not_started(place: Path) -> None:
    made = SocketFolder()
    inside = types.SimpleNamespace(one=f"ipc://{made.path}/tmpx", pub_sub_addr=None)
    made.check_holds(inside)
    inside.two = f"ipc://{place}/tmpy"
    with pytest.raises(ConfigError, match="run code as us"):
        made.check_holds(inside)
    made.remove()
