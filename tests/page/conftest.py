"""A browser, and a server for it to look at."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.page.chromium import Tab, chromium
from tests.server.world import World, serving


@pytest.fixture
async def tab(tmp_path: Path) -> AsyncIterator[Tab]:
    """One tab of a browser; nothing may have gone wrong in it, unless the test forgave it."""
    async with chromium(tmp_path / "profile") as tab:
        yield tab
        assert tab.faults() == []


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A server that has booted, answers with generation 1 and listens on TCP too."""
    async with serving(tmp_path, tcp=True) as world:
        yield world
