"""A browser for each module, a tab of it for each test, and a server for it to look at."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.page.chromium import Browser, Tab, chromium
from tests.server.world import World, serve


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Browser]:
    """A browser: it takes longer to start than most tests to look at a page."""
    async with chromium(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest_asyncio.fixture(loop_scope="module")
async def tab(browser: Browser) -> AsyncIterator[Tab]:
    """One tab of a browser; nothing may have gone wrong in it, unless the test forgave it."""
    async with browser.tab() as tab:
        yield tab
        assert tab.faults() == []


@pytest_asyncio.fixture(loop_scope="module")
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A server that has booted, answers with generation 1 and listens on TCP too."""
    async with serve(tmp_path, tcp=True) as world:
        yield world
