"""Verbs that wait for a daemon that boots, and what they say meanwhile."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hotreload.client.synchronous import Client
from hotreload.errors import TimedOut
from hotreload.events import PhaseEntered, Progress
from hotreload.facts.names import LOOKING
from hotreload.server.http.server_sockets import bind_unix
from hotreload.types import Phase
from tests.cli.conftest import Command
from tests.server.world import FIRST, World, serve
from tests.waiting import PATIENCE


@pytest.fixture
async def booting(tmp_path: Path) -> AsyncIterator[World]:
    """A server that boots: it is building the engine."""
    async with serve(tmp_path, booted=False) as world:
        world.events.publish(PhaseEntered(FIRST.revision, Phase.BUILDING))
        yield world


async def said_by(process: asyncio.subprocess.Process, words: bytes) -> None:
    """Wait until it has said this on stderr."""
    assert process.stderr is not None
    async with asyncio.timeout(PATIENCE):
        while words not in (line := await process.stderr.readline()):
            assert line, f"it ended, and never said {words!r}"


async def test_status_says_which_step_of_a_start_runs_and_for_how_long(
    booting: World, hotreload: Command
) -> None:
    said = await hotreload("status")
    assert said.code == 0
    row = next(line for line in said.out.splitlines() if line.startswith("boot "))
    assert "building the engine with step-1 (aaaa1111), for " in row
    booting.events.publish(PhaseEntered(FIRST.revision, Phase.WARMING))
    booting.events.publish(Progress(FIRST.revision, Phase.WARMING, 3, 8))
    assert "3 of 8 batches" in (await hotreload("status")).out


@pytest.mark.parametrize("flags", [("--wait",), ("--wait=ready",), ("--timeout", "100")])
async def test_status_waits_until_requests_are_answered(
    booting: World, hotreload: Command, flags: tuple[str, ...]
) -> None:
    process = await hotreload.start("status", *flags, "--json")
    await said_by(process, b"waiting: booting: building the engine with step-1")
    booting.events.publish(PhaseEntered(FIRST.revision, None))
    booting.go_live(FIRST)
    out, _ = await process.communicate()
    assert process.returncode == 0
    assert json.loads(out)["state"] == "serving"


async def test_status_that_waited_in_vain_has_an_exit_code_of_its_own(
    booting: World, hotreload: Command
) -> None:
    said = await hotreload("status", "--wait", "--timeout", "0.3")
    assert (said.code, said.out) == (6, "")
    assert "after 0.3 s it is not ready: booting: building the engine" in said.err


@pytest.mark.parametrize("flags", [("--wait",), ("--timeout", "100")])
async def test_status_does_not_wait_for_a_lost_engine(
    world: World, hotreload: Command, flags: tuple[str, ...]
) -> None:
    world.gate.seal("it died", code="engine_lost")
    said = await asyncio.wait_for(hotreload("status", *flags), PATIENCE)
    assert (said.code, said.out) == (70, "")
    assert "no request is answered: lost: it died; `hotreload explain EngineLost` says" in said.err


async def test_it_waits_for_a_daemon_that_is_not_there_yet(
    tmp_path: Path, hotreload: Command
) -> None:
    process = await hotreload.start("status", "--wait")
    await said_by(process, b"waiting: cannot reach the daemon")
    async with serve(tmp_path):
        assert await asyncio.wait_for(process.wait(), PATIENCE) == 0
    said = await hotreload("status", "--wait", "--timeout", "0.3")
    assert said.code == 3


async def test_generate_waits_until_it_is_answered(booting: World, hotreload: Command) -> None:
    process = await hotreload.start("generate", "hi")
    await said_by(process, b"waiting: booting: building the engine")
    booting.go_live(FIRST)
    out, _ = await process.communicate()
    assert (process.returncode, out) == (0, b"served by step 1\n")


@pytest.mark.parametrize("flags", [("--no-wait",), ("--timeout", "0.3"), ("--no-wait", "--stream")])
async def test_generate_that_is_not_to_wait_says_that_it_is_not_ready(
    booting: World, hotreload: Command, flags: tuple[str, ...]
) -> None:
    said = await hotreload("generate", "hi", *flags)
    assert (said.code, said.out) == (6, "")
    assert booting.engine.requests == []


async def test_where_systemd_holds_the_socket_who_looks_is_answered_on_another(
    tmp_path: Path, hotreload: Command
) -> None:
    """Nobody accepts on the first while it boots, so nobody could be told what it is at."""
    held = tmp_path / "held.sock"
    hotreload.environ["HOTRELOAD_SOCKET"] = str(held)
    with bind_unix(held) as waited_in:
        async with serve(tmp_path, booted=False) as world:
            world.path.rename(held.with_name(held.name + LOOKING))
            said = await hotreload("status")
            assert "boot   " in said.out
            assert (await hotreload("generate", "hi", "--no-wait")).code == 6
        waited_in.setblocking(False)
        with pytest.raises(BlockingIOError):  # nobody waits there
            waited_in.accept()


def test_who_gets_no_answer_is_told_on_which_of_the_sockets(tmp_path: Path) -> None:
    held = tmp_path / "held.sock"
    looks = held.with_name(held.name + LOOKING)
    client = Client(held, named_by="the test")
    with bind_unix(held), bind_unix(looks):
        with pytest.raises(TimedOut, match=f"no answer on {looks} within"):
            client.get("/status", timeout=0.1)
        with pytest.raises(TimedOut, match=f"no answer on {held} within"):
            client.get("/admin/history", timeout=0.1)
