"""The ledger on disk: whole or not at all, and never a reason not to serve.

The state folder has the newest ledger, the one before it, and the last number. Cut off anywhere, a
save leaves a whole ledger under one of the two names. No number is given twice though both are
gone, or cannot be written: a number is noted before weights answer by it, in place, for which a
full disk has room.
"""

import asyncio
import errno
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hotreload.core.ledger import Ledger
from hotreload.events import Event, Publish, StateSaved, StopRequested, Warmup
from hotreload.facts.files import flush, rename_in, write_in
from hotreload.json_fields import iso
from hotreload.life.saved.state_json import NewerState, from_json, to_json
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

NEWEST, FORMER, NUMBER = "state.json", "state.former", "number"
NUMBER_BYTES = 16
"""The size of the last number, whatever it is: so a greater one needs no more room."""

LAST_LOST = "what changed last may be forgotten: a pin, a rollback, a refusal"
ALL_LOST = "pins, rollbacks and refusals are forgotten, so the newest checkpoint answers"
LOOK = (
    "see in `hotreload status` and `hotreload ls` that what answers and the pin are what they "
    "should be, then run `hotreload pin` or `hotreload unpin`; a damaged file is kept as "
    "state.*.unreadable"
)
GO_FORWARD = "go forward to that hotreload, or move the file away; until then nothing is remembered"


