"""Orders of operators and trainers: the requester of each, and its outcome."""

import asyncio
import logging
import time
from collections.abc import Coroutine, Mapping
from types import MappingProxyType
from typing import Any

from starlette.requests import Request

from hotreload.attempts import Attempt, By
from hotreload.errors import BadRequest, NotServing
from hotreload.server.http.request_log import client_address, while_connected
from hotreload.server.http.senders import peer_of_request
from hotreload.server.ports import Entrance

log = logging.getLogger("hotreload.server")

PendingAttempt = Coroutine[Any, Any, asyncio.Future[Attempt]]
"""A coroutine that accepts an order, or raises, and returns the future of its attempt."""


def requester(
    verb: str, request: Request, fields: Mapping[str, Any] = MappingProxyType({}), route: str = ""
) -> By:
    """Return the operator behind the request: the kernel's peer, or the address over TCP.

    `fields` are those of the body, which may give a reason.
    """
    reason, peer = fields.get("reason", ""), peer_of_request(request)
    uid, pid = (peer.uid, peer.pid) if peer else (None, None)
    address = "" if peer else client_address(request.scope) or "TCP"
    return By(verb, uid, pid, time.time(), reason, address=address, route=route)


def check_name(name: str) -> None:
    """Raise BadRequest for a name that cannot be one of weights."""
    if not name.strip() or "\0" in name:
        raise BadRequest("model_path and revision must not be empty", code="bad_field")


async def carry_out[T](
    order: Coroutine[Any, Any, T], request: Request, within: float | None = None
) -> T | None:
    """Return the order's result, or None if it is not there within so many seconds.

    The order is carried out even if its client leaves. NotServing if the daemon stops.
    """
    task = asyncio.create_task(order)
    try:
        async with while_connected(request.receive):
            await asyncio.wait({task}, timeout=within)
    finally:
        if not task.done():
            _unwatched.add(task)
            task.add_done_callback(_log_unwatched)
        elif not task.cancelled():
            task.exception()  # handled even if its client has just left
    if task.cancelled():
        raise NotServing("hotreload is stopping", code="stopping")
    return task.result() if task.done() else None


async def await_outcome(pending: PendingAttempt, *, waits: bool = True) -> Attempt | None:
    """Return the attempt once it has ended; None if the client does not wait for that."""
    promise = await pending
    # Shielded: other requests may wait for the same promise.
    return await asyncio.shield(promise) if waits or promise.done() else None


_unwatched: set[asyncio.Task[Any]] = set()
"""Orders whose client has left. The set keeps their tasks alive: the loop does not."""


def _log_unwatched(outcome: asyncio.Task[Any]) -> None:
    """Log an order that raised before any attempt began, since no other record mentions it."""
    _unwatched.discard(outcome)
    if not outcome.cancelled() and (fault := outcome.exception()) is not None:
        log.warning("admin.not_done", extra={"cause": str(fault)})


async def abort[P](entrance: Entrance[P], rid: str | None = None) -> None:
    """Abort the requests with this id, or all requests, in all engines."""
    await asyncio.gather(*(engine.answers.abort_asked(rid) for engine in entrance.engines()))


async def flush_all[P](entrance: Entrance[P]) -> int:
    """Drop cached prefixes that no running request uses, in all engines; return their tokens."""
    return sum(await asyncio.gather(*(engine.switch.flush() for engine in entrance.engines())))
