"""Reads what one life of a daemon tells of itself: every event, and how things are."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from hotreload.client.synchronous import Client
from hotreload.errors import HotReloadError
from tests.histories.asking import Asking
from tests.histories.record import Heard, Life, Record

LOOK_EVERY = 0.5
LOOKS = ("/status", "/history", "/status", "/metrics")


class Watch:
    """The threads that follow one life; they end with it."""

    def __init__(self, asking: Asking, life: Life) -> None:
        self.life = life
        self._asking = asking
        self._record: Record = asking.record
        self._over = threading.Event()
        jobs = (self._hear, self._look)
        self._threads = [threading.Thread(target=job, daemon=True) for job in jobs]

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Follow the life until the block ends, which must be after the life's end."""
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            for thread in self._threads:
                thread.join(10)

    def _hear(self) -> None:
        """Every event from the first moment on: it is asked for until somebody listens."""
        daemon = Client(self._asking.path, named_by="the watch")
        while not self._over.wait(0.02):
            with suppress(HotReloadError, OSError):
                for fields in daemon.events():
                    heard = Heard(self.life.number, time.monotonic(), fields)
                    if fields["event"] != "source.scanned":
                        self._record.heard.append(heard)
                return

    def _look(self) -> None:
        count = 0
        while not self._over.wait(LOOK_EVERY):
            self._asking.ask("GET", LOOKS[count % len(LOOKS)])
            count += 1
