"""A pause, by SGLang's names and vLLM's: those who come wait until it is over.

Nothing here needs one, and none mixes two generations in an answer: what `retract`, `in_place` and
`keep` ask for ends under the weights it began with, and the answer says so (`mode_applied`).
"""

import asyncio
from collections.abc import Awaitable, Callable

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from hotreload.core.pause import Running
from hotreload.errors import DrainTimedOut
from hotreload.json_fields import Fields
from hotreload.server.exchange import while_connected
from hotreload.server.ordering import asker
from hotreload.server.ports import Gate
from hotreload.server.problems import Json
from hotreload.server.request_body import check_kinds, read_fields
from hotreload.server.sglang import bodies

USUAL = "abort"
"""The mode where none is named, SGLang's and vLLM's."""
AGAIN_SECONDS = 1.0
"""An abort misses who is between the gate and the engine: it is asked for again after so long."""


def pause_routes[P](gate: Gate[P], admission: Callable[[Request], Awaitable[None]]) -> APIRouter:
    """Build the routes; all but the one that looks ask for the rights of the admin routes."""
    router = APIRouter()
    guarded = APIRouter(dependencies=[Depends(admission)])

    @guarded.post("/pause_generation")
    async def pause_generation(request: Request) -> Response:
        given = await read_fields(request, bodies.PAUSE, may_be_empty=True)
        mode = given.get("mode", USUAL)
        applied = await _paused(gate, request, mode, waits=mode == Running.ABORT)
        return Json({"message": "Generation paused successfully.", "status": "ok", **applied})

    @guarded.post("/continue_generation")
    async def continue_generation(request: Request) -> Response:
        await read_fields(request, bodies.CONTINUE, may_be_empty=True)
        stood = gate.pause.end(asker("continue", request))
        told = {"message": "Generation continued successfully.", "status": "ok", "success": True}
        return Json({**told, "was_paused": stood})

    @guarded.post("/pause")
    async def pause(request: Request, mode: str = USUAL, clear_cache: bool = True) -> Response:
        check_kinds({"mode": mode}, {"mode": bodies.VLLM_PAUSE_MODE})
        applied = await _paused(gate, request, mode, waits=mode != "keep")
        return Json({"status": "paused", **applied})

    @guarded.post("/resume")
    async def resume(request: Request) -> Response:
        stood = gate.pause.end(asker("continue", request))
        return Json({"status": "resumed", "success": True, "was_paused": stood})

    @router.get("/is_paused")
    async def is_paused() -> Response:
        return Json({"is_paused": gate.pause.stands})

    router.include_router(guarded)
    return router


async def _paused[P](gate: Gate[P], request: Request, mode: str, *, waits: bool) -> Fields:
    """Hold those who come from now on; `waits`: until nobody runs any more, as the caller expects.

    The pause stands on if the caller leaves meanwhile: its own limit ends it.
    """
    running = Running.ABORT if mode == Running.ABORT else Running.FINISH
    gate.engines()  # NotServing while there is nobody to hold
    await request.body()  # or a client that left could not be told from one that still sends
    by = asker("pause", request, route=request.url.path)
    gate.pause.begin(by, mode, running)
    if waits:
        async with while_connected(request.receive):
            await _nobody_runs(gate, aborts=running is Running.ABORT)
    return {"success": True, "mode": mode, "mode_applied": running.value}


async def _nobody_runs[P](gate: Gate[P], *, aborts: bool) -> None:
    while gate.pause.stands:
        if aborts:
            await asyncio.gather(*(engine.abort_asked(None) for engine in gate.engines()))
        try:
            return await gate.drained(AGAIN_SECONDS)
        except DrainTimedOut:
            continue
