"""The client for programs: each call, in a thread and in an event loop, by socket and by TCP."""

import asyncio
import re
import socket
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from hotreload.client import AsyncClient, Client
from hotreload.errors import ConfigError, HotReloadError, TimedOut, Unreachable
from hotreload.events import SourceScanned
from hotreload.picture.checkpoints import Situation
from hotreload.server.http.keys import ApiKeys
from hotreload.server_limits import UNNAMED
from tests.server.world import World, attempt, serve
from tests.waiting import PATIENCE

ADMIN = "an-admin-key-of-24-chars"
PAGE = Path(__file__).parents[2] / "docs" / "api.md"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with serve(tmp_path, tcp=True, admin_keys=ApiKeys({ADMIN: UNNAMED})) as world:
        world.control.outcome = attempt()
        yield world


@pytest.fixture(params=["socket", "url"])
def where(world: World, request: pytest.FixtureRequest) -> dict[str, Any]:
    if request.param == "socket":
        return {"where": world.path}
    return {"where": f"http://127.0.0.1:{world.tcp_port}", "key": ADMIN}


async def test_each_order_and_look_of_a_client(world: World, where: dict[str, Any]) -> None:
    client = Client(**where)
    status = await asyncio.to_thread(client.status)
    assert (status["generation"], status["state"]) == (1, "serving")
    answer = await asyncio.to_thread(lambda: client.reload("step-2", timeout=5, reason="try"))
    assert (answer.status, answer.fields["outcome"]) == (200, "live")
    await asyncio.to_thread(lambda: client.reload(Path("/elsewhere/step-3"), force=True))
    await asyncio.to_thread(lambda: client.rollback(7, hold=False))
    await asyncio.to_thread(client.pin)
    await asyncio.to_thread(client.unpin)
    verbs = [(verb, what) for verb, what, _ in world.control.asked]
    assert verbs[:3] == [("reload", "step-2"), ("reload", "/elsewhere/step-3"), ("rollback", 7)]
    assert [verb for verb, _ in verbs[3:]] == ["pin", "unpin"]
    assert world.control.holds == [False]
    assert world.control.by[0].reason == "try"


async def test_the_same_in_an_event_loop(world: World, where: dict[str, Any]) -> None:
    client = AsyncClient(**where)
    assert (await client.status())["generation"] == 1
    assert (await client.reload("step-2")).fields["outcome"] == "live"
    await client.rollback()
    await client.pin(reason="evaluation")
    await client.unpin()
    assert [verb for verb, *_ in world.control.asked] == ["reload", "rollback", "pin", "unpin"]


async def test_events_come_as_they_happen_until_they_are_left(world: World) -> None:
    seen = AsyncClient(world.path).events()
    first = asyncio.ensure_future(anext(seen))
    await world.until(lambda: bool(world.app.state.feeds._feeds))
    world.events.publish(SourceScanned("rescan"))
    async with asyncio.timeout(PATIENCE):
        assert (await first)["event"] == "source.scanned"
    await seen.aclose()
    await world.until(lambda: not world.connections)


async def test_a_call_that_is_cancelled_leaves_no_request(world: World) -> None:
    world.control.outcome = None
    order = asyncio.ensure_future(AsyncClient(world.path).reload("step-2"))
    await world.until(lambda: bool(world.control.asked))
    order.cancel()
    with pytest.raises(asyncio.CancelledError):
        await order
    await world.until(lambda: not world.connections)


def listing(*rows: tuple[int, Situation]) -> dict[str, Any]:
    fields = {"why": "it holds NaN", "code": "nonfinite"}
    return {
        "checkpoints": [
            {"step": step, "name": f"step-{step}", "state": state.value, **fields}
            for step, state in rows
        ]
    }


