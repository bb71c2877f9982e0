"""The ledger on disk: whole or not at all, and never a reason not to serve."""

import asyncio
import logging
import os
import time
from pathlib import Path

from hotreload.core.ledger import Ledger
from hotreload.events import Publish, StateSaved
from hotreload.life.state_json import NewerState, from_json, to_json
from hotreload.threads import uninterrupted

log = logging.getLogger("hotreload.state")

TRY_AGAIN_SECONDS = 30.0
"""Seconds after a failed save until the next try, if nothing else is saved before."""


class StateFile:
    """`state.json` in the state folder; a disk that refuses costs the memory, not the service.

    A file of an older version is understood and written anew. One of a newer version (somebody
    went back to an older hotreload) is refused, and left as it is for when they go forward again:
    until then nothing is remembered.
    """

    def __init__(self, directory: Path, publish: Publish = lambda event: None) -> None:
        self.path = directory / "state.json"
        self._publish = publish
        self._writes = asyncio.Lock()
        self._unsaved: str | None = None
        self._has_failed = asyncio.Event()
        self._newer: str | None = None

    def read(self) -> Ledger:
        """Return what an earlier run knew; an empty ledger, and a warning, when it is no use."""
        try:
            return from_json(self.path.read_bytes())
        except FileNotFoundError:
            return Ledger()
        except OSError as error:
            log.warning("state.unreadable", extra={"path": str(self.path), "error": str(error)})
        except NewerState as newer:
            self._newer = f"{self.path} is left as it is: {newer}"
            todo = "it is left as it is and nothing is remembered; go forward, or move it away"
            fields = {"path": str(self.path), "error": str(newer), "todo": todo}
            log.error("state.newer", extra=fields)
        except ValueError as error:
            self._set_aside(error)
        return Ledger()

    async def save(self, ledger: Ledger) -> str | None:
        """Write the ledger, off the event loop; returns why it is not on the disk, if it is not.

        Tells once when that begins and once when it ends. The lock keeps two saves in order: each
        writes what the ledger is when its turn comes.
        """
        async with self._writes:
            why = self._newer or await self._written(ledger)
            before, self._unsaved = self._unsaved, why
        if (why is None) != (before is None):
            self._publish(StateSaved(why))
        if why is not None:
            self._has_failed.set()
        return why

    async def _written(self, ledger: Ledger) -> str | None:
        try:
            data = to_json(ledger)
            await uninterrupted(asyncio.to_thread(write_whole, self.path, data))
        except (OSError, ValueError) as error:
            return f"{self.path} cannot be written: {error}"
        return None

    async def keep_trying(self, ledger: Ledger, pause: float = TRY_AGAIN_SECONDS) -> None:
        """Save again and again what could not be saved, for ever."""
        while True:
            await self._has_failed.wait()
            self._has_failed.clear()
            await asyncio.sleep(pause)
            if self._unsaved is not None:
                await self.save(ledger)

    def _set_aside(self, error: ValueError) -> None:
        """Move an unreadable state file aside, where a person can look at it."""
        aside = self.path.with_suffix(f".{time.time_ns()}.unreadable")
        try:
            self.path.rename(aside)
        except OSError:
            aside = self.path
        first_line = str(error).splitlines()[0]
        log.warning("state.set_aside", extra={"path": str(aside), "error": first_line})


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that a power cut leaves the old one or the new one, never half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    with fresh.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