class StateFile:
    """`state.json` in the state folder; a disk that refuses costs the saved state, not the service.

    A file of an older version is read and rewritten. One of a newer version (after a downgrade of
    hotreload) is refused, and left for the upgrade: until then nothing is saved.
    """

    def __init__(self, directory: Path, publish: Publish = lambda event: None) -> None:
        self.folder = StateFolder(directory)
        self.path = directory / NEWEST
        self._publish = publish
        self._damaged = Trouble(STATE_DAMAGED, publish)
        self._moved = Trouble(STATE_MOVED, publish)
        self._writes = asyncio.Lock()
        self._unsaved: str | None = None
        self._noted = 0
        """The number that was noted last before it was used."""
        self._failed_at = 0.0
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
        self._found = read_newest(self.folder.path)
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
            self._failed_at = time.monotonic()
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
                return f"{self.path.parent / NUMBER} cannot be written: {error}"
            ledger.promised = number
        return None

    def _note(self, number: int) -> None:
        self.folder.follow()
        with self.folder.open_folder() as folder:
            note_number(folder, number)

    def _write(self, data: bytes, number: int) -> None:
        self.folder.follow()
        with self.folder.open_folder() as folder:
            for name in self._unusable:
                keep_aside(folder, name, time.time_ns())
            self._unusable = ()
            write(folder, data, number, unused=self._noted)

    def _check_folder(self) -> bool:
        if time.monotonic() - self._beat_at > SIGN_OF_LIFE_SECONDS:
            self.folder.beat()
            self._beat_at = time.monotonic()
        return self.folder.is_in_place

    async def watch(
        self, ledger: Ledger, pause: float = FOLDER_LOOK_SECONDS, again: float = TRY_AGAIN_SECONDS
    ) -> None:
        """Report what could not be read; then check, for ever, that the folder stays in its place.

        If it was moved or deleted, the ledger is saved wherever it can be. What could not be saved
        is saved `again` seconds later.
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
            is_late = time.monotonic() - self._failed_at >= again
            is_due = self._unsaved is not None and is_late
            if is_due or not is_in_place or self.folder.moved is not None:
                await self.save(ledger)


# --- the files ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Found:
    """The ledger that an earlier run left, and what of it could not be read."""

    ledger: Ledger
    damage: str | None = None
    """Words for what could not be read and what that costs; None if all is well."""
    todo: str = ""
    unusable: tuple[str, ...] = ()
    """Files to keep aside before others are written in their place."""
    is_newer: bool = False
    """True if a later hotreload wrote it, which can still use it: nothing may be written."""


def read_newest(folder: Path) -> Found:
    """Read the newest ledger, else the one before it; changes nothing."""
    given = _number(folder / NUMBER)
    try:
        ledger = from_json((folder / NEWEST).read_bytes())
    except NewerState as newer:
        words = f"{folder / NEWEST} cannot be read, and is left as it is: {newer}; {ALL_LOST}"
        return Found(Ledger(numbers_given=given), words, GO_FORWARD, is_newer=True)
    except (OSError, ValueError) as fault:
        return _without_newest(folder, fault, given)
    if given >= ledger.next_number:
        ledger.numbers_given = given
    elif not given and ledger.under_way is not None:
        # The file of the number is gone, and the attempt that was cut off may have used the next.
        ledger.numbers_given = ledger.next_number
    return Found(ledger, ledger.damage, LOOK if ledger.damage else "")


def _without_newest(folder: Path, fault: Exception, given: int) -> Found:
    newest, former = folder / NEWEST, folder / FORMER
    unusable = [] if isinstance(fault, FileNotFoundError) else [NEWEST]
    try:
        ledger = from_json(former.read_bytes())
        at = iso(former.stat().st_mtime)
    except (OSError, ValueError) as other:
        if not unusable and not given and isinstance(other, FileNotFoundError):
            return Found(Ledger())  # the first run
        if not isinstance(other, FileNotFoundError):
            unusable.append(FORMER)
        ledger = Ledger()
        damage = f"{_describe_fault(newest, fault)}; {_describe_fault(former, other)}: {ALL_LOST}"
    else:
        damage = f"{_describe_fault(newest, fault)}; {former} of {at} was read instead: {LAST_LOST}"
    last = max(given, ledger.next_number - 1)
    # One more may have been live, and have answered, before it could be written.
    ledger.numbers_given = last + 1 if last else 0
    ledger.damage = damage  # told after the next start, too, until somebody has looked
    return Found(ledger, damage, LOOK, tuple(unusable))


def _describe_fault(path: Path, fault: Exception) -> str:
    if isinstance(fault, FileNotFoundError):
        return f"{path} is gone"
    if isinstance(fault, OSError):
        return f"{path} cannot be read: {fault.strerror}"
    return f"{path} is damaged: {str(fault).splitlines()[0]}"


def _number(path: Path, folder: int | None = None) -> int:
    """The last number that was given, as far as it is known; 0 else."""
    with suppress(OSError, ValueError):
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
        try:
            return max(int(os.read(file, NUMBER_BYTES)), 0)
        finally:
            os.close(file)
    return 0


def write(folder: int, data: bytes, number: int, unused: int = 0) -> None:
    """Write a ledger into an open folder, and keep the one before; on the disk when it returns.

    `unused` is a number that was noted and not given: others get it.
    """
    write_in(folder, "state.new", data)
    _keep_newest(folder)
    rename_in(folder, "state.new", NEWEST)
    noted = _number(Path(NUMBER), folder)
    if number > noted or number < noted == unused:
        note_number(folder, number)
    flush(folder)


def note_number(folder: int, number: int) -> None:
    """Note the last number in an open folder, over the one before; on the disk when it returns."""
    how = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
    opened = os.open(NUMBER, how, 0o666, dir_fd=folder)
    try:
        if os.pwrite(opened, b"%015d\n" % number, 0) < NUMBER_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        flush(opened)
    finally:
        os.close(opened)
    flush(folder)


def _keep_newest(folder: int) -> None:
    """Give the newest its second name: so it is whole under one of them all the time."""
    with suppress(FileNotFoundError):
        os.unlink(FORMER, dir_fd=folder)
    try:
        os.link(NEWEST, FORMER, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:  # nothing was written before, or a file system where a file has one name
        with suppress(FileNotFoundError):
            rename_in(folder, NEWEST, FORMER)


def keep_aside(folder: int, name: str, at: int) -> None:
    """Keep a file that cannot be read where a person can look at it."""
    with suppress(FileNotFoundError):
        rename_in(folder, name, f"{name.removesuffix('.json')}.{at}.unreadable")
