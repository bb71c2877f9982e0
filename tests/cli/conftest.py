"""The command in processes of its own, and a daemon's server for it to talk to."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.server.world import World, serve
from tests.waiting import PATIENCE

ROOT = Path(__file__).parent.parent.parent

AS_FROM_A_TERMINAL = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from hotreload.cli import main; sys.exit(main())"
)


@dataclass
class Ran:
    """What became of a process."""

    code: int
    out: str
    err: str


class Command:
    """`hotreload`, run as a user runs it."""

    def __init__(self, socket: Path, folder: Path) -> None:
        self.folder = folder
        kept = {name: value for name, value in os.environ.items() if "HOTRELOAD" not in name}
        self.environ = kept | {"PYTHONPATH": str(ROOT), "HOTRELOAD_SOCKET": str(socket)}

    async def start(
        self,
        *args: str,
        stdin: int | None = None,
        stdout: int = asyncio.subprocess.PIPE,
        stderr: int = asyncio.subprocess.PIPE,
    ) -> asyncio.subprocess.Process:
        """Start it, as from a terminal: what runs in a shell's background ignores SIGINT."""
        command = (sys.executable, "-c", AS_FROM_A_TERMINAL, *args)
        return await asyncio.create_subprocess_exec(
            *command,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=self.environ,
            cwd=self.folder,
        )

    async def __call__(self, *args: str) -> Ran:
        """Run it to its end."""
        process = await self.start(*args)
        async with asyncio.timeout(PATIENCE):
            out, err = await process.communicate()
        assert process.returncode is not None
        assert "Traceback" not in err.decode()
        return Ran(process.returncode, out.decode(), err.decode())


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A server that has booted and answers with generation 1."""
    async with serve(tmp_path) as world:
        yield world


@pytest.fixture
def hotreload(tmp_path: Path) -> Command:
    """The command, pointed at the world's socket whether there is a world or not."""
    return Command(tmp_path / "hotreload.sock", tmp_path)
