"""JSON answers, and errors in the form that clients expect: RFC 9457's or another server's."""

import json
import math
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Literal, TypedDict

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from hotreload import errors
from hotreload.errors import MOST_WORDS, HotReloadError, NothingOfThatName, cut, show_value
from hotreload.types import Generation

RETRY_AFTER = 5
"""Seconds after which a client should retry a request that was postponed."""

DO_NOT_RETRY = {"x-should-retry": "false"}
"""The header that keeps OpenAI's clients, which retry any 409, from retrying this one."""


class ProblemFields(TypedDict):
    """Problem details: `code` for machines, `detail` and `reasons` for people."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    reasons: list[str]


class OpenAIFaultFields(TypedDict):
    """A fault, as OpenAI's clients read it."""

    message: str
    type: str
    param: str | None
    code: str


class OpenAIErrorFields(TypedDict):
    """An error in OpenAI's form."""

    error: OpenAIFaultFields


class FaultFields(TypedDict):
    """A fault in vLLM's form."""

    message: str


class NotDoneFields(TypedDict):
    """A failure in SGLang's form, and in vLLM's under `error`."""

    success: Literal[False]
    message: str
    error: FaultFields


MOST_REASONS = 16
LONGEST_LISTED_REASON = 300
"""The most reasons, and characters of one, in a problem: a large request is not sent back whole."""


class Refused(HotReloadError):
    """A refusal by the server itself, with its own status and headers."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        findings: Sequence[str] = (),
        headers: Mapping[str, str] | None = None,
        param: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message, code=code, findings=findings, retry_after=retry_after)
        self.status = status
        self.param = param
        self.headers = dict(headers or {})


class Json(Response):
    """A JSON response in which NaN and Inf are null."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return the content as JSON bytes."""
        return to_json(content)


class Problem(Json):
    """An RFC 9457 problem response."""

    media_type = "application/problem+json"


OPENAI_PATHS = "/v1/"
TEXT_GENERATION_PATH = "/"


def problem_of(error: HotReloadError, path: str = "") -> Json:
    """Return the response for an error, in the form that clients of this path expect."""
    if path.startswith(OPENAI_PATHS):
        return Json({"error": openai_fields(error)}, status_of(error), _headers(error))
    fields = {**problem_fields(error)}
    if path == TEXT_GENERATION_PATH:
        fields |= text_generation_fields(error)
    return Problem(fields, status_of(error), _headers(error))


def raw_answer(error: HotReloadError, headers: Mapping[str, str]) -> bytes:
    """Return the bytes of the last answer on a connection, for an error without a request."""
    problem = problem_of(error)
    problem.headers.update({**headers, "Connection": "close"})
    status = HTTPStatus(problem.status_code)
    lines = [f"HTTP/1.1 {status.value} {status.phrase}".encode()]
    lines += [b": ".join(header) for header in problem.raw_headers]
    return b"\r\n".join([*lines, b"", bytes(problem.body)])


def openai_fields(error: HotReloadError) -> OpenAIFaultFields:
    """Return an error's fields in OpenAI's form; its client goes by the status."""
    param = error.param if isinstance(error, errors.BadRequest | Refused) else None
    return {
        "message": cut(str(error), MOST_WORDS),
        "type": "invalid_request_error" if status_of(error) < 500 else "server_error",
        "param": param and cut(param, LONGEST_LISTED_REASON),
        "code": error.code,
    }


def text_generation_fields(error: HotReloadError) -> dict[str, Any]:
    """Return an error's fields as huggingface_hub's client expects them to raise its exceptions."""
    status = status_of(error)
    kinds = {429: "overloaded", 503: "overloaded", 500: "generation", 504: "incomplete_generation"}
    kind = "incomplete_generation" if error.code == "cut_short" else kinds.get(status, "validation")
    return {"error": cut(str(error), MOST_WORDS), "error_type": kind}


def failure_fields(message: str) -> NotDoneFields:
    """Return the fields of a failure."""
    return {"success": False, "message": message, "error": {"message": message}}


def problem_fields(error: HotReloadError) -> ProblemFields:
    """Return an error's problem details."""
    status, words = status_of(error), cut(str(error), MOST_WORDS)
    reasons = [cut(finding, LONGEST_LISTED_REASON) for finding in error.findings[:MOST_REASONS]]
    if more := len(error.findings) - len(reasons):
        reasons.append(f"and {more} more")
    return {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": words,
        "code": error.code,
        "reasons": reasons or [words],
    }


_encode = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode
"""One encoder for all values: `json.dumps` would make one for each token."""


