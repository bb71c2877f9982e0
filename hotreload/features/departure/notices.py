"""Sources of notices: a file that appears, a command, Google's metadata server."""

import asyncio
import logging
import os
import subprocess
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from urllib.parse import quote

from hotreload.errors import NotEnoughMemory, cut
from hotreload.features.departure.departure import Notices
from hotreload.threads import in_thread

log = logging.getLogger("hotreload.departure")

LOOK_SECONDS = 0.5
RUN_SECONDS = 5.0
"""Seconds between two runs of the command, and the longest that one may take."""
MEND_THE_COMMAND = "mend [departure] run, and restart; it must end within 5 s"
METADATA_KEYS = ("preempted", "maintenance-event")
MEANS = {
    "TRUE": "Google Cloud preempts it",
    "TERMINATE_ON_HOST_MAINTENANCE": "Google Cloud ends it for maintenance of its host",
}
"""The values that are notices; one that migrates the machine takes nothing away."""
WAIT_SECONDS = 300
"""Seconds after which the server answers though nothing has changed."""
RETRY_SECONDS = 5.0


def list_notices(file: Path | None, run: Sequence[str], *, gce: bool) -> dict[str, Notices]:
    """Return those that give notices by these settings."""
    found: dict[str, Notices] = {}
    if file is not None:
        found["file"] = partial(notices_of_file, file)
    if run:
        found["command"] = partial(notices_of_command, run)
    if gce:
        found |= {key: partial(notices_of_gce, key, os.environ) for key in METADATA_KEYS}
    return found


async def _look_again(
    look: Callable[[], str | None], name: str, every: float
) -> AsyncGenerator[str | None]:
    """Yield what each look finds, in a thread; without one what was found last stands."""
    while True:
        with suppress(NotEnoughMemory):
            yield await in_thread(lambda cancel: look(), leave_as=name, is_read=False)
        await asyncio.sleep(every)


def notices_of_file(file: Path, every: float = LOOK_SECONDS) -> AsyncGenerator[str | None]:
    """Yield a notice as long as the file is there: its first line, or its name."""

    def read() -> str | None:
        try:
            with open(file, errors="replace", opener=_open_at_once) as lines:
                return cut(lines.readline(1000).strip()) or f"{file} is there"
        except FileNotFoundError:  # it may come at this moment: its line is read by the next look
            return f"{file} is there" if file.is_symlink() else None
        except OSError:  # it may be there, and not be read: a folder, or another user's
            return f"{file} is there" if os.path.lexists(file) else None

    return _look_again(read, f"a look at {file}", every)


def _open_at_once(path: str, flags: int) -> int:
    """Open a file; of a pipe, do not wait for a writer."""
    return os.open(path, flags | os.O_NONBLOCK)


def notices_of_command(
    argv: Sequence[str], every: float = RUN_SECONDS
) -> AsyncGenerator[str | None]:
    """Yield a notice as long as the command exits with 0: its last line, or its name."""
    fault = _Fault(MEND_THE_COMMAND)

    def run() -> str | None:
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
            fault.set(f"{argv[0]} cannot be run: {error}")
            return None
        except subprocess.CalledProcessError:
            fault.set("")
            return None
        fault.set("")
        lines = done.stdout.decode(errors="replace").strip().splitlines()
        return cut(lines[-1]) if lines else f"{argv[0]} says so"

    return _look_again(run, f"a run of {argv[0]}", every)


class _Fault:
    """The reason why no notices come: logged once, until it is another."""

    def __init__(self, todo: str) -> None:
        self._todo = todo
        self._why = ""

    def set(self, why: str) -> None:
        """Take in the reason of the last look, empty for none."""
        if why and why != self._why:
            log.warning("departure.no_notices", extra={"why": why, "todo": self._todo})
        self._why = why


async def notices_of_gce(
    key: str, environ: Mapping[str, str], again: float = RETRY_SECONDS
) -> AsyncGenerator[str | None]:
    """Yield what a key of the instance means, each time that it may have changed.

    As Google's own clients do, it asks the server that GCE_METADATA_HOST names.
    """
    host = environ.get("GCE_METADATA_HOST") or "metadata.google.internal"
    fault = _Fault("look at GCE_METADATA_HOST and the network, or unset [departure] gce")
    etag = ""
    while True:
        try:
            async with asyncio.timeout(WAIT_SECONDS + 30):
                last = etag
                value, etag = await _wait_for_change(host, key, last)
        except (OSError, ValueError) as error:  # OSError: TimeoutError is one
            etag = ""
            fault.set(f"{host} does not tell {key}: {error}")
            await asyncio.sleep(again)
            continue
        fault.set("")
        yield MEANS.get(value)
        if etag in ("", last):  # a server that does not wait must not be asked without a pause
            await asyncio.sleep(again)


async def _wait_for_change(host: str, key: str, etag: str) -> tuple[str, str]:
    """Return a value and its etag once it has another than `etag`; ValueError if it is none."""
    name, _, port = host.partition(":")
    how = f"wait_for_change=true&timeout_sec={WAIT_SECONDS}&last_etag={quote(etag or '0')}"
    reader, writer = await asyncio.open_connection(name, int(port or 80))
    try:
        writer.write(
            f"GET /computeMetadata/v1/instance/{key}?{how} HTTP/1.1\r\nHost: {host}\r\n"
            "Metadata-Flavor: Google\r\nConnection: close\r\n\r\n".encode()
        )
        head, _, body = (await reader.read(-1)).decode("latin-1").partition("\r\n\r\n")
    finally:
        writer.close()
    first, *lines = head.split("\r\n")
    fields = {each.partition(":")[0].lower(): each.partition(":")[2].strip() for each in lines}
    if " 200 " not in f"{first} ":
        raise ValueError(f"it answers {first!r}")
    if fields.get("metadata-flavor") != "Google":
        raise ValueError("it is no metadata server of Google's")
    return body.strip(), fields.get("etag", "")
