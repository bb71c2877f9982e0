"""Answers in JSON: what went wrong, as RFC 9457 problem details or in OpenAI's own shape, and
numbers JSON can hold."""

import json
import math
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from hotreload.errors import (
    MOST_WORDS,
    BadRequest,
    Busy,
    CheckpointRejected,
    EngineLost,
    GenerationGone,
    HotReloadError,
    NothingOfThatName,
    NotNewEnough,
    NotSaved,
    NotServing,
    SourceUnavailable,
    Superseded,
    TryAgain,
    cut,
    shown,
)

RETRY_AFTER = 5
"""Seconds until a client should try again what was only put off."""

DO_NOT_RETRY = {"x-should-retry": "false"}
"""By this OpenAI's clients, which ask again after any 409, know that it would be in vain."""

NAMED_WRONGLY = 422
"""The operator named something that does not exist."""

_STATUS: tuple[tuple[type[HotReloadError], int], ...] = (
    (NothingOfThatName, NAMED_WRONGLY),
    (BadRequest, 400),
    (Busy, 409),
    (Superseded, 409),
    (NotNewEnough, 409),
    (GenerationGone, 409),
    (CheckpointRejected, 422),
    (SourceUnavailable, NAMED_WRONGLY),
    (TryAgain, 503),
    (NotServing, 503),
    (NotSaved, 503),
    (EngineLost, 503),
)


MOST_REASONS = 16
MOST_OF_A_REASON = 300
"""The most lines and characters of a problem: megabytes that were sent are not sent back."""


class Refused(HotReloadError):
    """The server itself says no, with a status that no other error has."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        findings: Sequence[str] = (),
        headers: Mapping[str, str] | None = None,
        param: str | None = None,
    ) -> None:
        super().__init__(message, code=code, findings=findings)
        self.status = status
        self.param = param
        self.headers = dict(headers or {})


class Json(Response):
    """A JSON answer in which NaN and Inf are null."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Encode the content."""
        return to_json(content)


class Problem(Json):
    """An RFC 9457 answer."""

    media_type = "application/problem+json"


OPENAI_PATHS = "/v1/"
TEXT_GENERATION_PATH = "/"


def problem_of(error: HotReloadError, path: str = "") -> Json:
    """Answer with what went wrong, in the shape that clients of this path know."""
    if path.startswith(OPENAI_PATHS):
        return Json({"error": openai_fields(error)}, status_of(error), _headers(error))
    fields = problem_fields(error)
    if path == TEXT_GENERATION_PATH:
        fields |= text_generation_fields(error)
    return Problem(fields, status_of(error), _headers(error))


def openai_fields(error: HotReloadError) -> dict[str, Any]:
    """Say what went wrong as OpenAI does; its client reads the class of an error off the status."""
    return {
        "message": cut(str(error), MOST_WORDS),
        "type": "invalid_request_error" if status_of(error) < 500 else "server_error",
        "param": _param(error),
        "code": error.code,
    }


def text_generation_fields(error: HotReloadError) -> dict[str, Any]:
    """Say what went wrong in the words of which huggingface_hub's client makes its exceptions."""
    status = status_of(error)
    kinds = {503: "overloaded", 500: "generation", 504: "incomplete_generation"}
    kind = "incomplete_generation" if error.code == "cut_short" else kinds.get(status, "validation")
    return {"error": cut(str(error), MOST_WORDS), "error_type": kind}


def problem_fields(error: HotReloadError) -> dict[str, Any]:
    """Say what went wrong: `code` for machines, `detail` and `reasons` for people."""
    status = status_of(error)
    return {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": cut(str(error), MOST_WORDS),
        "code": error.code,
        "reasons": _reasons(error.findings) or [cut(str(error), MOST_WORDS)],
    }


def _reasons(findings: Sequence[str]) -> list[str]:
    told = [cut(finding, MOST_OF_A_REASON) for finding in findings[:MOST_REASONS]]
    more = len(findings) - len(told)
    return [*told, f"and {more} more"] if more else told


def _param(error: HotReloadError) -> str | None:
    named = error.param if isinstance(error, BadRequest | Refused) else None
    return named and cut(named, MOST_OF_A_REASON)


_encode = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode
"""Kept: `json.dumps` would make an encoder for each token."""


def to_json(value: Any) -> bytes:
    """Encode; NaN and Inf, which JSON has not, become null."""
    try:
        text = _encode(value)
    except ValueError:
        text = _encode(_finite(value))
    return text.encode()


def status_of(error: HotReloadError) -> int:
    """The HTTP status that says this error."""
    if isinstance(error, Refused):
        return error.status
    if isinstance(error, SourceUnavailable) and error.retry_after is not None:
        return 503  # the source is away, so the name may be right
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def _headers(error: HotReloadError) -> dict[str, str]:
    if isinstance(error, Refused):
        return error.headers
    if isinstance(error, GenerationGone):
        return DO_NOT_RETRY
    if isinstance(error, NotServing | TryAgain) and error.retry_after is not None:
        return {"Retry-After": str(max(1, math.ceil(error.retry_after)))}
    if isinstance(error, NotNewEnough | TryAgain) and status_of(error) != NAMED_WRONGLY:
        return {"Retry-After": str(RETRY_AFTER)}
    return {}


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


ROUTES_OF_NOTE = "POST /generate, GET /status, GET /readyz, POST /admin/reload_weights"
OPENAI_ROUTES = (
    "POST /v1/chat/completions, POST /v1/completions, POST /v1/responses, GET /v1/models"
)


async def no_such_route(request: Request, error: Exception) -> Response:
    """Answer 404 or 405, in the shape that clients of the path that was meant can read."""
    assert isinstance(error, HTTPException)
    status, path = error.status_code, request.url.path
    code = HTTPStatus(status).phrase.lower().replace(" ", "_")
    headers: Mapping[str, str] = error.headers or {}
    meant = meant_by(path)
    words = f"{shown(f'{request.method} {path}')}: {HTTPStatus(status).phrase.lower()}"
    if status == 404:
        words += f"; {_instead(path, meant)}"
    elif status == 405:
        words += f"; allowed: {headers.get('Allow', 'another method')}"
    return problem_of(Refused(status, code, words, headers=headers), meant or path)


def meant_by(path: str) -> str | None:
    """The path of OpenAI's API that this one misses by its beginning or its end; None if none."""
    bare = f"/{path.strip('/')}"
    while bare.startswith(OPENAI_PATHS):  # a base_url with /v1, and a client that adds another
        bare = bare.removeprefix("/v1")
    known = {route.split()[1] for route in OPENAI_ROUTES.split(", ")}
    return next((each for each in known if each == f"/v1{bare}" != path), None)


def _instead(path: str, meant: str | None) -> str:
    if meant is not None:
        return f"OpenAI's API is at {meant}: its clients' base_url ends in /v1"
    is_openai = path.startswith(OPENAI_PATHS)
    return f"there are for example {OPENAI_ROUTES if is_openai else ROUTES_OF_NOTE}"
