"""SGLang's and vLLM's routes that change the live weights or their version, or check them.

An update is an order like one of /admin/reload_weights: with the same checks, probes and history.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from fastapi import APIRouter, FastAPI
from starlette.requests import Request
from starlette.responses import Response

from hotreload import json_fields
from hotreload.attempts import Attempt
from hotreload.core.operator import Operator
from hotreload.errors import BadRequest, HotReloadError, show_value
from hotreload.json_fields import Fields
from hotreload.picture.status import Status
from hotreload.server.api_schema.kinds import BOOLEAN
from hotreload.server.api_schema.operation import Operation, Parameter, read_body
from hotreload.server.http.problems import (
    FaultFields,
    Json,
    NotDoneFields,
    check_live,
    failure_fields,
)
from hotreload.server.orders import abort, carry_out, check_name, flush_all, requester
from hotreload.server.ports import Entrance
from hotreload.server.sglang import bodies
from hotreload.server.sglang.answers import checksums, named_checksums
from hotreload.types import Outcome


class UpdatedFields(TypedDict):
    """The end of an update, and the reason if its weights are not live."""

    success: bool
    message: str
    num_paused_requests: int
    reason: str | None


class WorldSizeFields(TypedDict):
    """The number of devices."""

    world_size: int


class FlushedFields(TypedDict):
    """Cached prefixes were dropped."""

    success: Literal[True]


class NotCheckedFields(TypedDict):
    """The reason why no checksum was computed."""

    detail: str
    error: FaultFields


def add_update_routes[P](
    app: FastAPI,
    guarded: APIRouter,
    entrance: Entrance[P],
    operator: Callable[[], Operator],
    status: Status,
) -> None:
    """Add the routes of both; all but the read-only ones require an administrator's rights."""

    @app.get("/weight_version")
    @app.get("/weight_info")
    @app.get("/get_weight_version")
    @Operation(
        "SGLang's and vLLM's: the version of the weights that answer.",
        json_fields.GenerationFields,
        (503,),
    )
    async def get_weight_version() -> Response:
        return Json(json_fields.generation_fields(check_live(status.picture.live)))

    @guarded.post("/update_weights_from_disk")
    @Operation(
        "SGLang's: make a checkpoint live; answer once it is live, or with the reason.",
        UpdatedFields,
        body=bodies.UPDATE_FIELDS,
        required=("model_path",),
        others={400: UpdatedFields},
    )
    async def update_weights_from_disk(request: Request) -> Response:
        return await _answer_update(entrance, operator, request, "model_path")

    @guarded.post("/update_weight_version")
    @Operation(
        "SGLang's and vLLM's: name the weights that answer.",
        json_fields.GenerationFields,
        body=bodies.NAME_FIELDS,
        required=("new_version",),
        others={400: NotDoneFields},
    )
    async def update_weight_version(request: Request) -> Response:
        try:
            given = await read_body(request)
            version = given["new_version"]
            if not version:
                raise BadRequest("new_version is empty", code="bad_field", param="new_version")
            if given.get("abort_all_requests"):
                await abort(entrance)
            by = requester("version", request, route=request.url.path)
            live = await operator().name_live(version, by=by)
        except HotReloadError as fault:
            return Json(failure_fields(f"Failed to update weight version: {fault}"), 400)
        said = {"success": True, "message": f"Weight version updated to {version}"}
        return Json({**said, "new_version": version, **json_fields.generation_fields(live)})

    @app.get("/get_world_size")
    @Operation(
        "vLLM's: the number of devices.",
        WorldSizeFields,
        (503,),
        parameters=[Parameter("include_dp", BOOLEAN, "Count all engines; true.")],
    )
    async def get_world_size(include_dp: bool = True) -> Response:
        with entrance.lend_engine() as engine:
            devices = engine.facts().get("tp_size", 1)
        engines = len(entrance.engines()) if include_dp else 1
        return Json(WorldSizeFields(world_size=devices * engines))

    @guarded.post("/update_weights")
    @Operation(
        "vLLM's: the same as /update_weights_from_disk.",
        UpdatedFields,
        body=bodies.VLLM_UPDATE_FIELDS,
        required=("weight_dir",),
        others={400: UpdatedFields},
    )
    async def update_weights(request: Request) -> Response:
        return await _answer_update(entrance, operator, request, "weight_dir")

    @guarded.post("/reset_prefix_cache")
    @Operation("vLLM's: drop cached prefixes that are not in use.", FlushedFields, (503,))
    async def reset_prefix_cache() -> Response:
        await flush_all(entrance)
        return Json(FlushedFields(success=True))

    @guarded.post("/weight_checker")
    @Operation(
        "vLLM's: compute checksums, or compare them with a baseline.",
        Fields,
        (503,),
        body=bodies.VLLM_CHECK_FIELDS,
        others={400: NotCheckedFields},
        may_be_empty=True,
    )
    async def weight_checker(request: Request) -> Response:
        given = await read_body(request)
        try:
            return Json(await _check_weights(entrance, given))
        except BadRequest as fault:
            words = str(fault)
            return Json(NotCheckedFields(detail=words, error={"message": words}), 400)


