"""The page before a real daemon on the real engine: a swap, two refusals, a rollback, a restart."""

import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.integration.process import Process
from tests.integration.running import words
from tests.page.chromium import Tab, needs_chromium

pytestmark = pytest.mark.real_engine


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


class Seen:
    """A daemon, and the page somebody looks at it through."""

    def __init__(self, process: Process, tab: Tab, port: int) -> None:
        self.process = process
        self.tab = tab
        self.port = port

    async def pictures(self, name: str) -> None:
        """Light and dark, wide and narrow."""
        for scheme in ("light", "dark"):
            for width in (1180, 360):
                await self.tab.look(width, scheme)
                await self.tab.until(f"innerWidth === {width}")
                await self.tab.shoot(f"{name}-{scheme}-{width}")
        await self.tab.look()

    async def asked(self, prompt: str) -> str:
        await self.tab.ask("document.querySelector('#prompt').value = ''")
        await self.tab.ask("document.querySelector('#prompt').focus()")
        await self.tab.type(prompt)
        await self.tab.press("Enter")
        await self.tab.until("!document.querySelector('#ask-button').disabled")
        return await self.tab.text("#answer")


@pytest_asyncio.fixture(loop_scope="module")
async def seen(tmp_path: Path, tab: Tab) -> AsyncIterator[Seen]:
    """A daemon that is just booting, and the page that waits for it."""
    port = free_port()
    process = Process(tmp_path, f"server.tcp=127.0.0.1:{port}")
    process.drop(1)
    process.start("staged=delay:2")
    try:
        process.until(lambda: process.get("/livez") is not None)
        await tab.look()
        await tab.open(f"http://127.0.0.1:{port}/")
        yield Seen(process, tab, port)
    finally:
        if process.child.poll() is None:
            process.child.kill()
        process.child.wait()
        tab.forgive("ERR_CONNECTION", "ERR_INCOMPLETE_CHUNKED", "ERR_EMPTY", "ERR_SOCKET")


@needs_chromium
async def test_the_page_follows_a_daemon_through_all_that_happens(seen: Seen) -> None:
    tab, process = seen.tab, seen.process
    await tab.until_text("#link", "connected")
    await tab.shoot("booting")
    await tab.until_text("#headline", "Generation 1, step_1, answers")
    assert await seen.asked("Who serves?") == words(1)

    process.drop(2)
    await tab.until_text("#phases [aria-current=step]", "staging")
    await tab.until_text("#attempt", "in progress", "step_2")
    await tab.shoot("reloading")
    await tab.until_text("#headline", "Generation 2, step_2, answers")
    await tab.until_text("#leaves-said", "changed since generation 1")
    assert await seen.asked("Who serves?") == words(2)
    await tab.until_text("#answered-by", "Answered by generation 2 (step_2)")
    await tab.until_text("#facts", "Tokens a second", "First token after", "stream")

    process.drop(3, damage="nan")
    await tab.until_text("#attempt", "step_3", "rejected", "nonfinite")
    process.drop(4, damage="gibberish")
    await tab.until_text("#attempt", "step_4", "rejected", "probe")
    await tab.until_text("#refusals", "step_3 nonfinite: ", "step_4 probe: ")
    assert (await tab.text("#headline")).startswith("Generation 2, step_2, answers; step_4")
    assert await seen.asked("Who serves?") == words(2)

    process.daemon.ask("POST", "/admin/rollback", {})
    await tab.until_text("#headline", "Generation 3, step_1, answers")
    assert await seen.asked("Who serves?") == words(1)
    await tab.until_text("#answered-by", "Answered by generation 3 (step_1)")
    rows = (await tab.text("#history tbody")).split("step_")
    assert len(rows) == 7  # the start, four more, and what the rollback came from
    await seen.pictures("after-a-rollback")

    # A restart: what is shown is marked as old, and is new again without a hand.
    assert process.stop() == 0
    await tab.until_text("#link", "connection lost, trying again")
    assert await tab.text("#state") == "unreachable"
    await tab.shoot("lost")
    process.start()
    await tab.until_text("#link", "connected")
    await tab.until_text("#state", "serving")
    await tab.until_text("#headline", "step_1")
    assert await seen.asked("Who serves?") == words(1)
