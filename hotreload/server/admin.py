"""The routes that change the live weights."""

import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from fastapi import APIRouter
from pydantic import AfterValidator, Field
from starlette.requests import Request
from starlette.responses import Response

from hotreload.attempts import ROLLBACK, Attempt
from hotreload.core.operator import Operator
from hotreload.errors import BadRequest
from hotreload.json_fields import Fields, attempt_fields
from hotreload.picture.status import ReloadStatusFields, Status
from hotreload.server import orders
from hotreload.server.answerer import WEIGHT_VERSION_HEADER
from hotreload.server.api_schema import kinds
from hotreload.server.api_schema.kinds import Kind
from hotreload.server.api_schema.operation import Operation, Parameter, read_body
from hotreload.server.http.problems import RETRY_AFTER, Json, Refused
from hotreload.server.http.request_log import generation_header
from hotreload.server.ports import Entrance
from hotreload.types import Generation, Noise, Outcome

LONGEST_REASON = 500


def _check_printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("not printable")
    return text


OPERATOR_REASON = Kind(
    f"one line of at most {LONGEST_REASON} characters",
    Annotated[str, Field(max_length=LONGEST_REASON), AfterValidator(_check_printable)],
)
"""The operator's reason for a change; it is stored and shown with the operator."""
LONGEST_VERSION = 256
WEIGHT_VERSION = Kind(
    f"printable ASCII of at most {LONGEST_VERSION} characters, without blanks at its ends, as the "
    f"header {WEIGHT_VERSION_HEADER} asks for it",
    Annotated[str, Field(max_length=LONGEST_VERSION, pattern="^([!-~]([ -~]*[!-~])?)?$")],
)
"""A trainer's name for weights."""
LOAD_FORMAT = Kind("'auto' or 'safetensors'", Literal["auto", "safetensors"])
PIN_FIELDS: Mapping[str, Kind] = {"timeout": kinds.POSITIVE_SECONDS, "reason": OPERATOR_REASON}
WAIT_FIELDS: Mapping[str, Kind] = {"wait": kinds.BOOLEAN, **PIN_FIELDS}
RELOAD_FIELDS: Mapping[str, Kind] = {
    "model_path": kinds.NAME_OF_WEIGHTS,
    "revision": kinds.NAME_OF_WEIGHTS,
    "load_format": LOAD_FORMAT,
    "weight_version": WEIGHT_VERSION,
    "force": kinds.BOOLEAN,
    "dry_run": kinds.BOOLEAN,
    **WAIT_FIELDS,
}
ROLLBACK_FIELDS: Mapping[str, Kind] = {
    "generation": kinds.INTEGER,
    "hold": kinds.BOOLEAN,
    **WAIT_FIELDS,
}
PERTURB_FIELDS: Mapping[str, Kind] = {
    "seed": kinds.whole_number(0, 2**31 - 1),
    "scale": Kind("a number above 0 and at most 1e6", Annotated[float, Field(gt=0, le=1e6)]),
    "num_leaves": Kind("a positive integer", Annotated[int, Field(ge=1)]),
    **WAIT_FIELDS,
}
_REFUSALS = (404, 408, 409, 503, 504)
ORDER_ACCEPT_SECONDS = 10.0
"""The longest time until a client with `wait=false` is answered whether the order is accepted."""

_STATUS = {
    Outcome.LIVE: 200,
    Outcome.PASSED: 200,
    Outcome.REJECTED: 422,
    Outcome.POSTPONED: 503,
    Outcome.SUPERSEDED: 409,
    Outcome.LOST: 503,
}


class ChangeFields(TypedDict):
    """The outcome of an order; null while it is not known."""

    ok: bool
    outcome: str | None


class PinnedFields(TypedDict):
    """The generation that is pinned, or no longer."""

    ok: bool
    pinned: bool
    generation: int
    label: str
    revision: str
    daemon: Fields


class ChecksumFields(TypedDict):
    """The fingerprint of the live weights; null if leaves have changed since they went live."""

    fingerprint: str | None
    generation: int
    changed: list[str]
    leaves: NotRequired[Mapping[str, int]]


def _changes(words: str, body: Mapping[str, Kind]) -> Operation:
    return Operation(
        words,
        ChangeFields,
        (*_REFUSALS, 422),  # also for a name without a checkpoint
        body=body,
        others=dict.fromkeys((202, 409, 422, 503), ChangeFields),
        may_be_empty=True,
    )


def _pins(words: str) -> Operation:
    return Operation(words, PinnedFields, _REFUSALS, body=PIN_FIELDS, may_be_empty=True)