def to_json(value: Any) -> bytes:
    """Return a value as JSON bytes; NaN and Inf, which JSON lacks, become null."""
    try:
        text = _encode(value)
    except ValueError:
        text = _encode(_replace_nonfinite(value))
    return text.encode()


def check_live(live: Generation | None) -> Generation:
    """Return the live generation; raise NotServing while the engine starts."""
    if live is None:
        raise errors.NotServing("the engine is starting", code="booting", retry_after=2)
    return live


def status_of(error: HotReloadError) -> int:
    """Return the HTTP status of an error."""
    if isinstance(error, errors.SourceUnavailable) and error.retry_after is not None:
        return 503  # the source cannot be reached: the name may be right
    return error.status


def _headers(error: HotReloadError) -> dict[str, str]:
    if isinstance(error, errors.GenerationGone):
        return DO_NOT_RETRY
    headers = error.headers if isinstance(error, Refused) else {}
    has_time = isinstance(error, Refused | errors.NotServing | errors.TryAgain)
    if has_time and error.retry_after is not None:
        return {**headers, "Retry-After": str(max(1, math.ceil(error.retry_after)))}
    is_postponed = isinstance(error, errors.NotNewEnough | errors.TryAgain)
    if is_postponed and status_of(error) != NothingOfThatName.status:
        return {"Retry-After": str(RETRY_AFTER)}
    return headers


def _replace_nonfinite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _replace_nonfinite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_nonfinite(item) for item in value]
    return value


def paths_in(text: str) -> tuple[str, ...]:
    """Return the paths of a table in a text."""
    return tuple(text.split())


ROUTES_OF_NOTE = "POST /generate, GET /status, GET /readyz, POST /admin/reload_weights"
OPENAI_ROUTES = (
    "POST /v1/chat/completions, POST /v1/completions, POST /v1/responses, GET /v1/models"
)
USE_A_FOLDER = (
    "weights come from checkpoints in folders here: write one below [source] path or [server] "
    "update_roots, and ask POST /update_weights_from_disk (or /update_weights) for it"
)
MEMORY_IS_FIXED = "the engine keeps the memory that it took at its start"
MERGE_ADAPTERS = "there are no adapters here: merge them into a checkpoint"
NOT_SERVED: Mapping[str, str] = {
    **dict.fromkeys(
        paths_in(
            """
            /update_weights_from_tensor /update_weights_from_distributed /update_weights_from_ipc
            /init_weights_update_group /destroy_weights_update_group /begin_weight_update
            /end_weight_update /pull_weights /init_weight_transfer_engine
            /shutdown_weight_transfer_engine /start_weight_update /finish_weight_update
            /fetch_weights /collective_rpc
            """
        ),
        USE_A_FOLDER,
    ),
    **dict.fromkeys(("/release_memory_occupation", "/resume_memory_occupation"), MEMORY_IS_FIXED),
    **dict.fromkeys(("/load_lora_adapter", "/unload_lora_adapter"), MERGE_ADAPTERS),
}
"""Routes of SGLang, vLLM and trainers' images that are not served, and what to use instead."""


async def no_route(request: Request, error: Exception) -> Response:
    """Answer 404 or 405, as clients of the intended path expect; 400 for a route not served."""
    assert isinstance(error, HTTPException)
    status, path = error.status_code, request.url.path
    if status == 404 and path in NOT_SERVED:
        return Json(failure_fields(f"{path} is not served: {NOT_SERVED[path]}"), 400)
    code = HTTPStatus(status).phrase.lower().replace(" ", "_")
    headers: Mapping[str, str] = error.headers or {}
    meant = nearest_openai_path(path)
    words = f"{show_value(f'{request.method} {path}')}: {HTTPStatus(status).phrase.lower()}"
    if status == 404:
        words += f"; {_suggest_route(path, meant)}"
    elif status == 405:
        words += f"; allowed: {headers.get('Allow', 'another method')}"
    return problem_of(Refused(status, code, words, headers=headers), meant or path)


def nearest_openai_path(path: str) -> str | None:
    """Return OpenAI's path that differs from this one only in its prefix or slashes; else None."""
    bare = f"/{path.strip('/')}"
    while bare.startswith(OPENAI_PATHS):  # a base_url with /v1, and a client that adds another
        bare = bare.removeprefix("/v1")
    known = {route.split()[1] for route in OPENAI_ROUTES.split(", ")}
    return next((each for each in known if each == f"/v1{bare}" != path), None)


def _suggest_route(path: str, meant: str | None) -> str:
    if meant is not None:
        return f"OpenAI's API is at {meant}: its clients' base_url ends in /v1"
    is_openai = path.startswith(OPENAI_PATHS)
    return f"routes are, for example, {OPENAI_ROUTES if is_openai else ROUTES_OF_NOTE}"
