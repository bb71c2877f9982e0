"""Posts notices to one receiver, one after the other, in a thread for each try."""

import asyncio
import logging
import time
from collections import deque
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Protocol
from urllib.parse import urlsplit

from hotreload import __version__
from hotreload.errors import HotReloadError
from hotreload.features.notify.report import NoticeCounts
from hotreload.features.notify.settings import NotifySettings
from hotreload.features.notify.signature import read_key, sign
from hotreload.threads import in_thread

log = logging.getLogger("hotreload.notify")

MOST_WAITING = 100
"""Beyond that the oldest notice is dropped."""
PAUSES = (1.0, 5.0, 15.0, 60.0, 300.0)
"""Seconds between two tries of one notice; after the last one it has failed."""
TRY_SECONDS = 10.0
LAST_TRY_SECONDS = 2.0
"""The longest try once the daemon ends."""
SEE_THE_RECEIVER = "nothing for requests; mend what `why` names: the next notice is posted anew"


class Posted(Protocol):
    """A notice, as far as a receiver needs it."""

    @property
    def id(self) -> str:
        """Its id, the same in each try."""

    def body(self, format: str) -> bytes:
        """Return the body of its POST."""


class Receiver:
    """One `[[notify]]`: its queue, and the task that empties it."""

    def __init__(self, settings: NotifySettings, counts: NoticeCounts) -> None:
        self.settings = settings
        self._counts = counts
        self._host = urlsplit(settings.url).hostname or ""
        self._waiting: deque[Posted] = deque()
        self._came = asyncio.Event()

    def put(self, notice: Posted) -> None:
        """Have a notice posted; it waits for nothing."""
        if len(self._waiting) >= MOST_WAITING:
            self._waiting.popleft()
            self._counts.dropped += 1
        self._waiting.append(notice)
        self._came.set()

    async def run(self) -> None:
        """Post what comes; at the daemon's end try once more what still waits."""
        try:
            while True:
                await self._came.wait()
                self._came.clear()
                while self._waiting:
                    notice = self._waiting[0]
                    await self._deliver(notice)
                    if self._waiting and self._waiting[0] is notice:
                        self._waiting.popleft()
        finally:
            until = time.monotonic() + LAST_TRY_SECONDS
            while self._waiting and (left := until - time.monotonic()) > 0:
                self._note(await self._try(self._waiting.popleft(), left), is_last=True)

    async def _deliver(self, notice: Posted) -> None:
        for pause in (*PAUSES, None):
            why = await self._try(notice, TRY_SECONDS)
            self._note(why, is_last=pause is None)
            if why is None or pause is None:
                return
            await asyncio.sleep(pause)

    def _note(self, why: str | None, *, is_last: bool) -> None:
        if why is None:
            self._counts.sent += 1
            return
        self._counts.last_error = (self._host, why)
        if is_last:
            self._counts.failed += 1
            more = {"receiver": self._host, "why": why, "todo": SEE_THE_RECEIVER}
            log.warning("notify.failed", extra=more)

    async def _try(self, notice: Posted, seconds: float) -> str | None:
        """Post it once; return why that failed, if it did."""
        try:
            async with asyncio.timeout(seconds):
                return await in_thread(
                    lambda cancel: self._post(notice, seconds),
                    leave_as=f"a notice to {self._host}",
                    is_read=False,
                )
        except TimeoutError:
            return f"no answer within {seconds:.0f} s"
        except HotReloadError as error:
            return str(error)
        except Exception as error:  # as of a host that is no name: it must not end the daemon
            return f"{type(error).__name__}: {error}"

    def _post(self, notice: Posted, seconds: float) -> str | None:
        settings, body, now = self.settings, notice.body(self.settings.format), int(time.time())
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"hotreload/{__version__}",
            "webhook-id": notice.id,
            "webhook-timestamp": str(now),
        }
        if settings.secret_file is not None:
            headers |= sign(read_key(settings.secret_file), notice.id, now, body)
        parts = urlsplit(settings.url)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        # A port is always given: without one a part of an IPv6 address would be taken for it.
        connection = kind(self._host, parts.port or kind.default_port, timeout=seconds)
        try:
            path = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
            connection.request("POST", path, body, headers)
            status = connection.getresponse().status
        except (OSError, HTTPException) as error:
            return f"{type(error).__name__}: {error}"
        finally:
            connection.close()
        return None if 200 <= status < 300 else f"it answered {status}"
