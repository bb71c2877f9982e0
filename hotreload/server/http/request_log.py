"""The request log: counts each request, names the generation that answered, reports errors.

It also notices a client that hangs up or that stops reading.
"""

import asyncio
import logging
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hotreload.core.way_in.admission import Origin
from hotreload.errors import HotReloadError
from hotreload.server.http.problems import Refused, paths_in, problem_of, status_of
from hotreload.server.ports import Metrics
from hotreload.types import Generation

log = logging.getLogger("hotreload.server")
access_log = logging.getLogger("hotreload.access")

GENERATION_HEADER = "X-Hotreload-Generation"
FINGERPRINT_HEADER = "X-Hotreload-Fingerprint"
CLIENT_GONE = 499
"""The code that counts a request whose client hung up before the answer was complete."""
CUT_SHORT = 503
"""The code that counts an answer which the server ended early, for a swap or a shutdown."""
REQUEST_ID_HEADER = "X-Request-Id"
_PLAIN_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
"""A request id that is logged and sent back unchanged; any other is replaced by a new id."""
TRACE_HEADER = "traceparent"
_TRACE = re.compile(
    "(?!ff)([0-9a-f]{2})-((?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16})-([0-9a-f]{2})(-.*)?"
)
"""A trace context as W3C writes it; only a version after 00 may say more behind its flags."""
_KNOWN_FLAGS = 0b11
LONGEST_PATH = 200
_GENERATION, _REQUEST_ID, _TRACEPARENT = (
    name.lower().encode() for name in (GENERATION_HEADER, REQUEST_ID_HEADER, TRACE_HEADER)
)
_HEADERS = "hotreload.headers"
_CODE = "hotreload.ended"
_LOG_FIELDS = "hotreload.noted"
_ORIGIN = "hotreload.origin"


def header_of(scope: Scope, name: str) -> str | None:
    """Return a header of the request, of repeated ones the first; None if there is none.

    They are indexed at the first call: each request to the model has a dozen of them read.
    """
    if _HEADERS not in scope:
        scope[_HEADERS] = dict(reversed(scope["headers"]))
    value: bytes | None = scope[_HEADERS].get(name.lower().encode())
    return None if value is None else value.decode("latin-1")


class ClientGone(Exception):
    """The client has hung up; its answer is no longer needed."""


@asynccontextmanager
async def while_connected(receive: Receive) -> AsyncIterator[None]:
    """Cancel the block and raise ClientGone when the client hangs up.

    Read the request's body first: the block takes every later message from `receive`.
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
    await wait_for_disconnect(receive)
    scope.reschedule(asyncio.get_running_loop().time())


async def wait_for_disconnect(receive: Receive) -> None:
    """Return once the client has hung up."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def hang_up(scope: Scope, receive: Receive) -> None:
    """Close the connection at once, drop its unsent bytes, and wait for the disconnect."""
    abort = scope.get("extensions", {}).get("hang_up")
    if abort is not None:
        abort()
        await wait_for_disconnect(receive)


def count_as(scope: Scope, code: int) -> None:
    """Count this request under this code in place of the status that was sent."""
    scope[_CODE] = code


def add_to_access_log(scope: Scope, **fields: Any) -> None:
    """Add fields to this request's line of the access log."""
    scope.setdefault(_LOG_FIELDS, {}).update(fields)


def origin_of(scope: Scope) -> Origin:
    """Return the names of a request: as they were given, or made here."""
    if _ORIGIN not in scope:
        scope[_ORIGIN] = Origin(scope["path"], _request_id(scope), trace_context(scope))
    origin: Origin = scope[_ORIGIN]
    return origin


def generation_header(generation: Generation) -> dict[str, str]:
    """Return the headers that name the generation of an answer and its weights."""
    return {
        GENERATION_HEADER: str(generation.number),
        FINGERPRINT_HEADER: generation.fingerprint,
    }


@dataclass(frozen=True, slots=True)
class RequestLogMiddleware:
    """Turns an exception into a problem response, adds headers, counts and logs each request."""

    app: ASGIApp
    live: Callable[[], Generation | None]
    metrics: Metrics
    write_seconds: float
    logs_access: bool = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = _ResponseSender(
            scope, receive, send, self.live, self.write_seconds, origin_of(scope)
        )
        began = time.perf_counter()
        try:
            await self.app(scope, receive, response.send)
        except (ClientGone, ClientDisconnect):
            count_as(scope, _disconnect_code(scope))
        except asyncio.CancelledError:
            count_as(scope, CUT_SHORT)
            raise
        except Exception as error:
            await _fail(error, response)
        finally:
            code, seconds = scope.get(_CODE, response.code), time.perf_counter() - began
            self.metrics.request_finished(_route_label(scope), code, seconds)
            if self.logs_access:
                add_to_access_log(scope, generation=response.generation, **response.names)
                write_access_log(scope, code, seconds)


async def _fail(error: Exception, response: "_ResponseSender") -> None:
    """Answer an error; hang up where the answer has begun, so that it does not look whole."""
    scope, receive = response.scope, response.receive
    if not isinstance(error, HotReloadError):
        more = {"path": scope["path"], **response.names}
        log.error("request.failed", exc_info=error, extra=more)
        error = Refused(500, "internal", "hotreload failed to answer; its log says why")
    count_as(scope, status_of(error))
    if response.is_started:
        await hang_up(scope, receive)
        return
    try:
        await problem_of(error, scope["path"])(scope, receive, response.send)
    except ClientGone:
        count_as(scope, _disconnect_code(scope))


