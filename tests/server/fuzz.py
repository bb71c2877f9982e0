"""Schemathesis on a server's unix socket, by the server's own /openapi.json."""

import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from requests.adapters import HTTPAdapter
from schemathesis import Case, GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)
from urllib3 import HTTPConnectionPool
from urllib3.connection import HTTPConnection

from tests.waiting import PATIENCE

CHECKS = [
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
]
ENDLESS = "/events"
PUT_OFF = {503, 504}
"""What a server says that is full, starting, or was given less time than it needs."""


class _Connection(HTTPConnection):
    path: Path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(PATIENCE)
        self.sock.connect(str(self.path))


class OnSocket(HTTPAdapter):  # type: ignore[misc]
    """Lets `requests` talk to a unix socket, whatever the address says."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._pool = HTTPConnectionPool("hotreload")
        self._pool.ConnectionCls = type("Connection", (_Connection,), {"path": path})

    def get_connection_with_tls_context(self, *args: Any, **kwargs: Any) -> HTTPConnectionPool:
        return self._pool


def session_on(path: Path) -> requests.Session:
    """A session whose requests all go to this socket."""
    session = requests.Session()
    session.mount("http://", OnSocket(path))
    return session


def fuzz(
    at: Path | str,
    *,
    examples: int,
    only: str | tuple[str, ...] = "",
    headers: Mapping[str, str] | None = None,
) -> dict[str, set[int]]:
    """Ask every operation, as it is described and not; return the statuses each answered with.

    Of what listens on a socket, or at a TCP address; the headers are sent with each request.
    Blocks. Fails at the first answer that is not described, and at a 5xx that is no putting off.
    """
    with session_on(at) if isinstance(at, Path) else requests.Session() as session:
        base = "http://hotreload" if isinstance(at, Path) else at
        schema = schemathesis.openapi.from_dict(session.get(f"{base}/openapi.json").json())
        session.headers.update(headers or {})
        seen: dict[str, set[int]] = {}
        for result in schema.get_all_operations():
            operation = result.ok()
            if operation.path != ENDLESS and operation.path.startswith(only):
                statuses = seen.setdefault(f"{operation.method.upper()} {operation.path}", set())
                _ask(operation.as_strategy(), session, base, examples, statuses)
                with suppress(Unsatisfiable):  # what takes nothing cannot be given wrong things
                    wrong = operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)
                    _ask(wrong, session, base, examples, statuses)
    return seen


def _ask(
    strategy: Any, session: requests.Session, base: str, examples: int, statuses: set[int]
) -> None:
    @given(case=strategy)
    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    def ask(case: Case[Any]) -> None:
        if isinstance(case.body, dict):
            case.body.pop("model", None)  # a name at random is a 404 and shows nothing else
        answer = case.call(base_url=base, session=session)
        statuses.add(answer.status_code)
        assert answer.status_code < 500 or answer.status_code in PUT_OFF, answer.text
        case.validate_response(answer, checks=CHECKS)

    ask()