async def test_it_waits_for_a_step_or_a_newer_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = [listing((2, Situation.TRYING)), listing((3, Situation.LIVE), (2, Situation.OLDER))]

    async def snapshot(most: int) -> dict[str, Any]:
        return listed.pop(0) if len(listed) > 1 else listed[0]

    monkeypatch.setattr(world.view.documents.checkpoints, "snapshot", snapshot)
    monkeypatch.setattr("hotreload.client.synchronous.STEP_LOOK_SECONDS", 0.01)
    client = AsyncClient(world.path)
    async with asyncio.timeout(PATIENCE):
        assert (await client.wait_for(2))["generation"] == 1
        assert (await client.wait_for("step-3"))["state"] == "serving"
    with pytest.raises(TimedOut, match=r"after 0\.02 s 4 is not live"):
        await client.wait_for(4, timeout=0.02)
    listed[:] = [listing((5, Situation.REFUSED), (3, Situation.LIVE))]
    with pytest.raises(HotReloadError, match="step-5 was refused: it holds NaN") as refused:
        await client.wait_for(5)
    assert refused.value.code == "nonfinite"


@pytest.mark.parametrize(
    "url", ["ftp://host", "http://", "https://u:p@host", "http://host/path", "http://host:port"]
)
def test_what_is_no_address_is_refused_with_words(url: str) -> None:
    with pytest.raises(ConfigError, match="is no address: write https://host:port"):
        Client(url)


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("https://u:secret@host", None),
        ("https://:secret@host", None),
        ("http://host", "secret\n"),
        ("http://host", "a secret"),
        ("http://host", ""),
    ],
)
def test_a_bad_key_or_address_is_refused_and_no_secret_is_shown(url: str, key: str | None) -> None:
    with pytest.raises(ConfigError) as refused:
        Client(url, key=key)
    assert "secret" not in str(refused.value)


def test_an_address_that_nobody_has_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free_port = taken.getsockname()[1]
    with pytest.raises(Unreachable, match=r"no process listens there.*\[server\] tcp") as away:
        Client(f"http://127.0.0.1:{free_port}").status()
    assert away.value.may_come


@pytest.mark.parametrize(
    ("text", "words"), [(None, "cannot be read: No such file"), ("# no key\n", "holds no key")]
)
def test_a_bad_key_file_is_refused(tmp_path: Path, text: str | None, words: str) -> None:
    file = tmp_path / "key"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError, match=words):
        Client("http://host", key_file=file)


@pytest.mark.parametrize(
    "line",
    ["{} # ours", "{}#", "trainer {}", "trainer {} requests=8 tokens_per_minute=20000 # ours"],
)
def test_the_first_key_of_the_daemons_file_is_sent(tmp_path: Path, line: str) -> None:
    (tmp_path / "keys").write_text(f"# keys\n\n{line.format(ADMIN)}\nanother {ADMIN[::-1]}\n")
    sent = Client("http://host", key_file=tmp_path / "keys").place.headers["Authorization"]
    assert sent == f"Bearer {ADMIN}{'#' if line == '{}#' else ''}"


async def test_a_call_reads_no_file_in_the_event_loop(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_text(ADMIN)
    client = AsyncClient(f"http://127.0.0.1:{world.tcp_port}", key_file=tmp_path / "key")
    read_by: list[threading.Thread] = []

    def read(file: Path) -> str:
        read_by.append(threading.current_thread())
        return ADMIN

    monkeypatch.setattr("hotreload.client.synchronous.read_key", read)
    await client.pin()
    events = client.events()
    first = asyncio.ensure_future(anext(events))
    await world.until(lambda: bool(world.app.state.feeds._feeds))
    world.events.publish(SourceScanned("rescan"))
    await first
    await events.aclose()
    assert len(read_by) == 2
    assert threading.main_thread() not in read_by


async def test_the_example_of_the_pages_runs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"### From Python\n\n```python\n(.+?)```", PAGE.read_text(), re.DOTALL)

    async def snapshot(most: int) -> dict[str, Any]:
        return listing((20, Situation.LIVE))

    monkeypatch.setattr(world.view.documents.checkpoints, "snapshot", snapshot)
    assert '"/run/hotreload/hotreload.sock"' in code
    code = code.replace("/run/hotreload/hotreload.sock", str(world.path))
    made: dict[str, Any] = {}
    await asyncio.to_thread(exec, code, made)
    assert made["status"]["generation"] == 1
    assert world.control.asked[0][:2] == ("reload", "step_20")
