"""A pause, by SGLang's names and vLLM's: new requests wait until it is over.

hotreload needs none, and mixes no two generations in an answer: with `retract`, `in_place` and
`keep`, too, a request ends under the weights it began with, and `mode_applied` says so.
"""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any, TypedDict

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from hotreload.errors import DrainTimedOut
from hotreload.features.pause.pause import Pause, PauseFields, RunningRequests
from hotreload.json_fields import Fields
from hotreload.server.api_schema.kinds import BOOLEAN, Kind, one_of
from hotreload.server.api_schema.operation import Operation, Parameter, check_kinds, read_body
from hotreload.server.http.problems import Json
from hotreload.server.http.request_log import while_connected
from hotreload.server.orders import requester
from hotreload.server.ports import Admit, Entrance, FeatureRoutes
from hotreload.server.sglang.bodies import SGLANG_FIELDS

USUAL = "abort"
"""The mode where none is named, SGLang's and vLLM's."""
AGAIN_SECONDS = 1.0
"""Seconds to the next abort: one misses requests between the gate and the engine."""


PAUSE: Mapping[str, Kind] = {**SGLANG_FIELDS, "mode": one_of("abort", "retract", "in_place")}
VLLM_PAUSE_MODE = one_of("abort", "wait", "keep")
CONTINUE: Mapping[str, Kind] = {**SGLANG_FIELDS, "torch_empty_cache": BOOLEAN}


class PausedFields(TypedDict):
    """A pause that stands: the mode asked for, and the one applied."""

    status: str
    success: bool
    mode: str
    mode_applied: str


class ContinuedFields(TypedDict):
    """Requests go on."""

    status: str
    success: bool
    was_paused: bool


class IsPausedFields(TypedDict):
    """True while a pause stands."""

    is_paused: bool


PAUSE_PATHS = frozenset(
    ("/pause_generation", "/continue_generation", "/pause", "/resume", "/is_paused")
)


def pause_routes(pause: Pause) -> FeatureRoutes:
    """Return the routes by which this pause is asked for, and ended."""
    adds = {"Status": {"pause": PauseFields | None}}
    return FeatureRoutes(partial(_make_routes, pause), PAUSE_PATHS, adds)


def _make_routes(pause: Pause, entrance: Entrance[Any], admission: Admit) -> APIRouter:
    """Make them; all but the one that looks ask for the rights of the admin routes."""
    router = APIRouter()
    guarded = APIRouter(dependencies=[Depends(admission)])

    def here() -> Pause:
        entrance.check_answers_here()
        return pause

    @guarded.post("/pause_generation")
    @Operation(
        "SGLang's: new requests wait, until it is over.",
        PausedFields,
        (408, 503),
        body=PAUSE,
        may_be_empty=True,
    )
    async def pause_generation(request: Request) -> Response:
        given = await read_body(request)
        mode = given.get("mode", USUAL)
        applied = await _pause(pause, entrance, request, mode, waits=mode == RunningRequests.ABORT)
        return Json({"message": "Generation paused successfully.", "status": "ok", **applied})

    @guarded.post("/continue_generation")
    @Operation(
        "SGLang's: end a pause.", ContinuedFields, (408, 503), body=CONTINUE, may_be_empty=True
    )
    async def continue_generation(request: Request) -> Response:
        await read_body(request)
        stood = here().end(requester("continue", request))
        done = ContinuedFields(status="ok", success=True, was_paused=stood)
        return Json({"message": "Generation continued successfully.", **done})

    @guarded.post("/pause")
    @Operation(
        "vLLM's: the same as /pause_generation.",
        PausedFields,
        (408, 503),
        parameters=[
            Parameter("mode", VLLM_PAUSE_MODE, "What becomes of those that run; abort."),
            Parameter("clear_cache", BOOLEAN, "It changes nothing."),
        ],
    )
    async def pause_by_mode(
        request: Request, mode: str = USUAL, clear_cache: bool = True
    ) -> Response:
        check_kinds({"mode": mode}, {"mode": VLLM_PAUSE_MODE})
        applied = await _pause(pause, entrance, request, mode, waits=mode != "keep")
        return Json({"status": "paused", **applied})

    @guarded.post("/resume")
    @Operation("vLLM's: the same as /continue_generation.", ContinuedFields, (408, 503))
    async def resume(request: Request) -> Response:
        stood = here().end(requester("continue", request))
        return Json(ContinuedFields(status="resumed", success=True, was_paused=stood))

    @router.get("/is_paused")
    @Operation("vLLM's: does a pause stand?", IsPausedFields, (503,))
    async def is_paused() -> Response:
        return Json(IsPausedFields(is_paused=here().stands))

    router.include_router(guarded)
    return router


async def _pause(
    pause: Pause, entrance: Entrance[Any], request: Request, mode: str, *, waits: bool
) -> Fields:
    """Hold new requests from now on; with `waits`, return once none runs any more.

    If the caller leaves meanwhile the pause stands on until its time is over.
    """
    running = RunningRequests.ABORT if mode == RunningRequests.ABORT else RunningRequests.FINISH
    entrance.engines()  # NotServing while no engine serves
    await request.body()  # or a client that left looks like one that still sends
    by = requester("pause", request, route=request.url.path)
    pause.begin(by, mode, running)
    if waits:
        async with while_connected(request.receive):
            await _until_none_runs(pause, entrance, aborts=running is RunningRequests.ABORT)
    return {"success": True, "mode": mode, "mode_applied": running.value}


async def _until_none_runs(pause: Pause, entrance: Entrance[Any], *, aborts: bool) -> None:
    while pause.stands:
        if aborts:
            await asyncio.gather(
                *(engine.answers.abort_asked(None) for engine in entrance.engines())
            )
        try:
            return await entrance.wait_until_empty(AGAIN_SECONDS)
        except DrainTimedOut:
            continue
