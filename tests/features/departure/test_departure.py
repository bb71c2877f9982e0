"""A notice that the machine will be taken away: what is asked, staged and answered from then on."""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import httpx
import pytest

from hotreload.errors import NotEnoughMemory
from hotreload.features.departure import notices as giving
from hotreload.features.departure.notices import notices_of_command, notices_of_gce
from tests.server.world import World, serve
from tests.waiting import PATIENCE, turn_until

WITHIN = 0.3


@asynccontextmanager
async def served(folder: Path, within: float) -> AsyncIterator[tuple[World, Path]]:
    """A server that follows a file."""
    notice = folder / "notice"
    sets = (f"departure.file={notice}", f"departure.grace={within}")
    async with serve(folder, sets=sets) as world:
        following = asyncio.create_task(world.features.tasks["departure"]())
        try:
            yield world, notice
        finally:
            following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await following


async def asked(world: World, path: str = "/generate") -> httpx.Response:
    async with world.client() as client:
        if path == "/readyz":
            return await client.get(path)
        return await client.post(path, json={"text": "hi"})


async def test_requests_are_refused_and_readiness_is_off_until_it_is_withdrawn(
    tmp_path: Path,
) -> None:
    async with served(tmp_path, PATIENCE) as (world, notice):
        assert (await asked(world, "/readyz")).status_code == 200
        written = tmp_path / "written"
        written.write_text("the node is drained\n")
        written.rename(notice)  # at once: a look finds it empty else
        await world.until(lambda: world.view.status()["departure"] is not None)
        ready = await asked(world, "/readyz")
        assert (ready.status_code, ready.json()["detail"]) == (503, "leaving: the node is drained")
        refused = await asked(world)
        assert (refused.status_code, refused.json()["code"]) == (503, "leaving")
        assert "this machine will be taken away: the node is drained" in refused.json()["detail"]
        assert refused.headers["retry-after"] == "1"
        notice.unlink()
        await world.until(lambda: world.view.status()["departure"] is None)
        for path in ("/readyz", "/generate"):
            assert (await asked(world, path)).status_code == 200


async def test_a_short_answer_ends_and_a_long_one_ends_with_words_in_time(tmp_path: Path) -> None:
    async with served(tmp_path, WITHIN) as (world, notice):
        world.engine.may_answer.clear()
        asking = asyncio.create_task(asked(world))
        await world.until(lambda: world.engine.running == 1)
        began = time.monotonic()
        notice.touch()
        answer = await asyncio.wait_for(asking, PATIENCE)
        assert time.monotonic() - began >= WITHIN
        assert answer.status_code == 200
        assert answer.json()["meta_info"]["finish_reason"]["type"] == "abort"
        assert world.engine.aborts == 1


class MetadataServer:
    """Google's, as far as these keys go: an answer waits until the value is another."""

    def __init__(self) -> None:
        self.values = {"preempted": "FALSE", "maintenance-event": "NONE"}
        self.asked: list[tuple[str, str, str]] = []
        self.changed = asyncio.Event()
        self.is_google = True
        self.waits = True

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        url = httpx.URL(head.split()[1])
        key = url.path.rpartition("/")[2]
        flavor = "Metadata-Flavor: Google" in head
        self.asked.append((url.path, url.params["last_etag"], url.params["wait_for_change"]))
        while self.waits and url.params["last_etag"] == f"e-{self.values[key]}":
            self.changed.clear()
            await self.changed.wait()
        body = self.values[key] if flavor else "no"
        said = "Metadata-Flavor: Google\r\n" if self.is_google else ""
        status = "200 OK" if flavor else "403 Forbidden"
        writer.write(f"HTTP/1.1 {status}\r\n{said}ETag: e-{body}\r\n\r\n{body}\n".encode())
        await writer.drain()
        writer.close()

    def set(self, key: str, value: str) -> None:
        self.values[key] = value
        self.changed.set()


