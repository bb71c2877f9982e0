"""The page of metrics: made once a second at most, and served also while the loop is stuck.

It has a port and threads of its own. Any process of this machine can connect, so all of them
together get a few threads and descriptors.
"""

import errno
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET, AF_INET6, SHUT_RDWR, socket
from socketserver import TCPServer
from typing import Any
from urllib.parse import urlsplit

from hotreload.errors import AddressTaken, ConfigError
from hotreload.facts.holders import who_has

log = logging.getLogger("hotreload.metrics")

SCRAPE_TIMEOUT = 10.0
"""The longest time a scraper may take in all: to ask, and to read."""
MOST_CONNECTIONS = 8
"""The most connections that are served at a time. When all places are taken, a new connection gets
the oldest one's: a scraper is done in milliseconds, and a client that keeps others out is not."""
PAGE_SECONDS = 1.0


@dataclass(eq=False)
class Fresh:
    """Hands out the page that `render` made within the last second, or is making right now."""

    render: Callable[[], bytes]
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        # Not one of the loop's own threads: a swap needs those to save its state.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="metrics page")
        self._lock = threading.Lock()
        self._page: Future[bytes] | None = None
        self._began = 0.0

    def latest(self) -> Future[bytes]:
        """Return the page, for any thread; all callers share the future, so none may cancel it."""
        with self._lock:
            if self._page is None or self._is_stale(self._page):
                self._began = self.clock()
                self._page = self._thread.submit(self.render)
            return self._page

    def _is_stale(self, page: Future[bytes]) -> bool:
        if not page.done():
            return False
        is_old = self.clock() - self._began >= PAGE_SECONDS
        return is_old or page.cancelled() or page.exception() is not None


class Page(ThreadingHTTPServer):
    """Serves what `latest` gives at /metrics until closed; ConfigError when it cannot listen."""

    daemon_threads = True
    block_on_close = False  # a scraper that never reads must not delay our end
    request_queue_size = 128

    def __init__(
        self,
        address: str,
        latest: Callable[[], Future[bytes]],
        patience: float = SCRAPE_TIMEOUT,
    ) -> None:
        self.latest = latest
        self.patience = patience
        self._places = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._lock = threading.Lock()
        self._began: dict[socket, float] = {}
        """The time at which each connection began, the oldest first."""
        try:
            parts = urlsplit(f"//{address}")
            host = parts.hostname or ""
            self.address_family = AF_INET6 if ":" in host else AF_INET
            super().__init__((host, parts.port or 0), _Scrape)
        except (OSError, ValueError) as error:
            words = f"[metrics] address: cannot listen on {address}"
            otherwise = "choose another host:port, or '' to export metrics on the unix socket alone"
            if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
                why = f"{who_has(address)} has it; stop that"
                raise AddressTaken(f"{words}: {why}, or {otherwise}") from error
            raise ConfigError(f"{words}: {error}; {otherwise}") from error
        self._thread = threading.Thread(
            target=self.serve_forever, args=(0.2,), name="metrics", daemon=True
        )
        self._thread.start()

    # HTTPServer would ask the name service who we are, which can take half a minute.
    server_bind = TCPServer.server_bind

    @property
    def port(self) -> int:
        """The port it listens on, even if the address left the choice to the system (port 0)."""
        return int(self.server_address[1])

    def get_request(self) -> tuple[socket, object]:
        """Accept a connection; without a free descriptor, wait a little instead of spinning."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(0.2)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve the connection on a thread, as soon as it has a place."""
        if not self._places.acquire(blocking=False):
            self._hang_up_on(lambda connections: connections[:1])
            self._places.acquire()
        with self._lock:
            self._began[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close the connection and free its place."""
        with self._lock:
            had_place = self._began.pop(request, None) is not None
        super().shutdown_request(request)
        if had_place:
            self._places.release()

    def service_actions(self) -> None:
        """Hang up on connections past their time: a socket's timeout begins again at each byte."""
        over = time.monotonic() - self.patience
        self._hang_up_on(lambda all_: [each for each in all_ if self._began[each] <= over])

    def handle_error(self, request: object, client_address: object) -> None:
        """Log a scrape that failed; a scraper that left or never read is no fault of ours."""
        level = logging.DEBUG if isinstance(sys.exception(), OSError) else logging.ERROR
        log.log(level, "metrics.scrape_failed", exc_info=True)

    def close(self) -> None:
        """Stop serving."""
        self.shutdown()
        self.server_close()
        self._hang_up_on(lambda connections: connections)
        self._thread.join()

    def _hang_up_on(self, chosen: Callable[[list[socket]], list[socket]]) -> None:
        """Shut the chosen connections down; the thread of each wakes and closes it."""
        with self._lock:
            for connection in chosen(list(self._began)):
                with suppress(OSError):  # the scraper has left by itself
                    connection.shutdown(SHUT_RDWR)


class _Scrape(BaseHTTPRequestHandler):
    """One connection."""

    server: Page

    def do_GET(self) -> None:
        found = urlsplit(self.path).path in {"/metrics", "/"}
        body = b"metrics are at /metrics\n"
        if found:
            body = self.server.latest().result(self.server.patience)
        self.send_response(200 if found else 404)
        kind = "text/plain; version=0.0.4; charset=utf-8" if found else "text/plain"
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: scrapes are not news."""


@contextmanager
def page_at(address: str, latest: Callable[[], Future[bytes]]) -> Iterator[str | None]:
    """Serve the page there, if anywhere, as long as this block runs; yield where it is."""
    if not address:
        yield None
        return
    page = Page(address, latest)
    try:
        yield f"{address.rpartition(':')[0]}:{page.port}"
    finally:
        page.close()
