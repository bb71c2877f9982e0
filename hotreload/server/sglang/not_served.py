"""Routes of other servers that do not exist here, and what to use instead."""

from collections.abc import Mapping
from typing import Literal, TypedDict

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from hotreload.server.http.problems import Json, no_such_route

USE_A_FOLDER = (
    "weights come from checkpoints in folders here: write one below [source] path or [server] "
    "update_roots, and ask POST /update_weights_from_disk (or /update_weights) for it"
)
MEMORY_IS_FIXED = "the engine keeps the memory that it took at its start"
MERGE_ADAPTERS = "there are no adapters here: merge them into a checkpoint"
NOT_SERVED: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "/update_weights_from_tensor",
            "/update_weights_from_distributed",
            "/update_weights_from_ipc",
            "/init_weights_update_group",
            "/destroy_weights_update_group",
            "/begin_weight_update",
            "/end_weight_update",
            "/pull_weights",
            "/init_weight_transfer_engine",
            "/shutdown_weight_transfer_engine",
            "/start_weight_update",
            "/finish_weight_update",
            "/fetch_weights",
            "/collective_rpc",
        ),
        USE_A_FOLDER,
    ),
    **dict.fromkeys(("/release_memory_occupation", "/resume_memory_occupation"), MEMORY_IS_FIXED),
    **dict.fromkeys(("/load_lora_adapter", "/unload_lora_adapter"), MERGE_ADAPTERS),
}
"""Routes of SGLang, vLLM and trainers' images that are not served, and what to use instead."""


class FaultFields(TypedDict):
    """A fault in vLLM's form."""

    message: str


class NotDoneFields(TypedDict):
    """A failure in SGLang's form, and in vLLM's under `error`."""

    success: Literal[False]
    message: str
    error: FaultFields


async def no_route(request: Request, error: Exception) -> Response:
    """Answer 400 for a route of another server, else 404 or 405."""
    path = request.url.path
    assert isinstance(error, HTTPException)
    if error.status_code == 404 and path in NOT_SERVED:
        return Json(failure_fields(f"{path} is not served: {NOT_SERVED[path]}"), 400)
    return await no_such_route(request, error)


def failure_fields(message: str) -> NotDoneFields:
    """Return the fields of a failure."""
    return {"success": False, "message": message, "error": {"message": message}}
