"""The status page: GET /, and the files it is made of. They lie in the folder page/.

Whatever it shows it asks the other routes for. It loads nothing from another host and runs
nothing but its own files; the browser holds it to that.
"""

from collections.abc import Mapping
from pathlib import Path

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.responses import Response

FOLDER = Path(__file__).parent / "page"
FRONT = "index.html"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # after an upgrade the page is the new one
}


def page_routes() -> APIRouter:
    """Build the routes of the page; its files are read once, now."""
    files = {path.name: path.read_bytes() for path in FOLDER.iterdir() if path.suffix in TYPES}
    router = APIRouter()

    @router.get("/")
    async def front() -> Response:
        return _answer(files, FRONT)

    @router.get("/page/{name}")
    async def file(name: str) -> Response:
        return _answer(files, name)

    return router


def _answer(files: Mapping[str, bytes], name: str) -> Response:
    if name not in files:
        raise HTTPException(404)
    return Response(files[name], media_type=TYPES[Path(name).suffix], headers=HEADERS)
