"""One page of text on a port and threads of its own: seen while the daemon's loop is stuck."""

import logging
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET, AF_INET6, socket
from socketserver import TCPServer
from urllib.parse import urlsplit

log = logging.getLogger("hotreload.metrics")

SCRAPE_TIMEOUT = 10.0
"""How long a scraper may take to ask, and then to read."""


class Page(ThreadingHTTPServer):
    """Serves what `render` returns at /metrics until closed."""

    daemon_threads = True
    block_on_close = False  # a scraper that never reads must not delay our end

    def __init__(
        self, address: str, render: Callable[[], bytes], patience: float = SCRAPE_TIMEOUT
    ) -> None:
        parts = urlsplit(f"//{address}")
        host = parts.hostname or ""
        self.address_family = AF_INET6 if ":" in host else AF_INET
        self.render = render
        self.patience = patience
        super().__init__((host, parts.port or 0), _Scrape)
        self._thread = threading.Thread(
            target=self.serve_forever, args=(0.2,), name="metrics", daemon=True
        )
        self._thread.start()

    # HTTPServer would ask the name service who we are, which can take half a minute.
    server_bind = TCPServer.server_bind

    @property
    def port(self) -> int:
        """The port, also when any was asked for."""
        return int(self.server_address[1])

    def get_request(self) -> tuple[socket, object]:
        """Accept a scraper; out of descriptors, wait a little instead of spinning."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(0.2)
            raise

    def handle_error(self, request: object, client_address: object) -> None:
        """A scraper that went, or never read, is its own affair."""
        level = logging.DEBUG if isinstance(sys.exception(), OSError) else logging.ERROR
        log.log(level, "metrics.scrape_failed", exc_info=True)

    def close(self) -> None:
        """Stop serving."""
        self.shutdown()
        self.server_close()
        self._thread.join()


class _Scrape(BaseHTTPRequestHandler):
    """One connection; ends by itself when the scraper does not read or write."""

    server: Page

    def setup(self) -> None:
        self.request.settimeout(self.server.patience)
        super().setup()

    def do_GET(self) -> None:
        found = urlsplit(self.path).path in {"/metrics", "/"}
        body = self.server.render() if found else b"metrics are at /metrics\n"
        self.send_response(200 if found else 404)
        kind = "text/plain; version=0.0.4; charset=utf-8" if found else "text/plain"
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: scrapes are no news."""