def add_admin_routes[P](
    guarded: APIRouter, entrance: Entrance[P], operator: Callable[[], Operator], status: Status
) -> None:
    """Add the routes under /admin, which require an administrator's rights."""

    @guarded.post("/admin/reload_weights")
    @_changes("Make a revision live.", RELOAD_FIELDS)
    async def reload_weights(request: Request) -> Response:
        fields = await read_body(request)
        name = _wanted_name(fields)
        if fields.get("dry_run"):
            pending = operator().rehearse(name, by=orders.requester("dry_run", request, fields))
        else:
            by = orders.requester("reload", request, fields)
            version, force = fields.get("weight_version", ""), fields.get("force", False)
            pending = operator().reload(name, by=by, force=force, version=version)
        return await _answer_attempt(pending, fields, request, status)

    @guarded.post("/admin/rollback")
    @_changes("Go back to a generation.", ROLLBACK_FIELDS)
    async def rollback(request: Request) -> Response:
        fields = await read_body(request)
        by, holds = orders.requester(ROLLBACK, request, fields), fields.get("hold", True)
        pending = operator().rollback(fields.get("generation"), by=by, holds=holds)
        return await _answer_attempt(
            pending, fields, request, status, operator().list_rollback_targets
        )

    @guarded.post("/admin/perturb_weights")
    @_changes("Add noise to leaves.", PERTURB_FIELDS)
    async def perturb_weights(request: Request) -> Response:
        fields = await read_body(request)
        noise = Noise(**{name: fields[name] for name in fields if name not in WAIT_FIELDS})
        pending = operator().perturb(noise, by=orders.requester("perturb", request, fields))
        return await _answer_attempt(pending, fields, request, status)

    @guarded.post("/admin/pin")
    @_pins("Pin the live weights.")
    async def pin(request: Request) -> Response:
        fields = await read_body(request)
        pending = operator().pin(by=orders.requester("pin", request, fields))
        return await _answer_pin(pending, fields, request, is_pinned=True)

    @guarded.post("/admin/unpin")
    @_pins("Follow the source again.")
    async def unpin(request: Request) -> Response:
        fields = await read_body(request)
        pending = operator().unpin(by=orders.requester("unpin", request, fields))
        return await _answer_pin(pending, fields, request, is_pinned=False)

    @guarded.get("/admin/reload_status")
    @Operation("The status of reloads.", ReloadStatusFields, (503,))
    async def reload_status() -> Response:
        document = status.snapshot()
        return Json({name: document.get(name) for name in ReloadStatusFields.__annotations__})

    @guarded.get("/admin/weights_checksum")
    @Operation(
        "Compute checksums now.",
        ChecksumFields,
        (503,),
        parameters=[Parameter("leaves", kinds.BOOLEAN, "Name every leaf.")],
    )
    async def weights_checksum(leaves: bool = False) -> Response:
        async with entrance.inspect() as lease:  # no swap while it is computed
            checksums = await lease.engine.weights.checksums()
        live, known = lease.generation, lease.generation.leaves
        names = sorted(known.keys() | checksums.keys()) if known else []
        changed = [name for name in names if checksums.get(name) != known.get(name)]
        fingerprint = None if changed else live.fingerprint
        content = ChecksumFields(fingerprint=fingerprint, generation=live.number, changed=changed)
        if leaves:
            content["leaves"] = checksums
        return Json(content, headers=generation_header(live))


def _daemon() -> Fields:
    """Return the pid of this daemon: with several on a host, their sockets are easily confused."""
    return {"pid": os.getpid()}


def _wanted_name(fields: Fields) -> str | None:
    if "model_path" in fields and "revision" in fields:
        raise BadRequest("give model_path or revision, not both", code="bad_field")
    name: str | None = fields.get("model_path", fields.get("revision"))
    if name is not None:
        orders.check_name(name)
    return name


async def _answer_attempt(
    pending: orders.PendingAttempt,
    fields: Fields,
    request: Request,
    status: Status,
    others: Callable[[], Coroutine[Any, Any, Sequence[str]]] | None = None,
) -> Response:
    """Return the attempt's outcome, or 202 if the client does not wait for it.

    The order is carried out even if the client leaves. Finding the revision may take as long as a
    hub or a disk takes. `others` lists further generations that a rollback could find.
    """
    waits, within = fields.get("wait", True), fields.get("timeout")
    if not waits:
        within = min(within or ORDER_ACCEPT_SECONDS, ORDER_ACCEPT_SECONDS)
    attempt = await orders.carry_out(orders.await_outcome(pending, waits=waits), request, within)
    if attempt is None and waits:
        words = f"no outcome after {within:g} s; the attempt goes on, see /status"
        raise Refused(504, "timed_out", words)
    if attempt is None:
        return Json({"ok": True, "outcome": None, "accepted": True, "daemon": _daemon()}, 202)
    return _attempt_response(
        attempt, status, {} if others is None else {"can_be_had": await others()}
    )


async def _answer_pin(
    pending: Coroutine[Any, Any, Generation], fields: Fields, request: Request, *, is_pinned: bool
) -> Response:
    """Return the generation that is pinned; it is known once the running attempt has ended."""
    within = fields.get("timeout")
    live = await orders.carry_out(pending, request, within)
    if live is None:
        words = f"after {within:g} s an earlier order is not done, or the disk is slow"
        raise Refused(504, "timed_out", f"{words}; this order goes on: see pinned in /status")
    content = PinnedFields(
        ok=True,
        pinned=is_pinned,
        generation=live.number,
        label=live.revision.label,
        revision=live.revision.id,
        daemon=_daemon(),
    )
    return Json(content)


def _attempt_response(attempt: Attempt, status: Status, more: Fields) -> Response:
    content: dict[str, Any] = {"ok": _STATUS[attempt.outcome] == 200, **attempt_fields(attempt)}
    now = status.snapshot()
    kept = now["state_file"]
    content |= {"saved": kept["saved"], "not_saved": kept["error"], "daemon": _daemon()}
    content |= {"pinned": now["pinned"], **more}
    if attempt.fingerprints is not None:
        content["checksum_before"], content["checksum_after"] = attempt.fingerprints
    is_put_off = attempt.outcome is Outcome.POSTPONED
    headers = {"Retry-After": str(RETRY_AFTER)} if is_put_off else None
    return Json(content, _STATUS[attempt.outcome], headers)
