"""The keys of clients that come over TCP, for the model and for the admin routes. Clients of the
unix socket need none: the kernel says who they are."""

import hmac
import logging
import time
from collections.abc import Callable, Collection
from hashlib import sha256

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from hotreload.server.http.problems import Refused
from hotreload.server.http.webhook import WEBHOOK_PATH as WEBHOOK

log = logging.getLogger("hotreload.server")

OPEN_PATHS = frozenset({"/livez", "/readyz", "/health", WEBHOOK})
"""Paths that need no key: load balancers have none, and the webhook has a secret of its own."""
FAILURES_TOLD_SECONDS = 60.0
MOST_SENDERS = 8


class ApiKeys:
    """The keys of one file that count now, for one process.

    The engine's process alone reads the file, and tells its workers: two who read would go by two
    states of it while it cannot be read.
    """

    def __init__(self, keys: Collection[str] = ()) -> None:
        self.digests = digests_of(keys)
        """Of each key its digest; no key stays in memory."""

    def hold(self, keys: Collection[str]) -> bool:
        """Let these count and no others; True if other ones did."""
        before, self.digests = self.digests, digests_of(keys)
        if is_other := self.digests != before:
            log.info("api_keys.changed", extra={"keys": len(self.digests)})
        return is_other

    def admit(self, given: str) -> bool:
        """True if this is one of the keys; the time it takes tells nothing of them."""
        digest = sha256(given.encode()).digest()
        matches = [hmac.compare_digest(digest, each) for each in self.digests]  # all, each time
        return any(matches)


def digests_of(keys: Collection[str]) -> list[bytes]:
    """Return digests, which have one length, so that comparing tells nothing of a key's own."""
    return sorted(sha256(key.encode()).digest() for key in keys)


class KeyCheck:
    """Refuses with 401 whoever shows no key of these files."""

    def __init__(self, *files: ApiKeys, kind: str = "API key") -> None:
        self._files = files
        self._kind = kind
        self._failures = Failures()

    def __call__(self, scope: Scope) -> None:
        """Check what the client shows."""
        scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not given.strip():
            words = f"no {self._kind}: send one as Authorization: Bearer KEY"
            raise self._refused(scope, words, "")
        known = [file.admit(given.strip()) for file in self._files]  # all, each time
        if not any(known):
            words = f"this {self._kind} is not known here"
            raise self._refused(scope, words, ', error="invalid_token"')

    def _refused(self, scope: Scope, words: str, more: str) -> Refused:
        self._failures.count(scope)
        asks = {"WWW-Authenticate": f'Bearer realm="hotreload"{more}'}
        return Refused(401, "invalid_api_key", words, headers=asks)


def wanted_keys(keys: ApiKeys | None, admin_keys: ApiKeys | None) -> KeyCheck | None:
    """Check for a key of either file, where there are API keys; None lets in everybody."""
    if keys is None:
        return None
    return KeyCheck(keys, admin_keys) if admin_keys is not None else KeyCheck(keys)


class WantsKey:
    """Answers 401 to clients that come over TCP without a key."""

    def __init__(self, app: ASGIApp, check: KeyCheck) -> None:
        self._app = app
        self._check = check

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not _is_open(scope):
            self._check(scope)
        await self._app(scope, receive, send)


class Failures:
    """Counts requests without a good key, and logs how many there were, once a minute at most."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told_at: float | None = None
        self._untold = 0
        self._senders: set[str] = set()

    def count(self, scope: Scope) -> None:
        """Count one; what it sent is no part of what is logged."""
        self._untold += 1
        if scope.get("client") and len(self._senders) < MOST_SENDERS:
            self._senders.add(str(scope["client"][0]))
        now = self._clock()
        if self._told_at is None or now - self._told_at >= FAILURES_TOLD_SECONDS:
            since = FAILURES_TOLD_SECONDS if self._told_at is None else now - self._told_at
            senders = {"requests": self._untold, "from": sorted(self._senders)}
            log.warning("api_keys.refused", extra={**senders, "within_seconds": round(since)})
            self._told_at, self._untold, self._senders = now, 0, set()


def _is_open(scope: Scope) -> bool:
    has_peer = "peer" in scope.get("extensions", {})  # over TCP nobody can be named
    return has_peer or scope["path"] in OPEN_PATHS
