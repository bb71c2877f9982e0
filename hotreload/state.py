"""The ledger on disk: whole or not at all, and never a reason not to serve."""

import asyncio
import logging
import os
import time
from pathlib import Path

from hotreload.core.ledger import Ledger, NewerState, from_json, to_json
from hotreload.core.threads import uninterrupted

log = logging.getLogger("hotreload.state")


class StateFile:
    """`state.json` in the state folder; a disk that refuses costs the memory, not the service.

    A file of an older version is understood and written anew. One of a newer version (somebody
    went back to an older hotreload) is refused, and left as it is for when they go forward again:
    until then nothing is remembered.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / "state.json"
        self._writes = asyncio.Lock()
        self._is_complaining = False
        self._is_newer = False

    def read(self) -> Ledger:
        """Return what an earlier run knew; an empty ledger, and a warning, when it is no use."""
        try:
            return from_json(self.path.read_bytes())
        except FileNotFoundError:
            return Ledger()
        except OSError as error:
            log.warning("state.unreadable", extra={"path": str(self.path), "error": str(error)})
        except NewerState as newer:
            self._is_newer = True
            todo = "it is left as it is and nothing is remembered; go forward, or move it away"
            fields = {"path": str(self.path), "error": str(newer), "todo": todo}
            log.error("state.newer", extra=fields)
        except ValueError as error:
            self._set_aside(error)
        return Ledger()

    async def save(self, ledger: Ledger) -> None:
        """Write the ledger, off the event loop; says once when that fails and once when it heals.

        The lock keeps two saves in order: each writes what the ledger is when its turn comes.
        """
        if self._is_newer:
            return
        async with self._writes:
            try:
                data = to_json(ledger)
                await uninterrupted(asyncio.to_thread(write_whole, self.path, data))
            except (OSError, ValueError) as error:
                self._complain(error)
            else:
                self._is_complaining = False

    def _complain(self, error: Exception) -> None:
        if not self._is_complaining:
            fields = {"path": str(self.path), "error": str(error)}
            log.warning("state.not_saved: going on without it", extra=fields)
        self._is_complaining = True

    def _set_aside(self, error: ValueError) -> None:
        """Keep what nobody can read where a person can look."""
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
