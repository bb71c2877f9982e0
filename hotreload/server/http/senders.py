"""The sender of a request: its process, by the kernel, and its web page, by the headers.

Every page that is open in a browser can reach a port of localhost, or one that ssh forwards. Only
the headers distinguish a page from the person at the keyboard: only pages of allowed sites may send
requests through a browser.
"""

import asyncio
import select
import socket
import struct
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from fcntl import ioctl
from http import HTTPStatus
from ipaddress import ip_address
from pathlib import Path
from termios import TIOCOUTQ
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hotreload.errors import BadRequest, show_value
from hotreload.server.http.problems import Refused

SO_PEERGROUPS = 59
"""Linux; Python's socket module does not name it."""

OVERFLOW = Path("/proc/sys/kernel")
"""The folder of the files with the overflow ids, shown for ids that our user namespace lacks."""
USUAL_OVERFLOW_ID = 65534
"""The kernel's default overflow id."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The process that connected, and its user and groups."""

    pid: int
    uid: int
    gid: int
    groups: frozenset[int]
    """The primary group and the supplementary ones."""


def overflow_id(kind: str) -> int:
    """Return the overflow `uid` or `gid`: it stands for all ids that the user namespace lacks."""
    try:
        return int((OVERFLOW / f"overflow{kind}").read_text())
    except (OSError, ValueError):
        return USUAL_OVERFLOW_ID


def peer_of(connection: socket.socket) -> Peer:
    """Return the process that connected to this unix socket."""
    pid, uid, gid = struct.unpack(
        "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    )
    return Peer(pid, uid, gid, frozenset({gid, *_supplementary(connection)}))


def _supplementary(connection: socket.socket) -> tuple[int, ...]:
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, 1024)
    except OSError:  # a kernel before 4.13, or more than 256 groups
        return ()
    return struct.unpack(f"{len(raw) // 4}I", raw)


def peer_of_request(request: Request) -> Peer | None:
    """Return the process that sent the request, as the kernel names it; None over TCP."""
    peer: Peer | None = request.scope.get("extensions", {}).get("peer")
    return peer


def count_unread(transport: asyncio.Transport) -> int:
    """Return how many bytes the kernel keeps that the peer of a TCP connection has not got yet."""
    try:
        found = ioctl(transport.get_extra_info("socket").fileno(), TIOCOUTQ, bytes(4))
    except (OSError, ValueError):  # it is closed
        return 0
    return int.from_bytes(found, sys.byteorder)


