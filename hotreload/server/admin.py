"""The routes that change what is live, and who may use them."""

import asyncio
import logging
import os
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from hotreload.errors import BadRequest, NotServing
from hotreload.server.browsers import is_from_a_page
from hotreload.server.exchange import generation_header, while_connected
from hotreload.server.peers import Peer
from hotreload.server.ports import Control, Engine, Fields, Gate, View
from hotreload.server.problems import RETRY_AFTER, Json, Refused
from hotreload.server.requests import (
    BOOLEAN,
    INTEGER,
    SECONDS,
    STRING,
    Kind,
    is_integer,
    is_number,
    read_fields,
    whole_number,
)
from hotreload.types import Attempt, Generation, Noise, Outcome

log = logging.getLogger("hotreload.server")

WAITING: Mapping[str, Kind] = {"wait": BOOLEAN, "timeout": SECONDS}
RELOAD: Mapping[str, Kind] = {
    "model_path": STRING,
    "revision": STRING,
    "load_format": Kind(
        "'auto' or 'safetensors'",
        lambda value: value in ("auto", "safetensors"),
        {"enum": ["auto", "safetensors"]},
    ),
    "force": BOOLEAN,
    **WAITING,
}
ROLLBACK: Mapping[str, Kind] = {"generation": INTEGER, **WAITING}
PERTURB: Mapping[str, Kind] = {
    "seed": whole_number(0, 2**31 - 1),
    "scale": Kind(
        "a number above 0 and at most 1e6",
        lambda value: is_number(value) and 0 < value <= 1e6,
        {"type": "number", "exclusiveMinimum": 0, "maximum": 1e6},
    ),
    "num_leaves": Kind(
        "a positive integer",
        lambda value: is_integer(value) and value > 0,
        {"type": "integer", "minimum": 1},
    ),
    **WAITING,
}
Asking = Coroutine[Any, Any, asyncio.Future[Attempt]]
"""Finds out whether an ask makes sense; then there is a promise to tell how it ended."""

ACCEPTED_WITHIN = 10.0
"""So long who does not wait for the outcome waits to hear that it makes sense at all."""

RELOAD_STATUS = ("state", "generation", "wanted", "waiting_for", "phase", "last_attempt")
_STATUS = {
    Outcome.LIVE: 200,
    Outcome.REJECTED: 422,
    Outcome.POSTPONED: 503,
    Outcome.SUPERSEDED: 409,
    Outcome.LOST: 503,
}


@dataclass(frozen=True, slots=True)
class Admission:
    """Lets root, our own user and one group through; nobody over TCP."""

    group: int | None = None

    async def __call__(self, request: Request) -> None:
        """Refuse the request with 403, unless its sender may change what is live."""
        peer: Peer | None = request.scope.get("extensions", {}).get("peer")
        if peer is None:
            raise self._refused(request, "admin routes answer on the unix socket alone", None)
        if peer.uid not in (0, os.geteuid()) and self.group not in peer.groups:
            words = f"uid {peer.uid} may not use admin routes ([server] admin_group)"
            raise self._refused(request, words, peer)
        if is_from_a_page(request.headers):
            words = "admin routes do not answer web pages: any site could ask through a browser"
            raise self._refused(request, words, peer)

    def _refused(self, request: Request, words: str, peer: Peer | None) -> Refused:
        who = {"uid": peer.uid, "gid": peer.gid, "pid": peer.pid} if peer else {"tcp": True}
        log.warning("admin.refused", extra={"path": request.url.path, **who})
        return Refused(403, "forbidden", words)


