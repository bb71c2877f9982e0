"""Round every request: which generation answered, how long it took, and no exception escapes."""

import asyncio
import logging
import re
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hotreload.errors import HotReloadError
from hotreload.server.http.problems import Refused, problem_of, status_of
from hotreload.server.ports import Metrics
from hotreload.types import Generation

log = logging.getLogger("hotreload.server")
access_log = logging.getLogger("hotreload.access")

GENERATION_HEADER = "X-Hotreload-Generation"
FINGERPRINT_HEADER = "X-Hotreload-Fingerprint"
CLIENT_GONE = 499
"""Requests whose client did not wait for the answer are counted under this code."""
CUT_SHORT = 503
"""Answers that we ended early, for a swap or to leave, are counted under this code."""
REQUEST_ID_HEADER = "X-Request-Id"
_USUAL = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
"""Names that go into logs and back as they were sent; a client that sends another is given one."""
LONGEST_PATH = 200
_ENDED = "hotreload.ended"
_NOTED = "hotreload.noted"


class ClientGone(Exception):
    """The client has hung up, so there is nobody to answer."""


@asynccontextmanager
async def while_connected(receive: Receive) -> AsyncIterator[None]:
    """Cancel what is inside when the client hangs up, and raise ClientGone.

    The body must have been read.
    """
    try:
        async with asyncio.timeout(None) as scope:
            listener = asyncio.create_task(_expire_when_gone(receive, scope))
            try:
                yield
            finally:
                listener.cancel()
    except TimeoutError:
        if scope.expired():
            raise ClientGone from None
        raise


async def _expire_when_gone(receive: Receive, scope: asyncio.Timeout) -> None:
    await client_gone(receive)
    scope.reschedule(asyncio.get_running_loop().time())


async def client_gone(receive: Receive) -> None:
    """Return once the client has hung up."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def hang_up(scope: Scope, receive: Receive) -> None:
    """Drop the connection with all that is still unsent, and wait until that is known."""
    abort = scope.get("extensions", {}).get("hang_up")
    if abort is not None:
        abort()
        await client_gone(receive)


def ended_as(scope: Scope, code: int) -> None:
    """Count this request under another code than the status its answer began with."""
    scope[_ENDED] = code


def note(scope: Scope, **fields: Any) -> None:
    """Have the access log tell these of the answer, too."""
    scope.setdefault(_NOTED, {}).update(fields)


def generation_header(generation: Generation) -> dict[str, str]:
    """Name the generation that made this answer, and its weights."""
    return {
        GENERATION_HEADER: str(generation.number),
        FINGERPRINT_HEADER: generation.fingerprint,
    }


class Exchange:
    """Round all but what pages are told: turns errors into problems, names and counts answers."""

    def __init__(
        self,
        app: ASGIApp,
        live: Callable[[], Generation | None],
        metrics: Metrics,
        write_seconds: float,
        access_log: bool = False,
    ) -> None:
        self._app = app
        self._live = live
        self._metrics = metrics
        self._write_seconds = write_seconds
        self._access_log = access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = _Answer(scope, receive, send, self._live, self._write_seconds)
        began = time.perf_counter()
        try:
            await self._app(scope, receive, answer.send)
        except (ClientGone, ClientDisconnect):
            ended_as(scope, _gone(scope))
        except asyncio.CancelledError:
            ended_as(scope, CUT_SHORT)
            raise
        except Exception as error:
            await self._fail(error, answer, scope, receive)
        finally:
            code, seconds = scope.get(_ENDED, answer.code), time.perf_counter() - began
            self._metrics.request_finished(_route(scope), code, seconds)
            if self._access_log:
                note(scope, generation=answer.generation, request_id=answer.name)
                log_access(scope, code, seconds)

    async def _fail(
        self, error: Exception, answer: "_Answer", scope: Scope, receive: Receive
    ) -> None:
        if not isinstance(error, HotReloadError):
            where = {"path": scope["path"], "request_id": answer.name}
            log.error("request.failed", exc_info=error, extra=where)
            error = Refused(500, "internal", "hotreload failed to answer; its log says why")
        ended_as(scope, status_of(error))
        if answer.is_started:  # an answer cut off must not look like a whole one
            await hang_up(scope, receive)
            return
        try:
            await problem_of(error, scope["path"])(scope, receive, answer.send)
        except ClientGone:
            ended_as(scope, _gone(scope))


class _Answer:
    """The sending half of one exchange."""

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        live: Callable[[], Generation | None],
        write_seconds: float,
    ) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._live = live
        self._write_seconds = write_seconds
        self.name = request_id(scope)
        self.code = CLIENT_GONE
        self.is_started = False
        self.generation: int | None = None
        """The generation that answers, or is live as it is answered; None where there is none."""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.is_started = True
            self.code = message["status"]
            self._add_names(message)
        try:
            async with asyncio.timeout(self._write_seconds):
                await self._send(message)
        except TimeoutError:
            # It reads nothing. It would keep its place among those who ask, and inside the gate
            # hold up every swap; a client that pipelines does not even have to stream for that.
            await hang_up(self._scope, self._receive)
            raise ClientGone from None
        if message["type"] == "http.response.body" and not message.get("more_body"):
            self._expect_reading()

    def _expect_reading(self) -> None:
        """Have the connection hang up unless the client reads what is unsent yet."""
        expect = self._scope.get("extensions", {}).get("expect_reading")
        if expect is not None:
            expect(self._write_seconds)

    def _add_names(self, message: Message) -> None:
        """Name the request, and the generation that answers, unless the route has named it."""
        headers: list[tuple[bytes, bytes]] = message["headers"]
        more = [(REQUEST_ID_HEADER.lower().encode(), self.name.encode())]
        live, name = self._live(), GENERATION_HEADER.lower().encode()
        if live is not None and all(key != name for key, _ in headers):
            more.append((name, str(live.number).encode()))
        message["headers"] = [*headers, *more]
        self.generation = next((int(at) for key, at in message["headers"] if key == name), None)


def _gone(scope: Scope) -> int:
    """The code of a broken exchange: the client hung up, or we did after waiting too long."""
    was_cut_off = scope.get("extensions", {}).get("was_cut_off", bool)
    return CUT_SHORT if was_cut_off() else CLIENT_GONE


def _route(scope: Any) -> str:
    """A label of few values: a path's parameter is its name, what leads nowhere is all the same."""
    if "endpoint" not in scope:
        return "other"
    return str(getattr(scope.get("route"), "path_format", scope["path"]))


def request_id(scope: Scope) -> str:
    """The name that the client gave its request, or a new one."""
    given = Headers(scope=scope).get(REQUEST_ID_HEADER, "")
    return given if _USUAL.fullmatch(given) else uuid.uuid4().hex


def log_access(scope: Scope, code: int, seconds: float) -> None:
    """Write the line: who asked for what, and what came of it; nothing of what was said."""
    peer = scope.get("extensions", {}).get("peer")
    who = {"uid": peer.uid, "pid": peer.pid} if peer else {"from": sender(scope)}
    fields = {"method": scope["method"], "path": scope["path"][:LONGEST_PATH], "code": code}
    more = {**fields, "seconds": round(seconds, 4), **scope.get(_NOTED, {})}
    access_log.info("request.answered", extra={**more, **who})


def sender(scope: Scope) -> str | None:
    """The address and port of who came over TCP."""
    client = scope.get("client")
    return f"{client[0]}:{client[1]}" if client else None