class HangUpWatch:
    """Calls `gone` when a client that has closed its sending half closes the other half, too.

    asyncio no longer polls such a connection. On a unix socket the kernel reports the close at
    once; over TCP the next write to the client fails.
    """

    def __init__(self, transport: asyncio.Transport, gone: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._poll = select.epoll(1)
        ended = select.EPOLLHUP | select.EPOLLERR
        self._poll.register(transport.get_extra_info("socket").fileno(), ended)
        self._loop.add_reader(self._poll.fileno(), gone)

    def close(self) -> None:
        """Stop watching."""
        self._loop.remove_reader(self._poll.fileno())
        self._poll.close()


# --- web pages ------------------------------------------------------------------------------------

SITE_METHODS = "GET, HEAD, POST"
READABLE_HEADERS = "X-Hotreload-Generation, X-Hotreload-Fingerprint, X-Request-Id, Retry-After"
"""Response headers that a page may read beside the ones that browsers always allow."""
PREFLIGHT_SECONDS = "600"
"""The time for which a browser may cache the answer to a preflight."""
NOT_FOR_SITES = ("/admin/", "/webhook/")
"""Paths that no web page may request, whatever its site."""


def is_from_a_page(headers: Headers) -> bool:
    """True if a web page sent the request, and not a person typing the address."""
    return "origin" in headers or headers.get("sec-fetch-site", "none") != "none"


def is_own_page(headers: Headers) -> bool:
    """True if a page of this daemon sent the request: a browser lets no other page name this host.

    A browser names the page's origin in each request that changes something.
    """
    host = headers.get("origin", "").partition("://")[2]
    site = headers.get("sec-fetch-site", "same-origin")
    return host == headers.get("host") and site == "same-origin"


def check_same_site(headers: Headers, origins: Collection[str] = ()) -> None:
    """Raise Refused for the page of another site, unless its origin is one of `origins`.

    Such a page could take up places for readers of /events. Another port of this machine is
    another site, too.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if origin in origins:
        return
    is_ours = origin is None or origin.partition("://")[2] == headers.get("host")
    if not (is_ours if site is None else site in ("same-origin", "none")):
        raise Refused(403, "forbidden", "a page of another site may not read /events")


def check_sender(headers: Headers) -> None:
    """Raise BadRequest for a web page's request that is not JSON.

    A browser sends JSON to another site only after a preflight, which `CorsMiddleware` allows for
    the configured sites alone. Other content types it sends without asking.
    """
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if "origin" in headers and kind != "application/json":
        raise BadRequest("a web page must send Content-Type: application/json", code="bad_type")


@dataclass(frozen=True, slots=True)
class HostCheck:
    """Refuses with 421 a browser whose Host header is no name of this server.

    The owner of a domain can point it at this machine (DNS rebinding); to the browser, a page of
    that domain is then of the same site as the server. Other clients are not checked.
    """

    hosts: Collection[str]

    def __call__(self, scope: Scope) -> None:
        """Check the request's Host header."""
        headers = Headers(scope=scope)
        if not _is_browser(headers):
            return
        host = headers.get("host", "")
        name = (urlsplit(f"//{host}").hostname or "") if _is_plain(host) else host
        if not (_is_local(name) or name in {each.lower() for each in self.hosts}):
            words = f"a browser asks for {show_value(host)}; if that is this daemon, add its name"
            raise Refused(421, "wrong_host", f"{words} to [server] hosts")


def _is_browser(headers: Headers) -> bool:
    is_named_so = headers.get("user-agent", "").startswith("Mozilla/")
    return is_named_so or "origin" in headers or "sec-fetch-site" in headers


def _is_plain(host: str) -> bool:
    return host.isprintable() and not set(host) & set("/\\@?#")


def _is_local(name: str) -> bool:
    """True for an IP address, and for a name that cannot be registered as a domain."""
    try:
        ip_address(name)
    except ValueError:
        return "." not in name or name.endswith(".localhost")
    return True


@dataclass(frozen=True, slots=True)
class CorsMiddleware:
    """Sends the CORS headers by which a browser lets pages of these sites use the server.

    It is the outermost middleware, so that a page can also read why its request was refused.
    Requests without one of these origins pass unchanged.
    """

    app: ASGIApp
    origins: Collection[str]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        is_allowed = origin in self.origins and not scope["path"].startswith(NOT_FOR_SITES)
        if origin is None or not is_allowed:
            await self.app(scope, receive, send)
        elif scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            await _answer_preflight(headers)(scope, receive, _send_with_cors(origin, send))
        else:
            await self.app(scope, receive, _send_with_cors(origin, send))


def _send_with_cors(origin: str, send: Send) -> Send:
    async def send_named(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers["Access-Control-Allow-Origin"] = origin
            headers["Access-Control-Expose-Headers"] = READABLE_HEADERS
            headers.add_vary_header("Origin")
        await send(message)

    return send_named


def _answer_preflight(asked: Headers) -> Response:
    """Answer a preflight: any request header is allowed, since the site is trusted."""
    answer = Response(status_code=HTTPStatus.NO_CONTENT)
    answer.headers["Access-Control-Allow-Methods"] = SITE_METHODS
    answer.headers["Access-Control-Max-Age"] = PREFLIGHT_SECONDS
    given = asked.get("access-control-request-headers", "").split(",")
    names = [name for name in map(str.strip, given) if name.isascii()]
    if names := [name for name in names if name.replace("-", "").isalnum()]:
        answer.headers["Access-Control-Allow-Headers"] = ", ".join(names)
    if asked.get("access-control-request-private-network") == "true":
        answer.headers["Access-Control-Allow-Private-Network"] = "true"
    return answer
