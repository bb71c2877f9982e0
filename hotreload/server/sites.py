"""Pages of other sites that may ask the model: those that [server] cors_origins names."""

from collections.abc import Collection, Iterable
from http import HTTPStatus

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

METHODS = "GET, HEAD, POST"
SHOWN = "X-Hotreload-Generation, X-Request-Id, Retry-After"
"""Headers of an answer that a page may read, beside those every page may."""
KNOWN_SECONDS = "600"
"""The time for which a browser may remember what it was told."""
NEVER = ("/admin/", "/webhook/")
"""Paths that no page may ask, whatever its site."""


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
        if origin not in self._origins or scope["path"].startswith(NEVER):
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
            headers["Access-Control-Expose-Headers"] = SHOWN
            headers.add_vary_header("Origin")
        await send(message)

    return send_named


def _allowed(asked: Headers) -> Response:
    """Answer what a browser asks before it sends: any header will do, since the site is trusted."""
    answer = Response(status_code=HTTPStatus.NO_CONTENT)
    answer.headers["Access-Control-Allow-Methods"] = METHODS
    answer.headers["Access-Control-Max-Age"] = KNOWN_SECONDS
    if wanted := _names(asked.get("access-control-request-headers", "").split(",")):
        answer.headers["Access-Control-Allow-Headers"] = wanted
    if asked.get("access-control-request-private-network") == "true":
        answer.headers["Access-Control-Allow-Private-Network"] = "true"
    return answer


def _names(wanted: Iterable[str]) -> str:
    names = (name.strip() for name in wanted)
    return ", ".join(name for name in names if name.replace("-", "").isalnum() and name.isascii())
