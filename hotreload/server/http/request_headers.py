"""The headers of a request, indexed once: each request to the model has a dozen of them read."""

from typing import cast

from starlette.types import Scope

_KEPT = "hotreload.headers"


class RequestHeaders:
    """The headers of one request, by names in any case; of repeated headers the first."""

    def __init__(self, scope: Scope) -> None:
        self._values: dict[bytes, bytes] = dict(reversed(scope["headers"]))

    def get(self, name: str) -> str | None:
        """Return a header; None if there is none."""
        value = self._values.get(name.lower().encode())
        return None if value is None else value.decode("latin-1")

    def __contains__(self, name: str) -> bool:
        """Return True if there is such a header, also an empty one."""
        return name.lower().encode() in self._values


def headers_of(scope: Scope) -> RequestHeaders:
    """Return the request's headers, indexed at the first call."""
    if _KEPT not in scope:
        scope[_KEPT] = RequestHeaders(scope)
    return cast(RequestHeaders, scope[_KEPT])
