"""API keys and admin keys of clients over TCP, the check of administrators, and the hub's secret.

Clients of the unix socket need no key: the kernel names their process.
"""

import hmac
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from hotreload.json_fields import Fields
from hotreload.server.api_schema.operation import Operation
from hotreload.server.http.problems import Json, Refused, problem_of
from hotreload.server.http.request_log import add_to_access_log, client_address
from hotreload.server.http.senders import (
    Peer,
    is_from_a_page,
    is_own_page,
    overflow_id,
    peer_of_request,
)
from hotreload.server_limits import KeyTerms

log = logging.getLogger("hotreload.server")

WEBHOOK_PATH = "/webhook/huggingface"
OPEN_PATHS = frozenset({"/livez", "/readyz", "/health", "/metrics", WEBHOOK_PATH})
"""Paths that need no key: load balancers and gateways have none, and the webhook has a secret of
its own."""
FAILURE_LOG_SECONDS = 60.0
MOST_SENDERS = 8
PAGE_ORDERS = frozenset({"/admin/rollback", "/admin/pin", "/admin/unpin"})
"""Admin routes for which the status page has buttons."""
_NAME = "hotreload.key"


class ApiKeys:
    """The valid keys of one file, as one process knows them.

    The engine's process alone reads the file and sends the keys to its workers. All processes thus
    accept the same keys, even while the file cannot be read.
    """

    def __init__(self, keys: Mapping[str, KeyTerms]) -> None:
        self.names: dict[bytes, str] = {}
        """The name of each key, by its digest; the keys themselves do not stay in memory."""
        self.terms: dict[str, KeyTerms] = {}
        """The terms of each name, in the engine's process as the file has them now."""
        self._take(keys)

    def replace(self, keys: Mapping[str, KeyTerms]) -> bool:
        """Accept these keys from now on and no others; True if that is a change."""
        before = self.names, self.terms
        self._take(keys)
        if is_other := (self.names, self.terms) != before:
            log.info("api_keys.changed", extra={"keys": len(self.names)})
        return is_other

    def _take(self, keys: Mapping[str, KeyTerms]) -> None:
        # All digests have one length, so comparing them reveals no key's length.
        self.names = {sha256(key.encode()).digest(): terms.name for key, terms in keys.items()}
        self.terms = {terms.name: terms for terms in keys.values() if terms.name}

    def name_of(self, given: str) -> str | None:
        """Return the key's name, None if it is no key; takes the same time for any answer."""
        digest, name = sha256(given.encode()).digest(), None
        for each, of_each in self.names.items():  # no early exit
            if hmac.compare_digest(digest, each):
                name = of_each
        return name


class KeyCheck:
    """Raises Refused with 401 for a request without a valid key of these files."""

    def __init__(self, *files: ApiKeys, kind: str = "API key") -> None:
        self._files = files
        self._kind = kind
        self._failures = FailureLog()

    def __call__(self, scope: Scope) -> None:
        """Check the key in the request's Authorization header."""
        if not (given := _given_key(scope)):
            words = f"no {self._kind}: send one as Authorization: Bearer KEY"
            raise self._refusal(scope, words, "")
        if (name := self._name_of(given)) is None:
            words = f"this {self._kind} is not known here"
            raise self._refusal(scope, words, ', error="invalid_token"')
        scope[_NAME] = name
        if name:
            add_to_access_log(scope, key=name)

    def check_over_tcp(self, scope: Scope) -> None:
        """Check the key of a request over TCP, unless its path needs none."""
        if not _is_open(scope):
            self(scope)

    def knows(self, scope: Scope) -> bool:
        """True if the request has a key of these files; counts nothing."""
        return self._name_of(_given_key(scope)) is not None

    def _name_of(self, given: str) -> str | None:
        names = [file.name_of(given) for file in self._files]  # no early exit
        return next((name for name in names if name is not None), None)

    def _refusal(self, scope: Scope, words: str, more: str) -> Refused:
        self._failures.count(scope)
        asks = {"WWW-Authenticate": f'Bearer realm="hotreload"{more}'}
        return Refused(401, "invalid_api_key", words, headers=asks)


def _given_key(scope: Scope) -> str:
    """Return the key in the request's Authorization header; empty if there is none."""
    scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
    return given.strip() if scheme.lower() == "bearer" else ""


def key_name(scope: Scope) -> str:
    """Return the name of the key that the request came with; empty if there is none."""
    return str(scope.get(_NAME, ""))


def key_check(keys: ApiKeys | None, admin_keys: ApiKeys | None) -> KeyCheck | None:
    """Return the check for a key of either file; None where no API keys are configured."""
    if keys is None:
        return None
    return KeyCheck(keys, admin_keys) if admin_keys is not None else KeyCheck(keys)


@dataclass(frozen=True, slots=True)
class CheckMiddleware:
    """Lets a request through unless one of the checks raises Refused."""

    app: ASGIApp
    checks: Sequence[Callable[[Scope], None]]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        for check in self.checks:
            check(scope)
        await self.app(scope, receive, send)