def admin_routes(
    *, gate: Gate, engine: Engine, control: Control, view: View, admission: Admission
) -> APIRouter:
    """Build the routes under /admin."""
    router = APIRouter(prefix="/admin", dependencies=[Depends(admission)])

    @router.post("/reload_weights")
    async def reload_weights(request: Request) -> Response:
        fields = await read_fields(request, RELOAD, may_be_empty=True)
        asking = control.reload(_name(fields), force=fields.get("force", False))
        return await _answer(asking, fields, request, view)

    @router.post("/rollback")
    async def rollback(request: Request) -> Response:
        fields = await read_fields(request, ROLLBACK, may_be_empty=True)
        return await _answer(control.rollback(fields.get("generation")), fields, request, view)

    @router.post("/perturb_weights")
    async def perturb_weights(request: Request) -> Response:
        fields = await read_fields(request, PERTURB, may_be_empty=True)
        noise = Noise(**{name: fields[name] for name in fields if name not in WAITING})
        return await _answer(control.perturb(noise), fields, request, view)

    @router.post("/pin")
    async def pin() -> Response:
        await control.pin()
        return Json({"ok": True, "pinned": True})

    @router.post("/unpin")
    async def unpin() -> Response:
        await control.unpin()
        return Json({"ok": True, "pinned": False})

    @router.get("/reload_status")
    async def reload_status() -> Response:
        status = view.status()
        return Json({name: status.get(name) for name in RELOAD_STATUS})

    @router.get("/weights_checksum")
    async def weights_checksum(leaves: bool = False) -> Response:
        async with gate.passing() as generation:  # no swap while it is computed
            checksums = await engine.checksums()
        content = _compared(checksums, generation)
        if leaves:
            content["leaves"] = checksums
        return Json(content, headers=generation_header(generation))

    return router


def _compared(leaves: Mapping[str, int], generation: Generation) -> Fields:
    """The generation's fingerprint, if its weights are still those that went live."""
    known = generation.leaves
    names = sorted(known.keys() | leaves.keys())
    changed = [name for name in names if leaves.get(name) != known.get(name)] if known else []
    return {
        "fingerprint": None if changed else generation.fingerprint,
        "generation": generation.number,
        "changed": changed,
    }


def _name(fields: Fields) -> str | None:
    if "model_path" in fields and "revision" in fields:
        raise BadRequest("give model_path or revision, not both", code="bad_field")
    name: str | None = fields.get("model_path", fields.get("revision"))
    if name is not None and (not name.strip() or "\0" in name):
        raise BadRequest("model_path and revision must not be empty", code="bad_field")
    return name


async def _answer(asking: Asking, fields: Fields, request: Request, view: View) -> Response:
    """Tell how the attempt ended, or that it goes on; it does, whoever stops listening.

    To find out which revision is meant may take as long as a hub or a disk does.
    """
    waits, within = fields.get("wait", True), fields.get("timeout")
    if not waits:
        within = min(within or ACCEPTED_WITHIN, ACCEPTED_WITHIN)
    outcome = asyncio.create_task(_outcome(asking, waits))
    try:
        async with while_connected(request.receive):
            await asyncio.wait({outcome}, timeout=within)
    finally:
        if not outcome.done():
            _unheard.add(outcome)
            outcome.add_done_callback(_log_unheard)
        elif not outcome.cancelled():
            outcome.exception()  # heard, also when its client has just left
    if not outcome.done() and waits:
        words = f"no outcome after {within:g} s; the attempt goes on, see /status"
        raise Refused(504, "timed_out", words)
    attempt = _ended(outcome) if outcome.done() else None
    if attempt is None:
        return Json({"ok": True, "outcome": None, "accepted": True}, 202)
    return _told(attempt, view)


async def _outcome(asking: Asking, waits: bool) -> Attempt | None:
    """How what is asked for ended; None when nobody waits for that."""
    promise = await asking
    # Shielded: others may wait for the same promise.
    return await asyncio.shield(promise) if waits or promise.done() else None


def _ended(outcome: asyncio.Task[Attempt | None]) -> Attempt | None:
    if outcome.cancelled():
        raise NotServing("hotreload is stopping", code="stopping")
    return outcome.result()


_unheard: set[asyncio.Task[Attempt | None]] = set()
"""Those that go on without anybody to tell; a loop by itself does not keep its tasks."""


def _log_unheard(outcome: asyncio.Task[Attempt | None]) -> None:
    """What comes of an attempt is told by the status; that there is none, by nothing else."""
    _unheard.discard(outcome)
    if not outcome.cancelled() and (fault := outcome.exception()) is not None:
        log.warning("admin.not_done", extra={"cause": str(fault)})


def _told(attempt: Attempt, view: View) -> Response:
    content: dict[str, Any] = {"ok": attempt.outcome is Outcome.LIVE, **view.attempt(attempt)}
    if attempt.fingerprints is not None:
        content["checksum_before"], content["checksum_after"] = attempt.fingerprints
    is_put_off = attempt.outcome is Outcome.POSTPONED
    headers = {"Retry-After": str(RETRY_AFTER)} if is_put_off else None
    return Json(content, _STATUS[attempt.outcome], headers)
