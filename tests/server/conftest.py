"""A server for every test that asks for one."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.loops import pytest_asyncio_loop_factories
from tests.server.world import World, serving

__all__ = ["pytest_asyncio_loop_factories"]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A server that has booted and answers with generation 1."""
    async with serving(tmp_path) as world:
        yield world
