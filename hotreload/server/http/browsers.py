"""Keeps pages of other sites from asking through a browser, but those that may.

Behind a port of localhost, or one that ssh forwards, every page that is open in a browser is a
client; nothing but headers tells it from the person at the keyboard.
"""

from collections.abc import Collection, Iterable
from http import HTTPStatus
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hotreload.errors import BadRequest, shown
from hotreload.server.http.problems import Refused

SITE_METHODS = "GET, HEAD, POST"
READABLE_HEADERS = "X-Hotreload-Generation, X-Hotreload-Fingerprint, X-Request-Id, Retry-After"
"""Headers of an answer that a page may read, beside those every page may."""
PREFLIGHT_SECONDS = "600"
"""The time for which a browser may remember what it was told."""
NOT_FOR_SITES = ("/admin/", "/webhook/")
"""Paths that no page may ask, whatever its site."""


def is_from_a_page(headers: Headers) -> bool:
    """True if a browser asks for a page it shows, and not a person for the address itself."""
    return "origin" in headers or headers.get("sec-fetch-site", "none") != "none"


def check_same_site(headers: Headers, origins: Collection[str] = ()) -> None:
    """Refuse what a page of another site has a browser ask for: it could take up a place of ours.

    Another port of this machine is another site too. Those of these origins may ask.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if origin in origins:
        return
    is_ours = origin is None or origin.partition("://")[2] == headers.get("host")
    if not (is_ours if site is None else site in ("same-origin", "none")):
        raise Refused(403, "forbidden", "a page of another site may not listen to events")


def check_sender(headers: Headers) -> None:
    """Refuse what a page of another site can have a browser send without our consent.

    Before JSON of another site is sent, a browser asks whether it may, and is told so of sites
    that are named alone (`NamedSites`).
    """
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if "origin" in headers and kind != "application/json":
        raise BadRequest("a web page must send Content-Type: application/json", code="bad_type")


class KnownHost:
    """Refuses browsers that come by a name which is not ours.

    The owner of a name may let it mean this machine, and then to a browser a page of theirs counts
    as one of ours. Other clients are not asked: they come by the name they were given.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        self._app = app
        self._hosts = {name.lower() for name in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _is_browser(headers := Headers(scope=scope)):
            self._check(headers.get("host", ""))
        await self._app(scope, receive, send)

    def _check(self, host: str) -> None:
        name = (urlsplit(f"//{host}").hostname or "") if _is_plain(host) else host
        if not (_is_local(name) or name in self._hosts):
            raise Refused(
                421,
                "wrong_host",
                f"a browser asks for {shown(host)}; if that is this daemon, add its name to "
                "[server] hosts",
            )


def _is_browser(headers: Headers) -> bool:
    is_named_so = headers.get("user-agent", "").startswith("Mozilla/")
    return is_named_so or "origin" in headers or "sec-fetch-site" in headers


def _is_plain(host: str) -> bool:
    return host.isprintable() and not set(host) & set("/\\@?#")


def _is_local(name: str) -> bool:
    """An address, or a name that nobody can register."""
    try:
        ip_address(name)
    except ValueError:
        return "." not in name or name.endswith(".localhost")
    return True


class NamedSites:
    """Tells browsers which sites may ask here, and read what is answered.

    It stands outside of what refuses: a page must be able to read why it was refused. What others
    than browsers send passes as it is.
    """

    def __init__(self, app: ASGIApp, origins: Collection[str]) -> None:
        self._app = app
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope) if scope["type"] == "http" else Headers()
        origin = headers.get("origin")
        if origin not in self._origins or scope["path"].startswith(NOT_FOR_SITES):
            await self._app(scope, receive, send)
        elif scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            await _allowed(headers)(scope, receive, _naming(origin, send))
        else:
            await self._app(scope, receive, _naming(origin, send))


def _naming(origin: str, send: Send) -> Send:
    async def send_named(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers["Access-Control-Allow-Origin"] = origin
            headers["Access-Control-Expose-Headers"] = READABLE_HEADERS
            headers.add_vary_header("Origin")
        await send(message)

    return send_named


def _allowed(asked: Headers) -> Response:
    """Answer what a browser asks before it sends: any header will do, since the site is trusted."""
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
