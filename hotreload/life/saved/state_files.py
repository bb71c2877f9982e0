"""The files of the state folder: the newest ledger, the one before it, and the last number.

Cut off anywhere, a save leaves a whole ledger under one of the two names. No number is given twice
though both are gone, or cannot be written: a number is noted before weights answer by it, in place,
for which a full disk has room.
"""

import errno
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hotreload.core.ledger import Ledger
from hotreload.facts.files import flush, rename_in, write_in
from hotreload.json_fields import iso
from hotreload.life.saved.state_json import NewerState, from_json

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


def read(folder: Path) -> Found:
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
