"""A receiver of HTTP on loopback, in a thread of its own."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Receiver:
    """What came, and what is answered."""

    port: int = 0
    status: int = 200
    may_answer: threading.Event = field(default_factory=threading.Event)
    """Until then it reads, and does not answer."""
    came: list[tuple[str, Mapping[str, str], bytes]] = field(default_factory=list)
    """Of each request the path, the headers by their names in small letters, and the body."""

    def __post_init__(self) -> None:
        self.may_answer.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @contextmanager
    def listening(self) -> Iterator["Receiver"]:
        """Listen until the block ends: on the port of last time, if there was one."""
        server = ThreadingHTTPServer(("127.0.0.1", self.port), _handler(self))
        server.daemon_threads = True
        self.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


def _handler(receiver: Receiver) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            receiver.came.append((self.path, headers, body))
            receiver.may_answer.wait()
            self.send_response(receiver.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    return Handler
