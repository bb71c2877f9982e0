"""Answers requests for a path or a method that is not there with the nearest that is."""

from collections.abc import Mapping
from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from hotreload.errors import shown
from hotreload.server.problems import OPENAI_PATHS, Refused, problem_of

ROUTES_OF_NOTE = "POST /generate, GET /status, GET /readyz, POST /admin/reload_weights"
OPENAI_ROUTES = "POST /v1/chat/completions, POST /v1/completions, GET /v1/models"


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
