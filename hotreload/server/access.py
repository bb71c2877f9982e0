"""Names each request, and writes the access log: a line for each answer, when it has ended."""

import logging
import re
import uuid

from starlette.datastructures import Headers
from starlette.types import Scope

log = logging.getLogger("hotreload.access")

REQUEST_ID_HEADER = "X-Request-Id"
_USUAL = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
"""Names that go into logs and back as they were sent; a client that sends another is given one."""
LONGEST_PATH = 200


def request_id(scope: Scope) -> str:
    """The name that the client gave its request, or a new one."""
    given = Headers(scope=scope).get(REQUEST_ID_HEADER, "")
    return given if _USUAL.fullmatch(given) else uuid.uuid4().hex


def log_access(scope: Scope, name: str, code: int, seconds: float) -> None:
    """Write the line: who asked for what, and what came of it; nothing of what was said."""
    peer = scope.get("extensions", {}).get("peer")
    who = {"uid": peer.uid, "pid": peer.pid} if peer else {"from": _sender(scope)}
    fields = {"method": scope["method"], "path": scope["path"][:LONGEST_PATH], "code": code}
    more = {**fields, "seconds": round(seconds, 4), "request_id": name}
    log.info("request.answered", extra={**more, **who})


def _sender(scope: Scope) -> str | None:
    client = scope.get("client")
    return f"{client[0]}:{client[1]}" if client else None
