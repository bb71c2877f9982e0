"""The ledger on disk: whole or not at all, and never a reason not to serve."""

import asyncio
import time
from pathlib import Path

from hotreload.core.ledger import Ledger
from hotreload.events import Event, Publish, StateSaved, StopRequested, Warmup
from hotreload.life.saved import state_files
from hotreload.life.saved.state_files import Found
from hotreload.life.saved.state_json import to_json
from hotreload.life.saved.state_lock import LifeStage, StateFolder
from hotreload.threads import in_thread, run_to_end
from hotreload.troubles import STATE_DAMAGED, STATE_MOVED, Trouble

TRY_AGAIN_SECONDS = 30.0
"""Seconds after a failed save until the next try, if nothing else is saved before."""
FOLDER_LOOK_SECONDS = 3.0
"""Seconds between two looks whether the state folder is where it was."""
SIGN_OF_LIFE_SECONDS = 60.0
"""Seconds between two signs of life in the folder; more often would keep its disk awake."""
MOVE_BACK = (
    "move it back, or stop the other daemon and remove its folder: a restart would read what is "
    "under the old name"
)


class StateFile:
    """`state.json` in the state folder; a disk that refuses costs the saved state, not the service.

    A file of an older version is read and rewritten. One of a newer version (after a downgrade of
    hotreload) is refused, and left for the upgrade: until then nothing is saved.
    """

    def __init__(self, directory: Path, publish: Publish = lambda event: None) -> None:
        self.folder = StateFolder(directory)
        self.path = directory / state_files.NEWEST
        self._publish = publish
        self._damaged = Trouble(STATE_DAMAGED, publish)
        self._moved = Trouble(STATE_MOVED, publish)
        self._writes = asyncio.Lock()
        self._unsaved: str | None = None
        self._noted = 0
        """The number that was noted last before it was used."""
        self._has_failed = asyncio.Event()
        self._beat_at = time.monotonic()
        self._found = Found(Ledger())
        self._unusable: tuple[str, ...] = ()

    def observe(self, event: Event) -> None:
        """Note the stage of this life for the next one."""
        match event:
            case Warmup(is_over=True):
                self.folder.note(LifeStage.SERVING)
            case StopRequested():
                self.folder.note(LifeStage.OVER)

    def read(self) -> Ledger:
        """Return the ledger of an earlier run, as far as it can be read; `watch` reports damage."""
        self._found = state_files.read(self.folder.path)
        self._unusable = self._found.unusable
        return self._found.ledger

    async def save(self, ledger: Ledger) -> str | None:
        """Write the ledger, off the event loop; return why it could not be written, if so.

        The first failure and its end are published. The lock keeps two saves in order: each writes
        the ledger as it is when its turn comes.
        """
        async with self._writes:
            why = await self._write_ledger(ledger)
            before, self._unsaved = self._unsaved, why
        if (why is None) != (before is None):
            self._publish(StateSaved(why))
        if why is not None:
            self._has_failed.set()
        elif ledger.damage is None:
            self._damaged.set(None)
        self._moved.set(self.folder.moved, MOVE_BACK if self.folder.moved else "")
        return why

    async def _write_ledger(self, ledger: Ledger) -> str | None:
        if self._found.is_newer:
            return f"{self.path} is left as it is: a newer hotreload wrote it"
        try:
            data, number = to_json(ledger), max(ledger.next_number - 1, ledger.promised)
            await run_to_end(asyncio.to_thread(self._write, data, number))
        except (OSError, ValueError) as error:
            return f"{self.path} cannot be written: {error}"
        return None

    async def note_next_number(self, ledger: Ledger) -> str | None:
        """Note that the next number is used, off the event loop; return why that failed, if so.

        A life that reads an older ledger than this one does not use it again.
        """
        number = ledger.next_number
        async with self._writes:
            self._noted = number  # first: a cancel comes out of the wait though it is written
            try:
                await run_to_end(asyncio.to_thread(self._note, number))
            except OSError as error:
                return f"{self.path.parent / state_files.NUMBER} cannot be written: {error}"
            ledger.promised = number
        return None

    def _note(self, number: int) -> None:
        self.folder.follow()
        with self.folder.open_folder() as folder:
            state_files.note_number(folder, number)

    def _write(self, data: bytes, number: int) -> None:
        self.folder.follow()
        with self.folder.open_folder() as folder:
            for name in self._unusable:
                state_files.keep_aside(folder, name, time.time_ns())
            self._unusable = ()
            state_files.write(folder, data, number, unused=self._noted)

    async def keep_trying(self, ledger: Ledger, pause: float = TRY_AGAIN_SECONDS) -> None:
        """Save again, for ever, what could not be saved."""
        while True:
            await self._has_failed.wait()
            self._has_failed.clear()
            await asyncio.sleep(pause)
            if self._unsaved is not None:
                await self.save(ledger)

    def _check_folder(self) -> bool:
        if time.monotonic() - self._beat_at > SIGN_OF_LIFE_SECONDS:
            self.folder.beat()
            self._beat_at = time.monotonic()
        return self.folder.is_in_place

    async def watch(self, ledger: Ledger, pause: float = FOLDER_LOOK_SECONDS) -> None:
        """Report what could not be read; then check, for ever, that the folder stays in its place.

        If it was moved or deleted, the ledger is saved wherever it can be.
        """
        self._damaged.set(self._found.damage, self._found.todo)
        while True:
            await asyncio.sleep(pause)
            async with self._writes:
                is_in_place = await in_thread(
                    lambda cancel: self._check_folder(),
                    leave_as="a look at the state folder",
                    is_read=False,
                )
            if not is_in_place or self.folder.moved is not None:
                await self.save(ledger)
