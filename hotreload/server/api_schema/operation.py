"""Descriptions of routes: their shape, and who may come in."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from hotreload.server.api_schema.schema_parts import Schema
from hotreload.server.http.request_body import Kind

JSON_TYPE = "application/json"
EVENT_STREAM_TYPE = "text/event-stream"
TEXT_TYPE = "text/plain"
HTML_TYPE = "text/html"

Media = Mapping[str, Schema]
Security = tuple[Mapping[str, tuple[str, ...]], ...]
"""Ways to be let in, one of which is enough: a scheme by its name, or nothing."""

SCHEMES: Mapping[str, Mapping[str, str]] = {
    "ApiKey": {
        "type": "http",
        "scheme": "bearer",
        "description": "One of the keys in [server] api_keys_file, from who comes over TCP. "
        "Nobody needs one where that is not set, nor who comes by the unix socket: the kernel "
        "says who that is (SO_PEERCRED), and the mode and group of the socket who may come.",
    },
    "AdminKey": {
        "type": "http",
        "scheme": "bearer",
        "description": "One of the keys in [server] admin_keys_file, from who comes over TCP. It "
        "counts as an API key too. Where that is not set, nobody is let in over TCP (403); by the "
        "unix socket the kernel says who comes (SO_PEERCRED).",
    },
    "WebhookSecret": {
        "type": "apiKey",
        "in": "header",
        "name": "X-Webhook-Secret",
        "description": "What [source] webhook says.",
    },
}
KEY_OVER_TCP: Security = ({"ApiKey": ()}, {})
ADMIN_KEY_OVER_TCP: Security = ({"AdminKey": ()}, {})
TO_ALL: Security = ()
BY_SECRET: Security = ({"WebhookSecret": ()},)
ADMINISTRATORS = (
    "By the unix socket for root, the daemon's own user and members of [server] admin_group: the "
    "kernel says who comes (SO_PEERCRED). Over TCP for who sends an admin key."
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
    answer: Media
    refusals: tuple[int, ...] = ()
    """Statuses beside 200 and those that any request may get."""
    body: Mapping[str, Kind] | None = None
    required: tuple[str, ...] = ()
    one_of: tuple[str, ...] = ()
    """Fields of which a body has exactly one."""
    parameters: tuple[Parameter, ...] = ()
    others: Mapping[int, Media] = field(default_factory=dict)
    """Answers that are no problem and have another status than 200."""
    may_be_empty: bool = False
    success: int = 200
    security: Security = KEY_OVER_TCP
    who: str = ""
    """Those who may use it, if no scheme says so."""


Operations = Mapping[tuple[str, str], Operation]


def for_administrators(operation: Operation, *refusals: int) -> Operation:
    """The same for administrators alone, with these refusals if any are named."""
    told = refusals or operation.refusals
    return replace(operation, refusals=told, security=ADMIN_KEY_OVER_TCP, who=ADMINISTRATORS)
