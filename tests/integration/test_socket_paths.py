"""What goes wrong round the engine while it serves: the socket's name, the settings, the keys."""

import asyncio
import json
import os
import shutil
import signal
import stat
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from hotreload.errors import ConfigError
from hotreload.events import SocketBoundAnew, TroubleNews
from hotreload.server.http.server_sockets import bind_tcp, bind_unix
from hotreload.settings.load import Settings
from hotreload.troubles import SETTINGS_REFUSED, SOCKET_GONE
from tests.integration.running import Running, one_daemon_marks, request_for, words
from tests.integration.streaming import ENGINE, Streaming, words_of_tiny
from tests.observe.test_metrics import value
from tests.waiting import PATIENCE, turn_until

pytestmark = one_daemon_marks()

KEY = "a-key-of-24-characters-1"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    folder = tmp_path_factory.mktemp("daemon")
    keys = folder / "keys"
    keys.write_text(KEY)
    with bind_tcp("127.0.0.1:0") as free:
        tcp = f"127.0.0.1:{free.getsockname()[1]}"
    asked = (f"server.api_keys_file={keys}", f"server.tcp={tcp}", "server.mode='0640'", ENGINE)
    running = Running(folder, f"server.socket={folder / 'run' / 's'}", *asked)
    running.socket = folder / "run" / "s"
    running.read = lambda: running.settings
    running.drop(1)
    async with running.serving():
        yield running
    assert running.exit_code == 0


def over_tcp(running: Running) -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {KEY}"}
    address = f"http://{running.settings.server.tcp}"
    return httpx.AsyncClient(base_url=address, timeout=PATIENCE, headers=headers)


async def troubles_of(running: Running) -> list[dict[str, Any]]:
    """The troubles in the status, which must be those that Prometheus reads."""
    async with over_tcp(running) as client:
        troubles: list[dict[str, Any]] = (await client.get("/status")).json()["troubles"]
    page = running.daemon.metrics.render().decode()  # GET /metrics may show that of a second ago
    codes = [each["code"] for each in troubles]
    for code in (SOCKET_GONE, SETTINGS_REFUSED):
        assert f'hotreload_trouble{{code="{code}"}} {float(code in codes)}' in page
    assert page.count("hotreload_trouble_info{") == len(codes)
    return troubles


def rebinds(running: Running) -> int:
    """How often Prometheus reads that it was."""
    return int(value(running.daemon.metrics, "socket_rebinds_total") or 0)


def rebound(running: Running) -> int:
    """How often it was told that the socket was bound anew."""
    return sum(isinstance(each, SocketBoundAnew) for each in running.happened)


def look_now() -> None:
    os.kill(os.getpid(), signal.SIGHUP)


async def until_told(running: Running, code: str) -> dict[str, Any]:
    """The trouble of this code, once it stands; it is the only one."""
    await running.until(lambda: is_wrong(running, code))
    (trouble,) = await troubles_of(running)
    assert trouble["code"] == code
    return trouble


def is_wrong(running: Running, code: str) -> bool:
    """Whether what was told last of this code is that it stands."""
    events = [each for each in running.happened if isinstance(each, TroubleNews)]
    return next((each.message is not None for each in events[::-1] if each.code == code), False)


async def test_a_socket_that_is_removed_is_bound_anew_and_no_client_notices(
    running: Running,
) -> None:
    before, streaming = running.socket.stat(), Streaming(running, clients=3)
    async with streaming.on():
        await running.until(lambda: running.daemon.entrance.gates[0].inside == 3)
        for removed in range(1, 3):
            running.socket.unlink()
            began = time.monotonic()
            if removed == 2:  # the first is noticed by itself
                look_now()
            await running.until(lambda: rebound(running) == removed)  # noqa: B023 it waits here
            assert time.monotonic() - began < 10
            assert (await running.ask())["text"] == words(1)
    now = running.socket.stat()
    assert (now.st_mode, now.st_gid) == (before.st_mode, before.st_gid)
    assert stat.S_IMODE(now.st_mode) == 0o640
    assert (streaming.failures, streaming.wrong()) == ([], [])
    assert len(streaming.answers) >= 3
    assert (await troubles_of(running), rebinds(running)) == ([], 2)