@dataclass(slots=True)
class FailureLog:
    """Counts requests without a valid key, and logs their number once a minute at most."""

    clock: Callable[[], float] = time.monotonic
    _logged_at: float | None = None
    _unlogged: int = 0
    _senders: set[str] = field(default_factory=set)

    def count(self, scope: Scope) -> None:
        """Count one request; nothing of the key that it sent is logged."""
        self._unlogged += 1
        if scope.get("client") and len(self._senders) < MOST_SENDERS:
            self._senders.add(str(scope["client"][0]))
        now = self.clock()
        if self._logged_at is None or now - self._logged_at >= FAILURE_LOG_SECONDS:
            since = FAILURE_LOG_SECONDS if self._logged_at is None else now - self._logged_at
            senders = {"requests": self._unlogged, "from": sorted(self._senders)}
            log.warning("api_keys.refused", extra={**senders, "within_seconds": round(since)})
            self._logged_at, self._unlogged, self._senders = now, 0, set()


def _is_open(scope: Scope) -> bool:
    path: str = scope["path"]
    has_peer = "peer" in scope.get("extensions", {})  # the kernel names no peer over TCP
    is_page = scope["method"] in ("GET", "HEAD") and (path == "/" or path.startswith("/page/"))
    return has_peer or path in OPEN_PATHS or is_page


@dataclass(frozen=True, slots=True)
class AdminCheck:
    """Lets root, the daemon's user and one group through, and over TCP clients with an admin key.

    The overflow ids never pass, even if the daemon itself has them: they stand for every id that
    the user namespace does not know.
    """

    group: int | None = None
    keys: KeyCheck | None = None
    """None if no admin keys are configured: then no client over TCP passes."""

    async def __call__(self, request: Request) -> None:
        """Raise Refused with 403 or 401 unless the sender may change the live weights."""
        peer = peer_of_request(request)
        if peer is not None and not self._is_admin(peer):
            words = f"uid {peer.uid} may not use this route ([server] admin_group)"
            raise self._refusal(request, words, peer)
        # A page may order what it has buttons for, and must send an admin key for that.
        is_order = request.url.path in PAGE_ORDERS and is_own_page(request.headers)
        if is_from_a_page(request.headers) and not (peer is None and is_order):
            words = "this route does not answer web pages: any site could ask through a browser"
            raise self._refusal(request, words, peer)
        if peer is not None:
            return
        if self.keys is None:
            words = "over TCP this route requires an admin key, and none is configured"
            todo = "set [server] admin_keys_file, or ask on the unix socket ([server] socket)"
            raise self._refusal(request, f"{words}: {todo}", None)
        self.keys(request.scope)

    def opens(self, request: Request) -> bool:
        """True if the request's sender may roll back and pin; Refused with 401 for a false key."""
        peer, scope = peer_of_request(request), request.scope
        if peer is not None:
            return self._is_admin(peer) and not is_from_a_page(request.headers)
        if self.keys is None or not _given_key(scope):
            return False
        if _NAME in scope and not self.keys.knows(scope):  # an API key
            return False
        self.keys(scope)
        return True

    def _is_admin(self, peer: Peer) -> bool:
        users = {0, os.geteuid()} - {overflow_id("uid")}
        groups = {self.group} - {None, overflow_id("gid")}
        return peer.uid in users or bool(groups & peer.groups)

    def _refusal(self, request: Request, words: str, peer: Peer | None) -> Refused:
        tcp = {"tcp": True, "from": client_address(request.scope)}
        sender = {"uid": peer.uid, "gid": peer.gid, "pid": peer.pid} if peer else tcp
        log.warning("admin.refused", extra={"path": request.url.path, **sender})
        return Refused(403, "forbidden", words)


# --- the hub's webhook ----------------------------------------------------------------------------

_SECRET = "X-Webhook-Secret"


@dataclass(frozen=True, slots=True)
class Webhook:
    """The secret that the sender must know, and the function to call."""

    secret: str = field(repr=False)
    wake: Callable[[str], None]


def webhook_route(webhook: Webhook | None) -> Route:
    """Build the route, which makes the source look for a checkpoint; 404 without a secret.

    The body of the call is not trusted and not read.
    """

    @Operation(
        "Look for a new checkpoint now, because the hub has one.",
        Fields,
        (401, 403, 404),
        success=202,
        security=({"WebhookSecret": ()},),
    )
    async def receive_call(request: Request) -> Response:
        refusal = _refusal_of(webhook, request.headers.get(_SECRET))
        if refusal is not None:
            log.info("webhook.refused", extra={"code": refusal.code})
            return problem_of(refusal)
        assert webhook is not None
        webhook.wake("webhook")
        return Json({"ok": True}, 202)

    return Route(WEBHOOK_PATH, receive_call, methods=["POST"])


def _refusal_of(webhook: Webhook | None, given: str | None) -> Refused | None:
    if webhook is None:
        return Refused(404, "no_webhook", "no webhook is configured ([source] webhook)")
    if given is None:
        return Refused(401, "no_secret", f"send the webhook's secret in {_SECRET}")
    if not hmac.compare_digest(given.encode(), webhook.secret.encode()):
        return Refused(403, "wrong_secret", f"{_SECRET} is not the secret of [source] webhook")
    return None
