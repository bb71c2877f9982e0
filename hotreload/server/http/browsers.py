"""Protects against web pages: only pages of allowed sites may send requests through a browser.

Every page that is open in a browser can reach a port of localhost, or one that ssh forwards. Only
the headers distinguish a page from the person at the keyboard.
"""

from collections.abc import Collection, Iterable
from http import HTTPStatus
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hotreload.errors import BadRequest, show_value
from hotreload.server.http.problems import Refused

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


class HostMiddleware:
    """Answers 421 to a browser whose Host header is no name of this server.

    The owner of a domain can point it at this machine (DNS rebinding); to the browser, a page of
    that domain is then of the same site as the server. Other clients are not checked.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        self._app = app
        self._hosts = {name.lower() for name in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if _is_browser(headers := Headers(scope=scope)):
            self._check(headers.get("host", ""))
        await self._app(scope, receive, send)

    def _check(self, host: str) -> None:
        name = (urlsplit(f"//{host}").hostname or "") if _is_plain(host) else host
        if not (_is_local(name) or name in self._hosts):
            raise Refused(
                421,
                "wrong_host",
                f"a browser asks for {show_value(host)}; if that is this daemon, add its name to "
                "[server] hosts",
            )


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


class CorsMiddleware:
    """Sends the CORS headers by which a browser lets pages of these sites use the server.

    It is the outermost middleware, so that a page can also read why its request was refused.
    Requests without one of these origins pass unchanged.
    """

    def __init__(self, app: ASGIApp, origins: Collection[str]) -> None:
        self._app = app
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        if origin not in self._origins or scope["path"].startswith(NOT_FOR_SITES):
            await self._app(scope, receive, send)
        elif scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            await _answer_preflight(headers)(scope, receive, _send_with_cors(origin, send))
        else:
            await self._app(scope, receive, _send_with_cors(origin, send))


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
    if wanted := _names(asked.get("access-control-request-headers", "").split(",")):
        answer.headers["Access-Control-Allow-Headers"] = wanted
    if asked.get("access-control-request-private-network") == "true":
        answer.headers["Access-Control-Allow-Private-Network"] = "true"
    return answer


def _names(wanted: Iterable[str]) -> str:
    names = (name.strip() for name in wanted)
    return ", ".join(name for name in names if name.replace("-", "").isalnum() and name.isascii())
