"""The description of a route: its fields, its answers and the permission it needs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hotreload.server.http.request_body import Kind

Security = tuple[Mapping[str, tuple[str, ...]], ...]
"""Alternative ways to get access, any of which is enough; `{}` means none is needed."""

SCHEMES: Mapping[str, Mapping[str, str]] = {
    "ApiKey": {
        "type": "http",
        "scheme": "bearer",
        "description": "One of the keys in [server] api_keys_file, for requests over TCP. None is "
        "needed where the setting is empty, nor on the unix socket: there the kernel names the "
        "client (SO_PEERCRED), and the mode and group of the socket say which users may connect.",
    },
    "AdminKey": {
        "type": "http",
        "scheme": "bearer",
        "description": "One of the keys in [server] admin_keys_file, for requests over TCP. It "
        "counts as an API key, too. Where the setting is empty, these requests get 403. On the "
        "unix socket the kernel names the client (SO_PEERCRED).",
    },
    "WebhookSecret": {
        "type": "apiKey",
        "in": "header",
        "name": "X-Webhook-Secret",
        "description": "The secret in the file of [source] webhook.",
    },
}
KEY_OVER_TCP: Security = ({"ApiKey": ()}, {})
ADMIN_KEY_OVER_TCP: Security = ({"AdminKey": ()}, {})
TO_ALL: Security = ()
BY_SECRET: Security = ({"WebhookSecret": ()},)
ADMINISTRATORS = (
    "On the unix socket for root, the daemon's own user and members of [server] admin_group: the "
    "kernel names the client (SO_PEERCRED). Over TCP for requests with an admin key."
)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A header, a query parameter or a part of the path."""

    name: str
    where: str
    kind: Kind
    words: str


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path."""

    words: str
    answer: Any = None
    """The type of the answer in JSON; None if it is not in JSON, or empty."""
    refusals: tuple[int, ...] = ()
    """Statuses beside 200 and those that any request may get."""
    media: Sequence[str] = ()
    """Other media types of the answer."""
    body: Mapping[str, Kind] | None = None
    required: tuple[str, ...] = ()
    one_of: tuple[str, ...] = ()
    """Fields of which a body has exactly one."""
    parameters: tuple[Parameter, ...] = ()
    others: Mapping[int, Any] = field(default_factory=dict)
    """The types of answers in JSON with another status than 200 that are no problem."""
    may_be_empty: bool = False
    success: int = 200
    security: Security = KEY_OVER_TCP
    permission: str = ""
    """The permission that the route needs, in words, where no scheme says it."""


Operations = Mapping[tuple[str, str], Operation]


def for_administrators(
    words: str, answer: Any = None, refusals: tuple[int, ...] = (403, 408, 503), **more: Any
) -> Operation:
    """Return an operation for administrators alone."""
    return Operation(
        words, answer, refusals, security=ADMIN_KEY_OVER_TCP, permission=ADMINISTRATORS, **more
    )
