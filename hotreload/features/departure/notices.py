"""Sources of notices: a file that appears, a command, Google's metadata server."""

import asyncio
import logging
import os
import subprocess
import threading
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from hotreload.errors import NotEnoughMemory, cut
from hotreload.features.departure.departure import Notices
from hotreload.features.departure.metadata import METADATA_KEYS, notices_of_gce
from hotreload.features.departure.settings import DepartureSettings
from hotreload.threads import in_thread

log = logging.getLogger("hotreload.departure")

LOOK_SECONDS = 0.5
RUN_SECONDS = 5.0
"""Seconds between two runs of the command, and the longest that one may take."""
MEND_THE_COMMAND = "mend [departure] run, and restart; it must end within 5 s"


def list_notices(settings: DepartureSettings) -> dict[str, Notices]:
    """Return those that give notices by these settings."""
    found: dict[str, Notices] = {}
    if settings.file is not None:
        found["file"] = partial(notices_of_file, settings.file)
    if settings.run:
        found["command"] = partial(notices_of_command, settings.run)
    if settings.gce:
        found |= {key: partial(notices_of_gce, key, os.environ) for key in METADATA_KEYS}
    return found


async def notices_of_file(file: Path, every: float = LOOK_SECONDS) -> AsyncGenerator[str | None]:
    """Yield a notice as long as the file is there: its first line, or its name."""

    def read(cancel: threading.Event) -> str | None:
        try:
            with open(file, errors="replace", opener=_open_at_once) as lines:
                return cut(lines.readline(1000).strip()) or f"{file} is there"
        except OSError:  # it may be there, and not be read: a folder, or another user's
            return f"{file} is there" if os.path.lexists(file) else None

    while True:
        with suppress(NotEnoughMemory):  # no thread: what was found last stands
            yield await in_thread(read, leave_as=f"a look at {file}", is_read=False)
        await asyncio.sleep(every)


def _open_at_once(path: str, flags: int) -> int:
    """Open a file; of a pipe, do not wait for a writer."""
    return os.open(path, flags | os.O_NONBLOCK)


async def notices_of_command(
    argv: Sequence[str], every: float = RUN_SECONDS
) -> AsyncGenerator[str | None]:
    """Yield a notice as long as the command exits with 0: its last line, or its name."""
    fault = ""

    def note(words: str) -> None:
        nonlocal fault
        if words and words != fault:
            log.warning("departure.no_notices", extra={"why": words, "todo": MEND_THE_COMMAND})
        fault = words

    def run(cancel: threading.Event) -> str | None:
        try:
            done = subprocess.run(
                [*argv],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # the engine's handler takes the ends of our own group
                timeout=RUN_SECONDS,
                check=True,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            note(f"{argv[0]} cannot be run: {error}")
            return None
        except subprocess.CalledProcessError:
            note("")
            return None
        note("")
        lines = done.stdout.decode(errors="replace").strip().splitlines()
        return cut(lines[-1]) if lines else f"{argv[0]} says so"

    while True:
        with suppress(NotEnoughMemory):
            yield await in_thread(run, leave_as=f"a run of {argv[0]}", is_read=False)
        await asyncio.sleep(every)
