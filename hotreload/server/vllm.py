"""vLLM's names for trainers' orders; the orders are the same as SGLang's."""

from typing import Literal, TypedDict

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from hotreload.errors import BadRequest, shown
from hotreload.json_fields import Fields
from hotreload.server.admin import Admit
from hotreload.server.http.problems import Json
from hotreload.server.http.request_body import read_fields
from hotreload.server.orders import TrainerOrders, flush_all
from hotreload.server.ports import Entrance
from hotreload.server.sglang import bodies
from hotreload.server.sglang.answers import named_checksums
from hotreload.server.sglang.checker import NO_RANDOM_WEIGHTS
from hotreload.server.sglang.not_served import FaultFields
from hotreload.server.sglang.update_routes import answer_update


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


def vllm_routes[P](
    orders: TrainerOrders[P], *, entrance: Entrance[P], admission: Admit
) -> APIRouter:
    """Build the routes; all but the read-only one require an administrator's rights."""
    router = APIRouter()
    guarded = APIRouter(dependencies=[Depends(admission)])

    @router.get("/get_world_size")
    async def get_world_size(include_dp: bool = True) -> Response:
        with entrance.lend_preparer() as engine:
            devices = engine.facts().get("tp_size", 1)
        engines = len(entrance.engines()) if include_dp else 1
        return Json(WorldSizeFields(world_size=devices * engines))

    @guarded.post("/update_weights")
    async def update_weights(request: Request) -> Response:
        return await answer_update(orders, request, bodies.VLLM_UPDATE_FIELDS, "weight_dir")

    @guarded.post("/reset_prefix_cache")
    async def reset_prefix_cache() -> Response:
        await flush_all(entrance)
        return Json(FlushedFields(success=True))

    @guarded.post("/weight_checker")
    async def weight_checker(request: Request) -> Response:
        given = await read_fields(request, bodies.VLLM_CHECK_FIELDS, may_be_empty=True)
        try:
            return Json(await _check_weights(entrance, given))
        except BadRequest as fault:
            words = str(fault)
            return Json(NotCheckedFields(detail=words, error={"message": words}), 400)

    router.include_router(guarded)
    return router


async def _check_weights[P](entrance: Entrance[P], given: Fields) -> Fields:
    action, baseline = given.get("action", "checksum"), given.get("baseline", {})
    if action == "reset":
        raise BadRequest(NO_RANDOM_WEIGHTS)
    if action not in ("checksum", "compare"):
        raise BadRequest(f"Unsupported action={shown(action)}: checksum or compare")
    if action == "compare" and "baseline" not in given:
        raise BadRequest("action='compare' requires a 'baseline' object")
    async with entrance.admit() as lease:  # no swap while they are computed
        now = named_checksums(await lease.engine.checksums())
    if action == "checksum":
        return {"checksums": now}
    names = sorted(now.keys() | baseline.keys())
    differ = [name for name in names if now.get(name) != baseline.get(name)]
    return {"match": not differ, "mismatches": differ}