@asynccontextmanager
async def metadata() -> AsyncIterator[tuple[MetadataServer, dict[str, str]]]:
    made = MetadataServer()
    async with await asyncio.start_server(made.answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        yield made, {"GCE_METADATA_HOST": f"127.0.0.1:{port}"}
        server.close()


async def test_google_tells_of_maintenance_on_one_quiet_connection() -> None:
    async with metadata() as (server, environ), asyncio.timeout(PATIENCE):
        async with aclosing(notices_of_gce("maintenance-event", environ)) as notices:
            assert await anext(notices) is None
            for value in ("MIGRATE_ON_HOST_MAINTENANCE", "TERMINATE_ON_HOST_MAINTENANCE", "NONE"):
                coming = asyncio.ensure_future(anext(notices))
                await asyncio.sleep(0.05)
                assert not coming.done()
                server.set("maintenance-event", value)
                found = await coming
                assert (found is not None) == value.startswith("TERMINATE")
        path = "/computeMetadata/v1/instance/maintenance-event"
        assert [each[0] for each in server.asked] == [path] * 4
        assert [each[1] for each in server.asked[:2]] == ["0", "e-NONE"]


async def test_google_tells_of_a_preemption_and_another_server_is_not_believed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with metadata() as (server, environ), asyncio.timeout(PATIENCE):
        server.is_google = False
        server.values["preempted"] = "TRUE"
        async with aclosing(notices_of_gce("preempted", environ, again=0.01)) as notices:
            coming = asyncio.ensure_future(anext(notices))
            await turn_until(lambda: len(server.asked) > 2)
            assert not coming.done()
            server.is_google = True
            assert await coming == "Google Cloud preempts it"
    (told,) = [each for each in caplog.records if each.msg == "departure.no_notices"]
    assert "no metadata server of Google's" in told.__dict__["why"]


@pytest.mark.parametrize(
    ("script", "notice"),
    [("echo soon; exit 0", "soon"), ("exit 0", "sh says so"), ("echo no; exit 1", None)],
)
async def test_a_command_tells_by_its_exit_code(script: str, notice: str | None) -> None:
    async with aclosing(notices_of_command(["sh", "-c", script])) as notices:
        assert await anext(notices) == notice


async def test_a_command_that_cannot_be_run_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    async with aclosing(notices_of_command(["/no/such/command"], every=0)) as notices:
        assert [await anext(notices) for _ in range(2)] == [None, None]
    (told,) = caplog.records
    assert (told.msg, "/no/such/command" in told.__dict__["why"]) == ("departure.no_notices", True)


async def test_a_look_without_a_thread_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter((NotEnoughMemory("no thread", code="threads"), "soon"))

    async def look(*args: object, **more: object) -> object:
        found = next(looks)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(giving, "in_thread", look)
    async with aclosing(giving.notices_of_file(tmp_path / "notice", every=0)) as notices:
        assert await anext(notices) == "soon"


async def test_a_file_that_cannot_be_read_is_a_notice_and_a_pipe_is_not_waited_for(
    tmp_path: Path,
) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    async with asyncio.timeout(PATIENCE):
        for name in ("folder", "pipe"):
            async with aclosing(giving.notices_of_file(tmp_path / name, every=0)) as notices:
                assert await anext(notices) == f"{tmp_path / name} is there"


async def test_a_file_that_comes_during_a_look_is_read_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notice, opened = tmp_path / "notice", giving._open_at_once

    def open_too_early(path: str, flags: int) -> int:
        monkeypatch.setattr(giving, "_open_at_once", opened)
        notice.write_text("soon\n")
        raise FileNotFoundError

    monkeypatch.setattr(giving, "_open_at_once", open_too_early)
    async with aclosing(giving.notices_of_file(notice, every=0)) as notices:
        assert [await anext(notices) for _ in range(2)] == [None, "soon"]


async def test_a_metadata_server_that_does_not_wait_is_asked_with_pauses() -> None:
    async with metadata() as (server, environ), asyncio.timeout(PATIENCE):
        server.waits = False
        async with aclosing(notices_of_gce("preempted", environ, again=60)) as notices:
            assert [await anext(notices) for _ in range(2)] == [None, None]
            coming = asyncio.ensure_future(anext(notices))
            await asyncio.sleep(0.05)
            assert (coming.done(), len(server.asked)) == (False, 2)
            coming.cancel()
            await asyncio.wait({coming})
