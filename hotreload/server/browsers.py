"""Keeps pages of other sites from asking through a browser, but those that may.

Behind a port of localhost, or one that ssh forwards, every page that is open in a browser is a
client; nothing but headers tells it from the person at the keyboard.
"""

from collections.abc import Collection
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from hotreload.errors import BadRequest, shown
from hotreload.server.problems import Refused


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
    that are named alone (sites.py).
    """
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if "origin" in headers and kind != "application/json":
        raise BadRequest("a web page must send Content-Type: application/json", code="bad_type")


class KnownHost:
    """Refuses browsers that come by a name which is not ours.

    Whoever owns a name may let it mean this machine, and then a page of theirs counts as one of
    ours to a browser. Other clients are not asked: they come by the name they were given.
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