async def _answer_update[P](
    entrance: Entrance[P], operator: Callable[[], Operator], request: Request, folder: str
) -> Response:
    """Carry out an update; answer 200 when its weights are live, else 400 with the reason.

    `folder` is the field of the body that names the checkpoint. Requests are aborted, where that is
    asked for, once the order is accepted. It is carried out even if its client leaves.
    """
    try:
        given = await read_body(request)
        check_name(given[folder])
        version, aborts = given.get("weight_version", ""), given.get("abort_all_requests", False)
        by = requester("reload", request, route=request.url.path)
        pending = operator().reload(given[folder], by=by, force=False, version=version)

        async def outcome() -> Attempt:
            promise = await pending
            if aborts:
                await abort(entrance)
            return await asyncio.shield(promise)  # other requests may wait for it, too

        attempt = await carry_out(outcome(), request)
        assert attempt is not None, "there is no deadline"
    except HotReloadError as fault:
        return _not_updated(str(fault), json_fields.reason_fields(fault.reason))
    if attempt.outcome is not Outcome.LIVE:
        why = attempt.reason.message if attempt.reason else attempt.outcome.value
        return _not_updated(why, json_fields.attempt_fields(attempt))
    named = f" Weight version updated to {version}." if version else ""
    said = {"success": True, "message": f"Succeeded to update model weights.{named}"}
    return Json(
        {**said, "num_paused_requests": 0, "status": "ok", **json_fields.attempt_fields(attempt)}
    )


def _not_updated(why: str, fields: Mapping[str, Any]) -> Json:
    said = failure_fields(f"Failed to update weights: {why}")
    return Json({**said, "num_paused_requests": 0, **fields}, 400)


async def _check_weights[P](entrance: Entrance[P], given: Fields) -> Fields:
    action, baseline = given.get("action", "checksum"), given.get("baseline", {})
    if action == "reset":
        raise BadRequest(NO_RANDOM_WEIGHTS)
    if action not in ("checksum", "compare"):
        raise BadRequest(f"Unsupported action={show_value(action)}: checksum or compare")
    if action == "compare" and "baseline" not in given:
        raise BadRequest("action='compare' requires a 'baseline' object")
    async with entrance.admit() as lease:  # no swap while they are computed
        now = named_checksums(await lease.engine.weights.checksums())
    if action == "checksum":
        return {"checksums": now}
    names = sorted(now.keys() | baseline.keys())
    differ = [name for name in names if now.get(name) != baseline.get(name)]
    return {"match": not differ, "mismatches": differ}


NO_RANDOM_WEIGHTS = (
    "reset_tensors (vLLM's reset) is refused: random numbers would answer clients; POST "
    "/admin/perturb_weights puts noise on some leaves, as a generation of its own, and a rollback "
    "takes it back"
)
MOST_LISTED_LEAVES = 10
"""The most leaves that are named when they differ from the snapshot."""


@dataclass(slots=True)
class WeightsChecker[P]:
    """Computes checksums on one engine, and keeps a snapshot until it is compared."""

    entrance: Entrance[P]
    _snapshot: Mapping[str, int] | None = None

    async def run(self, action: str, skip: Sequence[str] = ()) -> Fields:
        """Carry out the action; BadRequest if it is unknown or if leaves differ."""
        match action:
            case "checksum":
                leaves, facts = await self._now()
                return checksums(_without(leaves, skip), facts)
            case "snapshot":
                self._snapshot, _ = await self._now()
                return {}
            case "compare":
                return await self._compare(skip)
            case "reset_tensors":
                raise BadRequest(NO_RANDOM_WEIGHTS)
        raise BadRequest(f"Unsupported action={show_value(action)}: checksum, snapshot or compare")

    async def _now(self) -> tuple[Mapping[str, int], Mapping[str, object]]:
        async with self.entrance.inspect() as lease:  # no swap while they are computed
            return await lease.engine.weights.checksums(), lease.engine.facts()

    async def _compare(self, skip: Sequence[str]) -> Fields:
        if self._snapshot is None:
            raise BadRequest("there is no snapshot to compare with: send action=snapshot first")
        now, before = _without((await self._now())[0], skip), _without(self._snapshot, skip)
        differ = sorted(name for name in now if now[name] != before.get(name))
        if differ:
            named = [f"name={name}" for name in differ[:MOST_LISTED_LEAVES]]
            named += [f"and {more} more"] if (more := len(differ) - len(named)) else []
            raise BadRequest("\n".join(["check tensor equality failed:", *named]))
        self._snapshot = None
        return {}


def _without(leaves: Mapping[str, int], skip: Sequence[str]) -> Mapping[str, int]:
    return {name: leaves[name] for name in leaves if not any(part in name for part in skip)}