async def test_a_folder_that_is_removed_is_made_as_it_was(running: Running) -> None:
    folder, count = running.socket.parent, rebound(running)
    mode = folder.stat().st_mode
    shutil.rmtree(folder)
    await running.until(lambda: rebound(running) == count + 1)
    assert folder.stat().st_mode == mode
    assert (await running.ask())["text"] == words(1)


@pytest.mark.parametrize("another", [True, False], ids=["another daemon", "a file"])
async def test_what_took_its_place_is_a_trouble_until_it_is_gone(
    running: Running, another: bool
) -> None:
    count = rebound(running)
    running.socket.unlink()
    if another:
        listener = bind_unix(running.socket)
    else:
        running.socket.write_text("mine")
    look_now()
    trouble = await until_told(running, SOCKET_GONE)
    assert ("another hotreload answers" if another else "is no socket") in trouble["message"]
    assert "tries again" in trouble["todo"]
    if another:
        listener.close()
    else:
        assert running.socket.read_text() == "mine"
        running.socket.unlink()
    await running.until(lambda: rebound(running) == count + 1)
    assert (await running.ask())["text"] == words(1)
    assert (await troubles_of(running), rebinds(running)) == ([], count + 1)


async def test_settings_that_are_refused_are_a_trouble_until_they_are_mended(
    running: Running,
) -> None:
    def broken() -> Settings:
        raise ConfigError("hotreload.toml: line 3: is not TOML")

    mended, running.daemon.live_settings.read = running.daemon.live_settings.read, broken
    look_now()
    trouble = await until_told(running, SETTINGS_REFUSED)
    assert trouble["message"] == "hotreload.toml: line 3: is not TOML"
    assert "SIGHUP" in trouble["todo"]
    running.daemon.live_settings.read = mended
    look_now()
    await running.until(lambda: not is_wrong(running, SETTINGS_REFUSED))
    assert await troubles_of(running) == []


async def test_keys_that_are_emptied_are_a_trouble_and_those_of_before_hold(
    running: Running,
) -> None:
    keys = running.settings.server.api_keys_file
    assert keys is not None
    keys.write_text("")
    look_now()
    trouble = await until_told(running, SETTINGS_REFUSED)  # the key of before asked for it
    assert "api_keys_file" in trouble["message"]
    async with httpx.AsyncClient(base_url=f"http://{running.settings.server.tcp}") as stranger:
        assert (await stranger.get("/status")).status_code == 401
    keys.write_text(KEY)
    look_now()
    await running.until(lambda: not is_wrong(running, SETTINGS_REFUSED))
    assert await troubles_of(running) == []


@pytest.mark.parametrize("over", ["unix", "tcp"])
async def test_who_half_closes_gets_the_whole_stream_and_who_is_gone_ends_it(
    running: Running, over: str
) -> None:
    sampling = {"temperature": 0, "max_new_tokens": 60, "ignore_eos": True}
    body = {**request_for("half"), "sampling_params": sampling, "stream": True}
    reader, writer = await send(running, over, body)
    writer.write_eof()
    text = (await asyncio.wait_for(reader.read(), PATIENCE)).decode()
    assert text.count("data: [DONE]") == 1
    pieces = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    assert pieces[-1]["text"] == words_of_tiny("1", 60)
    writer.close()
    left = count_of(running, 499)
    sampling["max_new_tokens"] = 200  # long enough to be seen inside
    reader, writer = await send(running, over, {**body, "stream": False})
    await turn_until(lambda: running.daemon.entrance.gates[0].inside == 1, pause=0.001)
    writer.close()
    await turn_until(lambda: count_of(running, 499) == left + 1, pause=0.01)
    assert running.daemon.entrance.gates[0].inside == 0


async def send(
    running: Running, over: str, body: dict[str, Any]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if over == "unix":
        reader, writer = await asyncio.open_unix_connection(str(running.socket))
    else:
        host, _, port = str(running.settings.server.tcp).partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
    data = json.dumps(body).encode()
    head = f"Host: x\r\nAuthorization: Bearer {KEY}\r\nContent-Length: {len(data)}\r\n\r\n"
    writer.write(b"POST /generate HTTP/1.1\r\n" + head.encode() + data)
    return reader, writer


def count_of(running: Running, code: int) -> int:
    """How many requests ended so."""
    named = {"route": "/generate", "code": str(code)}
    return int(value(running.daemon.metrics, "requests_total", **named) or 0)