@dataclass(slots=True)
class _ResponseSender:
    """Sends one response; keeps its status and hangs up on a client that does not read."""

    scope: Scope
    receive: Receive
    send_on: Send
    live: Callable[[], Generation | None]
    write_seconds: float
    origin: Origin
    code: int = CLIENT_GONE
    is_started: bool = False
    generation: int | None = None
    """The generation in the response's header; None before any is live."""

    @property
    def names(self) -> dict[str, str]:
        """The names of the request for the log: its id, and its caller's trace if there is one."""
        id, trace = self.origin.id, self.origin.trace
        return {"request_id": id, **({"trace_id": trace.split("-")[1]} if trace else {})}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.is_started = True
            self.code = message["status"]
            self._add_headers(message)
        try:
            async with asyncio.timeout(self.write_seconds):
                await self.send_on(message)
        except TimeoutError:
            # The client reads nothing. Its request would keep its place in the request limit and
            # would hold up every swap. A client that pipelines causes this without a stream, too.
            await hang_up(self.scope, self.receive)
            raise ClientGone from None
        is_over = message["type"] == "http.response.body" and not message.get("more_body")
        watch = self.scope.get("extensions", {}).get("watch_reader") if is_over else None
        if watch is not None:  # hang up later unless the client reads the unsent rest
            watch(self.write_seconds)

    def _add_headers(self, message: Message) -> None:
        """Add the request's names, and the live generation unless the route has named one."""
        headers = [*message["headers"], (_REQUEST_ID, self.origin.id.encode())]
        if self.origin.trace:
            headers.append((_TRACEPARENT, self.origin.trace.encode()))
        named = dict(headers).get(_GENERATION)
        if named is not None:
            self.generation = int(named)
        elif (live := self.live()) is not None:
            self.generation = live.number
            headers.append((_GENERATION, str(live.number).encode()))
        message["headers"] = headers


def _disconnect_code(scope: Scope) -> int:
    """Return the code of a broken connection: 503 if the server cut it off, else 499."""
    was_cut_off = scope.get("extensions", {}).get("was_cut_off", bool)
    return CUT_SHORT if was_cut_off() else CLIENT_GONE


COUNTED_FROM_THE_START = paths_in(
    """
    /generate / /v1/completions /v1/chat/completions /v1/models /livez /readyz /health /gate
    /status /history /checkpoints /leaves /events /metrics /webhook/huggingface
    /admin/reload_weights /admin/rollback /admin/perturb_weights /admin/pin /admin/unpin
    /admin/reload_status /admin/weights_checksum
    """
)
"""Paths whose requests metrics count, and show as 0 before there is one."""
COUNTED_ONCE_ASKED = paths_in(
    """
    /abort_request /detokenize /flush_cache /get_load /get_model_info /get_server_info
    /get_weight_version /get_weights_by_name /get_world_size /health_generate /keys /model_info
    /reset_prefix_cache /server_info /tokenize /update_weight_version /update_weights
    /update_weights_from_disk /v1/detokenize /v1/loads /v1/responses /v1/tokenize /weight_checker
    /weight_info /weight_version /weights_checker
    """
)
"""Paths whose requests metrics count from the first: no alert counts them."""
COUNTED_AS_OTHER = ("/openapi.json", "/page/{name}", "/v1/models/{name}")


def _route_label(scope: Any) -> str:
    """Return the route's pattern as a metric label; "other" where no route matched."""
    if "endpoint" not in scope:
        return "other"
    return str(getattr(scope.get("route"), "path_format", scope["path"]))


def _request_id(scope: Scope) -> str:
    """Return the client's id of the request, or a new one."""
    given = header_of(scope, REQUEST_ID_HEADER) or ""
    return given if _PLAIN_ID.fullmatch(given) else secrets.token_hex(16)


def trace_context(scope: Scope) -> str:
    """Return the trace context of the caller; empty if there is none, several, or a malformed one.

    A later version is written as version 00, of which it has the fields.
    """
    given = header_of(scope, TRACE_HEADER)
    if given is None or [name for name, _ in scope["headers"]].count(_TRACEPARENT) > 1:
        return ""
    found = _TRACE.fullmatch(given)
    if found is None or (found[1] == "00" and found[4]):
        return ""
    return f"00-{found[2]}-{int(found[3], 16) & _KNOWN_FLAGS:02x}"


def write_access_log(scope: Scope, code: int, seconds: float) -> None:
    """Write one line: method, path, code, seconds and client; nothing of the bodies."""
    peer = scope.get("extensions", {}).get("peer")
    sender = {"uid": peer.uid, "pid": peer.pid} if peer else {"from": client_address(scope)}
    fields = {"method": scope["method"], "path": scope["path"][:LONGEST_PATH], "code": code}
    more = {**fields, "seconds": round(seconds, 4), **scope.get(_LOG_FIELDS, {})}
    access_log.info("request.answered", extra={**more, **sender})


def client_address(scope: Scope) -> str | None:
    """Return the address and port of a client over TCP; None for the unix socket."""
    client = scope.get("client")
    return f"{client[0]}:{client[1]}" if client else None
