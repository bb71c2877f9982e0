"""Posts a notice of how each attempt ended to its receivers, in a thread for each try."""

import asyncio
import json
import logging
import socket
import time
import uuid
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from operator import attrgetter
from urllib.parse import urlsplit

from hotreload import __version__
from hotreload.attempts import START, Attempt
from hotreload.errors import HotReloadError
from hotreload.events import AttemptFinished, Event
from hotreload.features.notify.settings import NotifySettings
from hotreload.features.notify.signature import read_key, sign
from hotreload.json_fields import Fields, iso
from hotreload.picture.report import Family, FeatureReport, counter, gauge, shorten
from hotreload.threads import in_thread
from hotreload.types import Outcome

log = logging.getLogger("hotreload.notify")

MOST_WAITING = 100
"""Beyond that the oldest notice is dropped."""
PAUSES = (1.0, 5.0, 15.0, 60.0, 300.0)
"""Seconds between two tries of one notice; after the last one it has failed."""
TRY_SECONDS = 10.0
LAST_TRY_SECONDS = 2.0
"""The longest try once the daemon ends."""
SEE_THE_RECEIVER = "nothing for requests; mend what `why` names: the next notice is posted anew"
FORWARD = frozenset((START, "reload", "perturb"))
"""Orders that bring new weights; each other order that makes weights live goes back."""


@dataclass(frozen=True, slots=True)
class Notice:
    """The end of one attempt, in each format."""

    id: str
    facts: Fields
    sentence: str

    def body(self, format: str) -> bytes:
        """Return the body of its POST."""
        return json.dumps({"text": self.sentence} if format == "slack" else self.facts).encode()


@dataclass(slots=True)
class QueuedNotice:
    """A notice that its receiver has not taken yet."""

    notice: Notice
    due: float
    """When it is tried, by the monotonic clock."""
    tries: int = 0


@dataclass(eq=False)
class NotifyReport(FeatureReport):
    """Counts the notices of all receivers, and reports the counts."""

    sent: int = 0
    failed: int = 0
    dropped: int = 0
    last_error: tuple[str, str] | None = None
    """The receiver's host, and what was wrong."""

    def families(self) -> Iterator[Family]:
        """Return how many were posted, and the last error."""
        numbers = {"sent": self.sent, "failed": self.failed, "dropped": self.dropped}
        yield counter("notices", "Posts of [[notify]], by what became of each.", numbers, "result")
        last = self.last_error
        errors = {(last[0], shorten(last[1])): 1.0} if last else {("", ""): 0.0}
        words = "The last error of a post of [[notify]]; 0 before one."
        yield gauge("notice_error_info", words, errors, "receiver", "message")


class Receiver:
    """One `[[notify]]`: its queue, and the task that empties it."""

    def __init__(self, settings: NotifySettings, counts: NotifyReport) -> None:
        self.settings = settings
        self._counts = counts
        self._host = urlsplit(settings.url).hostname or ""
        self._waiting = OrderedDict[str, QueuedNotice]()
        """By their ids, the oldest first."""
        self._taken = ""
        """The id of the last one that the receiver took."""
        self._came = asyncio.Event()

    def put(self, notice: Notice) -> None:
        """Have a notice posted; it waits for nothing."""
        if len(self._waiting) >= MOST_WAITING:
            self._waiting.popitem(last=False)
            self._counts.dropped += 1
        self._waiting[notice.id] = QueuedNotice(notice, time.monotonic())
        self._came.set()

    async def run(self) -> None:
        """Post what comes; at the daemon's end try once more what still waits.

        A newer notice is posted while an older one waits for its next try.
        """
        try:
            while True:
                self._came.clear()
                first = min(self._waiting.values(), key=attrgetter("due"), default=None)
                pause = None if first is None else first.due - time.monotonic()
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._came.wait()
                        continue
                assert first is not None, "without one the wait has no end"
                await self._deliver(first)
        finally:
            # A stop waits for the try under way, and cannot have its result.
            if self._waiting.pop(self._taken, None) is not None:
                self._note(None, is_last=True)
            until = time.monotonic() + LAST_TRY_SECONDS
            while self._waiting and (left := until - time.monotonic()) > 0:
                _, each = self._waiting.popitem(last=False)
                self._note(await self._try(each.notice, left), is_last=True)

    async def _deliver(self, queued: QueuedNotice) -> None:
        why, is_last = await self._try(queued.notice, TRY_SECONDS), queued.tries == len(PAUSES)
        self._note(why, is_last=is_last)
        if why is None or is_last:
            self._waiting.pop(queued.notice.id, None)
        else:
            queued.due = time.monotonic() + PAUSES[queued.tries]
            queued.tries += 1

    def _note(self, why: str | None, *, is_last: bool) -> None:
        if why is None:
            self._counts.sent += 1
            return
        self._counts.last_error = (self._host, why)
        if is_last:
            self._counts.failed += 1
            more = {"receiver": self._host, "why": why, "todo": SEE_THE_RECEIVER}
            log.warning("notify.failed", extra=more)

    async def _try(self, notice: Notice, seconds: float) -> str | None:
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

    def _post(self, notice: Notice, seconds: float) -> str | None:
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
        if not 200 <= status < 300:
            return f"it answered {status}"
        self._taken = notice.id
        return None


class EndNotices:
    """Observes attempts; gives a notice to each receiver that wants it."""

    def __init__(self, receivers: Sequence[Receiver], model: str) -> None:
        self._receivers = receivers
        self._model = model
        self._host = socket.gethostname()

    def observe(self, event: Event) -> None:
        """Take in that an attempt has ended."""
        if not (self._receivers and isinstance(event, AttemptFinished)):
            return
        ending = ending_of(event.attempt)
        more = {"id": f"msg_{uuid.uuid4().hex}", "event": ending, "at": iso(time.time())}
        facts = {**event.fields(), **more, "model": self._model, "host": self._host}
        notice = Notice(str(facts["id"]), facts, self._sentence(event.attempt, ending))
        for each in self._receivers:
            if ending in each.settings.on:
                each.put(notice)

    def _sentence(self, attempt: Attempt, ending: str) -> str:
        label = attempt.revision.label or attempt.revision.id
        words = f"{label}: {ending.replace('_', ' ')}"
        if attempt.generation is not None:
            words += f", generation {attempt.generation}"
        if attempt.reason is not None:
            words += f" ({attempt.reason.code}): {attempt.reason.message}"
        sentence = f"hotreload, {self._model} on {self._host}: {words}"
        # Slack reads these three as its markup.
        return sentence.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def ending_of(attempt: Attempt) -> str:
    """Return how an attempt ended, in a word of `[[notify]] on`."""
    is_back = attempt.by is not None and attempt.by.verb not in FORWARD
    if attempt.outcome is Outcome.LIVE and is_back:
        return "rolled_back"
    return attempt.outcome.value
